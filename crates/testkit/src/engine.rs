//! The engine in a test: making and opening filesystems on files and in memory.

use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_fs::env::{Source, Time};
use butterfs_fs::mkfs::{MkfsOptions, mkfs};
use butterfs_fs::{Env, Filesystem, Options};
use butterfs_ondisk::ChecksumKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One way of storing, for filesystems that we make.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Format {
    pub nodesize: u32,
    pub checksum: ChecksumKind,
    /// As after `mkfs -O`.
    pub features: &'static str,
}

/// Formats that meet in the code.
pub const FORMATS: &[Format] = &[
    Format { nodesize: 16384, checksum: ChecksumKind::Crc32c, features: "" },
    Format { nodesize: 4096, checksum: ChecksumKind::Xxhash64, features: "^block-group-tree" },
    Format { nodesize: 65536, checksum: ChecksumKind::Blake2b, features: "^no-holes" },
    Format { nodesize: 4096, checksum: ChecksumKind::Crc32c, features: "mixed-bg" },
    Format { nodesize: 16384, checksum: ChecksumKind::Sha256, features: "^free-space-tree,^skinny-metadata" },
    Format { nodesize: 4096, checksum: ChecksumKind::Sha256, features: "" },
];

impl Format {
    /// The options of mkfs for this format.
    pub fn options(&self) -> MkfsOptions {
        let mut options =
            MkfsOptions { nodesize: Some(self.nodesize), checksum: self.checksum, ..MkfsOptions::default() };
        options.features.apply(self.features).expect("known features");
        options
    }

    /// Makes a filesystem on `device`.
    pub fn make(&self, device: &Arc<dyn BlockDevice>) {
        mkfs(std::slice::from_ref(device), &self.options(), &Env::system())
            .unwrap_or_else(|error| panic!("{self:?}: {error}"));
    }
}

/// A program that another thread of the test is just starting has our open files until it runs, and their locks.
const WAIT: Duration = Duration::from_secs(10);

/// The device of an image file, for writing.
pub fn device(image: &Path) -> Arc<dyn BlockDevice> {
    let opened = FileDevice::open(image, &FileOptions { wait: WAIT, ..FileOptions::read_write() });
    Arc::new(opened.unwrap_or_else(|error| panic!("{error}")))
}

/// Opens the filesystem in an image file, for writing unless the options say otherwise.
pub fn open(image: &Path, options: Options) -> Filesystem {
    let opened =
        FileDevice::open(image, &FileOptions { write: !options.read_only, wait: WAIT, ..FileOptions::read_write() });
    let device = opened.unwrap_or_else(|error| panic!("{error}"));
    Filesystem::open(vec![Arc::new(device)], options, Env::system())
        .unwrap_or_else(|error| panic!("{}: {error}", image.display()))
}

/// Options under which caches are too small and commits come often, so that what is rare happens all the time.
pub fn tight() -> Options {
    Options { commit_interval_secs: 1, node_cache_bytes: 2 << 20, dirty_data_bytes: 1 << 20, ..Options::default() }
}

/// An environment without threads, whose clock ticks once for every look at it.
pub fn quiet_env() -> Env {
    Env::new(Clock(AtomicU64::new(0)))
}

struct Clock(AtomicU64);

impl Source for Clock {
    fn now(&self) -> Time {
        let tick = self.0.fetch_add(1, Ordering::Relaxed);
        Time { sec: 1_700_000_000 + (tick / 1000) as i64, nsec: (tick % 1000) as u32 }
    }

    fn random(&self) -> [u8; 16] {
        let tick = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        u128::from(tick).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835).to_le_bytes()
    }

    fn threads(&self) -> usize {
        1
    }

    fn background(&self) -> bool {
        false
    }
}
