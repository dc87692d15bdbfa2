//! Bugs that the simulator found, each as the shortest sequence that showed it.

use butterfs_device::{BlockDevice, Event, Fault, FaultRule, FaultyDevice, MemoryDevice, Operation, Recorder};
use butterfs_fs::env::Point;
use butterfs_fs::options::{Canary, DataPolicy, Policies};
use butterfs_fs::{Caller, Filesystem, InodeId, Options, RenameMode, SetAttr};
use butterfs_ondisk::superblock::OFFSETS;
use butterfs_sim::meanwhile::{during_commits, environment};
use butterfs_sim::plan::Plan;
use butterfs_sim::state::{clean, has_log};
use butterfs_testkit::watchdog::Watchdog;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0, privileged: true };

fn made() -> Arc<MemoryDevice> {
    Arc::new(Plan::of(1).make(&environment(1)))
}

fn open(disk: &Arc<MemoryDevice>) -> Filesystem {
    let device: Arc<dyn BlockDevice> = disk.clone();
    Filesystem::open(vec![device], Plan::of(1).options(), environment(2)).expect("a good disk")
}

fn logging(disk: &Arc<MemoryDevice>) -> Filesystem {
    let device: Arc<dyn BlockDevice> = disk.clone();
    let policies = Policies { log_at_any_cost: true, ..Policies::default() };
    let options = Options { policies, ..Plan::of(1).options() };
    Filesystem::open(vec![device], options, environment(2)).expect("a good disk")
}

/// The first thing that a mount does is to delete the inode with the highest number; the next one is a new inode, and
/// what was still to be written about the old one must not become the new one's.
#[test]
fn numbers_of_deleted_inodes_are_not_used_again() {
    let disk = made();
    let filesystem = open(&disk);
    let made = filesystem.create(&ROOT, filesystem.root(), b"last", 0o644).expect("room");
    filesystem.shutdown().expect("a good disk");
    let filesystem = open(&disk);
    filesystem.unlink(filesystem.root(), b"last").expect("it is there");
    let next = filesystem.mkdir(&ROOT, filesystem.root(), b"next", 0o755).expect("room");
    assert!(next.id.ino > made.id.ino, "{:?} after {:?}", next.id, made.id);
    filesystem.sync().expect("a good disk");
    clean(&disk, 1).unwrap_or_else(|what| panic!("{what}"));
}

/// Changes in a subvolume just before its deletion were half written: its entries, but not the size of their
/// folder. Nobody sees the content of a deleted subvolume, but checkers look at it until it is dropped.
#[test]
fn a_deleted_subvolume_is_whole_until_it_is_dropped() {
    let disk = made();
    let filesystem = open(&disk);
    let root = filesystem.root();
    let gone = InodeId::root_of(filesystem.create_subvolume(&ROOT, root, b"gone").expect("room"));
    let folder = filesystem.mkdir(&ROOT, gone, b"folder", 0o755).expect("room").id;
    filesystem.sync().expect("a good disk");
    filesystem.create(&ROOT, folder, b"new", 0o644).expect("room");
    filesystem.delete_subvolume(root, b"gone").expect("it is there");
    filesystem.sync().expect("a good disk");
    let dying = filesystem.deleted_subvolumes().expect("a good disk");
    assert_eq!(dying, [gone.tree]);
    clean(&disk, 1).unwrap_or_else(|what| panic!("{what}"));
}

/// A file that was made much larger has a hole punched into what it will be: the commit before its new end is written
/// showed it as large as the hole reached, which it never was.
#[test]
fn a_hole_does_not_make_a_file_longer() {
    let disk = made();
    let filesystem = open(&disk);
    let root = filesystem.root();
    let file = filesystem.create(&ROOT, root, b"file", 0o644).expect("room").id;
    filesystem.write(file, 0, &[7; 11_472], false).expect("room");
    filesystem.sync().expect("a good disk");
    filesystem.write(file, 1 << 30, b"far away", false).expect("room");
    filesystem.fallocate(file, 3, 163_840, 30_917, false).expect("room");
    filesystem.commit_recorded().expect("a good disk");
    let crashed = open(&Arc::new(MemoryDevice::snapshot(&disk)));
    let found = crashed.lookup(crashed.root(), b"file").expect("it is there");
    assert_eq!(found.size, 11_472);
    filesystem.sync().expect("a good disk");
    assert_eq!(filesystem.getattr(file).expect("it is there").size, (1 << 30) + 8);
    clean(&disk, 1).unwrap_or_else(|what| panic!("{what}"));
}

