//! Power cuts while chunks move and devices come and go, with somebody writing beside it: whatever is left opens, is
//! clean, and has everything that was acknowledged.

use super::scene::*;
use butterfs_device::{BlockDevice, Kept, MemoryDevice, Recorder};
use butterfs_fs::filesystem::{NewSize, OldContent, RemovedDevice, ReplaceRequest, SourceReads, Storage};
use butterfs_fs::migration::MigrationTarget;
use butterfs_fs::options::{Canary, Policies};
use butterfs_fs::{DeviceId, Filesystem, InodeId, OperationProgress, Options, inode_flags};
use butterfs_ondisk::profile::Profile;
use butterfs_testkit::judge::{judge, text};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Blocks of the file that is written in place.
const BLOCKS: u64 = 8;
const BLOCK: usize = 4096;

/// The acknowledged writes: events so far, block, version.
type Acknowledged = Vec<(usize, u64, u64)>;

struct Recorded {
    recorder: Recorder,
    bases: Vec<MemoryDevice>,
    acknowledged: Acknowledged,
}

fn block(version: u64) -> Vec<u8> {
    version.to_le_bytes().repeat(BLOCK / 8)
}

/// Overwrites blocks in place and makes each durable, until it is to stop.
fn write_on(fs: &Filesystem, id: InodeId, recorder: &Recorder, stop: &AtomicBool) -> Acknowledged {
    let mut acknowledged = Vec::new();
    let mut version = 1;
    while !stop.load(Ordering::Relaxed) {
        let at = version * 7 % BLOCKS;
        fs.write(id, at * BLOCK as u64, &block(version), false).unwrap();
        if version % 3 == 0 {
            fs.sync().unwrap()
        } else {
            fs.fsync(id, false).unwrap()
        }
        acknowledged.push((recorder.len(), at, version));
        version += 1;
    }
    acknowledged
}

/// Records what `operation` does to the first `given` of `devices` while somebody writes beside it.
fn record(
    devices: &[Arc<MemoryDevice>],
    given: usize,
    canary: Option<Canary>,
    operation: impl FnOnce(&Filesystem, &[Arc<dyn BlockDevice>]),
) -> Recorded {
    let options = Options { policies: Policies { canary, ..Policies::default() }, ..Options::default() };
    {
        let fs = open(dynamic(&devices[..given]), Options::default());
        let root = fs.root();
        let nocow = fs.create(&ROOT, root, b"nocow", 0o600).unwrap().id;
        let flags = inode_flags::NODATACOW | inode_flags::NODATASUM;
        fs.set_flags(nocow, flags, flags).unwrap();
        for at in 0..BLOCKS {
            fs.write(nocow, at * BLOCK as u64, &block(0), false).unwrap();
        }
        let still = fs.create(&ROOT, root, b"still", 0o600).unwrap().id;
        fs.write(still, 0, &noise(5, 3 << 20), false).unwrap();
        fs.snapshot(root.tree, root, b"snap", true).unwrap();
        // So that the blocks are nobody else's.
        fs.delete_subvolume(root, b"snap").unwrap();
        fs.clean_subvolumes().unwrap();
        fs.shutdown().unwrap();
    }
    let recorder = Recorder::new();
    let bases = devices.iter().map(|device| device.snapshot()).collect();
    let wrap = |device: &Arc<MemoryDevice>| Arc::new(recorder.record(device.clone())) as Arc<dyn BlockDevice>;
    let recorded: Vec<Arc<dyn BlockDevice>> = devices.iter().map(wrap).collect();
    let fs = open(recorded[..given].to_vec(), options);
    let stop = AtomicBool::new(false);
    let id = file(&fs, "nocow");
    let acknowledged = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_on(&fs, id, &recorder, &stop));
        // A panic of the operation must not leave the writer for ever.
        let outcome = catch_unwind(AssertUnwindSafe(|| operation(&fs, &recorded)));
        stop.store(true, Ordering::Relaxed);
        let acknowledged = writer.join();
        outcome.unwrap_or_else(|panic| resume_unwind(panic));
        acknowledged.unwrap()
    });
    fs.shutdown().unwrap();
    Recorded { recorder, bases, acknowledged }
}

/// Looks at what a power cut leaves at some moments: after each flush and between; with what is not durable there or
/// not. The error names the first state that is wrong.
fn look(recorded: &Recorded, sets: &[Vec<usize>]) -> Result<usize, String> {
    let mut states = 0;
    let mut points = recorded.recorder.flush_points();
    let between: Vec<usize> = points.iter().map(|point| point - 1).collect();
    points.extend(between);
    points.sort_unstable();
    points.dedup();
    let step = (points.len() / 60).max(1);
    for (number, &point) in points.iter().enumerate().filter(|(number, _)| number % step == 0) {
        for keep in [Kept::Nothing, Kept::Whole] {
            let devices: Vec<Arc<MemoryDevice>> = recorded.bases.iter().map(|base| Arc::new(base.snapshot())).collect();
            let bases: Vec<&dyn BlockDevice> = devices.iter().map(|device| &**device as &dyn BlockDevice).collect();
            // Of a device every second write that is not durable, in the second kind of state.
            let mut kept = |index: usize, _: &_| if index % 2 == number % 2 { keep.clone() } else { Kept::Nothing };
            recorded.recorder.crash(point, &bases, &mut kept).unwrap();
            let what = format!("after {point} events of {}, {keep:?}", recorded.recorder.len());
            look_at(&devices, sets, point, &recorded.acknowledged).map_err(|error| format!("{what}: {error}"))?;
            states += 1;
        }
    }
    Ok(states)
}

