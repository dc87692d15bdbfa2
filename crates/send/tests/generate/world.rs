//! A filesystem in memory whose snapshots are sent, and the strict receiver in front of it.

use crate::receiver::Receiver;
use crate::scenarios::without_subvolumes;
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::{Env, Filesystem, InodeId, Options, Subvolume, TreeId};
use butterfs_send::apply::{self, Engine};
use butterfs_send::generate::{self, Job};
use butterfs_send::wire::Version;
use butterfs_testkit::engine::FORMATS;
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::library::{Library, ROOT};
use butterfs_testkit::operation::RelPath;
use std::sync::Arc;

/// The top level.
pub const TOP: InodeId = InodeId::root_of(TreeId::FS);

/// See the [module](self).
pub struct World {
    pub fs: Filesystem,
}

impl World {
    /// An empty filesystem.
    pub fn new(bytes: u64) -> World {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(bytes));
        FORMATS[0].make(&device);
        World::open(device)
    }

    /// The filesystem on a device.
    pub fn open(device: Arc<dyn BlockDevice>) -> World {
        let options = Options { subvolume: Subvolume::Id(TreeId::FS), ..Options::default() };
        World { fs: Filesystem::open(vec![device], options, Env::system()).expect("a good filesystem") }
    }

    /// Makes a subvolume at the top level, to be worked in.
    pub fn subvolume(&self, name: &str) -> (TreeId, Library) {
        let id = self.fs.create_subvolume(&ROOT, TOP, name.as_bytes()).expect("a free name");
        (id, Library::below(&self.fs, &RelPath::from(name)))
    }

    /// Makes a read-only snapshot at the top level.
    pub fn snapshot(&self, of: TreeId, name: &str) -> TreeId {
        self.fs.snapshot(of, TOP, name.as_bytes(), true).expect("a free name")
    }

    /// The fingerprint of a subvolume at the top level.
    pub fn print(&self, name: &str) -> Fingerprint {
        let id = self.fs.lookup(TOP, name.as_bytes()).expect("it was made").id;
        let print = Fingerprint::of_library_below(&self.fs, id).expect("a sound filesystem");
        self.fs.forget(id, 1);
        print
    }

    /// A stream.
    pub fn send(&self, job: &Job) -> Vec<u8> {
        let mut stream = Vec::new();
        generate::run(&self.fs, job, &mut stream, &mut |_| true, &mut |_| {}).expect("it can be sent");
        stream
    }
}

/// A job for one subvolume.
pub fn job(subvolume: TreeId, parent: Option<TreeId>, version: Version) -> Job {
    Job { subvolumes: vec![subvolume], parent, version, ..Job::default() }
}

/// The compared properties: all that a stream carries.
pub const TRAVELS: Compare =
    Compare { atime: true, mtime: true, ctime: false, btime: false, blocks: false, holes: false, slack_ns: 0 };

/// Fails where the received subvolume is not the one that was sent.
pub fn same(what: &str, sent: &Fingerprint, received: &Fingerprint) {
    let found = differences(sent, received, TRAVELS);
    assert!(found.is_empty(), "{what}: {} differences, first {:#?}", found.len(), &found[..found.len().min(8)]);
}

/// The result of our own receiver for a stream.
fn received_by_us(what: &str, stream: &[u8]) -> World {
    /// Fails at once.
    struct Strict<'a>(&'a str);
    impl apply::Observer for Strict<'_> {
        fn error(&mut self, error: &apply::Error) {
            panic!("{}, by us: {error}", self.0);
        }
    }
    let target = World::new(512 << 20);
    let mut engine = Engine::new(target.fs.clone(), TOP);
    apply::receive(stream, &mut engine, &apply::Options::default(), &mut Strict(what));
    target
}

/// Sends `new` from `old`, and both in full, and receives it all.
pub fn travel(what: &str, world: &World, (old, old_name): (TreeId, &str), (new, new_name): (TreeId, &str)) -> Receiver {
    let mut first = None;
    for version in [Version::V1, Version::V2] {
        let mut receiver = Receiver::default();
        let stream = [world.send(&job(old, None, version)), world.send(&job(new, Some(old), version))].concat();
        receiver.receive(&stream).unwrap_or_else(|why| panic!("{what}, version {version:?}: {why}"));
        let prints = [old_name, new_name].map(|name| (name, without_subvolumes(world.print(name))));
        for (name, print) in &prints {
            same(what, print, &receiver.print(name.as_bytes()));
        }
        if version == Version::V2 {
            let ours = received_by_us(what, &stream);
            prints.iter().for_each(|(name, print)| same(&format!("{what}, by us"), print, &ours.print(name)));
        }
        first.get_or_insert(receiver);
    }
    first.expect("two versions")
}
