//! Operations that a slow device holds back: writes in place, while their extents lose their owner, commits pass, and
//! others write and take snapshots; and reads, while others go on.

use super::world::{ROOT, World, pattern};
use butterfs_device::{BlockDevice, Event, GateDevice, Kept, MemoryDevice, Recorder};
use butterfs_fs::options::{Canary, Policies};
use butterfs_fs::{Errno, Filesystem, GoingDown, InodeId, Options, SetAttr, TreeId, inode_flags};
use butterfs_ondisk::superblock::OFFSETS;
use butterfs_sync::order;
use butterfs_testkit::watchdog::Watchdog;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const LEN: usize = 1 << 20;

/// How a file's space is written in place.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Space {
    Preallocated,
    Nodatacow,
}

/// How a file goes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Loss {
    Unlink,
    DeletedSubvolume,
}

/// A filesystem on a device whose writes can be held back, and recorded.
struct Slow {
    world: World,
    gate: Arc<GateDevice>,
    recorder: Recorder,
    /// The device as it was when the recording began.
    base: MemoryDevice,
}

impl Slow {
    fn new(canary: Option<Canary>) -> Slow {
        let made = World::new();
        made.fs.shutdown().unwrap();
        let (base, recorder) = (made.device.snapshot(), Recorder::new());
        let gate = Arc::new(GateDevice::new(Arc::new(recorder.record(made.device.clone()))));
        let options = Options { policies: Policies { canary, ..Policies::default() }, ..Options::default() };
        Slow { world: made.over(gate.clone(), options), gate, recorder, base }
    }

    fn fs(&self) -> &Filesystem {
        &self.world.fs
    }

    /// A file in `parent` whose space is durable, and whose next content is [`old_data`] in the buffer.
    fn buffered(&self, parent: InodeId, space: Space) -> InodeId {
        let id = self.fs().create(&ROOT, parent, b"old", 0o644).unwrap().id;
        match space {
            Space::Preallocated => self.fs().fallocate(id, 0, 0, LEN as u64, false).unwrap(),
            Space::Nodatacow => {
                self.fs().set_flags(id, inode_flags::NODATACOW, inode_flags::NODATACOW).unwrap();
                self.world.write(id, 0, &pattern(8, LEN));
            }
        }
        self.fs().sync().unwrap();
        self.world.write(id, 0, &old_data());
        id
    }

    /// Begins to write the file back, and returns when its data waits at the device.
    fn write_back(&self, id: InodeId) -> JoinHandle<butterfs_fs::Result<()>> {
        let start = old_data()[..64].to_vec();
        self.gate.close(move |_, data| data.starts_with(&start));
        let fs = self.fs().clone();
        let thread = std::thread::spawn(move || fs.write_back(id));
        self.gate.wait_for(1);
        thread
    }

    /// Every state that a power cut leaves from event `from` on, with all or nothing of what was not durable.
    fn after_power_cuts(&self, from: usize, check: impl Fn(World)) {
        for prefix in from..=self.recorder.len() {
            for kept in [Kept::Whole, Kept::Nothing] {
                let device = self.base.snapshot();
                self.recorder.crash(prefix, &[&device as &dyn BlockDevice], &mut |_, _| kept.clone()).unwrap();
                check(World::on(Arc::new(device)));
            }
        }
    }
}

fn old_data() -> Vec<u8> {
    pattern(1, LEN)
}

fn new_data() -> Vec<u8> {
    pattern(2, LEN)
}

