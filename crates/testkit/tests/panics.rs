//! A panic at any point of the engine is the end of writing: callers get errors, nobody waits for ever, nothing more
//! reaches the disk, and what is on it is what was acknowledged.
//!
//! A run counts the points that the engine passes; then each chosen one is run again with a panic there.
//! `BUTTERFS_PANICS=1000` takes a thousand of them in each mode.

use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::env::{Source, Time};
use butterfs_fs::options::{Canary, Policies};
use butterfs_fs::{Caller, Env, Error, Filesystem, InodeId, Options, TreeId};
use butterfs_ondisk::ChecksumKind;
use butterfs_testkit::engine::Format;
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::judge::{judge_memory, text};
use butterfs_testkit::library::Library;
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::operation::{Object, Op, OperationTarget, RelPath};
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::workload::{Generator, Shape, step};
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};

/// The message of the panics that this test plants.
const PLANTED: &str = "planted";

/// Counts points, and panics at one of them.
#[derive(Clone, Default)]
struct Stumbling(Arc<Shared>);

#[derive(Default)]
struct Shared {
    passed: AtomicU64,
    /// The point to panic at, counted from 1; 0 for none.
    stop: AtomicU64,
    seen: Mutex<BTreeMap<&'static str, Vec<u64>>>,
    ticks: AtomicU64,
    background: bool,
}

impl Source for Stumbling {
    fn now(&self) -> Time {
        Time { sec: 1_700_000_000 + self.0.ticks.fetch_add(1, Ordering::Relaxed) as i64, nsec: 0 }
    }

    fn random(&self) -> [u8; 16] {
        (u128::from(self.0.ticks.fetch_add(1, Ordering::Relaxed)) | 1 << 100).to_le_bytes()
    }

    fn threads(&self) -> usize {
        2
    }

    fn background(&self) -> bool {
        self.0.background
    }

    fn passes(&self, point: &'static str) {
        let number = self.0.passed.fetch_add(1, Ordering::Relaxed) + 1;
        if number == self.0.stop.load(Ordering::Relaxed) {
            panic!("{PLANTED}: {point}");
        }
        if self.0.stop.load(Ordering::Relaxed) == 0 {
            self.0.seen.lock().expect("nobody panics in here").entry(point).or_default().push(number);
        }
    }
}

/// Planted panics are not printed.
fn be_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let planted = info.payload().downcast_ref::<String>().is_some_and(|text| text.starts_with(PLANTED));
            if !planted {
                before(info);
            }
        }));
    });
}

const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0o022, privileged: true };
const OPERATIONS: usize = 150;
const SYNC_EVERY: usize = 25;

/// Without a log every fsync is a commit of everything, so that it promises one state.
fn options(log: bool) -> Options {
    Options { commit_interval_secs: 3600, no_tree_log: !log, flush_on_commit: !log, ..Options::default() }
}

/// A filesystem with a subvolume to work in and a snapshot that shares its blocks.
fn base() -> MemoryDevice {
    let format = Format { nodesize: 4096, checksum: ChecksumKind::Crc32c, features: "" };
    let disk = Arc::new(MemoryDevice::new(1 << 30));
    format.make(&(disk.clone() as Arc<dyn BlockDevice>));
    let filesystem = Filesystem::open(vec![disk.clone()], options(false), Env::system()).expect("a new filesystem");
    let top = InodeId::root_of(TreeId::FS);
    let work = filesystem.create_subvolume(&ROOT, top, b"work").expect("room");
    filesystem.snapshot(work, top, b"old", true).expect("room");
    filesystem.shutdown().expect("a good device");
    disk.snapshot()
}

/// The states that may be found afterwards: the last state that was promised, and the one that was on its way.
#[derive(Default)]
struct Promised {
    last: Fingerprint,
    next: Option<Fingerprint>,
}

/// Runs operations on the filesystem and the model; an error or a panic ends it.
fn work(filesystem: &Filesystem, log: bool, promised: &mut Promised) -> Result<(), String> {
    let shape = Shape { inodes_max: 40, write_max: 40_000, file_max: 90_000, orphans: false, ..Shape::SMALL };
    let (mut model, mut library) = (ModelFs::default(), Library::below(filesystem, &RelPath::from("work")));
    let mut generator = Generator::new(4242, shape);
    let top = InodeId::root_of(TreeId::FS);
    let work = filesystem.lookup(top, b"work").map_err(|error| error.to_string())?.id;
    for number in 1..=OPERATIONS {
        let op = generator.next_op(&model);
        let commits = matches!(op, Op::Sync | Op::Fsync { .. });
        if commits {
            promised.next = Some(Fingerprint::of_model(&model));
        }
        step(&op, &mut model, &mut library).map_err(|found| format!("{op:?}: {found:?}: {}", library.said()))?;
        if commits {
            promised.last = promised.next.take().expect("just set");
        }
        let durable = number % SYNC_EVERY == 0;
        if log && !durable && number % 7 == 0 {
            let path = generator.any_path(&model);
            let _ = library.apply(&Op::Fsync { object: Object::Path(path), data_only: false });
        }
        if !durable {
            continue;
        }
        promised.next = Some(Fingerprint::of_model(&model));
        let done = match number / SYNC_EVERY {
            2 => filesystem.snapshot(work.tree, top, b"new", false).map(drop),
            3 => filesystem.delete_subvolume(top, b"old").and_then(|_| filesystem.clean_subvolumes()),
            _ => Ok(()),
        };
        done.and_then(|()| filesystem.sync()).map_err(|error| error.to_string())?;
        promised.last = promised.next.take().expect("just set");
    }
    Ok(())
}

