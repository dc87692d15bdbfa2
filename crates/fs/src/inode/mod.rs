//! Inodes in memory and everything about names: items, directories, links, rename, extended attributes, orphans.
//!
//! # Invariants
//! 1. An inode is in memory at most once (the [`InodeCache`] sees to it), and its item is changed in memory only:
//!    [`Inode::change`] marks it dirty, and [`InodeCache::flush_dirty`] writes it into its tree before the
//!    transaction that changed it is committed.
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
mod capability;
pub mod directory;
pub mod entry;
pub mod namespace;
mod number;
pub mod orphan;
mod privilege;
pub mod property;
pub mod reference;
pub mod subvolume_entry;
pub mod xattr;

use crate::env::Time;
use crate::error::{Errno, Error, Result};
use crate::file_buffer::FileData;
use crate::transaction::{Core, Tree};
use crate::tree_log::Changed;
use attr::{Attr, timespec};
use butterfs_ondisk::items::InodeItem;
use butterfs_ondisk::{Generation, Ino, TreeId};
use butterfs_sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, order};
use std::sync::Arc;

pub use attr::InodeId;
pub use cache::InodeCache;
pub use namespace::Namespace;

/// What is known about an extended attribute without looking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Known<T> {
    /// Nothing; look.
    #[default]
    Unknown,
    /// There is none.
    Absent,
    /// This.
    Present(T),
}

/// Where an inode without a name stands with its orphan item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Orphan {
    /// The inode has a name.
    #[default]
    No,
    /// The item is due by the end of the running transaction.
    Due,
    /// The item is in the tree.
    Recorded,
}

/// The changeable part of an [`Inode`].
pub struct InodeState {
    /// The item as it will be written. Its `size` is the size that the extents in the tree bear out.
    pub item: InodeItem,
    /// The size that users see; ahead of `item.size` while written data is still on its way to the tree.
    pub size: u64,
    /// Differs from the item in the tree.
    dirty: bool,
    /// The number of the last change; 0 if it was before the inode came into memory.
    change: u64,
    /// Its items are being removed, or are gone.
    deleted: bool,
    orphan: Orphan,
    /// Was made without a name, and may get one.
    linkable: bool,
    /// The next directory index; 0 when unknown.
    next_index: u64,
    /// Whether there is a `security.capability` attribute.
    capability: Known<()>,
    /// The default ACL.
    default_acl: Known<Box<[u8]>>,
    /// The value of the `btrfs.compression` attribute.
    compression: Known<Box<[u8]>>,
}

impl InodeState {
    fn new(item: InodeItem) -> InodeState {
        let orphan = if item.nlink == 0 { Orphan::Recorded } else { Orphan::No };
        InodeState {
            item,
            size: item.size.get(),
            dirty: false,
            change: 0,
            deleted: false,
            orphan,
            linkable: false,
            next_index: 0,
            capability: Known::Unknown,
            default_acl: Known::Unknown,
            compression: Known::Unknown,
        }
    }

    /// `S_IFMT` and permission bits.
    pub fn mode(&self) -> u32 {
        self.item.mode.get()
    }

    /// See [`inode_flags`](butterfs_ondisk::items::inode_flags).
    pub fn flags(&self) -> u64 {
        self.item.flags.get()
    }

    /// Whether any of `flags` is set.
    pub fn has(&self, flags: u64) -> bool {
        self.flags() & flags != 0
    }

    /// Sets `flags`.
    pub fn set_flags(&mut self, flags: u64) {
        self.item.flags = (self.flags() | flags).into();
    }

    /// Clears `flags`.
    pub fn clear_flags(&mut self, flags: u64) {
        self.item.flags = (self.flags() & !flags).into();
    }

    /// Adds to the bytes that extents cover.
    pub fn add_nbytes(&mut self, bytes: u64) {
        self.item.nbytes = self.item.nbytes.get().saturating_add(bytes).into();
    }

    /// Takes from the bytes that extents cover. An item that was wrong on disk does not wrap.
    pub fn sub_nbytes(&mut self, bytes: u64) {
        self.item.nbytes = self.item.nbytes.get().saturating_sub(bytes).into();
    }

