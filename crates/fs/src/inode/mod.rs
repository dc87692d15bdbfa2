//! Inodes in memory and everything about names: items, directories, links, rename, extended attributes, orphans.
//!
//! # Invariants
//! 1. An inode is in memory at most once (the [`InodeCache`] sees to it), and its item is changed in memory only:
//!    [`Inode::change`] marks it dirty, and the transaction that changed it writes it into its tree when that freezes.
//! 2. A new inode's items are in the tree before anybody else can see the inode.
//! 3. Locks: a handle is joined first, then inode locks are taken in the order of (tree, number), then `state`
//!    for a moment. Nobody reads a tree or waits for anything while holding `state`.
//! 4. An operation finds out everything that can refuse it before it changes the first item.
//!
//! # Not here
//! File contents (`file`), permission checks (the caller's: FUSE has `default_permissions`).

pub mod acl;
pub mod attr;
pub mod cache;
pub(crate) mod capability;
pub mod directory;
pub mod entry;
mod inherited;
pub(crate) mod number;
pub mod orphan;
pub(crate) mod preload;
pub(crate) mod privilege;
pub mod property;
pub mod reference;
pub(crate) mod refusals;
pub mod subvolume_entry;
pub mod xattr;

use crate::error::{Errno, Error, Result};
use crate::file_buffer::FileData;
use crate::transaction::{Core, InodeRecord, Tree};
use crate::tree_log::Changed;
use attr::Attr;
use butterfs_ondisk::items::InodeItem;
use butterfs_ondisk::{Generation, Ino};
use butterfs_sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, order};
use std::ops::Deref;
use std::sync::{Arc, Weak};

pub use crate::transaction::{InodeState, Known, Orphan};
pub use attr::InodeId;
pub use cache::{InodeCache, References};

/// An inode in memory.
pub struct Inode {
    record: InodeRecord,
    /// Held by an operation while it runs: exclusively to change names or contents, shared to read them.
    pub lock: RwLock<(), { order::INODE }>,
    /// Content that is not in the tree yet; the business of `file`.
    pub data: FileData,
    core: Arc<Core>,
}

impl Deref for Inode {
    type Target = InodeRecord;

    fn deref(&self) -> &InodeRecord {
        &self.record
    }
}

impl AsRef<InodeRecord> for Inode {
    fn as_ref(&self) -> &InodeRecord {
        &self.record
    }
}

impl Inode {
    fn new(tree: Arc<Tree>, ino: Ino, item: InodeItem, core: Arc<Core>) -> Arc<Inode> {
        Arc::new_cyclic(|inode: &Weak<Inode>| {
            let record = InodeRecord::new(inode.clone(), tree, ino, item);
            Inode { record, lock: RwLock::new(()), data: FileData::default(), core }
        })
    }

    /// Which inode this is.
    pub fn id(&self) -> InodeId {
        InodeId { tree: self.tree.id(), ino: self.ino }
    }

    /// Changes the state and sees to it that the item is written with the running transaction; what must be
    /// committed together with changes of items is changed under their handle. The change counter advances.
    pub fn change<R>(&self, change: impl FnOnce(&mut InodeState) -> R) -> R {
        self.change_uncounted(|state| {
            state.item.sequence = state.item.sequence.get().wrapping_add(1).into();
            change(state)
        })
    }

    /// The same for what is not a change in the sense of the change counter: access times.
    pub(crate) fn change_uncounted<R>(&self, change: impl FnOnce(&mut InodeState) -> R) -> R {
        self.core.dirty_inodes.change(&self.record, self.core.env(), change)
    }

    /// When it changed last.
    pub(crate) fn changed(&self) -> Changed {
        self.with(|state| {
            let written_in = (!state.dirty).then(|| Generation(state.item.transid.get()));
            Changed { change: state.change, written_in }
        })
    }

    /// Takes the operation lock shared; refuses an inode that is gone.
    pub fn lock_shared(&self) -> Result<RwLockReadGuard<'_, ()>> {
        let guard = self.lock.read();
        self.must_exist().map(|()| guard)
    }

    /// Takes the operation lock exclusively; refuses an inode that is gone.
    pub fn lock_exclusive(&self) -> Result<RwLockWriteGuard<'_, ()>> {
        let guard = self.lock.write();
        self.must_exist().map(|()| guard)
    }

    /// The same for whoever changes what the file has on disk.
    pub(crate) fn lock_extents(&self) -> Result<RwLockWriteGuard<'_, ()>> {
        let guard = self.lock_exclusive()?;
        self.data.extents_change();
        Ok(guard)
    }

    /// Refuses an inode that is gone.
    pub fn must_exist(&self) -> Result<()> {
        if self.with(|state| state.deleted) {
            return Err(Error::refused(Errno::ESTALE, "the inode was deleted"));
        }
        Ok(())
    }

    /// The size that users see.
    pub fn size(&self) -> u64 {
        self.with(|state| state.size)
    }

    /// The attributes that `stat` shows. Data that is still on its way to the tree counts as blocks.
    pub fn attr(&self) -> Attr {
        let coming = self.data.dirty_bytes();
        self.with(|state| {
            let mut attr = Attr::of_item(self.id(), &state.item, self.core.sectorsize());
            attr.size = state.size;
            // What replaces recorded data does not come on top of it.
            let whole = state.size.checked_next_multiple_of(4096).unwrap_or(u64::MAX);
            let room = whole.saturating_sub(state.item.nbytes.get());
            attr.blocks = attr.blocks.saturating_add(coming.min(room).div_ceil(512));
            attr
        })
    }
}
