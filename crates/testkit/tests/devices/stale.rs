//! Devices that have missed writes: nothing counts on them, in this mount and in later ones, until they have been
//! brought up to date. Nothing runs in the background here, so that they stay as they are until a test says otherwise.

use crate::rig::{Layout, in_memory, quiet, shared};
use butterfs_device::{BlockDevice, Fault, FaultRule, FaultyDevice, MemoryDevice, Operation};
use butterfs_fs::options::{Canary, DataPolicy, Policies};
use butterfs_fs::{Filesystem, InodeId, Options};
use butterfs_testkit::judge::{judge, text};
use butterfs_testkit::library::ROOT;
use butterfs_testkit::watchdog::Watchdog;
use std::sync::Arc;

/// The primary superblock.
const PRIMARY: std::ops::Range<u64> = 65536..69632;
/// More than the mirrors' turns.
const LEN: usize = 3 << 20;

fn options() -> Options {
    Options { commit_interval_secs: 3600, ..Options::default() }
}

fn in_place() -> Options {
    Options { data: DataPolicy { nodatacow: true, ..DataPolicy::default() }, ..options() }
}

fn degraded() -> Options {
    Options { degraded: true, ..in_place() }
}

fn faulty(disks: &[Arc<MemoryDevice>]) -> Vec<Arc<FaultyDevice>> {
    disks.iter().map(|disk| Arc::new(FaultyDevice::new(disk.clone()))).collect()
}

fn find(filesystem: &Filesystem, name: &str) -> InodeId {
    filesystem.lookup(filesystem.root(), name.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}")).id
}

fn create(filesystem: &Filesystem, name: &str) -> InodeId {
    filesystem.create(&ROOT, filesystem.root(), name.as_bytes(), 0o644).expect("room").id
}

fn content(filesystem: &Filesystem, name: &str) -> Result<Vec<u8>, String> {
    let (mut all, mut part) = (Vec::new(), Vec::new());
    let id = find(filesystem, name);
    while filesystem.read(id, all.len() as u64, 256 << 10, &mut part).map_err(|error| error.to_string())? > 0 {
        all.extend_from_slice(&part);
    }
    Ok(all)
}

/// Two devices, the first of which was away while a file without checksums was overwritten in place.
fn first_is_stale(layout: Layout) -> Vec<Arc<MemoryDevice>> {
    let disks = in_memory(layout);
    let filesystem = quiet(&shared(&disks), in_place());
    let id = create(&filesystem, "plain");
    filesystem.write(id, 0, &vec![b'o'; LEN], false).unwrap();
    filesystem.shutdown().unwrap();
    drop(filesystem);
    let filesystem = quiet(&shared(&disks[1..]), degraded());
    filesystem.write(find(&filesystem, "plain"), 0, &vec![b'n'; LEN], false).unwrap();
    filesystem.shutdown().unwrap();
    disks
}

/// Something is written on all devices, and they are closed.
fn one_more_commit(disks: &[Arc<MemoryDevice>], name: &str) {
    let filesystem = quiet(&shared(disks), in_place());
    filesystem.mkdir(&ROOT, filesystem.root(), name.as_bytes(), 0o755).unwrap();
    filesystem.shutdown().unwrap();
}

fn is_new(disks: &[Arc<dyn BlockDevice>], options: Options) {
    let filesystem = quiet(disks, options);
    assert!(content(&filesystem, "plain").unwrap() == vec![b'n'; LEN]);
}

#[test]
fn the_last_whole_device_must_not_fail() {
    let _watchdog = Watchdog::new("the_last_whole_device_must_not_fail", 100);
    for later in [false, true] {
        let disks = first_is_stale(("raid1", "raid1", 2));
        if later {
            one_more_commit(&disks, "between");
        }
        let devices = faulty(&disks);
        let filesystem = quiet(&shared(&devices), options());
        let id = create(&filesystem, "acknowledged");
        filesystem.write(id, 0, &[7; 40_000], false).unwrap();
        devices[1].add_rule(FaultRule::always(Operation::Flush, Fault::Fail).after(0, 1));
        let synced = filesystem.sync();
        drop(filesystem);
        let again = quiet(&shared(&disks), options());
        let found = again.lookup(again.root(), b"acknowledged").is_ok();
        assert!(synced.is_err() || found, "what was synced is gone, later mount: {later}");
        assert!(synced.is_err(), "the only device that has everything failed, later mount: {later}");
    }
}

#[test]
fn stale_bytes_are_not_believed_in_later_mounts() {
    let _watchdog = Watchdog::new("stale_bytes_are_not_believed_in_later_mounts", 100);
    let disks = first_is_stale(("raid1", "raid1", 2));
    for mount in 2..5 {
        one_more_commit(&disks, &format!("mount {mount}"));
        let devices = faulty(&disks);
        let filesystem = quiet(&shared(&devices), in_place());
        // The good copy cannot be read once.
        devices[1].add_rule(FaultRule::always(Operation::Read, Fault::Fail).within(1 << 20..u64::MAX).after(0, 1));
        let old = content(&filesystem, "plain").map_or(0, |all| all.iter().filter(|byte| **byte == b'o').count());
        assert_eq!(old, 0, "old bytes in mount {mount}");
        drop(filesystem);
        is_new(&shared(&disks), options());
        is_new(&shared(&disks[1..]), degraded());
    }
}