/// Frees an extent while it is written in place, and writes another file; whether that one is intact.
fn other_file_is_intact(space: Space, loss: Loss, canary: Option<Canary>) -> bool {
    let slow = Slow::new(canary);
    let (fs, root) = (slow.fs(), slow.fs().root());
    let parent = match loss {
        Loss::Unlink => root,
        Loss::DeletedSubvolume => InodeId::root_of(fs.create_subvolume(&ROOT, root, b"subvolume").unwrap()),
    };
    let id = slow.buffered(parent, space);
    let thread = slow.write_back(id);
    match loss {
        Loss::Unlink => fs.unlink(root, b"old").unwrap(),
        Loss::DeletedSubvolume => drop(fs.delete_subvolume(root, b"subvolume").unwrap()),
    }
    fs.forget(id, 1);
    while fs.clean_once().unwrap() {}
    fs.commit_recorded().unwrap();
    let new = slow.world.file("new");
    slow.world.write(new, 0, &new_data());
    fs.fsync(new, false).unwrap();
    let synced = slow.recorder.len();
    slow.gate.open();
    thread.join().unwrap().unwrap();
    let mut out = Vec::new();
    let intact = fs.read(new, 0, LEN, &mut out).is_ok() && out == new_data();
    if canary.is_none() {
        slow.after_power_cuts(synced, |world| assert!(world.content(world.id("new")) == new_data()));
        slow.world.finish("freed-in-place");
    }
    intact
}

#[test]
fn an_extent_that_is_freed_while_it_is_written_is_not_used_again() {
    let _watchdog = Watchdog::new("freed in place", 300);
    for space in [Space::Preallocated, Space::Nodatacow] {
        for loss in [Loss::Unlink, Loss::DeletedSubvolume] {
            assert!(other_file_is_intact(space, loss, None), "{space:?} {loss:?}");
        }
        assert!(
            !other_file_is_intact(space, Loss::Unlink, Some(Canary::InPlaceUnprotected)),
            "the test sees {space:?}"
        );
    }
}

#[test]
fn a_commit_does_not_wait_for_data_that_is_written_in_place() {
    let _watchdog = Watchdog::new("commits beside writes in place", 300);
    for space in [Space::Preallocated, Space::Nodatacow] {
        let slow = Slow::new(None);
        let id = slow.buffered(slow.fs().root(), space);
        let thread = slow.write_back(id);
        slow.world.file("other");
        slow.fs().commit_recorded().unwrap();
        assert!(!thread.is_finished());
        slow.gate.open();
        thread.join().unwrap().unwrap();
        slow.fs().sync().unwrap();
        let cut = World::on(Arc::new(slow.world.device.snapshot()));
        assert!(cut.content(cut.id("old")) == old_data());
        cut.id("other");
        cut.finish("commit-beside-in-place");
    }
}

#[test]
fn a_snapshot_waits_for_data_that_is_written_in_place() {
    let _watchdog = Watchdog::new("a snapshot of data that changes", 300);
    for space in [Space::Preallocated, Space::Nodatacow] {
        snapshot_beside(space);
    }
}

fn snapshot_beside(space: Space) {
    let slow = Slow::new(None);
    let (fs, root) = (slow.fs().clone(), slow.fs().root());
    let other = slow.world.file("other");
    fs.fallocate(other, 0, 0, LEN as u64, false).unwrap();
    let id = slow.buffered(root, space);
    let thread = slow.write_back(id);
    let taking = std::thread::spawn({
        let fs = fs.clone();
        // What is buffered before is written back first: it waits there, unless somebody else has it in hand.
        move || fs.snapshot_recorded(TreeId::FS, fs.root(), b"snapshot", true)
    });
    while !fs.is_in_place_stopped(TreeId::FS) && !taking.is_finished() {
        std::thread::yield_now();
    }
    let early = taking.is_finished();
    // Others do not wait for the snapshot: their data is copied.
    slow.world.write(other, 0, &new_data());
    fs.write_back(other).unwrap();
    slow.gate.open();
    let snapshot = taking.join().unwrap().unwrap();
    let shown = slow.world.content(InodeId::new(snapshot, id.ino));
    thread.join().unwrap().unwrap();
    assert!(!early, "the snapshot waits for the data ({space:?})");
    assert!(shown == old_data(), "all of it was written before");
    slow.world.write(id, 0, &new_data());
    fs.sync().unwrap();
    assert!(slow.world.content(InodeId::new(snapshot, id.ino)) == shown, "and it does not change any more");
    assert!(slow.world.content(other) == new_data());
    slow.world.finish("snapshot-beside-in-place");
}

