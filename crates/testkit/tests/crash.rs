//! Crashes: after each the image checks clean, the kernel mounts it, and it shows a state that was allowed.
//!
//! Two ways: the serving process is killed at random moments of a workload on the mount, fifty times on one image; and
//! recorded short workloads on the engine are cut at every flush, and between flushes with any part of what was not yet
//! durable. What `promise` allows is said there; until the tree log exists, an fsync promises as much as a sync.

use butterfs_device::{BlockDevice, Event, FileDevice, FileOptions, Kept, MemoryDevice, Recorder};
use butterfs_fs::{Env, Filesystem, Options};
use butterfs_testkit::engine::{FORMATS, Format, open};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::{KernelMount, check_all};
use butterfs_testkit::library::Library;
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::mounted::Mounted;
use butterfs_testkit::operation::{Op, Target, agree};
use butterfs_testkit::promise::{History, Promise, through};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{self, Served};
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::workload::{Generator, Shape};
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const KILLS: u64 = 50;
/// More than any workload runs before it is killed.
const OPERATIONS: usize = 1_000_000;

/// Runs operations in `folder` of a mount until its server is dead. `None` when the server did something wrong.
fn run_until_killed(seed: u64, folder: &Path, kill: impl FnOnce() + Send) -> Result<History, String> {
    let mut model = ModelFs::default();
    let mut history = History::new(&model);
    let mut mounted = Mounted::new(folder);
    let mut generator = Generator::new(seed, Shape { inodes_max: 150, ..Shape::SMALL });
    let delay = Duration::from_millis(10 + Rng::new(seed).below(200));
    std::thread::scope(|scope| {
        let killer = scope.spawn(move || {
            std::thread::sleep(delay);
            kill();
        });
        for _ in 0..OPERATIONS {
            let op = generator.next_op(&model);
            let promise = Promise::of(&op, &model);
            let expected = model.apply(&op);
            history.push(&model);
            let actual = mounted.apply(&op);
            if !agree(&expected, &actual) {
                // That the server was alive until then, its end by the signal shows.
                if !matches!(actual, Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::IO)) {
                    return Err(format!("seed {seed}: {op:?}: expected {expected:?}, actual {actual:?}"));
                }
                killer.join().expect("it only waits and kills");
                return Ok(history);
            }
            if let Some(promise) = promise {
                history.promise(promise);
            }
        }
        Err("the workload ended before the kill".to_owned())
    })
}

fn kill(process: u32) {
    let process = rustix::process::Pid::from_raw(process as i32).expect("a process id");
    rustix::process::kill_process(process, rustix::process::Signal::KILL).expect("our own child");
}

/// Splits what is shown into the folder `name`, relative to it, and the rest.
fn split_off(mut print: Fingerprint, name: &str) -> (Fingerprint, Fingerprint) {
    let prefix = format!("{name}/").into_bytes();
    let mut inside = Fingerprint::default();
    let all = std::mem::take(&mut print.entries);
    for (path, mut entry) in all {
        if path == name.as_bytes() {
            inside.entries.insert(Vec::new(), entry);
        } else if let Some(rest) = path.strip_prefix(&prefix[..]) {
            entry.first_path = entry.first_path.map(|first| first[prefix.len()..].to_vec());
            inside.entries.insert(rest.to_vec(), entry);
        } else {
            print.entries.insert(path, entry);
        }
    }
    (inside, print)
}

#[test]
fn killed_server() {
    const TEST: &str = "killed_server";
    if !requirement::kernel_btrfs(TEST) || !requirement::fuse(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 600);
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("image", 1 << 30);
    serve::mkfs(&image, &[]);
    let at = scratch.folder("mnt");
    let mut before = Fingerprint::default();
    for number in 0..KILLS {
        let served = Served::mount(&image, &at, "noatime,commit=1");
        let name = format!("run-{number}");
        let folder = at.join(&name);
        std::fs::create_dir(&folder).expect("a new name");
        std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("our own mount");
        rustix::fs::fsync(std::fs::File::open(&folder).expect("it was made")).expect("a good device");
        let process = served.id();
        let history =
            run_until_killed(9000 + number, &folder, move || kill(process)).unwrap_or_else(|error| panic!("{error}"));
        served.dead();
        check_all(&image);
        let mount = KernelMount::new(&image, "ro,noatime");
        let (shown, mut rest) = split_off(Fingerprint::of_tree(mount.path()), &name);
        let read = through(Mounted::new(&mount.path().join(&name)));
        let found = history.explain(&shown, &read);
        found.unwrap_or_else(|error| panic!("kill {number}, seed {}: {error}", 9000 + number));
        // What earlier kills left does not change any more; the root folder has one more name.
        rest.entries.remove(&b""[..]);
        let changed = differences(&before, &rest, Compare::ALL);
        assert!(changed.is_empty(), "kill {number}: {changed:#?}");
        (_, before) = (0, Fingerprint::of_tree(mount.path()));
        before.entries.remove(&b""[..]);
        assert_eq!(mount.finish(), [""; 0]);
    }
}

