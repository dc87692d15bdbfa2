//! The block devices of this machine that hold a btrfs.

use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_ondisk::superblock::{OFFSETS, SUPERBLOCK_LEN, Superblock};
use std::path::{Path, PathBuf};

/// A device and what its superblock says.
pub struct Found {
    /// The device.
    pub path: PathBuf,
    /// Its primary superblock.
    pub superblock: Box<Superblock>,
}

/// The btrfs on one device, if there is one.
pub fn look_at(path: &Path) -> Option<Found> {
    let device = FileDevice::open(path, &FileOptions::inspect()).ok()?;
    let mut bytes = vec![0; SUPERBLOCK_LEN];
    device.read_fresh(OFFSETS[0].0, &mut bytes).ok()?;
    let superblock = Superblock::parse(&bytes, OFFSETS[0]).ok()?;
    Some(Found { path: path.to_owned(), superblock: Box::new(superblock) })
}

/// All of them, in the order in which the kernel lists block devices.
pub fn all() -> Vec<Found> {
    let partitions = std::fs::read_to_string("/proc/partitions").unwrap_or_default();
    let names = partitions.lines().skip(2).filter_map(|line| line.split_whitespace().nth(3));
    names.filter_map(|name| look_at(&Path::new("/dev").join(name))).collect()
}