#[test]
fn a_deletion_that_waits_for_its_blocks_stops_nobody() {
    const TEST: &str = "a_deletion_that_waits_for_its_blocks_stops_nobody";
    let _watchdog = Watchdog::new(TEST, 120);
    let made = World::new();
    let root = made.fs.root();
    let subvolume = InodeId::root_of(made.fs.create_subvolume(&ROOT, root, b"subvolume").unwrap());
    for number in 0..400 {
        let id = made.fs.create(&ROOT, subvolume, format!("file-{number}").as_bytes(), 0o644).unwrap().id;
        made.write(id, 0, &pattern(number, 1500));
        made.fs.forget(id, 1);
    }
    made.fs.delete_subvolume(root, b"subvolume").unwrap();
    made.fs.shutdown().unwrap();
    // Nothing of the deleted tree is in memory.
    let gate = Arc::new(GateDevice::new(made.device.clone()));
    let world = made.over(gate.clone(), Options::default());
    let fs = &world.fs;
    let make = |name: &[u8]| {
        let id = fs.create(&ROOT, root, name, 0o644).unwrap().id;
        world.write(id, 0, b"content");
        fs.sync().unwrap();
    };
    // What making a file takes is in memory.
    make(b"before");
    // Each commit looks at the superblock.
    gate.close_for_reads(|offset| offset > 1 << 20);
    std::thread::scope(|scope| {
        let cleaner = scope.spawn(|| fs.clean_subvolumes().unwrap());
        gate.wait_for(1);
        make(b"meanwhile");
        assert_eq!(gate.waiting(), 1, "the cleaner still waits");
        gate.open();
        cleaner.join().unwrap();
    });
    assert_eq!(fs.deleted_subvolumes().unwrap(), []);
    assert_eq!(world.content(world.id("meanwhile")), b"content");
    world.finish(TEST);
}

/// A log waits for the commit before it, of which a slow device holds back a block, when all writing stops. Whether its
/// `fsync` ends with an error, instead of waiting for ever.
fn is_woken_when_writing_stops(canary: Option<Canary>) -> bool {
    let slow = Slow::new(canary);
    let file = slow.world.file("file");
    let held = AtomicBool::new(false);
    slow.gate.close(move |_, _| !held.swap(true, Ordering::Relaxed));
    let (fs, other) = (slow.fs().clone(), slow.fs().clone());
    let commit = std::thread::spawn(move || fs.commit_recorded());
    slow.gate.wait_for(1);
    // It fits its item: data would need a chunk, and that a commit.
    slow.world.write(file, 0, b"new");
    let before = slow.recorder.len();
    let fsync = std::thread::spawn(move || other.fsync(file, false));
    // The log's blocks are durable then.
    let flushes = |event: &Event| matches!(event, Event::Flush { .. });
    while !slow.recorder.events(before..slow.recorder.len()).iter().any(flushes) {
        std::thread::sleep(Duration::from_millis(1));
    }
    slow.fs().go_down(GoingDown::AtOnce).unwrap();
    let patience = Instant::now() + Duration::from_millis(if canary.is_some() { 300 } else { 60_000 });
    while !fsync.is_finished() && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(1));
    }
    let is_woken = fsync.is_finished();
    slow.gate.open();
    commit.join().unwrap().unwrap_err();
    if is_woken {
        assert_eq!(fsync.join().unwrap().unwrap_err().errno(), Errno::EROFS);
    }
    is_woken
}

#[test]
fn waiters_for_a_superblock_are_woken_when_writing_stops() {
    let _watchdog = Watchdog::new("a superblock that never comes", 120);
    assert!(is_woken_when_writing_stops(None));
    let sees_the_bug = !is_woken_when_writing_stops(Some(Canary::SuperblockAwaitedForEver));
    assert!(sees_the_bug, "the test sees who is not woken");
}

