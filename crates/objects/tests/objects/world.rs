//! A filesystem in memory, its snapshots, and repositories to put them into.

use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::{Env, Filesystem, InodeId, Options, Subvolume, TreeId};
use butterfs_objects::{Access, Listing, Manifest, Put, Repository, Sent, stream};
use butterfs_send::apply::{self, Engine};
use butterfs_send::generate::{self, Job};
use butterfs_send::wire::Version;
use butterfs_store::{Settings, Store};
use butterfs_testkit::engine::FORMATS;
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::library::{Library, ROOT};
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::object_server::Server;
use butterfs_testkit::operation::{OperationTarget, RelPath};
use butterfs_testkit::workload::{Generator, Shape};
use std::sync::Arc;
use std::time::Duration;

/// The top level.
pub const TOP: InodeId = InodeId::root_of(TreeId::FS);
/// Few inodes, so that names are used again and again.
pub const SHAPE: Shape =
    Shape { file_max: 300 << 10, write_max: 100 << 10, data_max: 8 << 20, sync_percent: 0, ..Shape::SMALL };

/// See the [module](self).
pub struct World {
    pub fs: Filesystem,
}

impl World {
    pub fn new(bytes: u64) -> World {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(bytes));
        FORMATS[0].make(&device);
        let options = Options { subvolume: Subvolume::Id(TreeId::FS), ..Options::default() };
        World { fs: Filesystem::open(vec![device], options, Env::system()).expect("a good filesystem") }
    }

    pub fn subvolume(&self, name: &str) -> (TreeId, Library) {
        let id = self.fs.create_subvolume(&ROOT, TOP, name.as_bytes()).expect("a free name");
        (id, Library::below(&self.fs, &RelPath::from(name)))
    }

    pub fn snapshot(&self, of: TreeId, name: &str) -> TreeId {
        self.fs.snapshot(of, TOP, name.as_bytes(), true).expect("a free name")
    }

    pub fn print(&self, name: &str) -> Fingerprint {
        let id = self.fs.lookup(TOP, name.as_bytes()).expect("it was made").id;
        let print = Fingerprint::of_library_below(&self.fs, id).expect("a sound filesystem");
        self.fs.forget(id, 1);
        print
    }

    pub fn send(&self, subvolume: TreeId, parent: Option<TreeId>, version: Version) -> Vec<u8> {
        let job = Job { subvolumes: vec![subvolume], parent, version, ..Job::default() };
        let mut stream = Vec::new();
        generate::run(&self.fs, &job, &mut stream, &mut |_| true, &mut |_| {}).expect("it can be sent");
        stream
    }

    /// Receives streams; errors are returned.
    pub fn receive(&self, stream: &[u8]) -> Result<(), String> {
        let mut engine = Engine::new(self.fs.clone(), TOP);
        applied(stream, &mut engine)
    }

    /// A chain of snapshots `s0`, `s1`... of random work.
    pub fn chain(&self, seed: u64, count: usize) -> Vec<TreeId> {
        let (id, mut library) = self.subvolume("work");
        let mut model = ModelFs::default();
        let mut generator = Generator::new(seed, SHAPE);
        (0..count)
            .map(|number| {
                for _ in 0..(if number == 0 { 60 + seed * 7 % 200 } else { 1 + (seed + number as u64) * 13 % 90 }) {
                    let op = generator.next_op(&model);
                    let _ = model.apply(&op);
                    let _ = library.apply(&op);
                }
                self.snapshot(id, &format!("s{number}"))
            })
            .collect()
    }
}

/// Applies a stream to a target; the first error is returned.
pub fn applied(stream: &[u8], target: &mut dyn apply::StreamTarget) -> Result<(), String> {
    struct First(Option<String>);
    impl apply::Observer for First {
        fn error(&mut self, error: &apply::Error) {
            self.0.get_or_insert_with(|| error.to_string());
        }
    }
    let mut first = First(None);
    let summary = apply::receive(stream, target, &apply::Options::default(), &mut first);
    match first.0 {
        Some(error) => Err(error),
        None if summary.errors > 0 => Err("errors without a sentence".to_owned()),
        None => Ok(()),
    }
}

/// Puts a stream.
pub fn put(repository: &Repository, stream: &[u8], now: i64) -> Result<Vec<(Manifest, Sent)>, String> {
    let options = butterfs_objects::Options { level: 3, scratch: std::env::temp_dir(), now };
    let mut target = Put::new(repository, options).map_err(|error| error.to_string())?;
    applied(stream, &mut target)?;
    target.end().map_err(|error| error.to_string())
}

/// The stream of a snapshot.
pub fn got(
    repository: &Repository,
    manifest: &Manifest,
    base: Option<&Manifest>,
) -> Result<Vec<u8>, butterfs_store::Error> {
    let mut out = Vec::new();
    stream(repository, manifest, base, &mut out, &mut |_| {})?;
    Ok(out)
}

pub fn find(repository: &Repository, name: &str) -> Manifest {
    Listing::new(repository).unwrap().find(name).unwrap()
}

/// A repository in memory.
pub fn in_memory() -> Repository {
    Repository::open_or_make(Store::in_memory(), &Access::default()).unwrap()
}

/// A repository on a server.
pub fn on(server: &Server, give_up_after: Duration) -> Store {
    let variables = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b"), ("HOME", "/nonexistent")];
    let variables = variables.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let endpoint = Some(server.endpoint.clone());
    let settings = Settings { endpoint, give_up_after, ..Settings::from_vars(variables) };
    Store::open("s3://bucket/prefix", &settings).unwrap()
}

/// The compared properties: all that a stream carries.
const TRAVELS: Compare =
    Compare { atime: true, mtime: true, ctime: false, btime: false, blocks: false, holes: false, slack_ns: 0 };

/// Fails where the received subvolume is not the one that was sent.
pub fn same(what: &str, sent: &Fingerprint, received: &Fingerprint) {
    let found = differences(sent, received, TRAVELS);
    assert!(found.is_empty(), "{what}: {} differences, first {:#?}", found.len(), &found[..found.len().min(8)]);
}