/// A device that counts what changes it.
#[derive(Debug)]
struct Counted {
    inner: Arc<MemoryDevice>,
    changes: AtomicU64,
}

impl Counted {
    fn new(inner: &Arc<MemoryDevice>) -> Arc<Counted> {
        Arc::new(Counted { inner: Arc::clone(inner), changes: AtomicU64::new(0) })
    }
}

impl BlockDevice for Counted {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.inner.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.inner.discard(offset, len)
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}

struct Run {
    disk: Arc<MemoryDevice>,
    source: Stumbling,
    promised: Promised,
    outcome: Option<Result<(), String>>,
}

/// One run with a panic at point `stop`, or none.
fn run(base: &MemoryDevice, log: bool, background: bool, stop: u64) -> Run {
    let (run, filesystem, device) = work_until(base, options(log), background, stop);
    if stop > 0 {
        must_have_stopped(&filesystem, &device);
    } else {
        assert_eq!(filesystem.shutdown().map_err(|error| error.to_string()), Ok(()));
    }
    run
}

/// Works until a panic at point `stop`.
fn work_until(base: &MemoryDevice, options: Options, background: bool, stop: u64) -> (Run, Filesystem, Arc<Counted>) {
    let disk = Arc::new(base.snapshot());
    let source = Stumbling(Arc::new(Shared { background, ..Shared::default() }));
    let device = Counted::new(&disk);
    let log = !options.no_tree_log;
    let filesystem =
        Filesystem::open(vec![device.clone()], options, Env::new(source.clone())).expect("a sound filesystem");
    source.0.passed.store(0, Ordering::Relaxed);
    source.0.seen.lock().expect("nobody panics in here").clear();
    source.0.stop.store(stop, Ordering::Relaxed);
    let mut promised = Promised { last: Fingerprint::of_model(&ModelFs::default()), next: None };
    let outcome = catch_unwind(AssertUnwindSafe(|| work(&filesystem, log, &mut promised))).ok();
    (Run { disk, source, promised, outcome }, filesystem, device)
}

/// Everybody is told, and nothing reaches the disk any more.
fn must_have_stopped(filesystem: &Filesystem, device: &Counted) {
    let before = device.changes.load(Ordering::SeqCst);
    let top = InodeId::root_of(TreeId::FS);
    let refused = |what: &str, result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::Aborted(_))), "{what}: {result:?}");
    };
    refused("sync", filesystem.sync());
    refused("create", filesystem.create(&ROOT, top, b"late", 0o644).map(drop));
    refused("fsync", filesystem.fsync(top, false));
    refused("snapshot", filesystem.snapshot(TreeId::FS, top, b"late", true).map(drop));
    refused("shutdown", filesystem.shutdown());
    assert!(filesystem.take_messages().iter().any(|said| said.contains("nothing is written any more")));
    assert_eq!(device.changes.load(Ordering::SeqCst), before, "something was written after the panic");
}

/// The disk shows the guaranteed content; the checker finds it clean.
fn must_be_as_promised(run: &Run, log: bool) -> Result<(), String> {
    let report = judge_memory(&run.disk);
    if !report.is_clean() {
        return Err(text(&report));
    }
    let filesystem = Filesystem::open(vec![run.disk.clone()], options(log), Env::system());
    let filesystem = filesystem.map_err(|error| error.to_string())?;
    let work = filesystem.lookup(InodeId::root_of(TreeId::FS), b"work").map_err(|error| error.to_string())?;
    let shown = Fingerprint::of_library_below(&filesystem, work.id)?;
    if log {
        // What a log adds is told by the tests of the simulator; here it replays, and everything can be read.
        return Ok(());
    }
    let expected = [Some(&run.promised.last), run.promised.next.as_ref()];
    let found: Vec<Vec<String>> =
        expected.into_iter().flatten().map(|expected| differences(expected, &shown, Compare::MODEL)).collect();
    if found.iter().any(Vec::is_empty) { Ok(()) } else { Err(format!("{found:#?}")) }
}