/// A hole up to the end of a file that had grown again since it was cut: the commit before the sectors in front of the
/// hole were written had the new size already, and showed what had been cut off.
#[test]
fn a_hole_at_the_end_shows_nothing_old() {
    for (written, cut, added, hole) in [(2254, 602, 276..1081, 457..11_090), (17_490, 904, 904..13_192, 13_192..17_900)]
    {
        let disk = made();
        let filesystem = open(&disk);
        let id = filesystem.create(&ROOT, filesystem.root(), b"file", 0o644).expect("room").id;
        filesystem.write(id, 0, &vec![7; written], false).expect("room");
        filesystem.sync().expect("a good disk");
        filesystem.setattr(&ROOT, id, &SetAttr { size: Some(cut), ..SetAttr::default() }).expect("room");
        filesystem.sync().expect("a good disk");
        filesystem.write(id, added.start, &vec![8; (added.end - added.start) as usize], false).expect("room");
        filesystem.fallocate(id, 3, hole.start, hole.end - hole.start, false).expect("room");
        filesystem.commit_recorded().expect("a good disk");
        let after = open(&Arc::new(disk.snapshot()));
        let found = after.lookup(after.root(), b"file").expect("it was committed");
        let mut content = Vec::new();
        after.read(found.id, 0, 80_000, &mut content).expect("a good disk");
        let old = content.iter().skip(cut as usize).position(|byte| *byte == 7);
        assert_eq!(old, None, "of {} bytes", content.len());
        drop(filesystem);
        clean(&disk, 1).unwrap_or_else(|what| panic!("{what}"));
    }
}

/// A range was zeroed in the buffer before the device refused what else was buffered: the call failed and had changed
/// the file.
#[test]
fn zeros_that_a_device_refuses_change_nothing() {
    let disk = made();
    let device = Arc::new(FaultyDevice::new(Arc::clone(&disk) as Arc<dyn BlockDevice>));
    let given: Vec<Arc<dyn BlockDevice>> = vec![device.clone()];
    let filesystem = Filesystem::open(given, Plan::of(1).options(), environment(2)).expect("a good disk");
    let file = filesystem.create(&ROOT, filesystem.root(), b"file", 0o644).expect("room").id;
    filesystem.write(file, 0, &[7; 20_000], false).expect("room");
    filesystem.sync().expect("a good disk");
    filesystem.write(file, 5000, &[8; 100], false).expect("room");
    device.add_rule(FaultRule::always(Operation::Write, Fault::Fail));
    filesystem.fallocate(file, 16, 300, 10_000, false).expect_err("data cannot be written");
    let mut content = Vec::new();
    filesystem.read(file, 0, 20_000, &mut content).expect("a good disk");
    let expected: Vec<u8> = (0..20_000).map(|at| if (5000..5100).contains(&at) { 8 } else { 7 }).collect();
    assert!(content == expected, "the call has failed");
}

/// A snapshot that changed in the transaction of several operations that made it: what it had got there was taken for
/// its source's, and named it still when it was gone and another snapshot kept it.
#[test]
fn a_snapshot_that_changes_as_it_is_made_is_dropped() {
    let disk = made();
    let filesystem = open(&disk);
    let root = filesystem.root();
    let source = filesystem.create_subvolume(&ROOT, root, b"source").expect("room");
    let first = filesystem.transaction(|together| {
        let first = together.snapshot(source, root, b"first", false)?;
        for number in 0..500 {
            together.create(&ROOT, InodeId::root_of(first), format!("file {number}").as_bytes(), 0o644)?;
        }
        Ok(first)
    });
    filesystem.snapshot(first.expect("room"), root, b"second", true).expect("room");
    filesystem.delete_subvolume(root, b"first").expect("it is there");
    filesystem.clean_subvolumes().expect("a good disk");
    filesystem.shutdown().expect("a good disk");
    clean(&disk, 1).unwrap_or_else(|what| panic!("{what}"));
}