/// A recorded run: the states after each operation, and how many events there were when it began and ended.
struct Recorded {
    base: MemoryDevice,
    recorder: Recorder,
    steps: Vec<Step>,
}

struct Step {
    after: ModelFs,
    promise: Option<Promise>,
    began: usize,
    ended: usize,
}

const RECORDED_OPERATIONS: usize = 150;
const RECORDED_BYTES: u64 = 256 << 20;

fn record(seed: u64, format: &Format) -> Recorded {
    let made = Arc::new(MemoryDevice::new(RECORDED_BYTES));
    format.make(&(made.clone() as Arc<dyn BlockDevice>));
    let base = made.snapshot();
    let recorder = Recorder::new();
    let recording: Arc<dyn BlockDevice> = Arc::new(recorder.record(made));
    let options = Options { commit_interval_secs: 3600, ..Options::default() };
    let filesystem =
        Filesystem::open(vec![recording], options, Env::system()).unwrap_or_else(|error| panic!("{error}"));
    let (mut model, mut library) = (ModelFs::default(), Library::new(&filesystem));
    let mut generator = Generator::new(seed, Shape::SMALL);
    let mut steps = vec![Step { after: model.clone(), promise: Some(Promise::All), began: 0, ended: 0 }];
    for number in 0..RECORDED_OPERATIONS {
        let op = if number + 1 == RECORDED_OPERATIONS { Op::Sync } else { generator.next_op(&model) };
        let (began, promise) = (recorder.len(), Promise::of(&op, &model));
        let (expected, actual) = (model.apply(&op), library.apply(&op));
        assert!(agree(&expected, &actual), "seed {seed}: {op:?}: expected {expected:?}, actual {actual:?}");
        steps.push(Step { after: model.clone(), promise, began, ended: recorder.len() });
    }
    // No shutdown: the end of the record is a power cut too.
    drop((library, filesystem));
    Recorded { base, recorder, steps }
}

/// Copies what is not zero.
fn copy_onto(from: &dyn BlockDevice, to: &dyn BlockDevice) {
    let mut buffer = vec![0; 64 << 10];
    for offset in (0..from.len()).step_by(buffer.len()) {
        let part = buffer.len().min((from.len() - offset) as usize);
        from.read_at(offset, &mut buffer[..part]).expect("a good device");
        if buffer[..part].iter().any(|byte| *byte != 0) {
            to.write_at(offset, &buffer[..part]).expect("a good device");
        }
    }
}

impl Recorded {
    /// What a cut after `prefix` events may show.
    fn allowed(&self, prefix: usize) -> History {
        let mut history = History::new(&self.steps[0].after);
        for step in self.steps.iter().skip(1).take_while(|step| step.began <= prefix) {
            history.push(&step.after);
            if let Some(promise) = step.promise.filter(|_| step.ended <= prefix) {
                history.promise(promise);
            }
        }
        history
    }

    /// The disk that a cut leaves; `keep` decides about what was not durable.
    fn disk(&self, prefix: usize, keep: &mut dyn FnMut(usize, &Event) -> Kept) -> MemoryDevice {
        let disk = self.base.snapshot();
        self.recorder.crash(prefix, &[&disk], keep).expect("memory does not fail");
        disk
    }

    fn judge(&self, what: &str, prefix: usize, disk: &MemoryDevice) {
        let filesystem = Filesystem::open(vec![Arc::new(disk.snapshot())], Options::default(), Env::system());
        let filesystem = filesystem.unwrap_or_else(|error| panic!("{what}: {error}"));
        let shown = Fingerprint::of_library(&filesystem).unwrap_or_else(|error| panic!("{what}: {error}"));
        let read = through(Library::new(&filesystem));
        self.allowed(prefix).explain(&shown, &read).unwrap_or_else(|error| panic!("{what}: {error}"));
    }

