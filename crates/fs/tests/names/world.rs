//! A filesystem in memory to work in, with a clock that ticks once for every look at it, and its checker.

use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::mkfs::{MkfsOptions, mkfs};
use butterfs_fs::{Attr, Caller, Env, Errno, Filesystem, InodeId, Options, Result};
use butterfs_testkit::engine::quiet_env;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::{kernel, requirement};
use std::sync::Arc;

/// Root without a umask.
pub const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0, privileged: true };
/// Somebody.
pub const USER: Caller = Caller { uid: 1000, gid: 1000, umask: 0o022, privileged: false };

/// See the [module](self).
pub struct World {
    device: Arc<MemoryDevice>,
    env: Env,
    /// The open filesystem.
    pub fs: Filesystem,
}

impl World {
    /// A new filesystem with default features.
    pub fn new() -> World {
        World::with(&MkfsOptions::default())
    }

    /// A new filesystem on a device of this many bytes.
    pub fn of_size(len: u64) -> World {
        World::on(len, &MkfsOptions::default())
    }

    /// A new filesystem.
    pub fn with(options: &MkfsOptions) -> World {
        World::on(256 << 20, options)
    }

    fn on(len: u64, options: &MkfsOptions) -> World {
        let device = Arc::new(MemoryDevice::new(len));
        let env = quiet_env();
        mkfs(&[device.clone() as Arc<dyn BlockDevice>], options, &env).expect("mkfs");
        World::open(device, env)
    }

    fn open(device: Arc<MemoryDevice>, env: Env) -> World {
        let devices = vec![device.clone() as Arc<dyn BlockDevice>];
        let fs = Filesystem::open(devices, Options::default(), env.clone()).expect("open");
        World { device, env, fs }
    }

    /// Closes it and opens it again.
    pub fn reopen(self) -> World {
        self.fs.shutdown().expect("shutdown");
        World::open(self.device, self.env)
    }

    /// Opens what a power cut now would leave.
    pub fn after_power_cut(&self) -> World {
        World::open(Arc::new(self.device.snapshot()), self.env.clone())
    }

    /// The present content of the device.
    pub fn on_device(&self) -> MemoryDevice {
        self.device.snapshot()
    }

    /// The root directory.
    pub fn root(&self) -> InodeId {
        self.fs.root()
    }

    /// Makes an empty file.
    pub fn file(&self, parent: InodeId, name: &str) -> InodeId {
        self.fs.create(&ROOT, parent, name.as_bytes(), 0o644).expect("create").id
    }

    /// Makes a directory.
    pub fn dir(&self, parent: InodeId, name: &str) -> InodeId {
        self.fs.mkdir(&ROOT, parent, name.as_bytes(), 0o755).expect("mkdir").id
    }

    /// The attributes at `path`, from the root, without keeping a reference.
    pub fn stat(&self, path: &str) -> Result<Attr> {
        let mut attr = self.fs.getattr(self.root())?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            attr = self.fs.lookup(attr.id, name.as_bytes())?;
            self.fs.forget(attr.id, 1);
        }
        Ok(attr)
    }

    /// The inode at `path`.
    pub fn id(&self, path: &str) -> InodeId {
        self.stat(path).unwrap_or_else(|error| panic!("{path}: {error}")).id
    }

    /// The names in a directory, in the order of readdir, without `.` and `..`.
    pub fn list(&self, id: InodeId) -> Vec<String> {
        let mut names = Vec::new();
        let show = &mut |entry: butterfs_fs::DirEntry<'_>| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        };
        self.fs.readdir(id, 2, show).expect("readdir");
        names
    }

    /// Closes the filesystem; it must be without a fault.
    pub fn finish(self) {
        self.fs.shutdown().expect("shutdown");
        judge(&self.device);
    }
}

/// `btrfs check` finds nothing.
pub fn judge(device: &MemoryDevice) {
    if requirement::programs("btrfs check of a test's image", &["btrfs"]) {
        let scratch = Scratch::new("names");
        kernel::check_all(&scratch.image("image", device));
    }
}

/// The errno of a refusal.
pub fn errno<T>(result: Result<T>) -> Option<Errno> {
    result.err().map(|error| error.errno())
}
