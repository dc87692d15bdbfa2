//! Reading a directory.
//!
//! # Invariants
//! 1. Offset 0 is `.`, 1 is `..`; an entry's offset is its DIR_INDEX, and what follows it begins at the index + 1.
//!    So an offset stays good whatever happens to the directory, and an entry that stays is shown once.
//! 2. Entries made after a listing began may be left out ([`Namespace::last_offset`]), so that reading a directory
//!    into which others write comes to an end.
//!
//! No lock is held while the caller looks at an entry.

use super::Namespace;
use super::lookup::Object;
use crate::error::{Errno, Result};
use crate::inode::attr::{Attr, InodeId, readdir_kind};
use crate::inode::directory::{self, EntryTarget, FIRST_INDEX, index_key};
use crate::inode::{Inode, cache, entry};
use crate::transaction::without_waiting;
use butterfs_ondisk::Key;
use butterfs_tree::Position;
use std::ops::ControlFlow;
use std::sync::Arc;

/// An entry as readdir shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The target.
    pub id: InodeId,
    /// The offset at which the listing continues after it.
    pub offset_next: u64,
    /// `DT_*`.
    pub kind: u8,
    /// The name.
    pub name: &'a [u8],
}

/// `DT_DIR`.
const DT_DIR: u8 = 4;

impl Namespace {
    /// Shows the entries of a directory from `offset` on, until the callback says that it has no room for one.
    pub fn readdir(&self, id: InodeId, offset: u64, show: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.readdir_until(id, offset, u64::MAX, show)
    }

    /// The same, without entries at an offset greater than `last`.
    pub fn readdir_until(
        &self,
        id: InodeId,
        offset: u64,
        last: u64,
        show: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if !self.show_dots(id, offset, show)? || id.is_placeholder() {
            return Ok(());
        }
        let directory = self.directory(id)?;
        if offset <= FIRST_INDEX {
            self.note_access(&directory);
        }
        let (from, to) = (index_key(id.ino, offset.max(FIRST_INDEX)), index_key(id.ino, last));
        let mut next = Some(from);
        while let Some(from) = next.filter(|from| *from <= to) {
            let at = self.leaf_of(&directory, from)?;
            for slot in at.slot..at.leaf.nritems() {
                let key = at.leaf.key(slot);
                if key > to || self.show_item(&directory, key, at.leaf.item(slot), show)?.is_break() {
                    self.core().nodes.count_items(slot - at.slot);
                    return Ok(());
                }
            }
            self.core().nodes.count_items(at.leaf.nritems().saturating_sub(at.slot));
            next = at.upper;
        }
        Ok(())
    }

    /// The leaf of a directory's tree where `key` is. It never changes.
    fn leaf_of(&self, directory: &Inode, key: Key) -> Result<Position> {
        without_waiting(self.core(), &directory.tree, |source| {
            // A rename is in the midst of two changes while it has the directory.
            let _guard = directory.lock_shared()?;
            directory.tree.position(source, key)
        })
    }

    /// Shows what one DIR_INDEX says.
    fn show_item(
        &self,
        directory: &Arc<Inode>,
        key: Key,
        payload: &[u8],
        show: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<ControlFlow<()>> {
        for found in entry::entries(payload) {
            let (_, entry) = found?;
            let target = EntryTarget::of(entry.location)?;
            let offset_next = key.offset.saturating_add(1);
            let id = self.shown_id(directory, entry.name, target)?;
            let shown = DirEntry { id, offset_next, kind: readdir_kind(entry.kind), name: entry.name };
            if !show(shown) {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The same with attributes. Each entry that the callback takes, but not `.` and `..`, counts as a lookup. An
    /// entry whose inode cannot be read has no attributes and is not counted.
    pub fn readdirplus(
        &self,
        id: InodeId,
        offset: u64,
        last: u64,
        show: &mut dyn FnMut(DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<()> {
        let directory = if id.is_placeholder() { None } else { Some(self.directory(id)?) };
        self.readdir_until(id, offset, last, &mut |entry| {
            if entry.offset_next <= FIRST_INDEX {
                return show(entry, None);
            }
            let attr = directory.as_ref().and_then(|directory| self.shown_attr(directory, entry.id));
            let taken = show(entry, attr.as_ref());
            if taken && attr.is_some() {
                self.inodes.retain(entry.id);
            }
            taken
        })
    }

    /// The offset of the last entry that exists now.
    pub fn last_offset(&self, id: InodeId) -> Result<u64> {
        if id.is_placeholder() {
            return Ok(FIRST_INDEX);
        }
        let directory = self.directory(id)?;
        directory::last_index(self.core(), &directory.tree, directory.ino)
    }

    fn show_dots(&self, id: InodeId, offset: u64, show: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<bool> {
        if offset == 0 && !show(DirEntry { id, offset_next: 1, kind: DT_DIR, name: b"." }) {
            return Ok(false);
        }
        if offset < FIRST_INDEX {
            // A removed directory has no parent any more; it shows itself.
            let parent =
                self.parent_at_rest(id).or_else(|error| if error.is(Errno::ENOENT) { Ok(id) } else { Err(error) })?;
            return Ok(show(DirEntry { id: parent, offset_next: FIRST_INDEX, kind: DT_DIR, name: b".." }));
        }
        Ok(true)
    }

    fn shown_id(&self, directory: &Arc<Inode>, name: &[u8], target: EntryTarget) -> Result<InodeId> {
        match target {
            EntryTarget::Inode(ino) => Ok(InodeId::new(directory.tree_id(), ino)),
            EntryTarget::Subvolume(subvolume) => match self.subvolume_object(directory, name, subvolume) {
                Ok(Object::Placeholder(tree)) => Ok(self.placeholder(directory, tree).id),
                Ok(_) => Ok(InodeId::root_of(subvolume)),
                // It has moved since its entry was seen.
                Err(error) if error.is(Errno::ENOENT) => Ok(InodeId::root_of(subvolume)),
                Err(error) => Err(error),
            },
        }
    }

    /// Attributes without taking the inode into memory. Only damage keeps them from being read, which a lookup of
    /// the name will report.
    fn shown_attr(&self, directory: &Inode, id: InodeId) -> Option<Attr> {
        if id.is_placeholder() || id.tree != directory.tree_id() {
            return self.getattr(id).ok();
        }
        if let Some(inode) = self.inodes.peek(id) {
            return Some(inode.attr());
        }
        let item = cache::read_item(self.core(), &directory.tree, id.ino).ok()?;
        Some(Attr::of_item(id, &item, self.core().sectorsize()))
    }
}
