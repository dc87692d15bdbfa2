//! Lost devices, exhaustively: every profile without every set of devices, in memory. What a profile survives is shown
//! and written on with `degraded`, refused without it, and found again when the lost devices have come back, which have
//! missed all of it by then.

use crate::rig::{Layout, Work, in_memory, open, shared};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::{Env, Errno, Filesystem, Options};
use butterfs_ondisk::profile::Profile;
use butterfs_testkit::judge::{judge, text};
use butterfs_testkit::watchdog::Watchdog;
use std::sync::Arc;

const LAYOUTS: &[Layout] = &[
    ("raid0", "raid0", 2),
    ("raid1", "raid1", 2),
    ("raid1", "raid1", 3),
    ("raid1c3", "raid1c3", 3),
    ("raid1c4", "raid1c4", 4),
    ("raid10", "raid10", 4),
];

fn degraded(read_only: bool) -> Options {
    Options { read_only, degraded: true, ..Options::default() }
}

/// The devices as they are, all of them or without some.
fn copies(disks: &[Arc<MemoryDevice>], lost: usize) -> Vec<Arc<dyn BlockDevice>> {
    let kept = disks.iter().enumerate().filter(|(index, _)| lost >> index & 1 == 0);
    shared(&kept.map(|(_, disk)| Arc::new(disk.snapshot())).collect::<Vec<_>>())
}

fn refused(devices: &[Arc<dyn BlockDevice>], options: Options) -> Errno {
    match Filesystem::open(devices.to_vec(), options, Env::system()) {
        Ok(_) => panic!("it is opened"),
        Err(error) => error.errno(),
    }
}

fn without(disks: &[Arc<MemoryDevice>], work: &Work, lost: usize, layout: Layout) {
    let what = format!("{layout:?} without {lost:b}");
    let survives = lost.count_ones() as usize <= Profile::named(layout.0).unwrap().tolerated_failures;
    let left = copies(disks, lost);
    assert_eq!(refused(&left, Options::default()), Errno::ENOENT, "{what}");
    if !survives {
        assert_ne!(refused(&left, degraded(false)), Errno::ENOENT, "{what}: not for want of the option");
        return;
    }
    work.is_shown(&what, &open(&left, degraded(true)));
    let mut more = work.clone();
    let filesystem = open(&left, degraded(false));
    assert!(filesystem.notes().iter().any(|note| note.contains("were given")), "{:?}", filesystem.notes());
    more.go_on(&filesystem, 120);
    filesystem.shutdown().unwrap();
    drop(filesystem);
    more.is_shown(&format!("{what}, again"), &open(&left, degraded(true)));
    come_back(&what, disks, left, lost, &mut more);
}

/// The lost devices are as they were before; what was written without them is shown, and stays.
fn come_back(what: &str, disks: &[Arc<MemoryDevice>], left: Vec<Arc<dyn BlockDevice>>, lost: usize, work: &mut Work) {
    let returned = copies(disks, !lost);
    let mut all = [left, returned].concat();
    let filesystem = open(&all, Options::default());
    let notes = filesystem.notes().iter().filter(|note| note.contains("has missed commits")).count();
    assert_eq!(notes, lost.count_ones() as usize, "{what}: {:?}", filesystem.notes());
    work.is_shown(&format!("{what}, all back"), &filesystem);
    work.go_on(&filesystem, 60);
    filesystem.shutdown().unwrap();
    let counted = filesystem.device_stats().into_iter().filter(|(.., stats)| stats.generation_errors > 0);
    assert_eq!(counted.count(), lost.count_ones() as usize, "{what}");
    drop(filesystem);
    all.rotate_left(1);
    work.is_shown(&format!("{what}, in the end"), &open(&all, Options::default()));
}

fn filled(layout: Layout, seed: u64) -> (Vec<Arc<MemoryDevice>>, Work) {
    let disks = in_memory(layout);
    let mut work = Work::new(seed);
    let filesystem = open(&shared(&disks), Options::default());
    work.go_on(&filesystem, 300);
    filesystem.shutdown().unwrap();
    drop(filesystem);
    let report = judge(shared(&disks));
    assert!(report.is_clean(), "{layout:?}: {}", text(&report));
    (disks, work)
}

/// More than the profile promises to survive: where one device of each pair is left, everything can be read.
#[test]
fn raid10_is_read_without_one_device_of_each_pair() {
    let _watchdog = Watchdog::new("raid10_is_read_without_one_device_of_each_pair", 100);
    let (disks, work) = filled(("raid10", "raid10", 4), 9300);
    let is_read = |lost: &usize| match Filesystem::open(copies(&disks, *lost), degraded(true), Env::system()) {
        Ok(filesystem) => {
            work.is_shown(&format!("without {lost:b}"), &filesystem);
            true
        }
        Err(_) => false,
    };
    let read: Vec<usize> = (0..16usize).filter(|lost| lost.count_ones() == 2).filter(is_read).collect();
    assert_eq!(read, [0b0101, 0b0110, 0b1001, 0b1010]);
}

#[test]
fn every_profile_without_every_set_of_devices() {
    let watchdog = Watchdog::new("every_profile_without_every_set_of_devices", 400);
    for (&layout, seed) in LAYOUTS.iter().zip(9100..) {
        let (disks, work) = filled(layout, seed);
        for lost in 1..(1 << layout.2) - 1 {
            watchdog.note(&format!("{layout:?} without {lost:b}"));
            without(&disks, &work, lost, layout);
        }
    }
}
