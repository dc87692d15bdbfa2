//! A full disk: where a log has no room, `fsync` commits, and reports nothing that it could do.

use super::world::options;
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::{Env, Filesystem, Options};
use butterfs_testkit::engine::{FORMATS, Format};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::library::Library;
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::operation::{Content, Object, Op, OperationTarget, RelPath, Reply, agree};
use butterfs_testkit::watchdog::Watchdog;
use rustix::io::Errno;
use std::sync::Arc;

struct Full {
    model: ModelFs,
    library: Library,
}

impl Full {
    /// False when there was no space.
    fn apply(&mut self, op: &Op) -> bool {
        let actual = self.library.apply(op);
        if actual == Err(Errno::NOSPC) {
            return false;
        }
        let mut op = op.clone();
        if let (Op::Write { content, .. }, Ok(Reply::Count(done))) = (&mut op, &actual) {
            // A write that had room for a part of it says so.
            content.len = *done as usize;
        }
        let expected = self.model.apply(&op);
        assert!(agree(&expected, &actual), "{op:?}: expected {expected:?}, actual {actual:?} {}", self.library.said());
        true
    }

    fn fsync(&mut self, path: RelPath) {
        let done = self.apply(&Op::Fsync { object: Object::Path(path.clone()), data_only: false });
        assert!(done, "fsync of {path:?}: {}", self.library.said());
    }

    /// Makes files, each with an `fsync`, until there is no room for three in a row.
    fn fill(&mut self, numbers: std::ops::Range<u64>, len: usize) {
        let mut refusals = 0;
        for number in numbers {
            let path = RelPath(format!("file-{number:05}").into_bytes());
            let content = Content { seed: 4 * number + 2, len };
            let object = Object::Path(path.clone());
            if self.apply(&Op::Create { path: path.clone(), mode: 0o644 }) {
                let written = self.apply(&Op::Write { object, offset: 0, content });
                self.fsync(path);
                refusals = if written { 0 } else { refusals + 1 };
            } else {
                self.fsync(RelPath::default());
                refusals += 1;
            }
            if refusals == 3 {
                return;
            }
        }
        panic!("the disk does not become full");
    }
}

fn full(test: &str, format: &Format, bytes: u64, len: usize) {
    let watchdog = Watchdog::new(test, 300);
    let device = Arc::new(MemoryDevice::new(bytes));
    format.make(&(device.clone() as Arc<dyn BlockDevice>));
    let filesystem = Filesystem::open(vec![device.clone()], options(), Env::system()).expect("just made");
    let mut full = Full { model: ModelFs::default(), library: Library::new(&filesystem) };
    for round in 0..2 {
        watchdog.note(&format!("round {round}"));
        full.fill(round * 50_000..(round + 1) * 50_000, len);
        let names: Vec<RelPath> = Fingerprint::of_model(&full.model).entries.into_keys().map(RelPath).collect();
        for path in names.into_iter().filter(|path| !path.0.is_empty()).step_by(2) {
            assert!(full.apply(&Op::Unlink { path }), "deleting works on a full disk");
        }
        full.fsync(RelPath::default());
    }
    let stats = filesystem.log_stats();
    println!("{stats:?}");
    assert!(stats.syncs > 100, "{stats:?}");
    assert!(stats.commits.contains_key("there is no space to spare for a log"), "{stats:?}");
    // A power cut: everything was fsynced.
    let cut = Filesystem::open(vec![Arc::new(device.snapshot())], Options::default(), Env::system());
    let cut = cut.unwrap_or_else(|error| panic!("{error}"));
    let shown = Fingerprint::of_library(&cut).unwrap_or_else(|error| panic!("{error}"));
    let compare = Compare { mtime: false, ..Compare::MODEL };
    let found = differences(&Fingerprint::of_model(&full.model), &shown, compare);
    assert!(found.is_empty(), "{} differences, first {:#?}", found.len(), &found[..found.len().min(20)]);
}

#[test]
fn full_of_inline_files() {
    full("full_of_inline_files", &FORMATS[1], 96 << 20, 1000);
}

#[test]
fn full_of_data() {
    full("full_of_data", &FORMATS[0], 160 << 20, 60_000);
}
