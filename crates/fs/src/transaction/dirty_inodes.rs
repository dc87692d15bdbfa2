//! Inodes whose items are ahead of their trees, and their way there.
//!
//! # Invariants
//! 1. An inode's item is changed in memory only; [`DirtyInodes::change`] puts the inode on the list, and the
//!    transaction that freezes next writes all that are on it.
//! 2. Nobody reads a tree or waits for anything while holding an inode's state.
//!
//! They belong to no generation: an inode is changed while whatever transaction runs, and goes with the next that
//! freezes.

use super::{Handle, Tree};
use crate::env::{Env, Time};
use crate::error::{Error, Result};
use butterfs_ondisk::items::InodeItem;
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Generation, Ino, Key, KeyType, TreeId};
use butterfs_sync::{Mutex, order};
use rustc_hash::FxHashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use zerocopy::IntoBytes;

/// The key of an inode's item.
pub fn item_key(ino: Ino) -> Key {
    Key::new(ino.0, KeyType::INODE_ITEM, 0)
}

/// The key of an inode's orphan item.
pub fn orphan_key(ino: Ino) -> Key {
    Key::new(objectid::ORPHAN, KeyType::ORPHAN_ITEM, ino.0)
}

/// The knowledge about an extended attribute without a lookup.
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

/// The state of the orphan item of an inode without a name.
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

/// The changeable part of an [`InodeRecord`].
pub struct InodeState {
    /// The item as it will be written. Its `size` is the one that the extents in the tree confirm.
    pub item: InodeItem,
    /// The size that users see; ahead of `item.size` while written data is still on its way to the tree.
    pub size: u64,
    /// Differs from the item in the tree.
    pub(crate) dirty: bool,
    /// The number of the last change; 0 if it was before the inode came into memory.
    pub(crate) change: u64,
    /// Its items are being removed, or are gone.
    pub(crate) deleted: bool,
    pub(crate) orphan: Orphan,
    /// Was made without a name, and may get one.
    pub(crate) linkable: bool,
    /// The transaction in which it got that name, 0 for none.
    pub(crate) linked_in: u64,
    /// The next directory index; 0 when unknown.
    pub(crate) next_index: u64,
    /// Whether there is a `security.capability` attribute.
    pub(crate) capability: Known<()>,
    /// The default ACL.
    pub(crate) default_acl: Known<Box<[u8]>>,
    /// The value of the `btrfs.compression` attribute.
    pub(crate) compression: Known<Box<[u8]>>,
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
            linked_in: 0,
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
        self.item.mtime = now.into();
        self.item.ctime = now.into();
    }

    /// The inode changed now.
    pub fn touch(&mut self, now: Time) {
        self.item.ctime = now.into();
    }
}

/// An inode of the layer above, which keeps its [`InodeRecord`] and more in one allocation.
pub type Recorded = dyn AsRef<InodeRecord> + Send + Sync;

/// An inode in memory without its content: its id, and its item.
pub struct InodeRecord {
    /// The inode that this is of.
    inode: Weak<Recorded>,
    /// The subvolume.
    pub tree: Arc<Tree>,
    /// The number within it.
    pub ino: Ino,
    state: Mutex<InodeState, { order::INODE_STATE }>,
}

impl InodeRecord {
    /// Of an `inode` with this item.
    pub fn new(inode: Weak<Recorded>, tree: Arc<Tree>, ino: Ino, item: InodeItem) -> InodeRecord {
        InodeRecord { inode, tree, ino, state: Mutex::new(InodeState::new(item)) }
    }

    /// The subvolume's id.
    pub fn tree_id(&self) -> TreeId {
        self.tree.id()
    }

    /// Looks at the state. The lock is held meanwhile: neither tree nor device is touched in there.
    pub fn with<R>(&self, look: impl FnOnce(&InodeState) -> R) -> R {
        look(&self.state.lock())
    }

    /// Changes what is only known in memory; nothing is written for it.
    pub fn remember<R>(&self, change: impl FnOnce(&mut InodeState) -> R) -> R {
        change(&mut self.state.lock())
    }

    /// Nothing is known of the inode any more but this item: `running` is taken back. Whether it may get a name was
    /// decided when it was made.
    pub fn start_again(&self, item: InodeItem, running: Generation) {
        self.remember(|state| {
            let linkable = state.linkable || state.linked_in == running.0;
            *state = InodeState { linkable, ..InodeState::new(item) };
        });
    }

    /// The item to write, and whether an orphan item is due with it.
    fn take_dirty(&self, generation: Generation) -> (InodeItem, bool) {
        self.remember(|state| {
            state.dirty = false;
            state.item.transid = generation.0.into();
            let due = state.orphan == Orphan::Due;
            if due {
                state.orphan = Orphan::Recorded;
            }
            (state.item, due)
        })
    }