/// Makes a file longer.
type Growth = fn(&Filesystem, InodeId, InodeId) -> butterfs_fs::Result<()>;

/// The end of a file lies in a sector that still has what was cut off. Others write behind it, while something that
/// makes it longer waits for the device: neither that nor a crash beside it may show what was cut off.
#[test]
fn a_write_beside_growth_shows_nothing_that_was_cut_off() {
    let _watchdog = Watchdog::new("a write beside growth", 60);
    let ways: [Growth; 4] = [
        |fs, from, into| fs.clone_range((from, 0), (into, 16_384), 8192),
        |fs, _, into| fs.setattr(&ROOT, into, &SetAttr { size: Some(50_000), ..SetAttr::default() }).map(drop),
        |fs, _, into| fs.fallocate(into, 0, 0, 50_000, false),
        |fs, _, into| fs.fallocate(into, 16, 10_000, 40_000, false),
    ];
    for (number, grow) in ways.into_iter().enumerate() {
        let slow = Slow::new(None);
        let (from, into) = (slow.world.file("from"), slow.world.file("into"));
        slow.world.write(from, 0, &[9; 8192]);
        slow.world.write(into, 0, &[7; 17_490]);
        slow.fs().sync().unwrap();
        slow.fs().setattr(&ROOT, into, &SetAttr { size: Some(8794), ..SetAttr::default() }).unwrap();
        slow.fs().sync().unwrap();
        slow.world.write(into, 10, b"buffered");
        slow.gate.close(|_, data| data[10..].starts_with(b"buffered"));
        let (fs, other) = (slow.fs().clone(), slow.fs().clone());
        let growing = std::thread::spawn(move || grow(&fs, from, into));
        slow.gate.wait_for(1);
        let writer = std::thread::spawn(move || other.write(into, 30_000, &[8; 100], true));
        let patience = Instant::now() + Duration::from_millis(300);
        while !writer.is_finished() && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(1));
        }
        slow.gate.open();
        growing.join().unwrap().unwrap();
        slow.fs().commit_recorded().unwrap();
        let cut = slow.world.after_power_cut();
        let old = cut.content(cut.id("into")).iter().skip(8794).position(|byte| *byte == 7);
        assert_eq!(old, None, "it was cut off (way {number})");
        writer.join().unwrap().unwrap();
        let content = slow.world.content(into);
        assert_eq!((content[8794], content[30_000]), (0, 8), "way {number}");
        slow.world.finish("a-write-beside-growth");
    }
}

/// The offset of the primary superblock.
const PRIMARY: u64 = OFFSETS[0].0;

/// Data is written while a superblock is on its way, of a commit and of a log.
#[test]
fn a_superblock_that_is_being_written_stops_no_data() {
    let _watchdog = Watchdog::new("data beside a superblock", 120);
    for is_log in [false, true] {
        let slow = Slow::new(None);
        let (file, other) = (slow.world.file("file"), slow.world.file("other"));
        slow.fs().sync().unwrap();
        slow.world.write(file, 0, b"small");
        slow.gate.close(|offset, _| offset == PRIMARY);
        let fs = slow.fs().clone();
        let thread = std::thread::spawn(move || if is_log { fs.fsync(file, false) } else { fs.commit_recorded() });
        slow.gate.wait_for(1);
        slow.world.write(other, 0, &new_data());
        slow.fs().write_back(other).unwrap();
        assert_eq!(slow.gate.waiting(), 1, "the superblock is still on its way");
        slow.gate.open();
        thread.join().unwrap().unwrap();
        slow.fs().sync().unwrap();
        assert!(slow.world.after_power_cut().content(other) == new_data());
        slow.world.finish("data-beside-a-superblock");
    }
}