/// The bug that this is about, on purpose: these tests can see it.
#[test]
fn believing_a_stale_device_is_seen() {
    let _watchdog = Watchdog::new("believing_a_stale_device_is_seen", 100);
    let disks = first_is_stale(("raid1", "raid1", 2));
    one_more_commit(&disks, "between");
    let policies = Policies { canary: Some(Canary::StaleBelieved), ..Policies::default() };
    let devices = faulty(&disks);
    let filesystem = quiet(&shared(&devices), Options { policies, ..in_place() });
    devices[1].add_rule(FaultRule::always(Operation::Read, Fault::Fail).within(1 << 20..u64::MAX).after(0, 1));
    assert!(content(&filesystem, "plain").unwrap().contains(&b'o'));
    create(&filesystem, "lost");
    devices[1].add_rule(FaultRule::always(Operation::Flush, Fault::Fail).after(0, 1));
    assert!(filesystem.sync().is_ok());
}

/// Both have counted errors, the one that has everything more of them.
#[test]
fn counted_errors_do_not_make_a_stale_device_good() {
    let _watchdog = Watchdog::new("counted_errors_do_not_make_a_stale_device_good", 100);
    let disks = first_is_stale(("raid1", "raid1", 2));
    for mount in 0..2 {
        let devices = faulty(&disks);
        let filesystem = quiet(&shared(&devices), options());
        let name = format!("with checksums {mount}");
        let id = create(&filesystem, &name);
        filesystem.write(id, 0, &vec![1; 1 << 20], false).unwrap();
        filesystem.sync().unwrap();
        devices[1].add_rule(FaultRule::always(Operation::Read, Fault::Flip { bit: 77 }).after(0, 3));
        assert!(content(&filesystem, &name).unwrap() == vec![1; 1 << 20]);
        devices[1].clear();
        let counted = filesystem.device_stats()[1].2.corruption_errors;
        assert!(counted > mount, "{counted}");
        assert!(content(&filesystem, "plain").unwrap() == vec![b'n'; LEN]);
        filesystem.shutdown().unwrap();
        drop(filesystem);
        is_new(&shared(&disks), options());
    }
}

/// Without the device that has everything nothing is written, and what nothing confirms is not shown.
#[test]
fn a_stale_device_alone_knows_what_it_is() {
    let _watchdog = Watchdog::new("a_stale_device_alone_knows_what_it_is", 100);
    let disks = first_is_stale(("raid1", "raid1", 2));
    one_more_commit(&disks, "that it has");
    let alone = shared(&[Arc::new(disks[0].snapshot())]);
    let refused = Filesystem::open(alone.clone(), degraded(), crate::rig::quiet_env()).err();
    assert!(refused.is_some_and(|error| error.to_string().contains("only reading is possible")));
    if let Ok(filesystem) = Filesystem::open(alone, Options { read_only: true, ..degraded() }, crate::rig::quiet_env())
    {
        assert!(content(&filesystem, "plain").is_err());
    }
}

#[test]
fn a_resync_makes_a_device_whole() {
    let watchdog = Watchdog::new("a_resync_makes_a_device_whole", 200);
    for layout in [("raid1", "raid1", 2), ("raid1c3", "raid1", 3), ("raid10", "raid10", 4)] {
        watchdog.note(&format!("{layout:?}"));
        let disks = first_is_stale(layout);
        let filesystem = quiet(&shared(&disks), in_place());
        let id = create(&filesystem, "with checksums");
        filesystem.write(id, 0, &vec![2; 1 << 20], false).unwrap();
        filesystem.sync().unwrap();
        assert!(filesystem.resync().unwrap(), "{:?}", filesystem.take_messages());
        let told = filesystem.take_messages();
        assert!(told.iter().any(|message| message.contains("devid 1 has been brought up to date")), "{told:?}");
        filesystem.shutdown().unwrap();
        drop(filesystem);
        let report = judge(shared(&disks));
        assert!(report.is_clean(), "{layout:?}: {}", text(&report));
        // Now the other ones may go.
        let survivors = [&disks[..1], &disks[2..]].concat();
        let copies: Vec<_> = survivors.iter().map(|disk| Arc::new(disk.snapshot())).collect();
        is_new(&shared(&copies), degraded());
        let filesystem = quiet(&shared(&disks), options());
        assert_eq!(filesystem.notes(), [""; 0], "{layout:?}");
        assert!(
            filesystem.resync().unwrap() && filesystem.take_messages().is_empty(),
            "{layout:?}: nothing is left to do"
        );
    }
}