/// The index of a deleted subvolume's entry was given to a new file, and the log of that file asked for the removal of
/// the subvolume, which no replay does: the filesystem did not open.
#[test]
fn an_index_of_a_deleted_subvolume_is_used_again() {
    let disk = made();
    let filesystem = open(&disk);
    filesystem.create_subvolume(&ROOT, filesystem.root(), b"last").expect("room");
    filesystem.shutdown().expect("a good disk");
    let filesystem = logging(&disk);
    filesystem.delete_subvolume(filesystem.root(), b"last").expect("it is there");
    let file = filesystem.create(&ROOT, filesystem.root(), b"next", 0o644).expect("room");
    filesystem.fsync(file.id, false).expect("a good disk");
    drop(filesystem);
    let filesystem = open(&disk);
    filesystem.lookup(filesystem.root(), b"next").expect("it was fsynced");
    clean(&disk, 1).unwrap_or_else(|what| panic!("{what}"));
}

/// A subvolume was renamed and its root directory fsynced, which had not changed itself: nothing was written.
#[test]
fn a_renamed_subvolume_is_fsynced() {
    let disk = made();
    let filesystem = open(&disk);
    let root = filesystem.root();
    let subvolume = filesystem.create_subvolume(&ROOT, root, b"old").expect("room");
    filesystem.shutdown().expect("a good disk");
    let filesystem = logging(&disk);
    filesystem.rename(root, b"old", root, b"new", RenameMode::Replace).expect("it is there");
    filesystem.fsync(InodeId::root_of(subvolume), false).expect("a good disk");
    drop(filesystem);
    let filesystem = open(&disk);
    filesystem.lookup(root, b"new").expect("it was fsynced");
    filesystem.lookup(root, b"old").expect_err("it was renamed");
}

/// The checker took an inode without a name for lost when it was the last one before its orphan item.
#[test]
fn the_last_inode_may_be_an_orphan() {
    let disk = made();
    let filesystem = open(&disk);
    let file = filesystem.tmpfile(&ROOT, filesystem.root(), 0o600).expect("room");
    filesystem.sync().expect("a good disk");
    clean(&disk, 1).unwrap_or_else(|what| panic!("{what}"));
    filesystem.forget(file.id, 1);
}

/// A file that a truncation leaves as long as what is still buffered makes it: the size on disk must not run ahead of
/// the zeros that belong behind the old end.
#[test]
fn a_truncation_to_the_buffered_size_shows_nothing_old() {
    let disk = made();
    let filesystem = open(&disk);
    let resize = |id, size| {
        let changes = SetAttr { size: Some(size), ..SetAttr::default() };
        filesystem.setattr(&ROOT, id, &changes).expect("room");
    };
    let id = filesystem.create(&ROOT, filesystem.root(), b"file", 0o644).expect("room").id;
    filesystem.write(id, 0, &[7; 9000], false).expect("room");
    filesystem.sync().expect("a good disk");
    resize(id, 2207);
    filesystem.sync().expect("a good disk");
    filesystem.write(id, 67595, &[8; 3846], false).expect("room");
    resize(id, 71441);
    filesystem.commit_recorded().expect("a good disk");
    let after = open(&Arc::new(disk.snapshot()));
    let found = after.lookup(after.root(), b"file").expect("it was committed");
    let mut content = Vec::new();
    after.read(found.id, 0, 80_000, &mut content).expect("a good disk");
    let old = content.iter().skip(2207).position(|byte| *byte == 7);
    assert_eq!(old, None, "of {} bytes", content.len());
}

/// Names that are removed one after another, each before another fsync: the log's ranges of removed entries must not
/// overlap.
#[test]
fn ranges_of_removed_entries_become_one() {
    let disk = made();
    let device: Arc<dyn BlockDevice> = disk.clone();
    let plan = Plan { logs: true, ..Plan::of(1) };
    let filesystem = Filesystem::open(vec![device], plan.options(), environment(2)).expect("a good disk");
    let make = |name: &[u8]| filesystem.create(&ROOT, filesystem.root(), name, 0o644).expect("room").id;
    let [_, _, _, last] = [b"a", b"b", b"c", b"d"].map(|name| make(name));
    filesystem.sync().expect("a good disk");
    for name in [b"c", b"b", b"a"] {
        filesystem.unlink(filesystem.root(), name).expect("it is there");
        filesystem.write(last, 0, name, false).expect("room");
        filesystem.fsync(filesystem.root(), false).expect("a good disk");
        filesystem.fsync(last, false).expect("a good disk");
        assert!(has_log(&Plan::of(1), &disk), "a commit was cheaper");
        clean(&disk, 1).unwrap_or_else(|what| panic!("{what}"));
    }
}