    /// Asks the real judges about a disk.
    fn judge_by_kernel(&self, what: &str, prefix: usize, disk: &MemoryDevice, mount_too: bool) {
        let scratch = Scratch::new("cut");
        let image = scratch.sparse_file("image", RECORDED_BYTES);
        copy_onto(disk, &FileDevice::open(&image, &FileOptions::read_write()).expect("our own file"));
        check_all(&image);
        if mount_too {
            let mount = KernelMount::new(&image, "noatime");
            let shown = Fingerprint::of_tree(mount.path());
            let read = through(Mounted::new(mount.path()));
            self.allowed(prefix).explain(&shown, &read).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(mount.finish(), [""; 0], "{what}");
            check_all(&image);
        }
    }
}

/// Cuts a recorded run at every flush, and at `between` random moments with random parts of what was in flight.
fn cut_everywhere(seed: u64, format: &Format, between: usize) {
    let recorded = record(seed, format);
    let flushes = recorded.recorder.flush_points();
    println!("seed {seed}, {format:?}: {} events, {} flushes", recorded.recorder.len(), flushes.len());
    assert!(flushes.len() > 10, "only {} flushes", flushes.len());
    for (number, prefix) in flushes.iter().copied().enumerate() {
        let what = format!("seed {seed}, cut at flush {number} (event {prefix})");
        let disk = recorded.disk(prefix, &mut |_, _| Kept::Whole);
        recorded.judge(&what, prefix, &disk);
        recorded.judge_by_kernel(&what, prefix, &disk, number % 6 == 0);
    }
    let mut rng = Rng::new(seed);
    for number in 0..between {
        let prefix = rng.index(recorded.recorder.len());
        let what = format!("seed {seed}, cut {number} in flight at event {prefix}");
        // btrfs-progs and the kernel need the primary superblock whole; we fall back to a mirror.
        let for_kernel = number % 10 == 0;
        let disk = recorded.disk(prefix, &mut |_, event| match part(&mut rng, event) {
            Kept::Sectors(_) if for_kernel && is_primary_superblock(event) => Kept::Nothing,
            kept => kept,
        });
        recorded.judge(&what, prefix, &disk);
        if for_kernel {
            recorded.judge_by_kernel(&what, prefix, &disk, number % 40 == 0);
        }
    }
}

fn is_primary_superblock(event: &Event) -> bool {
    matches!(event, Event::Write { offset: 65536, .. })
}

fn part(rng: &mut Rng, event: &Event) -> Kept {
    match (rng.below(3), event) {
        (0, _) => Kept::Whole,
        (1, _) => Kept::Nothing,
        (_, Event::Write { data, .. }) => {
            let sectors = (data.len() as u64 / 512).max(1);
            let start = rng.below(sectors);
            Kept::Sectors(start..start + 1 + rng.below(sectors - start))
        }
        _ => Kept::Nothing,
    }
}

macro_rules! recorded_runs {
    ($($name:ident: $seed:literal, $format:literal;)*) => { $(
        #[test]
        fn $name() {
            if !requirement::kernel_btrfs(stringify!($name)) {
                return;
            }
            let _watchdog = Watchdog::new(stringify!($name), 400);
            cut_everywhere($seed, &FORMATS[$format], 300);
        }
    )* };
}

recorded_runs! {
    cut_default: 5001, 0;
    cut_small_nodes: 5002, 1;
    cut_large_nodes_hole_items: 5003, 2;
    cut_mixed_groups: 5004, 3;
}

/// After a cut with an unlinked open file, the next mount frees it.
#[test]
fn unlinked_open_files_are_cleaned_up() {
    const TEST: &str = "unlinked_open_files_are_cleaned_up";
    if !requirement::kernel_btrfs(TEST) || !requirement::fuse(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 120);
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("image", 512 << 20);
    serve::mkfs(&image, &[]);
    let at = scratch.folder("mnt");
    let served = Served::mount(&image, &at, "");
    let path = at.join("file");
    let file = std::fs::File::create(&path).expect("a new name");
    std::io::Write::write_all(&mut &file, &vec![7; 20 << 20]).expect("room");
    std::fs::remove_file(&path).expect("it is there");
    file.sync_all().expect("a good device");
    served.kill();
    drop(file);
    check_all(&image);
    let orphans = || {
        butterfs_testkit::kernel::run_ok(
            60,
            "btrfs",
            &["inspect-internal", "dump-tree", "-t", "5", &image.display().to_string()],
        )
    };
    assert!(orphans().contains("ORPHAN_ITEM"), "an orphan item was committed");
    open(&image, Options::default()).shutdown().unwrap_or_else(|error| panic!("{error}"));
    assert!(!orphans().contains("ORPHAN_ITEM"), "the next mount removes it");
    check_all(&image);
}
