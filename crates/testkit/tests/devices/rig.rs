//! Several devices for one filesystem, and what a test does with all of them.

use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::env::{Source, Time};
use butterfs_fs::mkfs::{MkfsOptions, mkfs};
use butterfs_fs::{Env, Filesystem, Options};
use butterfs_ondisk::profile::Profile;
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::library::Library;
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::operation::{Op, OperationTarget};
use butterfs_testkit::workload::{Generator, Shape, run};
use std::sync::Arc;

/// Bytes of each device.
pub const DEVICE_BYTES: u64 = 200 << 20;

/// Profiles of metadata and data, and how many devices.
pub type Layout = (&'static str, &'static str, usize);

/// Every profile that is written, on as few devices as it needs and on more.
pub const LAYOUTS: &[Layout] = &[
    ("dup", "single", 2),
    ("raid1", "single", 2),
    ("raid1", "raid0", 3),
    ("raid1", "raid1", 3),
    ("raid1c3", "raid1c3", 3),
    ("raid1c4", "raid10", 4),
    ("raid10", "raid1c4", 5),
    ("raid5", "raid5", 3),
    ("raid6", "raid6", 4),
];

pub fn options(layout: Layout) -> MkfsOptions {
    let (metadata, data) = (Profile::named(layout.0), Profile::named(layout.1));
    MkfsOptions { metadata, data, ..MkfsOptions::default() }
}

pub fn make(devices: &[Arc<dyn BlockDevice>], layout: Layout) {
    mkfs(devices, &options(layout), &Env::system()).unwrap_or_else(|error| panic!("{layout:?}: {error}"));
}

/// Devices in memory with a new filesystem.
pub fn in_memory(layout: Layout) -> Vec<Arc<MemoryDevice>> {
    let name = |id| format!("disk{id}");
    let disks: Vec<_> = (1..=layout.2).map(|id| Arc::new(MemoryDevice::named(&name(id), DEVICE_BYTES))).collect();
    make(&shared(&disks), layout);
    disks
}

pub fn shared<D: BlockDevice + 'static>(devices: &[Arc<D>]) -> Vec<Arc<dyn BlockDevice>> {
    devices.iter().map(|device| device.clone() as Arc<dyn BlockDevice>).collect()
}

pub fn open(devices: &[Arc<dyn BlockDevice>], options: Options) -> Filesystem {
    Filesystem::open(devices.to_vec(), options, Env::system()).unwrap_or_else(|error| panic!("{error}"))
}

/// Nothing runs in the background.
struct Quiet;

impl Source for Quiet {
    fn now(&self) -> Time {
        Env::system().now()
    }
    fn random(&self) -> [u8; 16] {
        Env::system().uuid()
    }
    fn threads(&self) -> usize {
        2
    }
    fn background(&self) -> bool {
        false
    }
}

pub fn quiet_env() -> Env {
    Env::new(Quiet)
}

/// Opened without threads in the background.
pub fn quiet(devices: &[Arc<dyn BlockDevice>], options: Options) -> Filesystem {
    Filesystem::open(devices.to_vec(), options, quiet_env()).unwrap_or_else(|error| panic!("{error}"))
}

/// A workload that goes on from where it was, on the engine and in the model.
#[derive(Clone)]
pub struct Work {
    generator: Generator,
    pub model: ModelFs,
}

impl Work {
    pub fn new(seed: u64) -> Work {
        println!("seed {seed}");
        Work { generator: Generator::new(seed, Shape::ORDINARY), model: ModelFs::default() }
    }

    /// Runs `operations` and closes what was left open.
    pub fn go_on(&mut self, filesystem: &Filesystem, operations: usize) {
        let mut library = Library::new(filesystem);
        let done = run(&mut self.generator, operations, &mut self.model, &mut library);
        done.unwrap_or_else(|found| panic!("{found:?}"));
        let open: Vec<u32> = self.model.handles().keys().copied().collect();
        for handle in open {
            let close = Op::Close { handle };
            assert_eq!(self.model.apply(&close), library.apply(&close));
        }
    }

    /// Checks that `filesystem` shows the content of the model.
    pub fn is_shown(&self, what: &str, filesystem: &Filesystem) {
        let shown = Fingerprint::of_library(filesystem).unwrap_or_else(|error| panic!("{what}: {error}"));
        same(what, &Fingerprint::of_model(&self.model), &shown, Compare::MODEL);
    }
}

pub fn same(what: &str, expected: &Fingerprint, actual: &Fingerprint, compare: Compare) {
    let found = differences(expected, actual, compare);
    assert!(found.is_empty(), "{what}: {} differences, first {:#?}", found.len(), &found[..found.len().min(20)]);
}
