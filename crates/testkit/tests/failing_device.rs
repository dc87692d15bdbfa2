//! A device that fails under us: reads go on, writes return `EROFS`, and the disk is the last commit.

use butterfs_device::{BlockDevice, Fault, FaultRule, FaultyDevice, MemoryDevice, Operation};
use butterfs_fs::{Env, Filesystem, Options};
use butterfs_testkit::engine::FORMATS;
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::library::Library;
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::operation::{Content, Object, Op, RelPath, Target, agree};
use butterfs_testkit::promise::{History, Promise, through};
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::workload::{Generator, Shape};
use rustix::io::Errno;
use std::sync::Arc;

fn open(device: Arc<dyn BlockDevice>) -> Filesystem {
    let options = Options { commit_interval_secs: 3600, ..Options::default() };
    Filesystem::open(vec![device], options, Env::system()).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs a workload on a device that fails at the `skip`-th operation of a kind; returns false when it never came to that.
fn fails_at(on: Operation, skip: u64, seed: u64) -> bool {
    let disk = Arc::new(MemoryDevice::new(256 << 20));
    FORMATS[0].make(&(disk.clone() as Arc<dyn BlockDevice>));
    let faulty = Arc::new(FaultyDevice::new(disk.clone()));
    let filesystem = open(faulty.clone());
    faulty.add_rule(FaultRule::always(on, Fault::Fail).after(skip, u64::MAX));
    let (mut model, mut library) = (ModelFs::default(), Library::new(&filesystem));
    let mut history = History::new(&model);
    let mut generator = Generator::new(seed, Shape::SMALL);
    let what = format!("{on:?} {skip} fails, seed {seed}");
    let mut failed = false;
    for _ in 0..400 {
        let op = generator.next_op(&model);
        let promise = Promise::of(&op, &model);
        let expected = model.apply(&op);
        history.push(&model);
        let actual = library.apply(&op);
        if agree(&expected, &actual) {
            if let Some(promise) = promise {
                history.promise(promise);
            }
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
    if failed {
        reads_go_on(&what, &filesystem, &mut library);
    }
    drop((library, filesystem));
    // The disk has what was written before the failure and nothing after it: it is a power cut.
    let after = open(Arc::new(disk.snapshot()));
    let shown = Fingerprint::of_library(&after).unwrap_or_else(|error| panic!("{what}: {error}"));
    let read = through(Library::new(&after));
    history.explain(&shown, &read).unwrap_or_else(|error| panic!("{what}: {error}"));
    failed
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
    let failed = (0..80).filter(|skip| fails_at(Operation::Write, skip * skip / 4, 7000 + skip)).count();
    assert!(failed > 20, "only {failed} runs met the failure");
}

#[test]
fn failing_flushes() {
    let _watchdog = Watchdog::new("failing_flushes", 300);
    let failed = (0..30).filter(|skip| fails_at(Operation::Flush, *skip, 7100 + skip)).count();
    assert!(failed > 10, "only {failed} runs met the failure");
}
