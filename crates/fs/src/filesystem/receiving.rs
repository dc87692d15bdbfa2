//! Operations for applying a send stream that no user can do: inodes that inherit nothing, extents that arrive
//! compressed, and what makes a subvolume a received one.

use super::Filesystem;
use crate::error::Result;
use crate::file::Encoded;
use crate::inode::InodeId;
use crate::inode::attr::Attr;
use crate::subvolume;
use butterfs_ondisk::TreeId;

impl Filesystem {
    /// Makes an inode of the type and with the permissions of `mode` that belongs to root and inherits nothing from its
    /// directory. `target` is that of a symbolic link. Counts a reference.
    pub fn make_bare(&self, parent: InodeId, name: &[u8], mode: u32, rdev: (u32, u32), target: &[u8]) -> Result<Attr> {
        let _operation = self.begin();
        self.0.names.make_bare(parent, name, mode, rdev, target)
    }

    /// As [`copy_range`](Self::copy_range) for a privileged writer: the target keeps its set-id bits.
    pub fn copy_range_privileged(&self, source: (InodeId, u64), target: (InodeId, u64), len: u64) -> Result<u64> {
        let _operation = self.begin();
        self.copy_range_as(source, target, len, false)
    }

    /// Writes what `encoded` decodes to at `offset`. With `keep` it stays compressed on disk where the format allows
    /// it. `EIO` when it does not decode; then nothing was changed.
    pub fn write_encoded(&self, id: InodeId, offset: u64, encoded: &Encoded<'_>, keep: bool) -> Result<()> {
        let _operation = self.begin();
        let inode = self.regular(id)?;
        self.0.inodes.relieve()?;
        self.0.files.write_encoded(&inode, offset, encoded, keep)
    }

    /// Makes a subvolume that was received as `uuid` in the sender's transaction `stransid` read-only, with everything
    /// written to it before the call. The attribute `mark` of its root goes in the same transaction.
    pub fn finish_received(&self, id: TreeId, uuid: &[u8; 16], stransid: u64, mark: &[u8]) -> Result<()> {
        let _operation = self.begin();
        self.0.files.write_back_all_for(id)?;
        subvolume::finish_received(&self.0.files, id, uuid, stransid, mark)?;
        self.end_changes(id)
    }
}
