//! Devices that fail while they are in use: pulled out under load, or with bad places. As far as the profile allows the
//! work goes on and nothing of it is lost, with the device back or without it; else writing stops, and reading goes on.

use crate::rig::{Layout, Work, in_memory, open, shared};
use butterfs_device::{BlockDevice, Fault, FaultRule, FaultyDevice, MemoryDevice, Operation, is_zero};
use butterfs_fs::Options;
use butterfs_fs::options::Policies;
use butterfs_testkit::library::{Library, ROOT};
use butterfs_testkit::operation::{Op, OperationTarget, RelPath};
use butterfs_testkit::watchdog::Watchdog;
use rustix::io::Errno;
use std::sync::Arc;

/// Commits come from the work alone.
fn options() -> Options {
    Options { commit_interval_secs: 3600, ..Options::default() }
}

fn faulty(disks: &[Arc<MemoryDevice>]) -> Vec<Arc<FaultyDevice>> {
    disks.iter().map(|disk| Arc::new(FaultyDevice::new(disk.clone()))).collect()
}

/// From now on nothing reaches it: writes fail, or are only found lost by the flush, as from a page cache.
fn pull_out(device: &FaultyDevice, silently: bool) {
    let fault = if silently { Fault::Lost } else { Fault::Fail };
    device.add_rule(FaultRule::always(Operation::Write, fault));
    device.add_rule(FaultRule::always(Operation::Flush, Fault::Fail));
    device.add_rule(FaultRule::always(Operation::Read, Fault::Fail));
}

