//! Operations that an inode refuses because of its kind, its flags, or the state of its subvolume.

use super::Inode;
use super::attr::mode;
use crate::error::{Errno, Error, Result};
use butterfs_ondisk::items::inode_flags;

impl Inode {
    /// Whether this is a directory.
    pub fn is_directory(&self) -> bool {
        self.with(|state| state.mode()) & mode::S_IFMT == mode::S_IFDIR
    }

    /// Refuses changes in a read-only subvolume.
    pub fn must_be_writable(&self) -> Result<()> {
        if self.tree.is_readonly() {
            return Err(Error::refused(Errno::EROFS, "the subvolume is read-only"));
        }
        if self.tree.is_deleted() {
            return Err(Error::refused(Errno::ESTALE, "the subvolume was deleted"));
        }
        Ok(())
    }

    /// Refuses an inode with one of `flags`.
    pub(crate) fn must_not_have(&self, flags: u64) -> Result<()> {
        if self.with(|state| state.has(flags)) {
            return Err(Error::refused(Errno::EPERM, "the inode is immutable or append-only"));
        }
        Ok(())
    }

    /// Refuses a directory that cannot get another entry.
    pub(crate) fn must_take_entries(&self) -> Result<()> {
        self.must_be_writable()?;
        if self.with(|state| state.item.nlink == 0) {
            return Err(Error::refused(Errno::ENOENT, "the directory was removed"));
        }
        self.must_not_have(inode_flags::IMMUTABLE)
    }

    /// Refuses a directory that cannot lose an entry.
    pub(crate) fn must_lose_entries(&self) -> Result<()> {
        self.must_be_writable()?;
        self.must_not_have(FIXED)
    }

    /// Refuses an inode whose names stay as they are.
    pub(crate) fn must_lose_names(&self) -> Result<()> {
        self.must_not_have(FIXED)
    }
}

/// Flags of an inode whose names and attributes stay as they are.
pub(crate) const FIXED: u64 = inode_flags::IMMUTABLE | inode_flags::APPEND;
