//! The savings of three optimisations of logging: each off and on, by the engine alone on a file.

use super::Sizes;
use crate::counting::Counting;
use crate::table::{Table, seconds};
use butterfs_device::BlockDevice;
use butterfs_fs::mkfs::{MkfsOptions, mkfs};
use butterfs_fs::options::Policies;
use butterfs_fs::{Caller, Env, Filesystem, InodeId, Options, TreeId};
use butterfs_testkit::scratch;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022, privileged: true };
const DEVICE_BYTES: u64 = 16 << 30;
const ROOT: InodeId = InodeId::root_of(TreeId::FS);
/// Attributes of a file: more than fit in one block.
const XATTRS: usize = 16;
const XATTR_BYTES: usize = 3000;

/// A filesystem on a file of its own, whose `fsync` writes a log wherever it can.
struct World {
    _folder: scratch::Scratch,
    device: Arc<Counting>,
    fs: Filesystem,
}

impl World {
    fn new(change: impl Fn(&mut Policies)) -> World {
        let folder = scratch::Scratch::new("bench-policies");
        let device = Arc::new(Counting::open(&folder.sparse_file("backing.img", DEVICE_BYTES)));
        let devices: Vec<Arc<dyn BlockDevice>> = vec![device.clone()];
        mkfs(&devices, &MkfsOptions::default(), &Env::system()).expect("an empty device");
        let mut options = Options { commit_interval_secs: 300, ..Options::default() };
        options.policies = Policies { log_at_any_cost: true, ..Policies::default() };
        change(&mut options.policies);
        let fs = Filesystem::open(devices, options, Env::system()).expect("a new filesystem");
        World { _folder: folder, device, fs }
    }

    fn make(&self, parent: InodeId, name: &str) -> InodeId {
        self.fs.create(&CALLER, parent, name.as_bytes(), 0o644).expect("room").id
    }

    /// How long `work` took, and the bytes written meanwhile.
    fn measured(&self, work: impl FnOnce()) -> (Duration, u64) {
        let before = self.device.totals().0;
        let started = Instant::now();
        work();
        (started.elapsed(), self.device.totals().0 - before)
    }

    fn close(self) {
        self.fs.shutdown().expect("a good device");
    }
}

/// Enters the rows.
pub fn run(sizes: &Sizes, table: &mut Table) {
    directory(sizes, table);
    attributes(sizes, table);
    behind_a_commit(sizes, table);
}

/// A row: how it was before, how it is now, and now divided by before.
fn enter(table: &mut Table, what: &str, (before, now): (f64, f64), show: impl Fn(f64) -> String, bar: &'static str) {
    let shown = format!("{} (before: {}; {:.2}x)", show(now), show(before), now / before);
    table.value(what, shown, None, None, bar);
}

fn bytes(count: f64) -> String {
    format!("{:.0} KB", count / 1e3)
}

fn directory(sizes: &Sizes, table: &mut Table) {
    // Of more second names a log costs more than a commit, and none is written.
    let second_names = sizes.policy_names.min(10_000);
    for (names, count, linked) in
        [("names of new files", sizes.policy_names, false), ("second names of files", second_names, true)]
    {
        let run = |log_dir_items| fsync_of_names(count, linked, log_dir_items);
        let (before, now) = (run(true), run(false));
        // The document halves the entries. The inodes that they lead to are logged with them, before and now.
        let what = format!("engine: directory entries logged for {count} {names}, by index alone");
        enter(table, &what, (before.entries as f64, now.entries as f64), bytes, "<= 0.60x");
        let what = format!("engine: bytes written for {count} {names}, with their inodes, by index alone");
        enter(table, &what, (before.written as f64, now.written as f64), bytes, "<= 0.60x");
        let what = format!("engine: fsync of a directory with {count} {names}, by index alone");
        enter(table, &what, (before.time.as_secs_f64(), now.time.as_secs_f64()), seconds, "");
    }
}

/// The cost of an fsync.
struct Cost {
    time: Duration,
    /// Bytes written.
    written: u64,
    /// Bytes of directory entries in the log.
    entries: u64,
}

