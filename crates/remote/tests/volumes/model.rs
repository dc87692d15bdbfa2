//! Random work on a volume beside the same work on memory, with crashes.

use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_remote::{Limits, LocalFile, ObjectDevice, Options, make};
use butterfs_store::{Kind, Settings, Store};
use butterfs_testkit::object_server::{CREDENTIALS, Fate, Server};
use butterfs_testkit::rng::Rng;
use butterfs_testkit::watchdog::Watchdog;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub const LEN: u64 = 200 << 20;

/// Limits that make everything happen within a small test.
pub fn small() -> Options {
    let limits = Limits { write_back: 2 << 20, cache: 1 << 20, keep: Duration::ZERO, records: 7 };
    Options { limits, takeover: true, gone_after: Duration::from_millis(10), ..Options::default() }
}

/// All bytes of a device.
pub fn content(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.len() as usize];
    bytes.chunks_mut(1 << 20).enumerate().for_each(|(at, part)| device.read_at((at as u64) << 20, part).unwrap());
    bytes
}

/// One change at a place that is likely to be used again.
fn change(rng: &mut Rng, device: &dyn BlockDevice, model: &dyn BlockDevice) {
    let area = rng.below(3) * (66 << 20);
    let (mut offset, mut len) = (area + rng.below(300) * 4096, (1 + rng.below(40)) * 4096);
    match rng.below(10) {
        0 => {
            device.discard(offset, len).unwrap();
            model.write_at(offset, &vec![0; len as usize]).unwrap();
            return;
        }
        1 => (offset, len) = (offset + rng.below(4096), 1 + rng.below(9000)),
        2 => len = (1 << 20) + rng.below(200) * 4096,
        _ => {}
    }
    let mut bytes = vec![0; len as usize];
    rng.fill(&mut bytes);
    [device, model].iter().for_each(|device| device.write_at(offset, &bytes).unwrap());
}

fn check_some(rng: &mut Rng, device: &dyn BlockDevice, model: &dyn BlockDevice) {
    for _ in 0..4 {
        let offset = rng.below(3) * (66 << 20) + rng.below(300 * 4096);
        let len = 1 + rng.below(300_000) as usize;
        let (mut ours, mut theirs) = (vec![0; len], vec![0; len]);
        device.read_at(offset, &mut ours).unwrap();
        model.read_at(offset, &mut theirs).unwrap();
        assert!(ours == theirs, "{len} bytes at {offset} differ");
    }
}

/// Work, flushes and crashes; each mount must begin with what was flushed last.
fn lives(store: &Store, seed: u64, rounds: u64) {
    lives_with(store, &small(), seed, rounds);
}

fn lives_with(store: &Store, options: &Options, seed: u64, rounds: u64) {
    let mut rng = Rng::new(seed);
    make(store, "main", LEN).unwrap();
    let model = MemoryDevice::new(LEN);
    let mut flushed = model.snapshot();
    let mut follower = ObjectDevice::open_read_only(store, options).unwrap();
    for round in 0..rounds {
        let device = ObjectDevice::open(store, options).unwrap();
        model.restore(&flushed);
        assert!(
            content(&device) == model.to_bytes(),
            "seed {seed}, round {round}: the volume is not as it was flushed"
        );
        for _ in 0..rng.below(120) {
            change(&mut rng, &device, &model);
            if rng.below(4) == 0 {
                device.flush().unwrap();
                flushed = model.snapshot();
            }
            if rng.below(6) == 0 {
                check_some(&mut rng, &device, &model);
            }
            if rng.below(8) == 0 {
                follower = follower.newer().unwrap().unwrap_or(follower);
            }
        }
        match rng.below(3) {
            0 => {
                device.close().unwrap();
                flushed = model.snapshot();
                assert!(device.write_at(0, &[1; 4096]).is_err(), "a closed volume takes no writes");
            }
            1 => {
                let reader = ObjectDevice::open_read_only(store, options).unwrap();
                assert!(content(&reader) == flushed.to_bytes(), "a reader sees what was flushed");
                assert!(reader.write_at(0, &[1]).is_err());
            }
            _ => {
                // No table is being made any more.
                drop(device);
                follower = follower.newer().unwrap().unwrap_or(follower);
                assert!(content(&follower) == flushed.to_bytes(), "a reader that follows sees what was flushed");
                assert!(follower.newer().unwrap().is_none(), "there is nothing newer");
            }
        }
    }
}

#[test]
fn what_was_flushed_is_there_after_a_crash() {
    let seeds = std::env::var("BUTTERFS_VOLUME_ROUNDS").map_or(6, |rounds| rounds.parse().unwrap());
    for seed in 0..seeds {
        lives(&Store::in_memory(), seed, 6);
    }
}

