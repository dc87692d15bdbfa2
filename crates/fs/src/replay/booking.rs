//! The changes in inode items and references when names and extents come and go.
//!
//! Sizes of directories and bytes of files are summed up and written once, at the end.

use super::subvolume::Subvolume;
use crate::error::{Error, Result};
use crate::file::extents::Effects;
use crate::file_extent::FileExtent;
use crate::inode::cache::item_key;
use crate::transaction::Handle;
use butterfs_ondisk::items::InodeItem;
use butterfs_ondisk::{Ino, TreeId};
use std::collections::BTreeMap;
use zerocopy::FromBytes;

/// Changes of inode items that are still to be written, by inode.
#[derive(Default)]
pub(super) struct Changes(BTreeMap<u64, Change>);

/// The gains and losses of an inode.
#[derive(Clone, Copy, Default)]
struct Change {
    directory_bytes: i64,
    nbytes: i64,
}

impl Changes {
    /// A directory gained a name of `len` bytes (`sign` 1) or lost it (−1).
    pub fn name(&mut self, directory: Ino, len: usize, sign: i64) {
        self.0.entry(directory.0).or_default().directory_bytes += sign * 2 * len as i64;
    }

    /// A file covers more bytes, or fewer.
    pub fn nbytes(&mut self, ino: u64, bytes: i64) {
        let change = self.0.entry(ino).or_default();
        // Extents of a damaged filesystem can claim anything.
        change.nbytes = change.nbytes.saturating_add(bytes);
    }
}

impl Subvolume<'_> {
    /// Writes the sums into the inode items.
    pub fn book(&mut self) -> Result<()> {
        for (ino, change) in std::mem::take(&mut self.changes.0) {
            self.change_inode(Ino(ino), |item| {
                item.size = item.size.get().saturating_add_signed(change.directory_bytes).into();
                item.nbytes = item.nbytes.get().saturating_add_signed(change.nbytes).into();
            })?;
        }
        Ok(())
    }

    /// Changes an inode item, which exists.
    pub fn change_inode(&self, ino: Ino, change: impl FnOnce(&mut InodeItem)) -> Result<()> {
        let generation = self.handle.generation().0;
        let changed = self.tree.update(self.handle, item_key(ino), |bytes| {
            let Ok(item) = InodeItem::mut_from_bytes(bytes) else { return };
            change(item);
            item.transid = generation.into();
        })?;
        let id = self.log.id;
        changed
            .ok_or_else(|| Error::corrupt(format!("subvolume {id}: inode {ino} vanished while its log was replayed")))
    }
}

/// References and bytes that change while the extents of one file are edited.
pub(super) struct Booking<'a, 'c> {
    pub handle: &'a Handle,
    pub tree: TreeId,
    pub ino: u64,
    pub changes: &'c mut Changes,
}

impl Effects for Booking<'_, '_> {
    fn add_ref(&mut self, extent: &FileExtent, new: bool) {
        if let Some(data) = extent.data_ref(self.tree, self.ino) {
            self.handle.add_data_ref(data, new);
        }
    }

    fn drop_ref(&mut self, extent: &FileExtent) {
        if let Some(data) = extent.data_ref(self.tree, self.ino) {
            self.handle.drop_data_ref(data);
        }
    }

    fn add_nbytes(&mut self, change: i64) {
        self.changes.nbytes(self.ino, change);
    }
}