/// Data that cannot be read from the whole device does not count as equal: the other one stays stale.
#[test]
fn an_unreadable_source_leaves_the_device_stale() {
    let _watchdog = Watchdog::new("an_unreadable_source_leaves_the_device_stale", 100);
    let disks = first_is_stale(("raid1", "raid1", 2));
    let devices = faulty(&disks);
    let filesystem = quiet(&shared(&devices), in_place());
    let extents = filesystem.extents(find(&filesystem, "plain"), 0..LEN as u64).unwrap();
    let chunk = filesystem.chunks().get(extents[0].at).expect("it is mapped").clone();
    let stripe = chunk.stripes.iter().find(|stripe| stripe.device.0 == 2).expect("it is mirrored");
    let at = stripe.physical.0 + (extents[0].at.0 - chunk.start.0);
    devices[1].break_range(at + 8192..at + 12_288);
    assert!(!filesystem.resync().unwrap());
    let told = filesystem.take_messages();
    assert!(told.iter().any(|message| message.contains("4096 bytes without checksums could not be read")), "{told:?}");
    assert!(content(&filesystem, "plain").is_err(), "the old bytes are not shown instead");
    // It is written again, so it is on both.
    filesystem.write(find(&filesystem, "plain"), 0, &vec![b'n'; LEN], false).unwrap();
    filesystem.sync().unwrap();
    assert!(filesystem.resync().unwrap());
    filesystem.shutdown().unwrap();
    drop(filesystem);
    is_new(&shared(&disks[..1]), degraded());
}

/// One write that fails is survived, and remembered.
#[test]
fn a_device_that_misses_one_write_is_stale_in_later_mounts() {
    let _watchdog = Watchdog::new("a_device_that_misses_one_write_is_stale_in_later_mounts", 100);
    for sync in [true, false] {
        let disks = in_memory(("raid1", "raid1", 2));
        let devices = faulty(&disks);
        let filesystem = quiet(&shared(&devices), in_place());
        let id = create(&filesystem, "plain");
        filesystem.write(id, 0, &vec![b'o'; LEN], false).unwrap();
        filesystem.sync().unwrap();
        devices[0].add_rule(FaultRule::always(Operation::Write, Fault::Fail).within(1 << 20..u64::MAX).after(0, 1));
        filesystem.write(id, 0, &vec![b'n'; LEN], false).unwrap();
        filesystem.fsync(id, false).unwrap();
        if sync {
            filesystem.mkdir(&ROOT, filesystem.root(), b"so that there is a commit", 0o755).unwrap();
            filesystem.shutdown().unwrap();
        }
        drop(filesystem);
        is_new(&shared(&disks), options());
        one_more_commit(&disks, "later");
        is_new(&shared(&disks), options());
        let devices = faulty(&disks);
        let filesystem = quiet(&shared(&devices), options());
        devices[1].fail_reads();
        let shown = content(&filesystem, "plain").unwrap_or_default();
        assert!(!shown.contains(&b'o'), "sync: {sync}");
    }
}

/// Data on single devices, metadata on both: the writes of one primary superblock fail, and nothing else.
#[test]
fn an_fsync_is_kept_when_a_superblock_cannot_be_written() {
    let _watchdog = Watchdog::new("an_fsync_is_kept_when_a_superblock_cannot_be_written", 100);
    for victim in [0, 1] {
        for times in [1, u64::MAX] {
            let disks = in_memory(("raid1", "single", 2));
            let devices = faulty(&disks);
            let policies = Policies { log_at_any_cost: true, ..Policies::default() };
            let filesystem = quiet(&shared(&devices), Options { policies, ..options() });
            let fsynced = |name: &str| {
                let id = create(&filesystem, name);
                filesystem.write(id, 0, name.as_bytes(), false).unwrap();
                filesystem.fsync(id, false).unwrap_or_else(|error| panic!("{name}: {error}"));
            };
            fsynced("first");
            assert_eq!(filesystem.log_stats().syncs, 1, "a commit was cheaper");
            let rule = FaultRule::always(Operation::Write, Fault::Fail).within(PRIMARY).after(0, times);
            devices[victim].add_rule(rule);
            ["second", "third", "fourth"].into_iter().for_each(fsynced);
            drop(filesystem);
            let back = quiet(&shared(&disks), options());
            for name in ["first", "second", "third", "fourth"] {
                let what = format!("device {}, {times} times: {name}", victim + 1);
                let found = back.lookup(back.root(), name.as_bytes());
                assert!(found.is_ok(), "{what} is lost");
                assert_eq!(content(&back, name).unwrap(), name.as_bytes(), "{what}");
            }
        }
    }
}

/// When no whole device takes the superblock, nothing is acknowledged.
#[test]
fn a_superblock_on_a_stale_device_alone_is_not_enough() {
    let _watchdog = Watchdog::new("a_superblock_on_a_stale_device_alone_is_not_enough", 100);
    let disks = first_is_stale(("raid1", "raid1", 2));
    one_more_commit(&disks, "that it has");
    let devices = faulty(&disks);
    let filesystem = quiet(&shared(&devices), options());
    devices[1].add_rule(FaultRule::always(Operation::Write, Fault::Fail).within(PRIMARY));
    create(&filesystem, "refused");
    assert!(filesystem.sync().is_err());
    drop(filesystem);
    is_new(&shared(&disks), options());
}
