//! Filesystems that are made for zoned devices. They are read where their superblocks lie where all others have them,
//! as on an image or an ordinary device. On a zoned device the first two zones are a log of superblocks: what lies at
//! the usual place there is an old one, if it is one at all.

use crate::error::{Errno, Error, Result};
use butterfs_device::BlockDevice;
use butterfs_ondisk::features::incompat;
use butterfs_ondisk::superblock::{MAGIC, SUPERBLOCK_LEN, Superblock};
use std::sync::Arc;
use zerocopy::FromBytes;

/// Refuses devices whose first zones are a log of superblocks.
pub(super) fn must_have_superblocks_in_place(superblock: &Superblock, devices: &[Arc<dyn BlockDevice>]) -> Result<()> {
    if superblock.incompat_flags.get() & incompat::ZONED == 0 {
        return Ok(());
    }
    let Some(device) = devices.iter().find(|device| has_log(device.as_ref())) else { return Ok(()) };
    let what = format!(
        "{} keeps its superblocks as a log in its first zones (feature ZONED); such a device is neither read nor \
         written here",
        device.name()
    );
    Err(Error::refused_at(Errno::EOPNOTSUPP, what))
}

/// The log begins with the first byte.
fn has_log(device: &dyn BlockDevice) -> bool {
    let mut first = [0; SUPERBLOCK_LEN];
    let is_superblock = |bytes: &[u8]| Superblock::read_from_bytes(bytes).is_ok_and(|first| first.magic == MAGIC);
    device.read_at(0, &mut first).is_ok() && is_superblock(&first)
}