fn look_at(
    devices: &[Arc<MemoryDevice>],
    sets: &[Vec<usize>],
    point: usize,
    acknowledged: &Acknowledged,
) -> Result<(), String> {
    let mut reasons = Vec::new();
    for set in sets {
        let given: Vec<Arc<MemoryDevice>> = set.iter().map(|&index| devices[index].clone()).collect();
        match Filesystem::open(dynamic(&given), Options::default(), env()) {
            Ok(fs) => {
                let looked = look_inside(&fs, point, acknowledged);
                fs.shutdown().map_err(|error| error.to_string())?;
                drop(fs);
                let report = judge(dynamic(&given));
                return looked.and(if report.is_clean() { Ok(()) } else { Err(text(&report)) });
            }
            Err(error) => reasons.push(error.to_string()),
        }
    }
    Err(format!("it cannot be opened: {reasons:?}"))
}

fn look_inside(fs: &Filesystem, point: usize, acknowledged: &Acknowledged) -> Result<(), String> {
    if content(fs, "still") != noise(5, 3 << 20) {
        return Err("what nobody touched is another".to_owned());
    }
    let found = content(fs, "nocow");
    for at in 0..BLOCKS {
        let bytes = &found[at as usize * BLOCK..][..BLOCK];
        let version = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let least = acknowledged.iter().filter(|(when, block, _)| *when <= point && *block == at);
        let least = least.map(|(.., version)| *version).max().unwrap_or(0);
        if bytes != block(version) || version < least {
            return Err(format!("block {at} has version {version}, acknowledged was {least}"));
        }
    }
    Ok(())
}

fn move_everything(fs: &Filesystem, target: &MigrationTarget) {
    let starts: Vec<_> = fs.chunks().iter().map(|chunk| chunk.start).collect();
    for start in starts {
        fs.migrate_chunk(start, target, &OperationProgress::default()).unwrap();
    }
}

fn moved(canary: Option<Canary>) -> Recorded {
    let devices = memory(&[160 << 20, 160 << 20]);
    make(&devices, "single", "single");
    record(&devices, 2, canary, |fs, _| {
        for avoid in [DeviceId(1), DeviceId(2), DeviceId(1)] {
            move_everything(fs, &MigrationTarget { profile: None, avoid: vec![avoid], ..MigrationTarget::default() });
        }
    })
}

#[test]
fn a_moving_chunk_survives_power_cuts() {
    let states = look(&moved(None), &[vec![0, 1]]).unwrap();
    assert!(states > 20, "only {states} states were looked at");
}

#[test]
fn a_conversion_survives_power_cuts() {
    let devices = memory(&[160 << 20, 160 << 20]);
    make(&devices, "single", "DUP");
    let recorded = record(&devices, 2, None, |fs, _| {
        for profile in ["RAID1", "single"] {
            move_everything(fs, &MigrationTarget { profile: Profile::named(profile), ..MigrationTarget::default() });
        }
    });
    look(&recorded, &[vec![0, 1]]).unwrap();
}

#[test]
fn canaries_of_moving_chunks_are_found() {
    for canary in [Canary::StripesSwappedEarly, Canary::MoveNotFollowed, Canary::PieceNotCopied] {
        let found = (0..3).any(|_| {
            let recorded = catch_unwind(|| moved(Some(canary)));
            let looked = |recorded: Recorded| {
                // Reading what is wrong may panic, too.
                let looked = catch_unwind(AssertUnwindSafe(|| look(&recorded, &[vec![0, 1]])));
                looked.map_or(true, |found| found.is_err())
            };
            recorded.map_or(true, looked)
        });
        assert!(found, "nobody noticed {canary:?}");
    }
}

#[test]
fn adding_and_removing_survives_power_cuts() {
    let devices = memory(&[160 << 20, 170 << 20]);
    make(&devices[..1], "single", "DUP");
    let recorded = record(&devices, 1, None, |fs, recorded| {
        fs.add_device(Arc::clone(&recorded[1]), false, OldContent::Keep).unwrap();
        fs.remove_device(RemovedDevice::Id(DeviceId(1))).unwrap();
    });
    look(&recorded, &[vec![0, 1], vec![1], vec![0]]).unwrap();
}

#[test]
fn resizing_survives_power_cuts() {
    let devices = memory(&[700 << 20]);
    make(&devices, "single", "DUP");
    let recorded = record(&devices, 1, None, |fs, _| {
        fs.resize_device(DeviceId(1), NewSize::Bytes(300 << 20), Storage::Stays).unwrap();
        fs.resize_device(DeviceId(1), NewSize::Max, Storage::Stays).unwrap();
    });
    look(&recorded, &[vec![0]]).unwrap();
}

#[test]
fn replacing_survives_power_cuts() {
    let devices = memory(&[160 << 20, 170 << 20]);
    make(&devices[..1], "single", "DUP");
    let recorded = record(&devices, 1, None, |fs, recorded| {
        let request =
            ReplaceRequest { source: DeviceId(1), reads: SourceReads::Allowed, force: false, old: OldContent::Keep };
        fs.begin_replace(Arc::clone(&recorded[1]), &request).unwrap().run().unwrap();
    });
    look(&recorded, &[vec![0], vec![0, 1], vec![1]]).unwrap();
}
