//! A scrub that is cancelled and resumed counts as if it had never been; a power cut during repair leaves good copies
//! good.

use crate::rig::{SECTOR, damage, make, noise, open_with, outcome, places, quiet, shared, sum, write};
use butterfs_device::{BlockDevice, Kept, MemoryDevice, Recorder};
use butterfs_fs::env::{Source, Time};
use butterfs_fs::scrub::{End, LaneProgress, Settings};
use butterfs_fs::{Env, Options};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A filesystem with files in several chunks and some damage.
fn damaged(profile: &str) -> (Vec<Arc<MemoryDevice>>, Vec<Vec<u8>>) {
    let disks = make(2, "raid1", profile);
    let filesystem = quiet(&disks);
    let contents: Vec<Vec<u8>> = (0..30).map(|seed| noise(100 + seed, 900_000)).collect();
    for (number, content) in contents.iter().enumerate() {
        write(&filesystem, &format!("file{number}"), content);
    }
    filesystem.shutdown().unwrap();
    drop(filesystem);
    for (number, content) in contents.iter().enumerate().step_by(3) {
        let found = places(&disks, &content[number * SECTOR..]);
        let (disk, at) = found[number % found.len()];
        damage(&disks[disk], at);
    }
    (disks, contents)
}

/// A clock whose every look takes a second, so that a limit lets few windows through.
struct Slow(AtomicU64);

impl Source for Slow {
    fn now(&self) -> Time {
        Time { sec: 1_700_000_000, nsec: 0 }
    }
    fn uptime(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(1, Ordering::Relaxed))
    }
    fn random(&self) -> [u8; 16] {
        Env::system().uuid()
    }
    fn threads(&self) -> usize {
        4
    }
}

#[test]
fn a_scrub_that_is_cancelled_again_and_again_counts_the_same() {
    for profile in ["raid1", "raid0"] {
        let (disks, _) = damaged(profile);
        let look = Settings { read_only: true, ..Settings::default() };
        let filesystem = open_with(&shared(&disks), Options::default(), Env::new(Slow(AtomicU64::new(0))));
        let whole = filesystem.scrub(look.clone(), Vec::new()).unwrap();
        let (expected, lines) = outcome(&whole);
        assert_eq!(expected.csum_errors, 10, "{lines:?}");
        let each: Vec<_> = whole.progress(Duration::ZERO).devices.iter().map(|device| device.counters).collect();
        let (mut earlier, mut runs): (Vec<LaneProgress>, u32) = (Vec::new(), 0);
        loop {
            runs += 1;
            let scrub = filesystem.start_scrub(look.clone(), earlier.clone()).unwrap();
            // At any moment.
            std::thread::sleep(Duration::from_micros(u64::from(runs * 37 % 900)));
            let _ = filesystem.cancel_scrub();
            assert!(scrub.is_over());
            earlier = scrub.progress(Duration::ZERO).devices;
            if earlier.iter().all(|device| device.end == Some(End::Finished)) {
                break;
            }
            assert!(runs < 10_000);
        }
        println!("{profile}: {runs} runs");
        let resumed: Vec<_> = earlier.iter().map(|device| device.counters).collect();
        assert_eq!(resumed, each, "{profile}");
    }
}

#[test]
fn a_finished_scrub_is_not_resumed() {
    let (disks, _) = damaged("raid1");
    let filesystem = quiet(&disks);
    let look = Settings { read_only: true, ..Settings::default() };
    let first = filesystem.scrub(look.clone(), Vec::new()).unwrap().progress(Duration::ZERO);
    let again = filesystem.scrub(look, first.devices.clone()).unwrap().progress(Duration::ZERO);
    assert_eq!(sum(&again), sum(&first));
}

#[test]
fn after_a_power_cut_during_repair_each_file_is_whole_and_the_next_scrub_ends_it() {
    let (disks, contents) = damaged("raid1");
    let recorder = Recorder::new();
    let recorded = disks.iter().map(|disk| recorder.record(Arc::new(disk.snapshot())));
    let devices: Vec<Arc<dyn BlockDevice>> = recorded.map(|one| Arc::new(one) as Arc<dyn BlockDevice>).collect();
    let filesystem = open_with(&devices, Options::default(), Env::system());
    let before = recorder.len();
    let scrub = filesystem.scrub(Settings::default(), Vec::new()).unwrap();
    assert_eq!(outcome(&scrub).0.corrected, 10);
    let after = recorder.len();
    drop(filesystem);
    assert!(after > before + 10, "{before} {after}");
    for cut in before..=after {
        let left: Vec<Arc<MemoryDevice>> = disks.iter().map(|disk| Arc::new(disk.snapshot())).collect();
        let bases: Vec<&dyn BlockDevice> = left.iter().map(|disk| &**disk as &dyn BlockDevice).collect();
        // Every other write that no flush covers is lost.
        recorder.crash(cut, &bases, &mut |index, _| if index % 2 == 0 { Kept::Whole } else { Kept::Nothing }).unwrap();
        let filesystem = quiet(&left);
        for (number, content) in contents.iter().enumerate() {
            let id = filesystem.lookup(filesystem.root(), format!("file{number}").as_bytes()).unwrap().id;
            let mut read = Vec::new();
            filesystem.read(id, 0, content.len(), &mut read).unwrap();
            assert!(read == *content, "file{number} after a cut at {cut}");
        }
        let again = filesystem.scrub(Settings::default(), Vec::new()).unwrap();
        assert_eq!(outcome(&again).0.uncorrectable, 0, "cut {cut}");
    }
}
