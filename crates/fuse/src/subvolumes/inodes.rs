//! The inodes of a question, which the asker has reached.
//!
//! # Invariants
//! 1. Looking at a descriptor never waits for anybody but this mount's own server: whose it is, is known before more is
//!    asked of it.
//! 2. Descriptors are held while their question is answered, so the kernel keeps the inodes.

use super::Refused;
use super::hold::Holds;
use crate::control::descriptors::is_path_on;
use butterfs_fs::InodeId;
use rustix::fs::{AtFlags, StatVfsMountFlags, StatxFlags, fstatvfs, statx};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

/// An inode, and how it was reached.
#[derive(Debug)]
pub struct ReachedInode {
    /// The inode.
    pub id: InodeId,
    descriptor: OwnedFd,
    holds: Arc<Holds>,
    /// Keeps the mount writable.
    hold: OnceLock<OwnedFd>,
}

/// The names of the inodes of a question.
#[derive(Clone, Copy, Debug)]
pub enum Inodes<'a> {
    /// The index of one of these.
    Reached(&'a [ReachedInode]),
    /// Numbers: nobody has mounted the filesystem.
    Numbered,
}

impl ReachedInode {
    /// The inode on the mount with this device number that a descriptor stands for. `find` leads from the inode number
    /// that `stat` shows to the inode.
    pub fn of(
        descriptor: OwnedFd,
        (device, holds): ((u32, u32), &Arc<Holds>),
        find: impl Fn(u64) -> Option<InodeId>,
    ) -> Result<ReachedInode, Refused> {
        let failed = |error: Errno| Refused::new(error.raw_os_error(), error.to_string());
        if !is_path_on(&descriptor, device) {
            return Err(Refused::new(libc::EXDEV, "it is not on this filesystem, or more than the way to something"));
        }
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = statx(&descriptor, c"", flags, StatxFlags::INO).map_err(failed)?;
        let gone = || Refused::new(libc::ENOENT, "there is no such inode");
        let id = find(stat.stx_ino).ok_or_else(gone)?;
        Ok(ReachedInode { id, descriptor, holds: Arc::clone(holds), hold: OnceLock::new() })
    }

    /// Refuses changes through a mount, bind mount or remount that is read-only, as the kernel does. A directory's
    /// mount stays writable as long as the inode is held; that of a file is only looked at, and so is that of a
    /// directory in which this process may not make files.
    pub fn must_be_writable(&self) -> Result<(), Refused> {
        let failed = |error: Errno| Refused::new(error.raw_os_error(), error.to_string());
        let is_read_only = || Refused::new(Errno::ROFS.raw_os_error(), "it is mounted read-only here");
        if self.hold.get().is_some() {
            return Ok(());
        }
        match self.holds.on(&self.descriptor) {
            Ok(hold) => {
                // Nobody else sets it.
                let _ = self.hold.set(hold);
                Ok(())
            }
            Err(Errno::ROFS) => Err(is_read_only()),
            Err(_) => {
                let flags = fstatvfs(&self.descriptor).map_err(failed)?.f_flag;
                if flags.contains(StatVfsMountFlags::RDONLY) { Err(is_read_only()) } else { Ok(()) }
            }
        }
    }
}