#[test]
fn caches_in_a_file_serve_as_those_in_memory() {
    let folder = butterfs_testkit::scratch::Scratch::new("volume-caches");
    let options = Options { file: Some(LocalFile::in_folder(folder.path()).unwrap()), ..small() };
    lives_with(&Store::in_memory(), &options, 11, 4);
    // More than memory has for written blocks, while the server answers nothing.
    let stands_still = Arc::new(AtomicBool::new(false));
    let for_server = Arc::clone(&stands_still);
    let server = Server::start(move |_| {
        while for_server.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Fate::Served
    });
    let store = open(&server);
    make(&store, "main", LEN).unwrap();
    let limits = Limits { write_back: 160 << 20, ..Limits::default() };
    let options = Options { limits, ..options };
    let device = ObjectDevice::open(&store, &options).unwrap();
    let model = MemoryDevice::new(LEN);
    let mut rng = Rng::new(12);
    stands_still.store(true, Ordering::Relaxed);
    for _ in 0..140 {
        let (mut bytes, offset) = (vec![0; 1 << 20], rng.below(LEN >> 12) << 12);
        bytes.truncate((LEN - offset) as usize);
        rng.fill(&mut bytes);
        [&device as &dyn BlockDevice, &model].iter().for_each(|device| device.write_at(offset, &bytes).unwrap());
    }
    check_some(&mut rng, &device, &model);
    stands_still.store(false, Ordering::Relaxed);
    assert!(content(&device) == model.to_bytes());
    device.close().unwrap();
    assert!(content(&ObjectDevice::open_read_only(&store, &options).unwrap()) == model.to_bytes());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file has no name");
}

#[test]
fn what_was_flushed_is_there_in_a_folder() {
    let folder = butterfs_testkit::scratch::Scratch::new("volume-in-a-folder");
    lives(&Store::open(&folder.path().display().to_string(), &Settings::default()).unwrap(), 7, 3);
}

#[test]
fn a_server_that_fails_throttles_loses_and_cuts_is_normal() {
    let server = Server::start(|number| match number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60 {
        0 => Fate::Throttled,
        1 => Fate::Failed,
        2 => Fate::Lost,
        3 => Fate::Cut,
        _ => Fate::Served,
    });
    lives(&open(&server), 8, 3);
}

#[test]
fn a_server_that_compares_tags_without_quotes_will_do() {
    let server = Server::start(|_| Fate::Served);
    server.compare_bare_tags();
    lives(&open(&server), 9, 3);
}

/// The store of a server.
pub fn open(server: &Server) -> Store {
    let settings = Settings {
        endpoint: Some(server.endpoint.clone()),
        quiet_timeout: Duration::from_secs(20),
        ..Settings::from_vars(CREDENTIALS.map(|(key, value)| (key.to_owned(), value.to_owned())))
    };
    Store::open("s3://bucket/volume", &settings).unwrap()
}

/// Flushes beside a thread that writes, so that segments are put all the time; a reader opens after each of them. Only
/// a flush of more than 256 KiB waits for segments.
fn flush_beside_a_writer(records: u64, len: usize) {
    let store = Store::in_memory();
    make(&store, "main", LEN).unwrap();
    let limits = Limits { write_back: 512 << 10, records, keep: Duration::from_secs(3600), ..small().limits };
    let device = ObjectDevice::open(&store, &Options { limits, ..small() }).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for block in (0..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                device.write_at(block % 1000 * 16384, &[3; 16384]).unwrap();
            }
        });
        let looked = (0..60).try_for_each(|_| {
            device.write_at(LEN - (1 << 20), &vec![4; len]).map_err(|error| error.to_string())?;
            device.flush().map_err(|error| error.to_string())?;
            match ObjectDevice::open_read_only(&store, &small()) {
                // The root changes faster than it can be read.
                Err(error) if error.kind() != Kind::Conflict => Err(error.to_string()),
                _ => Ok(()),
            }
        });
        is_over.store(true, Ordering::Relaxed);
        looked.unwrap();
    });
}

#[test]
fn each_record_names_the_segments_that_it_needs() {
    let _watchdog = Watchdog::new("each_record_names_the_segments_that_it_needs", 120);
    flush_beside_a_writer(u64::MAX, 4096);
    flush_beside_a_writer(u64::MAX, 512 << 10);
}