/// The points to panic at: of each kind the first, the last and some between, and others evenly.
fn points(run: &Run, most: u64) -> Vec<u64> {
    let seen = run.source.0.seen.lock().expect("nobody panics in here");
    let kinds = seen.len() as u64;
    let mut points = Vec::new();
    for numbers in seen.values() {
        let share = (most / kinds).max(3) as usize;
        let step = numbers.len().div_ceil(share).max(1);
        points.extend(numbers.iter().step_by(step).chain(numbers.last()));
    }
    points.sort_unstable();
    points.dedup();
    points
}

fn panic_everywhere(test: &str, log: bool, background: bool) {
    be_quiet();
    let most = std::env::var("BUTTERFS_PANICS").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let watchdog = Watchdog::new(test, 60 + 2 * most);
    let base = base();
    let calm = run(&base, log, background, 0);
    assert_eq!(calm.outcome, Some(Ok(())));
    let kinds: Vec<&str> = calm.source.0.seen.lock().expect("nobody panics in here").keys().copied().collect();
    let expected = if log { 16 } else { 13 };
    assert!(kinds.len() >= expected, "{kinds:?}");
    let (points, mut died) = (points(&calm, most), 0);
    for stop in &points {
        watchdog.note(&format!("point {stop}"));
        let ended = run(&base, log, background, *stop);
        died += u64::from(ended.outcome.is_none());
        must_be_as_promised(&ended, log).unwrap_or_else(|problem| panic!("point {stop}: {problem}"));
    }
    println!("{} points of {} kinds, {died} panics in the caller", points.len(), kinds.len());
    assert!(background || died == points.len() as u64);
}

#[test]
fn without_a_log() {
    panic_everywhere("without_a_log", false, false);
}

#[test]
fn with_a_log() {
    panic_everywhere("with_a_log", true, false);
}

/// With a panic that aborts nothing, callers go on without a word, and what was half-made is committed.
#[test]
fn a_forgiven_panic_is_found() {
    be_quiet();
    let watchdog = Watchdog::new("a_forgiven_panic_is_found", 120);
    let base = base();
    let policies = Policies { canary: Some(Canary::PanicForgiven), ..Policies::default() };
    let points = points(&run(&base, false, false, 0), 60);
    let (mut silent, mut damaged) = (0, 0);
    for stop in &points {
        watchdog.note(&format!("point {stop}"));
        let options = Options { policies: policies.clone(), ..options(false) };
        let (run, filesystem, device) = work_until(&base, options, false, *stop);
        let told = catch_unwind(AssertUnwindSafe(|| must_have_stopped(&filesystem, &device)));
        silent += u64::from(told.is_err());
        let _ = catch_unwind(AssertUnwindSafe(|| filesystem.shutdown()));
        damaged += u64::from(must_be_as_promised(&run, false).is_err());
    }
    println!("{} points: {silent} times nobody was told, {damaged} times the disk was damaged", points.len());
    assert!(silent == points.len() as u64 && damaged > 0);
}

/// With the engine's own threads: whoever panics, everybody else is told.
#[test]
fn with_threads() {
    be_quiet();
    let watchdog = Watchdog::new("with_threads", 120);
    let base = base();
    for round in 0..8 {
        watchdog.note(&format!("round {round}"));
        let disk = Arc::new(base.snapshot());
        let source = Stumbling(Arc::new(Shared { background: true, ..Shared::default() }));
        let options = Options { commit_interval_secs: 1, dirty_data_bytes: 1 << 20, ..options(round % 2 == 0) };
        let device = Counted::new(&disk);
        let filesystem =
            Filesystem::open(vec![device.clone()], options, Env::new(source.clone())).expect("a sound filesystem");
        source.0.stop.store(source.0.passed.load(Ordering::Relaxed) + 300 + 977 * round, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for worker in 0..4u64 {
                let filesystem = filesystem.clone();
                scope.spawn(move || {
                    let _ = catch_unwind(AssertUnwindSafe(|| hammer(&filesystem, worker)));
                });
            }
        });
        must_have_stopped(&filesystem, &device);
        drop(filesystem);
        let report = judge_memory(&disk);
        assert!(report.is_clean(), "round {round}: {}", text(&report));
    }
}

/// Works until something fails.
fn hammer(filesystem: &Filesystem, worker: u64) -> Option<()> {
    let top = InodeId::root_of(TreeId::FS);
    for number in 0..100_000u64 {
        let name = format!("{worker}-{}", number % 50).into_bytes();
        match number / 50 % 2 {
            0 => {
                let made = filesystem.create(&ROOT, top, &name, 0o644).ok()?;
                let written =
                    filesystem.write(made.id, 0, &vec![worker as u8; 9000 + 97 * (number as usize % 60)], true);
                let synced = if number % 9 == 0 { filesystem.fsync(made.id, false) } else { Ok(()) };
                filesystem.forget(made.id, 1);
                written.ok().and(synced.ok())?;
            }
            _ => filesystem.unlink(top, &name).ok()?,
        }
        if number % 70 == worker {
            filesystem.sync().ok()?;
        }
    }
    Some(())
}