    fn write_item(&self, handle: &Handle) -> Result<()> {
        let (item, due) = self.take_dirty(handle.generation());
        if self.tree.is_dropping() {
            return Ok(());
        }
        let updated = self.tree.update(handle, item_key(self.ino), |bytes| {
            // The tree checker admits no other length.
            bytes.copy_from_slice(item.as_bytes());
        })?;
        if updated.is_none() {
            return match self.with(|state| state.deleted) {
                true => Ok(()),
                false => Err(Error::corrupt(format!("tree {}: inode {} vanished", self.tree_id(), self.ino))),
            };
        }
        if due {
            self.tree.insert(handle, orphan_key(self.ino), &[])?;
        }
        Ok(())
    }
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct DirtyInodes {
    list: Mutex<Vec<Arc<Recorded>>, { order::DIRTY_INODES }>,
    /// Numbers changes; never 0 for one.
    changes: AtomicU64,
}

impl DirtyInodes {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.lock().len()
    }

    /// Changes the state of an inode, and sees to it that its item is written when a transaction freezes.
    pub fn change<R>(&self, inode: &InodeRecord, env: &Env, change: impl FnOnce(&mut InodeState) -> R) -> R {
        let mut state = inode.state.lock();
        let result = change(&mut state);
        env.passes("an inode is changed and not yet dirty");
        state.change = self.changes.fetch_add(1, Ordering::Relaxed) + 1;
        if !std::mem::replace(&mut state.dirty, true) {
            self.list.lock().push(inode.inode.upgrade().expect("whoever changes an inode holds it"));
        }
        result
    }

    /// Their items stay as they are in their trees.
    pub fn forget_all(&self) {
        self.list.lock().clear();
    }

    /// The inodes of a tree whose items are ahead of it.
    pub fn of_tree(&self, tree: TreeId) -> FxHashSet<Ino> {
        let list = self.list.lock();
        list.iter().map(record_of).filter(|inode| inode.tree_id() == tree).map(|inode| inode.ino).collect()
    }

    /// Writes the items of all of them into their trees.
    pub fn record_all(&self, handle: &Handle) -> Result<()> {
        loop {
            let batch = std::mem::take(&mut *self.list.lock());
            if batch.is_empty() {
                return Ok(());
            }
            record(handle, batch)?;
        }
    }

    /// Has the leaves in memory that the items go to; adds what of the trees is going to be copied to `copied`. Returns
    /// the trees.
    pub(crate) fn preload(&self, core: &super::Core, copied: &mut super::Copied) -> Vec<TreeId> {
        let mut places: Vec<(TreeId, Key)> = Vec::new();
        let inodes = self.list.lock().clone();
        for inode in inodes.iter().map(record_of) {
            places.push((inode.tree_id(), item_key(inode.ino)));
            if inode.with(|state| state.orphan == Orphan::Due) {
                places.push((inode.tree_id(), orphan_key(inode.ino)));
            }
        }
        places.sort_unstable();
        for of_tree in places.chunk_by(|a, b| a.0 == b.0) {
            if let Some(tree) = core.trees.get(of_tree[0].0) {
                tree.preload_copied(core, &of_tree.iter().map(|(_, key)| *key).collect::<Vec<_>>(), copied);
            }
        }
        places.dedup_by_key(|(tree, _)| *tree);
        places.into_iter().map(|(tree, _)| tree).collect()
    }

    /// Writes the items of at most `most`. Orphans wait for the commit, by which time most of them are gone.
    pub fn record_some(&self, handle: &Handle, most: usize) -> Result<()> {
        let taken = {
            let mut list = self.list.lock();
            let from = list.len().saturating_sub(most);
            list.split_off(from)
        };
        let is_orphan = |inode: &Arc<Recorded>| record_of(inode).with(|state| state.orphan == Orphan::Due);
        let (orphans, batch): (Vec<_>, Vec<_>) = taken.into_iter().partition(is_orphan);
        self.list.lock().extend(orphans);
        record(handle, batch)
    }

    /// Writes the items of at most `most` of a tree; false when there were none.
    pub fn record_some_of(&self, handle: &Handle, tree: TreeId, most: usize) -> Result<bool> {
        let batch: Vec<_> = {
            let mut list = self.list.lock();
            list.extract_if(.., |inode| record_of(inode).tree_id() == tree).take(most).collect()
        };
        let any = !batch.is_empty();
        record(handle, batch).map(|()| any)
    }
}

fn record_of(inode: &Arc<Recorded>) -> &InodeRecord {
    (**inode).as_ref()
}

fn record(handle: &Handle, mut batch: Vec<Arc<Recorded>>) -> Result<()> {
    batch.sort_unstable_by_key(|inode| (record_of(inode).tree_id(), record_of(inode).ino));
    let mut inodes = batch.iter().map(record_of);
    inodes.try_for_each(|inode| inode.write_item(handle)).inspect_err(|error| handle.failed(error))
}