#[test]
fn records_behind_a_table_name_the_segments_that_it_has_not() {
    let _watchdog = Watchdog::new("records_behind_a_table_name_the_segments_that_it_has_not", 120);
    for records in [1, 2, 3, 5] {
        flush_beside_a_writer(records, 4096);
        flush_beside_a_writer(records, 512 << 10);
    }
}

#[test]
fn a_device_is_dropped_while_a_table_begins() {
    let _watchdog = Watchdog::new("a_device_is_dropped_while_a_table_begins", 60);
    let store = Store::in_memory();
    make(&store, "main", LEN).unwrap();
    let limits = Limits { records: 1, ..small().limits };
    for round in 0..150u8 {
        let device = ObjectDevice::open(&store, &Options { limits, ..small() }).unwrap();
        device.write_at(u64::from(round) * 4096, &[round; 4096]).unwrap();
        // That asks for a table, whose blocks are in no segment yet.
        device.flush().unwrap();
        drop(device);
    }
}

#[test]
fn discards_make_room_for_a_writer_that_waits() {
    let _watchdog = Watchdog::new("discards_make_room_for_a_writer_that_waits", 60);
    let store = Store::in_memory();
    make(&store, "main", LEN).unwrap();
    let limits = Limits { write_back: 16 << 10, ..small().limits };
    let device = ObjectDevice::open(&store, &Options { limits, ..small() }).unwrap();
    device.write_at(0, &[1; 16 << 10]).unwrap();
    // All that was written goes into no segment now.
    device.discard(0, 16 << 10).unwrap();
    device.write_at(0, &[2; 4096]).unwrap();
    device.flush().unwrap();
    let mut block = [0; 4096];
    device.read_at(0, &mut block).unwrap();
    assert_eq!(block, [2; 4096]);
}

#[test]
fn room_is_given_back() {
    let store = Store::in_memory();
    make(&store, "main", LEN).unwrap();
    let device = ObjectDevice::open(&store, &small()).unwrap();
    let mut rng = Rng::new(3);
    let mut bytes = vec![0; 1 << 20];
    // 16 MiB in use, written ten times over, in an order that leaves a part of each segment in use.
    for _ in 0..160 {
        rng.fill(&mut bytes);
        device.write_at(rng.below(16) << 20, &bytes).unwrap();
        device.flush().unwrap();
    }
    device.close().unwrap();
    let used: u64 = store.list("").unwrap().iter().map(|entry| entry.len).sum();
    assert!(used < 60 << 20, "{used} bytes for 16 MiB");
    let device = ObjectDevice::open(&store, &small()).unwrap();
    device.discard(0, LEN).unwrap();
    device.close().unwrap();
    ObjectDevice::open(&store, &small()).unwrap().close().unwrap();
    let used: u64 = store.list("").unwrap().iter().map(|entry| entry.len).sum();
    assert!(used < 100_000, "{used} bytes for nothing");
}

#[test]
fn a_small_flush_is_one_put() {
    let store = Store::in_memory();
    make(&store, "main", LEN).unwrap();
    let device = ObjectDevice::open(&store, &Options::default()).unwrap();
    let before = device.requests().0;
    for block in 0..100 {
        device.write_at(block * 4096, &[1; 4096]).unwrap();
        device.order().unwrap();
        device.write_at(65536, &[2; 4096]).unwrap();
        device.flush().unwrap();
        device.flush().unwrap();
    }
    assert_eq!(device.requests().0 - before, 100);
}

#[test]
fn threads_write_read_and_flush_at_once() {
    let store = Store::in_memory();
    make(&store, "main", LEN).unwrap();
    let device = ObjectDevice::open(&store, &small()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let device = &device;
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                let own = MemoryDevice::new(40 << 20);
                for _ in 0..150 {
                    let (offset, len) = (rng.below(9000) * 4096, (1 + rng.below(60)) as usize * 4096);
                    let mut bytes = vec![0; len];
                    rng.fill(&mut bytes);
                    own.write_at(offset, &bytes).unwrap();
                    device.write_at(thread * (50 << 20) + offset, &bytes).unwrap();
                    if rng.below(5) == 0 {
                        device.flush().unwrap();
                    }
                    own.read_at(offset, &mut bytes).unwrap();
                    let mut again = vec![0; len];
                    device.read_at(thread * (50 << 20) + offset, &mut again).unwrap();
                    assert!(bytes == again);
                }
                let mut all = vec![0; 40 << 20];
                device.read_at(thread * (50 << 20), &mut all).unwrap();
                assert!(all == own.to_bytes());
            });
        }
    });
    let before = content(&device);
    device.close().unwrap();
    assert!(content(&ObjectDevice::open(&store, &small()).unwrap()) == before);
}