fn goes_on(layout: Layout, victim: usize, silently: bool, seed: u64) {
    let what = format!("{layout:?}, device {} pulled out, silently: {silently}", victim + 1);
    let disks = in_memory(layout);
    let devices = faulty(&disks);
    let mut work = Work::new(seed);
    let filesystem = open(&shared(&devices), options());
    work.go_on(&filesystem, 150);
    filesystem.sync().unwrap();
    pull_out(&devices[victim], silently);
    for _ in 0..3 {
        work.go_on(&filesystem, 60);
        filesystem.sync().unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    work.is_shown(&what, &filesystem);
    filesystem.shutdown().unwrap_or_else(|error| panic!("{what}: {error}"));
    let told = filesystem.take_messages();
    let of_going = told.iter().filter(|message| message.contains("is not used any more")).count();
    assert_eq!(of_going, 1, "{what}: {told:#?}");
    drop(filesystem);

    let others = disks.iter().enumerate().filter(|(index, _)| *index != victim).map(|(_, disk)| disk.clone());
    let others = shared(&others.map(|disk| Arc::new(disk.snapshot())).collect::<Vec<_>>());
    work.is_shown(&format!("{what}, without it"), &open(&others, Options { degraded: true, ..options() }));
    // It comes back as it was when it went.
    let back = open(&shared(&disks), options());
    assert!(back.notes()[0].contains("has missed commits"), "{what}: {:?}", back.notes());
    work.is_shown(&format!("{what}, with it"), &back);
    work.go_on(&back, 60);
    back.shutdown().unwrap();
    drop(back);
    work.is_shown(&format!("{what}, in the end"), &open(&shared(&disks), options()));
}

#[test]
fn work_goes_on_without_a_device_that_vanishes() {
    let _watchdog = Watchdog::new("work_goes_on_without_a_device_that_vanishes", 300);
    let layouts = [("raid1", "raid1", 2), ("raid1c3", "raid1", 3), ("raid10", "raid10", 4)];
    for (layout, seed) in layouts.into_iter().zip(9200..) {
        for (victim, silently) in [(0, false), (1, true)] {
            goes_on(layout, victim, silently, seed);
        }
    }
}

/// A device that vanishes after a log keeps a superblock as new as that of the others, which leads to what was logged
/// until then. An fsync after that is not lost when it is back.
#[test]
fn an_fsync_after_a_device_vanished_is_kept_with_it_back() {
    let _watchdog = Watchdog::new("an_fsync_after_a_device_vanished_is_kept_with_it_back", 100);
    for (victim, silently) in [(0, false), (0, true), (1, false), (1, true)] {
        let disks = in_memory(("raid1", "raid1", 2));
        let devices = faulty(&disks);
        let policies = Policies { log_at_any_cost: true, ..Policies::default() };
        let filesystem = open(&shared(&devices), Options { policies, ..options() });
        let fsynced = |name: &[u8]| {
            let file = filesystem.create(&ROOT, filesystem.root(), name, 0o644).expect("room");
            filesystem.fsync(file.id, false).expect("one device is enough");
        };
        fsynced(b"first");
        assert_eq!(filesystem.log_stats().syncs, 1, "a commit was cheaper");
        pull_out(&devices[victim], silently);
        fsynced(b"second");
        fsynced(b"third");
        drop(filesystem);
        let back = open(&shared(&disks), options());
        for name in [&b"first"[..], b"second", b"third"] {
            let found = back.lookup(back.root(), name);
            found.unwrap_or_else(|error| panic!("device {}, silently: {silently}: {error}", victim + 1));
        }
    }
}

#[test]
fn writing_stops_where_the_profile_does_not_survive() {
    let _watchdog = Watchdog::new("writing_stops_where_the_profile_does_not_survive", 200);
    let disks = in_memory(("raid1", "raid0", 2));
    let devices = faulty(&disks);
    let mut work = Work::new(9300);
    let filesystem = open(&shared(&devices), options());
    work.go_on(&filesystem, 150);
    filesystem.sync().unwrap();
    devices[1].add_rule(FaultRule::always(Operation::Write, Fault::Fail));
    devices[1].add_rule(FaultRule::always(Operation::Flush, Fault::Fail));
    let mut library = Library::new(&filesystem);
    let made = library.apply(&Op::Mkdir { path: RelPath::from("refused"), mode: 0o755 });
    let synced: Vec<_> = (0..2).map(|_| library.apply(&Op::Sync)).collect();
    assert_eq!(synced.last(), Some(&Err(Errno::ROFS)), "{made:?} {synced:?}");
    drop(library);
    drop(filesystem);
    // Nothing of the failed commit counts.
    work.is_shown("after it", &open(&shared(&disks), options()));
}

/// All copies on one device go bad: reading repairs those that it meets, and counts them for good.
#[test]
fn bad_copies_are_repaired_by_reading() {
    let _watchdog = Watchdog::new("bad_copies_are_repaired_by_reading", 200);
    for (layout, seed) in [(("raid1", "raid1", 2), 9400), (("raid10", "raid1c3", 4), 9401)] {
        let disks = in_memory(layout);
        let mut work = Work::new(seed);
        let filesystem = open(&shared(&disks), options());
        work.go_on(&filesystem, 200);
        filesystem.shutdown().unwrap();
        drop(filesystem);
        assert!(spoil(&disks[1]) > 100);
        let filesystem = open(&shared(&disks), options());
        work.is_shown(&format!("{layout:?}, spoilt"), &filesystem);
        work.go_on(&filesystem, 20);
        filesystem.shutdown().unwrap();
        let told = filesystem.take_messages();
        assert!(told.iter().any(|message| message.ends_with("repaired from another copy")), "{told:#?}");
        drop(filesystem);
        // What was read once is good the next time, and the counters are on disk.
        let filesystem = open(&shared(&disks), options());
        let before = filesystem.device_stats();
        let counted: Vec<bool> = before.iter().map(|(.., stats)| stats.corruption_errors > 0).collect();
        assert_eq!(counted.iter().filter(|any| **any).count(), 1, "{before:?}");
        assert!(counted[1], "{before:?}");
        work.is_shown(&format!("{layout:?}, repaired"), &filesystem);
        filesystem.shutdown().unwrap();
        let after = filesystem.device_stats()[1].2.corruption_errors;
        let first = before[1].2.corruption_errors;
        assert!(after < first + first / 4, "{first} were found bad, and then {after}");
    }
}

/// Flips a bit in every block of the chunks of a device that is not zero; says how many.
fn spoil(disk: &MemoryDevice) -> usize {
    let mut spoilt = 0;
    let mut block = vec![0; 4096];
    for at in (1 << 20..disk.len()).step_by(4096).filter(|at| *at != 64 << 20) {
        disk.read_at(at, &mut block).unwrap();
        if !is_zero(&block) {
            block[1000] ^= 4;
            disk.write_at(at, &block).unwrap();
            spoilt += 1;
        }
    }
    spoilt
}
