//! A filesystem in memory to work in, and checks of the result.

use butterfs_device::{BlockDevice, FaultyDevice, MemoryDevice};
use butterfs_fs::mkfs::{MkfsOptions, mkfs};
use butterfs_fs::{Caller, Env, Filesystem, InodeId, Options};
pub use butterfs_testkit::engine::quiet_env;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::{kernel, requirement};
use std::path::Path;
use std::sync::Arc;

/// Root without a umask.
pub const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0, privileged: true };

/// See the [module](self).
pub struct World {
    /// The device that it is on.
    pub device: Arc<MemoryDevice>,
    /// The open filesystem.
    pub fs: Filesystem,
    options: Options,
    env: Env,
}

impl World {
    /// A new filesystem of 256 MiB with default features.
    pub fn new() -> World {
        World::with(&MkfsOptions::default(), Options::default(), 256 << 20)
    }

    /// A new filesystem.
    pub fn with(made: &MkfsOptions, options: Options, len: u64) -> World {
        World::made(made, options, len, quiet_env())
    }

    /// A new filesystem in this environment.
    pub fn of_env(options: Options, len: u64, env: Env) -> World {
        World::made(&MkfsOptions::default(), options, len, env)
    }

    fn made(made: &MkfsOptions, options: Options, len: u64, env: Env) -> World {
        let device = Arc::new(MemoryDevice::new(len));
        mkfs(&[device.clone() as Arc<dyn BlockDevice>], made, &env).expect("mkfs");
        World::open(device, options, env)
    }

    /// The filesystem of an image file.
    pub fn of_image(image: &Path, options: Options) -> World {
        let device = Arc::new(MemoryDevice::from_bytes(&std::fs::read(image).expect("the image")));
        World::open(device, options, quiet_env())
    }

    fn open(device: Arc<MemoryDevice>, options: Options, env: Env) -> World {
        let devices = vec![device.clone() as Arc<dyn BlockDevice>];
        let fs = Filesystem::open(devices, options.clone(), env.clone()).expect("open");
        World { device, fs, options, env }
    }

    /// Closes it and opens it again.
    pub fn reopen(self) -> World {
        self.fs.shutdown().expect("shutdown");
        World::open(self.device, self.options, self.env)
    }

    /// The filesystem of this device, with default options.
    pub fn on(device: Arc<MemoryDevice>) -> World {
        World::open(device, Options::default(), quiet_env())
    }

    /// The same filesystem, closed before, opened by way of a wrapper around its device.
    pub fn over(self, wrapper: Arc<dyn BlockDevice>, options: Options) -> World {
        let fs = Filesystem::open(vec![wrapper], options.clone(), self.env.clone()).expect("open");
        World { fs, options, ..self }
    }

    /// Opens what a power cut now would leave.
    pub fn after_power_cut(&self) -> World {
        World::open(Arc::new(self.device.snapshot()), self.options.clone(), self.env.clone())
    }

    /// The same filesystem once more, over a copy of the device behind a wrapper that can fail.
    pub fn behind_faults(&self) -> (Filesystem, Arc<FaultyDevice>) {
        let (fs, faulty, _) = self.behind_faults_on();
        (fs, faulty)
    }

    /// The same, with the copy.
    pub fn behind_faults_on(&self) -> (Filesystem, Arc<FaultyDevice>, Arc<MemoryDevice>) {
        let memory = Arc::new(self.device.snapshot());
        let faulty = Arc::new(FaultyDevice::new(memory.clone()));
        let devices = vec![faulty.clone() as Arc<dyn BlockDevice>];
        (Filesystem::open(devices, self.options.clone(), self.env.clone()).expect("open"), faulty, memory)
    }

    /// Makes an empty file in the root.
    pub fn file(&self, name: &str) -> InodeId {
        self.fs.create(&ROOT, self.fs.root(), name.as_bytes(), 0o644).expect("create").id
    }

    /// The file of this path.
    pub fn id(&self, path: &str) -> InodeId {
        let mut id = self.fs.root();
        for name in path.split('/') {
            id = self.fs.lookup(id, name.as_bytes()).unwrap_or_else(|error| panic!("{path}: {error}")).id;
        }
        id
    }

    /// A file's whole content.
    pub fn content(&self, id: InodeId) -> Vec<u8> {
        let size = self.fs.getattr(id).expect("getattr").size;
        let mut out = Vec::new();
        let read = self.fs.read(id, 0, size as usize, &mut out).unwrap_or_else(|error| panic!("read: {error}"));
        assert_eq!((read as u64, out.len() as u64), (size, size));
        out
    }

    /// Writes all of `data`.
    pub fn write(&self, id: InodeId, offset: u64, data: &[u8]) {
        let written = self.fs.write(id, offset, data, true).unwrap_or_else(|error| panic!("write: {error}"));
        assert_eq!(written, data.len());
    }

    /// Bytes in units of 512 that the file takes.
    pub fn blocks(&self, id: InodeId) -> u64 {
        self.fs.sync().expect("sync");
        self.fs.getattr(id).expect("getattr").blocks
    }

    /// Closes the filesystem; `btrfs check` finds nothing. Returns the image.
    pub fn finish(self, name: &str) -> (Scratch, std::path::PathBuf) {
        self.fs.shutdown().expect("shutdown");
        let scratch = Scratch::new(name);
        let image = scratch.image("image", &*self.device);
        if requirement::programs(name, &["btrfs"]) {
            kernel::check_all(&image);
        }
        (scratch, image)
    }
}

/// Bytes that differ from place to place and from `seed` to `seed`.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    butterfs_testkit::rng::Rng::new(seed).fill(&mut bytes);
    bytes
}

/// Lines that compress, and differ from `seed` to `seed`.
pub fn text(seed: u64, len: usize) -> Vec<u8> {
    let line =
        |number: u64| format!("line {number} of text {seed}: extent, leaf, node, tree, generation\n").into_bytes();
    (0..).flat_map(line).take(len).collect()
}