/// Secondary superblocks follow the primary one, so a crash can leave them a commit behind. Were the next mount's first
/// commit to tear the primary then, the commit before would be lost.
#[test]
fn the_first_commit_of_a_mount_begins_with_the_secondary_superblocks() {
    let recorder = Recorder::new();
    let disk = Arc::new(MemoryDevice::new(128 << 20));
    let plan = Plan { bytes: disk.len(), ..Plan::of(1) };
    disk.restore(&plan.make(&environment(1)));
    let device: Arc<dyn BlockDevice> = Arc::new(recorder.record(disk));
    let filesystem = Filesystem::open(vec![device], plan.options(), environment(2)).expect("a good disk");
    filesystem.create(&ROOT, filesystem.root(), b"file", 0o644).expect("room");
    filesystem.sync().expect("a good disk");
    let events = recorder.events(0..recorder.len());
    let written = |at: u64| {
        let is_there = |event: &Event| matches!(event, Event::Write { offset, .. } if *offset == at);
        events.iter().position(is_there).expect("every copy is written")
    };
    let (primary, secondary) = (written(OFFSETS[0].0), written(OFFSETS[1].0));
    let flushed = events[secondary..primary].iter().any(|event| matches!(event, Event::Flush { .. }));
    assert!(secondary < primary && flushed, "the primary is event {primary}, the secondary {secondary}");
}

/// A log whose blocks cannot be written held the order of superblocks for ever.
#[test]
fn a_log_that_cannot_be_written_becomes_a_commit() {
    let _watchdog = Watchdog::new("a_log_that_cannot_be_written_becomes_a_commit", 60);
    for on in [Operation::Write, Operation::Flush] {
        let disk = made();
        let faulty = Arc::new(FaultyDevice::new(disk.clone()));
        let device: Arc<dyn BlockDevice> = faulty.clone();
        let plan = Plan { logs: true, ..Plan::of(1) };
        let filesystem = Filesystem::open(vec![device], plan.options(), environment(2)).expect("a good disk");
        let id = filesystem.create(&ROOT, filesystem.root(), b"file", 0o644).expect("room").id;
        faulty.add_rule(FaultRule::always(on, Fault::Fail).after(0, 1));
        filesystem.fsync(id, false).expect("the commit is written");
        drop(filesystem);
        let filesystem = open(&disk);
        filesystem.lookup(filesystem.root(), b"file").expect("it was fsynced");
        clean(&disk, 1).unwrap_or_else(|what| panic!("{what}"));
    }
}

/// A file lost data that another one shares, and that one wrote in place before the loss was durable: after a power cut
/// the first file had the other's new data.
#[test]
fn blocks_unshared_by_a_commit_are_not_overwritten_before_it_is_durable() {
    let first_byte = |canary: Option<Canary>| {
        let disk = made();
        let device: Arc<dyn BlockDevice> = disk.clone();
        let policies = Policies { canary, ..Policies::default() };
        let data = DataPolicy { nodatacow: true, nodatasum: true, ..DataPolicy::default() };
        let options = Options { data, policies, ..Plan::of(1).options() };
        let filesystem = Filesystem::open(vec![device], options, environment(2)).expect("a good disk");
        let make = |name: &[u8]| filesystem.create(&ROOT, filesystem.root(), name, 0o644).expect("room").id;
        let (loser, owner) = (make(b"loser"), make(b"owner"));
        filesystem.write(loser, 0, &[7; 65536], false).expect("room");
        filesystem.sync().expect("a good disk");
        filesystem.clone_range((loser, 0), (owner, 0), 65536).expect("room");
        filesystem.sync().expect("a good disk");
        let changes = SetAttr { size: Some(0), ..SetAttr::default() };
        filesystem.setattr(&ROOT, loser, &changes).expect("room");
        filesystem.write(owner, 0, &[8; 65536], false).expect("room");
        let left = Rc::new(RefCell::new(None));
        let cut = (Rc::clone(&left), filesystem.clone(), disk.clone());
        let _meanwhile = during_commits(move |point| {
            let (left, filesystem, disk) = &cut;
            if point == Point::WritingNodes {
                filesystem.write_back(owner).expect("room");
                *left.borrow_mut() = Some(disk.snapshot());
            }
        });
        filesystem.commit_recorded().expect("a good disk");
        let left = Arc::new(left.take().expect("the commit wrote nodes"));
        let crashed = open(&left);
        let found = crashed.lookup(crashed.root(), b"loser").expect("it was synced");
        assert_eq!(found.size, 65536, "the truncation was not durable");
        let mut content = Vec::new();
        crashed.read(found.id, 0, 65536, &mut content).expect("a good disk");
        content[0]
    };
    assert_eq!(first_byte(None), 7);
    assert_eq!(first_byte(Some(Canary::UnsharedEarly)), 8, "the test would not notice");
}

