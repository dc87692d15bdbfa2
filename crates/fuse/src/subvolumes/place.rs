//! What a question is about: the places that whoever asks has reached.
//!
//! # Invariants
//! 1. Looking at a descriptor never waits for anybody but this mount's own server: whose it is, is known before more is
//!    asked of it.
//! 2. Places are held while their question is answered, so the kernel keeps their inodes.

use super::Refusal;
use butterfs_fs::{Errno, InodeId};
use rustix::fs::{AtFlags, OFlags, StatVfsMountFlags, StatxFlags, fcntl_getfl, fstatvfs, statx};
use std::os::fd::OwnedFd;

/// An inode, and how it was reached.
#[derive(Debug)]
pub struct Place {
    /// The inode.
    pub id: InodeId,
    descriptor: OwnedFd,
}

/// What the words of a question name places by.
#[derive(Clone, Copy, Debug)]
pub enum Places<'a> {
    /// `@INDEX`, one of these.
    Reached(&'a [Place]),
    /// `TREE:INO`: nobody has mounted the filesystem.
    Numbered,
}

impl Place {
    /// The inode on the mount with this device number that a descriptor stands for. `find` leads from the inode number
    /// that `stat` shows to the inode.
    pub fn of(
        descriptor: OwnedFd,
        device: (u32, u32),
        find: impl Fn(u64) -> Option<InodeId>,
    ) -> Result<Place, Refusal> {
        let failed = |error: rustix::io::Errno| Refusal::new(error.raw_os_error(), error.to_string());
        // Others have to be closed, and their owners asked about that.
        if !fcntl_getfl(&descriptor).map_err(failed)?.contains(OFlags::PATH) {
            return Err(Refusal::new(Errno::EINVAL.0, "the question makes no sense"));
        }
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = statx(&descriptor, c"", flags, StatxFlags::INO).map_err(failed)?;
        if (stat.stx_dev_major, stat.stx_dev_minor) != device {
            return Err(Refusal::new(Errno::EXDEV.0, "it is on another filesystem"));
        }
        let gone = || Refusal::new(Errno::ENOENT.0, "there is no such inode");
        Ok(Place { id: find(stat.stx_ino).ok_or_else(gone)?, descriptor })
    }

    /// Refuses changes through a mount, bind mount or remount that is read-only, as the kernel does.
    pub fn must_be_writable(&self) -> Result<(), Refusal> {
        let failed = |error: rustix::io::Errno| Refusal::new(error.raw_os_error(), error.to_string());
        if fstatvfs(&self.descriptor).map_err(failed)?.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(Refusal::new(Errno::EROFS.0, "it is mounted read-only here"));
        }
        Ok(())
    }
}