    /// Adds to a directory's size, or takes from it.
    pub fn grow_directory(&mut self, bytes: i64) {
        self.size = self.size.saturating_add_signed(bytes);
        self.item.size = self.size.into();
    }

    /// The content changed now.
    pub fn touch_content(&mut self, now: Time) {
        self.item.mtime = timespec(now);
        self.item.ctime = timespec(now);
    }

    /// The inode changed now.
    pub fn touch(&mut self, now: Time) {
        self.item.ctime = timespec(now);
    }
}

/// Inodes whose items must be written before the running transaction ends.
pub struct DirtyInodes {
    core: Arc<Core>,
    list: Mutex<Vec<Arc<Inode>>, { order::DIRTY_INODES }>,
}

/// An inode in memory.
pub struct Inode {
    /// The subvolume.
    pub tree: Arc<Tree>,
    /// The number within it.
    pub ino: Ino,
    /// Held by an operation while it runs: exclusively to change names or contents, shared to read them.
    pub lock: RwLock<(), { order::INODE }>,
    /// Content that is not in the tree yet; the business of `file`.
    pub data: FileData,
    state: Mutex<InodeState, { order::INODE_STATE }>,
    dirty: Arc<DirtyInodes>,
}

impl Inode {
    fn new(tree: Arc<Tree>, ino: Ino, item: InodeItem, dirty: Arc<DirtyInodes>) -> Inode {
        let state = Mutex::new(InodeState::new(item));
        Inode { tree, ino, lock: RwLock::new(()), data: FileData::default(), state, dirty }
    }

    /// Which inode this is.
    pub fn id(&self) -> InodeId {
        InodeId { tree: self.tree.id(), ino: self.ino }
    }

    /// The subvolume's id.
    pub fn tree_id(&self) -> TreeId {
        self.tree.id()
    }

    /// Looks at the state. The lock is held meanwhile: neither tree nor device is touched in there.
    pub fn with<R>(&self, look: impl FnOnce(&InodeState) -> R) -> R {
        look(&self.state.lock())
    }

    /// Changes the state and sees to it that the item is written with the running transaction; what must be
    /// committed together with changes of items is changed under their handle. The change counter advances.
    pub fn change<R>(self: &Arc<Self>, change: impl FnOnce(&mut InodeState) -> R) -> R {
        self.change_uncounted(|state| {
            state.item.sequence = state.item.sequence.get().wrapping_add(1).into();
            change(state)
        })
    }

    /// The same for what is not a change in the sense of the change counter: access times.
    pub(crate) fn change_uncounted<R>(self: &Arc<Self>, change: impl FnOnce(&mut InodeState) -> R) -> R {
        let mut state = self.state.lock();
        let result = change(&mut state);
        self.dirty.core().env().passes("an inode is changed and not yet dirty");
        state.change = self.dirty.core().next_change();
        if !std::mem::replace(&mut state.dirty, true) {
            self.dirty.push(Arc::clone(self));
        }
        result
    }

    /// When it changed last.
    pub(crate) fn changed(&self) -> Changed {
        self.with(|state| {
            let written_in = (!state.dirty).then(|| Generation(state.item.transid.get()));
            Changed { change: state.change, written_in }
        })
    }

    /// Changes what is only known in memory; nothing is written for it.
    pub fn remember<R>(&self, change: impl FnOnce(&mut InodeState) -> R) -> R {
        change(&mut self.state.lock())
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

    /// What `stat` shows. Data that is still on its way to the tree counts as blocks.
    pub fn attr(&self) -> Attr {
        let coming = self.data.dirty_bytes();
        self.with(|state| {
            let mut attr = Attr::of_item(self.id(), &state.item, self.dirty.core().sectorsize());
            attr.size = state.size;
            // What replaces recorded data does not come on top of it.
            let whole = state.size.checked_next_multiple_of(4096).unwrap_or(u64::MAX);
            let room = whole.saturating_sub(state.item.nbytes.get());
            attr.blocks = attr.blocks.saturating_add(coming.min(room).div_ceil(512));
            attr
        })
    }
}
