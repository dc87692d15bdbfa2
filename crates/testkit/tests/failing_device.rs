//! A device that fails under us: reads go on, writes return `EROFS`, and the disk is the last commit, with the log of
//! what was fsynced since. Where a log cannot be written, a commit says whether that matters.

use butterfs_device::{BlockDevice, Fault, FaultRule, FaultyDevice, MemoryDevice, Operation};
use butterfs_fs::options::Policies;
use butterfs_fs::{Env, Filesystem, Options};
use butterfs_testkit::engine::FORMATS;
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::library::Library;
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::operation::{Content, Object, Op, OperationTarget, RelPath, agree};
use butterfs_testkit::promise::logged::Numbers;
use butterfs_testkit::promise::{History, Promise, through};
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::workload::{Generator, Shape};
use rustix::io::Errno;
use std::sync::Arc;

fn open(device: Arc<dyn BlockDevice>, no_log_replay: bool) -> Filesystem {
    let policies = Policies { log_at_any_cost: true, ..Policies::default() };
    let (read_only, commit_interval_secs) = (no_log_replay, 3600);
    let options = Options { read_only, no_log_replay, commit_interval_secs, policies, ..Options::default() };
    Filesystem::open(vec![device], options, Env::system()).unwrap_or_else(|error| panic!("{error}"))
}

/// The result of a run.
#[derive(Default)]
struct Ended {
    /// An operation met the failure.
    failed: bool,
    /// A log could not be written, and there was a commit instead.
    fell_back: bool,
}

/// Runs a workload on a device that fails at the `skip`-th operation of a kind, so many times.
fn fails_at(on: Operation, skip: u64, times: u64, seed: u64) -> Ended {
    let disk = Arc::new(MemoryDevice::new(256 << 20));
    FORMATS[0].make(&(disk.clone() as Arc<dyn BlockDevice>));
    let faulty = Arc::new(FaultyDevice::new(disk.clone()));
    let filesystem = open(faulty.clone(), false);
    faulty.add_rule(FaultRule::always(on, Fault::Fail).after(skip, times));
    let (mut model, mut library) = (ModelFs::default(), Library::new(&filesystem));
    let (mut history, mut numbers) = (History::new(&model), Numbers::default());
    let mut generator = Generator::new(seed, Shape::SMALL);
    let what = format!("{on:?} {skip} fails, seed {seed}");
    let mut failed = false;
    for _ in 0..400 {
        let op = generator.next_op(&model);
        let promise = match Promise::of(&op, &model) {
            Some(Promise::File(id)) => Some(Promise::Logged(id)),
            promise => promise,
        };
        let expected = model.apply(&op);
        history.push(&model);
        let actual = library.apply(&op);
        if agree(&expected, &actual) {
            if let Some(promise) = promise {
                history.promise(promise);
            }
            numbers.learn(&model, &mut |path| library.find(path).ok().map(|id| id.ino.0));
            continue;
        }
        // Only what touches the device may fail, with an I/O error or with "stopped".
        assert!(
            matches!(actual, Err(Errno::IO | Errno::ROFS)),
            "{what}: {op:?}: expected {expected:?}, actual {actual:?}"
        );
        failed = true;
        break;
    }
    if failed && times == u64::MAX {
        reads_go_on(&what, &filesystem, &mut library);
    }
    let fell_back = filesystem.log_stats().commits.contains_key("the log could not be written");
    drop((library, filesystem));
    // The disk has what was written before the failure and nothing after it: it is a power cut.
    let base = Fingerprint::of_library(&open(Arc::new(disk.snapshot()), true));
    let base = base.unwrap_or_else(|error| panic!("{what}: {error}"));
    let after = open(Arc::new(disk.snapshot()), false);
    let shown = Fingerprint::of_library(&after).unwrap_or_else(|error| panic!("{what}: {error}"));
    let read = through(Library::new(&after));
    let explained = history.explain_logged(&base, &shown, &numbers, &read);
    explained.unwrap_or_else(|error| panic!("{what}: {error}"));
    Ended { failed, fell_back }
}

fn reads_go_on(what: &str, filesystem: &Filesystem, library: &mut Library) {
    let first = Fingerprint::of_library(filesystem).unwrap_or_else(|error| panic!("{what}: reading: {error}"));
    // A failed write of data is told once, at the next sync; the sync after that meets the device again and stops.
    let stopped = (0..3).any(|_| library.apply(&Op::Sync) == Err(Errno::ROFS));
    assert!(stopped, "{what}: {}", library.said());
    let root = RelPath::default();
    for op in [
        Op::Create { path: root.join(b"refused"), mode: 0o644 },
        Op::Mkdir { path: root.join(b"refused"), mode: 0o755 },
        Op::Chmod { object: Object::Path(root.clone()), mode: 0o700 },
        Op::SetXattr {
            path: root.clone(),
            name: "user.x".to_owned(),
            value: Content { seed: 1, len: 4 },
            create: false,
            replace: false,
        },
        Op::Sync,
    ] {
        assert_eq!(library.apply(&op), Err(Errno::ROFS), "{what}: {op:?}: {}", library.said());
    }
    let second = Fingerprint::of_library(filesystem).unwrap_or_else(|error| panic!("{what}: reading: {error}"));
    let found = differences(&first, &second, Compare { atime: false, ..Compare::ALL });
    assert!(found.is_empty(), "{what}: {found:#?}");
}

#[test]
fn failing_writes() {
    let _watchdog = Watchdog::new("failing_writes", 300);
    let failed =
        (0..80).filter(|skip| fails_at(Operation::Write, skip * skip / 4, u64::MAX, 7000 + skip).failed).count();
    assert!(failed > 20, "only {failed} runs met the failure");
}

#[test]
fn failing_flushes() {
    let _watchdog = Watchdog::new("failing_flushes", 300);
    let failed = (0..30).filter(|skip| fails_at(Operation::Flush, *skip, u64::MAX, 7100 + skip).failed).count();
    assert!(failed > 10, "only {failed} runs met the failure");
}

/// One failure, and the device is good again: where it struck a log, the `fsync` succeeds by a commit.
#[test]
fn a_log_that_cannot_be_written_is_a_commit() {
    let _watchdog = Watchdog::new("a_log_that_cannot_be_written_is_a_commit", 300);
    let writes = (0..60).map(|skip| fails_at(Operation::Write, 2 * skip, 1, 7200 + skip));
    let flushes = (0..20).map(|skip| fails_at(Operation::Flush, skip, 1, 7300 + skip));
    let ended: Vec<Ended> = writes.chain(flushes).collect();
    let count = |wanted: fn(&Ended) -> bool| ended.iter().filter(|ended| wanted(ended)).count();
    let (quiet, failed) = (count(|ended| ended.fell_back && !ended.failed), count(|ended| ended.failed));
    println!("{quiet} logs became commits, {failed} failures were told");
    assert!(quiet > 5 && failed > 5, "{quiet} logs became commits, {failed} failures were told");
}