/// Before anything is written the superblock is compared with the one that is known. A device that is slow to show it
/// holds back who asked, and nobody else.
#[test]
fn a_slow_look_at_the_superblock_stops_nobody() {
    let _watchdog = Watchdog::new("a slow look at a superblock", 120);
    for is_log in [false, true] {
        let slow = Slow::new(None);
        let (file, other) = (slow.world.file("file"), slow.world.file("other"));
        slow.world.write(file, 0, &old_data());
        slow.fs().sync().unwrap();
        slow.world.write(file, 0, &new_data());
        slow.world.write(other, 0, b"small");
        let held = AtomicBool::new(false);
        slow.gate.close_for_reads(move |offset| offset == PRIMARY && !held.swap(true, Ordering::Relaxed));
        let fs = slow.fs().clone();
        let thread = std::thread::spawn(move || fs.write_back(file));
        slow.gate.wait_for(1);
        if is_log { slow.fs().fsync(other, false) } else { slow.fs().commit_recorded() }.unwrap();
        assert_eq!(slow.gate.waiting(), 1, "the superblock was not shown yet");
        slow.gate.open();
        thread.join().unwrap().expect("the superblock that was written meanwhile is ours");
        slow.fs().sync().unwrap();
        assert!(slow.world.after_power_cut().content(file) == new_data());
        slow.world.finish("a-slow-look");
    }
}

/// The same filesystem, closed and opened again on a device whose reads can be held back.
fn behind_gate(made: World) -> (World, Arc<GateDevice>) {
    made.fs.shutdown().unwrap();
    let gate = Arc::new(GateDevice::new(made.device.clone()));
    let world = made.over(gate.clone(), Options::default());
    (world, gate)
}

#[test]
fn a_cold_fsync_stops_nobody() {
    const TEST: &str = "a_cold_fsync_stops_nobody";
    let _watchdog = Watchdog::new(TEST, 120);
    let made = World::new();
    let root = made.fs.root();
    let folder = made.fs.mkdir(&ROOT, root, b"folder", 0o755).unwrap().id;
    for number in 0..2000 {
        let id = made.fs.create(&ROOT, folder, format!("file-{number}").as_bytes(), 0o644).unwrap().id;
        made.fs.forget(id, 1);
    }
    let (world, gate) = behind_gate(made);
    let fs = &world.fs;
    let make = |name: &[u8]| {
        let id = fs.create(&ROOT, root, name, 0o644).unwrap().id;
        world.write(id, 0, b"content");
        fs.fsync(id, false).unwrap();
    };
    const SYNCED: [&str; 2] = ["folder/file-700", "folder/file-1400"];
    for which in SYNCED {
        let synced = world.id(which);
        fs.setattr(&ROOT, synced, &SetAttr { mode: Some(0o700), ..SetAttr::default() }).unwrap();
        fs.forget_clean_blocks();
        // What making a file takes is in memory.
        make(format!("before {}", synced.ino).as_bytes());
        gate.close_for_reads(|offset| offset > 1 << 20);
        std::thread::scope(|scope| {
            let cold = scope.spawn(|| fs.fsync(synced, false).unwrap());
            gate.wait_for(1);
            make(format!("meanwhile {}", synced.ino).as_bytes());
            assert_eq!(gate.waiting(), 1, "the fsync of {which} still waits");
            gate.open();
            cold.join().unwrap();
        });
    }
    assert_eq!(fs.log_stats().commits, Default::default(), "each was logged");
    let cut = world.after_power_cut();
    for path in SYNCED {
        let id = cut.id(path);
        assert_eq!(cut.fs.getattr(id).unwrap().mode & 0o777, 0o700, "{path}");
        assert_eq!(cut.content(cut.id(&format!("meanwhile {}", id.ino))), b"content");
    }
    world.finish(TEST);
}

