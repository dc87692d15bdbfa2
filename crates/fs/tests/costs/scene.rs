//! Filesystems with many of one thing.

use crate::meter::{Cost, Meter};
use crate::world::{ROOT, World, pattern, quiet_env};
use butterfs_device::BlockDevice;
use butterfs_fs::options::{Canary, Policies};
use butterfs_fs::{Ino, InodeId, Options, SetAttr, TreeId};
use std::cell::Cell;
use std::sync::Arc;

/// Bytes of a block.
pub const BLOCK: u64 = 4096;

/// The objects that a scene has many of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// References to the one extent of the file.
    References,
    /// Entries of the directory.
    Entries,
    /// Extents of the file.
    Extents,
    /// Snapshots of the subvolume.
    Snapshots,
    /// Names of the file.
    Links,
    /// Levels of folders above the directory.
    Levels,
    /// Extended attributes of the file and of the directory.
    Attributes,
    /// Files that somebody has open, half of them without a name.
    Open,
    /// Files that are changed in memory.
    Changed,
    /// Block groups.
    Groups,
    /// Pieces of free space.
    Fragments,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 11] = [
        Kind::References,
        Kind::Entries,
        Kind::Extents,
        Kind::Snapshots,
        Kind::Links,
        Kind::Levels,
        Kind::Attributes,
        Kind::Open,
        Kind::Changed,
        Kind::Groups,
        Kind::Fragments,
    ];

    /// How many there are in the smallest scene of a test run.
    pub fn least(self) -> usize {
        match self {
            Kind::References | Kind::Extents | Kind::Entries | Kind::Open => 250,
            Kind::Links | Kind::Fragments => 250,
            Kind::Changed | Kind::Attributes => 60,
            Kind::Levels => 30,
            Kind::Snapshots => 16,
            Kind::Groups => 4,
        }
    }
}

/// See the [module](self).
pub struct Scene {
    pub world: World,
    pub kind: Kind,
    size: usize,
    /// The directory that operations work in.
    pub dir: InodeId,
    /// The file that they work on; its name in the directory is `file`.
    pub file: InodeId,
    /// The subvolume of both.
    pub tree: TreeId,
    /// A read-only snapshot of it.
    pub snapshot: TreeId,
    /// The cost of making it.
    pub making: Cost,
    names: Cell<usize>,
}

impl Scene {
    /// Makes a scene with `size` things.
    pub fn new(kind: Kind, size: usize, canary: Option<Canary>) -> Scene {
        let policies = Policies { canary, ..Policies::default() };
        let options = Options { policies, ..Options::default() };
        // Metadata has groups of a gibibyte, twice, on large devices.
        let len = if kind == Kind::Groups { (size as u64 * 9 / 8 + 8) << 30 } else { 16 << 30 };
        let world = World::of_env(options, len, quiet_env());
        let (root, tree) = (world.fs.root(), world.fs.root().tree);
        let mut scene = Scene {
            world,
            kind,
            size,
            dir: root,
            file: root,
            tree,
            snapshot: tree,
            making: Cost::default(),
            names: Cell::new(0),
        };
        scene.dir = scene.folders(if kind == Kind::Levels { size } else { 1 });
        scene.file = scene.create(scene.dir, b"file");
        scene.world.write(scene.file, 0, &pattern(1, BLOCK as usize));
        scene.world.fs.sync().expect("sync");
        let mut meter = Meter::default();
        meter.call(&scene, || scene.fill());
        scene.making = meter.cost();
        let fs = &scene.world.fs;
        scene.snapshot = fs.snapshot(tree, root, b"snapshot", true).expect("snapshot");
        fs.sync().expect("sync");
        scene
    }