/// The flush of one device fails in a commit, and the power goes when one of the other three has the superblock. Three
/// devices then lack it, which is more than RAID1 survives, so those two that only lack the superblock count as whole;
/// the third one did too, and files without checksums were read from where it had nothing (as by Linux 6.18).
#[test]
fn a_device_that_fails_in_a_commit_is_named_before_a_power_cut_can_hide_it() {
    let outcomes = |canary: Option<Canary>| {
        // Data lies on the first two devices, trees on the others.
        let pairs = [(0, 2), (1, 3), (2, 1), (3, 0)];
        let outcome = |(failing, leader)| shown_after_a_failed_flush(failing, leader, canary).err();
        pairs.into_iter().filter_map(outcome).collect::<Vec<_>>()
    };
    assert_eq!(outcomes(None), [""; 0]);
    let found = outcomes(Some(Canary::LossUnnamed));
    let noticed = |what: &str| found.iter().any(|found| found.contains(what));
    assert!(noticed("nobody wrote") && noticed("is bad"), "the test would not notice: {found:?}");
}

/// The commit that was to bring a label got no superblock, because a device failed in it; the next one brings it.
#[test]
fn a_label_outlives_a_commit_without_a_superblock() {
    let plan = Plan { devices: 2, metadata: "raid1", data: "raid1", features: "", ..Plan::of(1) };
    let disk = Arc::new(plan.make(&environment(1)));
    let devices: Vec<_> = plan.parts(&disk).into_iter().map(|device| Arc::new(FaultyDevice::new(device))).collect();
    let given = devices.iter().map(|device| Arc::clone(device) as Arc<dyn BlockDevice>).collect();
    let filesystem = Filesystem::open(given, plan.options(), environment(2)).expect("a good disk");
    filesystem.sync().expect("a good disk");
    devices[0].add_rule(FaultRule::always(Operation::Flush, Fault::Fail));
    filesystem.set_label(b"label").expect("RAID1 survives one device");
    assert_eq!(&filesystem.superblock().label[..6], b"label\0");
}

/// The first look into a subvolume deletes what a crash left in it without a name. After an error in a commit nothing
/// is deleted any more, and the subvolume could not be entered.
#[test]
fn a_subvolume_with_orphans_is_read_after_writing_has_stopped() {
    let disk = made();
    let filesystem = open(&disk);
    let top = InodeId::root_of(filesystem.create_subvolume(&ROOT, filesystem.root(), b"volume").expect("room"));
    let file = filesystem.create(&ROOT, top, b"open", 0o644).expect("room").id;
    filesystem.create(&ROOT, top, b"stays", 0o644).expect("room");
    filesystem.write(file, 0, &[7; 8192], false).expect("room");
    filesystem.unlink(top, b"open").expect("it is there");
    filesystem.sync().expect("a good disk");

    let device = Arc::new(FaultyDevice::new(Arc::new(disk.snapshot())));
    let given: Vec<Arc<dyn BlockDevice>> = vec![device.clone()];
    let crashed = Filesystem::open(given, Plan::of(1).options(), environment(3)).expect("a good disk");
    device.add_rule(FaultRule::always(Operation::Write, Fault::Fail));
    crashed.create(&ROOT, crashed.root(), b"new", 0o644).expect("room");
    crashed.sync().expect_err("the device fails");
    crashed.create(&ROOT, crashed.root(), b"newer", 0o644).expect_err("nothing is written any more");
    let volume = crashed.lookup(crashed.root(), b"volume").expect("reading goes on").id;
    crashed.lookup(volume, b"stays").expect("reading goes on");
    crashed.lookup(volume, b"open").expect_err("it has no name");
}