#[test]
fn a_slow_read_stops_nobody() {
    const TEST: &str = "a_slow_read_stops_nobody";
    let _watchdog = Watchdog::new(TEST, 120);
    let made = World::new();
    let root = made.fs.root();
    let old = made.file("old");
    made.write(old, 0, &old_data());
    let (world, gate) = behind_gate(made);
    let fs = &world.fs;
    let id = world.id("old");
    // Extents and checksums are in memory after the first look, so the second one reads data only.
    let data_at = Arc::new(AtomicU64::new(0));
    for _ in 0..2 {
        let last_read = Arc::clone(&data_at);
        gate.close_for_reads(move |offset| {
            last_read.store(offset, Ordering::Relaxed);
            false
        });
        fs.read(id, 0, 4096, &mut Vec::new()).unwrap();
    }
    let data = data_at.load(Ordering::Relaxed);
    gate.close_for_reads(move |offset| (data..data + LEN as u64).contains(&offset));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut out = Vec::new();
            fs.read(id, 0, LEN, &mut out).unwrap();
            out
        });
        gate.wait_for(1);
        // The file changes, loses its data and its name, and its space is wanted, while the device still reads.
        fs.setattr(&ROOT, id, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
        fs.unlink(root, b"old").unwrap();
        fs.commit_recorded().unwrap();
        let new = world.file("new");
        let full = (0..).find(|at| fs.write(new, at * LEN as u64, &new_data(), true).is_err()).unwrap();
        assert!(full > 100, "{full} MiB were free");
        fs.write_back(new).unwrap();
        fs.commit_recorded().unwrap();
        assert_eq!(gate.waiting(), 1, "the device still reads");
        gate.open();
        let seen = reader.join().unwrap();
        assert!(seen == old_data(), "it read what was there when it began");
    });
    world.finish(TEST);
}

/// Does `work` while somebody changes the mode of `file` after each read of the device.
fn beside_changes_of_mode(made: World, work: impl FnOnce(&World, InodeId)) {
    let (world, gate) = behind_gate(made);
    let id = world.id("file");
    let fs = world.fs.clone();
    gate.close_for_reads(move |_| {
        // Whoever reads holds nothing that this waits for.
        order::as_another_thread(|| {
            fs.setattr(&ROOT, id, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
        });
        false
    });
    work(&world, id);
    gate.open();
}

#[test]
fn a_write_of_a_part_ends_beside_changes_of_the_inode() {
    let _watchdog = Watchdog::new("a write of a part", 60);
    let made = || {
        let made = World::new();
        let id = made.file("file");
        made.write(id, 0, &pattern(1, 100_001));
        made
    };
    beside_changes_of_mode(made(), |world, id| {
        world.write(id, 50_001, b"hello");
        world.write(id, 1 << 20, b"far behind the end");
        let content = world.content(id);
        assert_eq!((&content[50_001..50_006], &content[100_001..100_003]), (&b"hello"[..], &[0, 0][..]));
    });
    beside_changes_of_mode(made(), |world, id| {
        world.fs.setattr(&ROOT, id, &SetAttr { size: Some(200_000), ..SetAttr::default() }).unwrap();
        assert_eq!(world.content(id)[100_001..], [0; 99_999]);
    });
}

#[test]
fn deduplication_goes_on_beside_writes_elsewhere_in_the_file() {
    let _watchdog = Watchdog::new("deduplication beside writes", 60);
    let made = World::new();
    for name in ["file", "other"] {
        let id = made.file(name);
        made.write(id, 0, &old_data());
        made.write(id, 4 << 20, b"elsewhere");
    }
    let (world, gate) = behind_gate(made);
    let (file, other) = (world.id("file"), world.id("other"));
    let fs = world.fs.clone();
    fs.write(file, 4 << 20, &[1; 4096], true).unwrap();
    gate.close_for_reads(move |_| {
        order::as_another_thread(|| fs.write(file, 4 << 20, &[2; 4096], true).unwrap());
        false
    });
    assert!(world.fs.dedupe_range((file, 0), (other, 0), LEN as u64).unwrap());
    gate.open();
}