    /// The same scene, of which nothing is in memory, on a device that is looked at through a wrapper.
    pub fn over(self, wrap: impl FnOnce(Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice>) -> Scene {
        self.world.fs.shutdown().expect("shutdown");
        let device = wrap(self.world.device.clone());
        Scene { world: self.world.over(device, Options::default()), ..self }
    }

    fn folders(&self, levels: usize) -> InodeId {
        let fs = &self.world.fs;
        (0..levels).fold(fs.root(), |parent, _| fs.mkdir(&ROOT, parent, b"d", 0o755).expect("mkdir").id)
    }

    /// Makes an empty file.
    pub fn create(&self, parent: InodeId, name: &[u8]) -> InodeId {
        self.world.fs.create(&ROOT, parent, name, 0o644).expect("create").id
    }

    /// A name that nothing has yet.
    pub fn name(&self) -> Vec<u8> {
        self.names.set(self.names.get() + 1);
        format!("new-{}", self.names.get()).into_bytes()
    }

    /// A new file of one block in the directory, durable, with its name.
    pub fn another(&self) -> (InodeId, Vec<u8>) {
        let name = self.name();
        let id = self.create(self.dir, &name);
        self.world.write(id, 0, &pattern(1, BLOCK as usize));
        self.world.fs.sync().expect("sync");
        (id, name)
    }

    /// A new subvolume in the directory, with its name.
    pub fn subvolume(&self) -> (TreeId, Vec<u8>) {
        let name = self.name();
        let id = self.world.fs.create_subvolume(&ROOT, self.dir, &name).expect("create_subvolume");
        self.world.fs.sync().expect("sync");
        (id, name)
    }

    fn fill(&self) {
        let fs = &self.world.fs;
        match self.kind {
            Kind::Levels => {}
            Kind::Groups => self.fill_groups(),
            Kind::Fragments => self.fill_fragments(),
            Kind::Open => (0..self.size).for_each(|n| self.open_one(n)),
            Kind::Changed => (0..self.size).for_each(|n| {
                self.create(fs.root(), &numbered(n));
            }),
            Kind::Snapshots => self.fill_snapshots(),
            _ => (1..=self.size as u64).for_each(|n| self.one_more(n)),
        }
        fs.sync().expect("sync");
    }

    fn one_more(&self, n: u64) {
        let fs = &self.world.fs;
        let name = numbered(n as usize);
        match self.kind {
            Kind::References => fs.clone_range((self.file, 0), (self.file, 2 * n * BLOCK), BLOCK).expect("clone"),
            Kind::Entries => {
                self.create(self.dir, &name);
            }
            Kind::Extents => self.world.write(self.file, 2 * n * BLOCK, &pattern(n, BLOCK as usize)),
            Kind::Links => {
                fs.link(self.file, fs.root(), &name).expect("link");
            }
            _ => {
                let name = [b"user.", name.as_slice()].concat();
                for id in [self.file, self.dir] {
                    fs.set_xattr(&ROOT, id, &name, b"value", 0).expect("set_xattr");
                }
            }
        }
    }

    fn open_one(&self, n: usize) {
        let fs = &self.world.fs;
        let id = self.create(fs.root(), &numbered(n));
        fs.acquire(id);
        if n.is_multiple_of(2) {
            fs.unlink(fs.root(), &numbered(n)).expect("unlink");
        }
    }

    /// In a subvolume of their own: the tree that they share stays as small as it is.
    fn fill_snapshots(&self) {
        let fs = &self.world.fs;
        let shelf = fs.create_subvolume(&ROOT, fs.root(), b"shelf").expect("create_subvolume");
        let shelf = InodeId { tree: shelf, ino: Ino::ROOT_DIR };
        for n in 0..self.size {
            self.world.write(self.file, 0, &pattern(n as u64, BLOCK as usize));
            fs.snapshot(self.tree, shelf, &numbered(n), true).expect("snapshot");
        }
    }

    fn fill_groups(&self) {
        let fs = &self.world.fs;
        let big = self.create(fs.root(), b"big");
        let len = (self.size as u64) << 30;
        fs.fallocate(big, 0, 0, len, false).expect("fallocate");
    }

    /// Twice as many files of a block as there shall be pieces, of which every other one goes.
    fn fill_fragments(&self) {
        let fs = &self.world.fs;
        for n in 0..2 * self.size {
            let id = self.create(fs.root(), &numbered(n));
            self.world.write(id, 0, &pattern(n as u64, BLOCK as usize));
        }
        fs.sync().expect("sync");
        for n in (0..2 * self.size).step_by(2) {
            let id = fs.lookup(fs.root(), &numbered(n)).expect("lookup").id;
            fs.unlink(fs.root(), &numbered(n)).expect("unlink");
            fs.forget(id, 2);
        }
    }

    /// Makes again what a commit has taken away, before the next operation.
    pub fn prepare(&self) {
        if self.kind != Kind::Changed {
            return;
        }
        let fs = &self.world.fs;
        for n in 0..self.size {
            let id = fs.lookup(fs.root(), &numbered(n)).expect("lookup").id;
            fs.setattr(&ROOT, id, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).expect("setattr");
            self.world.write(id, 0, &pattern(n as u64, BLOCK as usize));
        }
    }
}

fn numbered(n: usize) -> Vec<u8> {
    format!("thing-{n}").into_bytes()
}