/// The errors after a power cut that has kept one new superblock, of a commit in which the flush of a device has
/// failed.
fn shown_after_a_failed_flush(failing: usize, leader: usize, canary: Option<Canary>) -> Result<(), String> {
    const LEN: usize = 4 << 20;
    let plan = Plan { devices: 4, bytes: 160 << 20, metadata: "raid1", data: "raid1", features: "", ..Plan::of(1) };
    let base = plan.make(&environment(1));
    let (recorder, disk) = (Recorder::new(), Arc::new(base.snapshot()));
    let record = |device| Arc::new(FaultyDevice::new(Arc::new(recorder.record(device))));
    let devices: Vec<_> = plan.parts(&disk).into_iter().map(record).collect();
    let data = DataPolicy { nodatasum: true, ..DataPolicy::default() };
    let policies = Policies { canary, ..Policies::default() };
    let options = Options { data, policies, dirty_data_bytes: 64 << 20, ..plan.options() };
    let given = devices.iter().map(|device| Arc::clone(device) as Arc<dyn BlockDevice>).collect();
    let filesystem = Filesystem::open(given, options, environment(2)).expect("a good disk");
    let file = filesystem.create(&ROOT, filesystem.root(), b"file", 0o644).expect("room").id;
    filesystem.sync().expect("a good disk");
    let before = recorder.len();
    filesystem.write(file, 0, &[7; LEN], false).expect("room");
    devices[failing].add_rule(FaultRule::always(Operation::Flush, Fault::Fail));
    filesystem.sync().expect("RAID1 survives one device");
    let events = recorder.events(0..recorder.len());
    let leads = |event: &Event| matches!(event, Event::Write { offset, .. } if *offset == OFFSETS[0].0);
    let first = before + events[before..].iter().position(leads).expect("it was committed");
    let end = first + events[first..].iter().position(|event| !leads(event)).expect("they are flushed");
    for (number, event) in events[..end].iter().enumerate() {
        let is_lost = event.device() == failing && number >= before || event.device() != leader && number >= first;
        if let Event::Write { device, offset, data } = event
            && !is_lost
        {
            base.write_at(*device as u64 * plan.bytes + offset, data).expect("it is in memory");
        }
    }
    let left = Arc::new(base);
    let crashed = Filesystem::open(plan.parts(&left), plan.options(), environment(3));
    let crashed = crashed.map_err(|error| format!("{failing}, {leader}: {error}"))?;
    let found = crashed.lookup(crashed.root(), b"file").expect("it was synced");
    let mut content = Vec::new();
    crashed.read(found.id, 0, LEN, &mut content).map_err(|error| format!("{failing}, {leader}: {error}"))?;
    if !content.iter().all(|byte| *byte == 7) {
        return Err(format!("{failing}, {leader}: nobody wrote what the file holds"));
    }
    assert!(crashed.resync().expect("a good disk"), "every device is there");
    crashed.shutdown().expect("a good disk");
    clean(&left, plan.devices).map_err(|what| format!("{failing}, {leader}: {what}"))
}

/// Devices that were written without each other are refused, whichever has more commits. Being one commit behind passes
/// for having been away only where the other side does not say that it left the device earlier.
#[test]
fn sides_of_few_commits_are_told_apart() {
    let opened = |canary: Option<Canary>| {
        let pairs = (1..4).flat_map(|one| (1..6).map(move |other| [one, other]));
        pairs.filter(|commits| opens_after(*commits, canary)).collect::<Vec<_>>()
    };
    assert_eq!(opened(None), [[0; 2]; 0]);
    assert!(!opened(Some(Canary::HistoriesNotCompared)).is_empty(), "the test would not notice");
}

/// Whether two devices open together that have had so many commits without each other.
fn opens_after(commits: [usize; 2], canary: Option<Canary>) -> bool {
    let plan = Plan { devices: 2, bytes: 160 << 20, metadata: "raid1", data: "raid1", features: "", ..Plan::of(1) };
    let options = Options { degraded: true, ..plan.options() };
    let disk = Arc::new(plan.make(&environment(1)));
    let all = Filesystem::open(plan.parts(&disk), options.clone(), environment(2)).expect("a good disk");
    let file = all.create(&ROOT, all.root(), b"file", 0o644).expect("room").id;
    all.sync().expect("a good disk");
    drop(all);
    for (device, commits) in commits.into_iter().enumerate() {
        let alone = vec![Arc::clone(&plan.parts(&disk)[device])];
        let alone = Filesystem::open(alone, options.clone(), environment(3 + device as u64)).expect("one is enough");
        for _ in 0..commits {
            alone.write(file, 0, &[device as u8 + 1; 100], false).expect("room");
            alone.sync().expect("a good disk");
        }
    }
    let policies = Policies { canary, ..Policies::default() };
    Filesystem::open(plan.parts(&disk), Options { policies, ..options }, environment(5)).is_ok()
}
