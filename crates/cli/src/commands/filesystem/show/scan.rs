//! Looking for filesystems: superblocks on block devices, mounts of ours and of the kernel.

use crate::error::CliError;
use crate::open_filesystem::cannot_access;
use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_fuse::mount::mountinfo;
use butterfs_ondisk::superblock::{OFFSETS, SUPERBLOCK_LEN, Superblock};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A device with a superblock.
pub struct Found {
    /// Its path, absolute.
    pub path: PathBuf,
    /// Its primary superblock.
    pub superblock: Box<Superblock>,
}

/// The superblock of a device or image.
pub fn read(path: &Path) -> Result<Found, CliError> {
    let none = || CliError::failed(format!("no btrfs on {}", path.display()));
    let device = FileDevice::open(path, &FileOptions::inspect()).map_err(|error| match std::fs::metadata(path) {
        Ok(found) if !storage(&found) => CliError::failed(format!("not a valid btrfs filesystem: {}", path.display())),
        _ => CliError::from(error),
    })?;
    let mut bytes = [0; SUPERBLOCK_LEN];
    device.read_fresh(OFFSETS[0].get(), &mut bytes).map_err(|_| none())?;
    let superblock = Superblock::parse(&bytes, OFFSETS[0]).map_err(|_| none())?;
    let path = std::path::absolute(path).map_err(|error| cannot_access(path, error))?;
    Ok(Found { path, superblock: Box::new(superblock) })
}

fn storage(found: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    found.is_file() || found.file_type().is_block_device()
}

/// All block devices with a superblock. Those that cannot be read are passed over.
pub fn block_devices() -> Vec<Found> {
    let listed = std::fs::read_to_string("/proc/partitions").unwrap_or_default();
    let names = listed.lines().skip(2).filter_map(|line| line.split_whitespace().nth(3));
    names.filter_map(|name| read(&Path::new("/dev").join(name)).ok()).collect()
}

/// The devices of each filesystem together, in the order in which they were found.
pub fn by_filesystem(found: &[Found]) -> Vec<Vec<&Found>> {
    let mut groups: Vec<Vec<&Found>> = Vec::new();
    for one in found {
        match groups.iter_mut().find(|group| group[0].superblock.fsid == one.superblock.fsid) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    groups
}

/// The mount points of our filesystems, each once.
pub fn our_mounts() -> Vec<PathBuf> {
    let mut seen = BTreeSet::new();
    let mounts = mountinfo::all().unwrap_or_default().into_iter();
    mounts.filter(|mount| mount.is_ours() && seen.insert(mount.device)).map(|mount| mount.mountpoint).collect()
}

/// The devices from which the kernel has mounted filesystems.
pub fn kernel_mounts() -> BTreeSet<PathBuf> {
    let mounts = mountinfo::all().unwrap_or_default().into_iter();
    mounts.filter(|mount| mount.kind == "btrfs").map(|mount| mount.source.into()).collect()
}

/// The mount that a directory is the root of.
fn mount_at(path: &Path) -> Option<mountinfo::Mount> {
    mountinfo::at(&path.canonicalize().ok()?).ok()?
}

/// Whether a filesystem of ours is mounted in a directory.
pub fn is_ours(path: &Path) -> bool {
    mount_at(path).is_some_and(|mount| mount.is_ours())
}

/// The device that the kernel has mounted in a directory.
pub fn kernel_device(path: &Path) -> Option<PathBuf> {
    mount_at(path).filter(|mount| mount.kind == "btrfs").map(|mount| mount.source.into())
}