/// An fsync of a directory that got `count` names, of new files or of files that are on disk under another name.
fn fsync_of_names(count: u64, linked: bool, log_dir_items: bool) -> Cost {
    let world = World::new(|policies| policies.log_dir_items = log_dir_items);
    let folder = |name: &[u8]| world.fs.mkdir(&CALLER, ROOT, name, 0o755).expect("room").id;
    let (first, second) = (folder(b"first"), folder(b"testdir"));
    let name = |number: u64| format!("file_{number}");
    if linked {
        let files: Vec<InodeId> = (0..count).map(|number| world.make(first, &name(number))).collect();
        world.fs.sync().expect("a good device");
        for (file, number) in files.into_iter().zip(0..) {
            world.fs.link(file, second, name(number).as_bytes()).expect("room");
        }
    } else {
        world.fs.sync().expect("a good device");
        (0..count).for_each(|number| {
            world.make(second, &name(number));
        });
    }
    let (time, written) = world.measured(|| world.fs.fsync(second, false).expect("a good device"));
    let entries = world.fs.log_stats().entry_bytes;
    world.close();
    Cost { time, written, entries }
}

fn attributes(sizes: &Sizes, table: &mut Table) {
    let writes = sizes.policy_writes;
    let run = |log_all_xattrs: bool| {
        let world = World::new(|policies| policies.log_all_xattrs = log_all_xattrs);
        let file = world.make(ROOT, "file");
        for number in 0..XATTRS {
            let name = format!("user.xa{number}");
            world.fs.set_xattr(&CALLER, file, name.as_bytes(), &[b'X'; XATTR_BYTES], 0).expect("room");
        }
        world.fs.sync().expect("a good device");
        let measured = world.measured(|| {
            for number in 0..writes {
                world.fs.write(file, number * 4096, &[number as u8; 4096], false).expect("room");
                world.fs.fsync(file, false).expect("a good device");
            }
        });
        world.close();
        measured
    };
    let (before, now) = (run(true), run(false));
    let what = "engine: bytes written for an append of 4 KiB and fsync, unchanged attributes left out";
    let each = |total: u64| total as f64 / writes as f64;
    enter(table, what, (each(before.1), each(now.1)), bytes, "");
    let what = "engine: an append of 4 KiB and fsync, unchanged attributes left out";
    let each = |total: Duration| total.as_secs_f64() / writes as f64;
    enter(table, what, (each(before.0), each(now.0)), seconds, "");
}

/// The longest fsync while another thread makes files and commits them without a pause.
fn behind_a_commit(sizes: &Sizes, table: &mut Table) {
    let run = |log_behind_commit: bool| {
        let world = World::new(|policies| policies.log_behind_commit = log_behind_commit);
        let file = world.make(ROOT, "file");
        let folder = world.fs.mkdir(&CALLER, ROOT, b"other", 0o755).expect("room").id;
        world.fs.sync().expect("a good device");
        let over = AtomicBool::new(false);
        let mut times = Vec::new();
        std::thread::scope(|scope| {
            let (world, over) = (&world, &over);
            scope.spawn(move || {
                for round in 0u64.. {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    for number in 0..sizes.policy_names / 20 {
                        world.make(folder, &format!("{round}-{number}"));
                    }
                    world.fs.sync().expect("a good device");
                }
            });
            for number in 0..sizes.policy_writes {
                world.fs.write(file, number * 4096, &[number as u8; 4096], false).expect("room");
                let started = Instant::now();
                world.fs.fsync(file, false).expect("a good device");
                times.push(started.elapsed().as_secs_f64());
            }
            over.store(true, Ordering::Relaxed);
        });
        world.close();
        times.sort_by(f64::total_cmp);
        (times[times.len() / 2], times[times.len() * 99 / 100])
    };
    let (before, now) = (run(true), run(false));
    enter(table, "engine: fsync beside commits, median, not behind them", (before.0, now.0), seconds, "");
    enter(table, "engine: fsync beside commits, 99th percentile, not behind them", (before.1, now.1), seconds, "");
}
