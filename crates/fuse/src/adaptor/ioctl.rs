//! The ioctls that reach a FUSE server: those whose number says how much they carry.
//!
//! Not yet here: the rest of btrfs', and the attributes of chattr(1) (FS_IOC_GETFLAGS, FS_IOC_FSGETXATTR). They belong
//! in the table of [`Shared::ioctl`].

use super::{Outcome, Shared, errno};
use crate::protocol::wire::{IoctlIn, IoctlOut};
use butterfs_fs::InodeId;
use rustix::io::Errno;
use zerocopy::IntoBytes;

/// BTRFS_IOC_SYNC: everything is durable when it returns. On mounts of type `fuse` it is the only call of that kind
/// that reaches the server.
pub const BTRFS_SYNC: u32 = 0x9408;

impl Shared {
    pub(super) fn ioctl(&self, _id: InodeId, arguments: &IoctlIn, _data: &[u8], _payload: &mut Vec<u8>) -> Outcome {
        let _ = arguments.cmd;
        Err(Errno::NOTTY)
    }

    pub(super) fn sync_by_ioctl(&self, payload: &mut Vec<u8>) -> Outcome {
        self.filesystem().sync().map_err(errno)?;
        payload.extend_from_slice(IoctlOut::default().as_bytes());
        Ok(())
    }
}
