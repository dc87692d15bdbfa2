//! All inodes in memory, who refers to them from outside, and what becomes of them when nobody does.
//!
//! # Invariants
//! 1. An inode is in the table at most once. It leaves only when nobody holds it: whoever has unfinished business
//!    with an inode (an operation, the list of dirty inodes, unwritten data) holds its `Arc`.
//! 2. Outside references (lookups that the kernel remembers, open handles) are counted in the inode's slot: they do
//!    not keep an inode in memory, but they keep one without a name from being deleted.
//! 3. An inode without a name is deleted by whoever takes its last reference away, and by nobody else.
//!
//! The number of inodes in memory is bounded; the order of eviction is second chance. The table is our own: whether an
//! inode may leave is decided with its references and openings under one lock, which a general cache does not offer.

use crate::commit::Engine;
use crate::error::{Errno, Error, Result};
use crate::inode::{Inode, InodeId, Orphan, orphan};
use crate::transaction::{Core, Reserve, Tree};
use butterfs_ondisk::items::InodeItem;
use butterfs_ondisk::{Ino, TreeId};
use butterfs_sync::{Mutex, order};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::sync::Arc;
use zerocopy::FromBytes;

const SHARDS: usize = 32;
/// Inodes that are looked at together when some are to leave: each is elsewhere in memory, and so their cache lines
/// arrive together.
const BATCH: usize = 16;
/// Batches none of which may leave, after which the rest stays until another batch of inodes has entered: where all are
/// in use, entering stays cheap.
const FRUITLESS: usize = 2;
/// Dirty inodes beyond which operations write some of them.
const DIRTY_MAX: usize = 16384;
/// How many an operation then writes.
const DIRTY_BATCH: usize = 64;

/// One inode: stays while it is in memory or somebody outside refers to it.
#[derive(Default)]
struct Slot {
    inode: Option<Arc<Inode>>,
    touched: bool,
    users: Users,
}

impl Slot {
    /// Nobody has used it since it was looked at last, and nobody holds it or is to write its item.
    fn is_unused(&self) -> bool {
        let is_free = |inode: &Arc<Inode>| Arc::strong_count(inode) == 1;
        !self.touched && self.users.opens == 0 && self.inode.as_ref().is_some_and(is_free)
    }
}

/// References from outside.
#[derive(Clone, Copy, Default)]
struct Users {
    lookups: u64,
    opens: u32,
    /// The inode has no name any more and is to be deleted with the last reference.
    orphan: bool,
}

impl Users {
    fn is_empty(&self) -> bool {
        self.lookups == 0 && self.opens == 0
    }
}

#[derive(Default)]
struct Shard {
    slots: FxHashMap<InodeId, Slot>,
    /// Slots whose inode is in memory.
    loaded: usize,
    /// So many of those are too many.
    evict_at: usize,
    sweep: VecDeque<InodeId>,
    /// Counts inodes that left, so that a loader notices that what it read may be old.
    departures: u64,
}

impl Shard {
    /// The inode, with `lookups` more, if it is in memory.
    fn find(&mut self, id: InodeId, lookups: u64) -> Option<Arc<Inode>> {
        let slot = self.slots.get_mut(&id)?;
        let inode = Arc::clone(slot.inode.as_ref()?);
        slot.touched = true;
        slot.users.lookups += lookups;
        Some(inode)
    }

    /// Takes in an inode that is not in memory.
    fn enter(&mut self, id: InodeId, inode: Arc<Inode>, lookups: u64) {
        let slot = self.slots.entry(id).or_default();
        slot.inode = Some(inode);
        slot.touched = false;
        slot.users.lookups += lookups;
        self.loaded += 1;
        self.sweep.push_back(id);
    }

    /// Takes an inode out.
    fn take(&mut self, id: InodeId) -> Option<Arc<Inode>> {
        let slot = self.slots.get_mut(&id)?;
        let inode = slot.inode.take()?;
        if slot.users.is_empty() {
            self.remove_slot(id);
        }
        self.loaded -= 1;
        self.departures += 1;
        Some(inode)
    }

    /// A table that has become nearly empty gives its room back.
    fn remove_slot(&mut self, id: InodeId) {
        self.slots.remove(&id);
        if self.slots.capacity() > 4 * self.slots.len() + 256 {
            self.slots.shrink_to(2 * self.slots.len());
        }
    }

    /// The references to an inode, if there are any.
    fn users(&mut self, id: InodeId) -> Option<&mut Users> {
        self.slots.get_mut(&id).map(|slot| &mut slot.users).filter(|users| !users.is_empty())
    }

    /// Nobody outside refers to the inode any more.
    fn drop_users(&mut self, id: InodeId) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        slot.users = Users::default();
        if slot.inode.is_none() {
            self.remove_slot(id);
        }
    }

    /// Lets those of the next inodes go that nobody needs.
    fn evict_some(&mut self) {
        let count = self.sweep.len().min(BATCH);
        let ids: Vec<InodeId> = self.sweep.drain(..count).collect();
        let is_unused = |id: &InodeId| self.slots.get(id).is_some_and(Slot::is_unused);
        let unused: Vec<bool> = ids.iter().map(is_unused).collect();
        for (id, unused) in ids.into_iter().zip(unused) {
            let Some(slot) = self.slots.get_mut(&id) else { continue };
            slot.touched = false;
            let Some(inode) = &slot.inode else { continue };
            if unused && inode.is_recorded() {
                self.take(id);
            } else {
                self.sweep.push_back(id);
            }
        }
    }

    /// Removes the remains of deleted inodes, which must not accumulate while nothing is evicted.
    fn tidy(&mut self) {
        if self.sweep.len() > 2 * self.loaded + 64 {
            let mut seen = FxHashSet::default();
            let is_loaded = |id: &InodeId| self.slots.get(id).is_some_and(|slot| slot.inode.is_some());
            self.sweep.retain(|id| is_loaded(id) && seen.insert(*id));
        }
    }
}

/// Inodes that lookups are remembered of, and whether each is still the same inode at a later moment of the filesystem.
#[derive(Clone, Debug, Default)]
pub struct References(pub(crate) FxHashMap<InodeId, bool>);

impl References {
    /// Each inode once, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (InodeId, bool)> + '_ {
        self.0.iter().map(|(id, same)| (*id, *same))
    }
}

/// See the [module](self).
pub struct InodeCache {
    engine: Arc<Engine>,
    shards: Vec<Mutex<Shard, { order::INODE_CACHE }>>,
    per_shard: usize,
}

pub use crate::transaction::item_key;

/// The item of an inode; `ENOENT` when there is none.
pub fn read_item(core: &Core, tree: &Tree, ino: Ino) -> Result<InodeItem> {
    let Some(payload) = tree.get(core, item_key(ino))? else {
        return Err(Error::refused_at(Errno::ENOENT, format!("tree {} has no inode {ino}", tree.id())));
    };
    InodeItem::read_from_bytes(&payload)
        .map_err(|_| Error::corrupt(format!("tree {}: the item of inode {ino} has {} bytes", tree.id(), payload.len())))
}

impl InodeCache {
    /// An empty table that keeps about `capacity` unused inodes.
    pub fn new(engine: Arc<Engine>, capacity: usize) -> InodeCache {
        InodeCache {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            per_shard: (capacity / SHARDS).max(4 + BATCH) - BATCH,
            engine,
        }
    }

    /// The filesystem.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    fn shard(&self, id: InodeId) -> &Mutex<Shard, { order::INODE_CACHE }> {
        let hash = (id.ino.0 ^ id.tree.0.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.shards[(hash >> 59) as usize]
    }

    /// The inode, if it is in memory.
    pub fn peek(&self, id: InodeId) -> Option<Arc<Inode>> {
        self.shard(id).lock().find(id, 0)
    }

    /// The inode, read from its tree if need be. `ENOENT` when it does not exist, `ESTALE` when its subvolume is
    /// deleted.
    pub fn get(&self, id: InodeId) -> Result<Arc<Inode>> {
        self.get_retained(id, 0)
    }

    /// The same, with `lookups` more that somebody outside remembers.
    pub fn get_retained(&self, id: InodeId, lookups: u64) -> Result<Arc<Inode>> {
        if let Some(inode) = self.shard(id).lock().find(id, lookups) {
            return Ok(inode);
        }
        let tree = self.engine.tree_even_deleted(id.tree)?;
        loop {
            let departures = self.shard(id).lock().departures;
            let item = read_item(&self.engine, &tree, id.ino);
            let mut shard = self.shard(id).lock();
            // Looked at with the shard locked: what is entered here now, `discard_tree` finds.
            if tree.is_deleted() {
                return Err(Error::refused(Errno::ESTALE, "the subvolume is deleted"));
            }
            let item = item?;
            if let Some(inode) = shard.find(id, lookups) {
                return Ok(inode);
            }
            if shard.departures == departures {
                let inode = Inode::new(tree, id.ino, item, Arc::clone(self.engine.core()));
                self.enter(&mut shard, &inode, lookups);
                return Ok(inode);
            }
        }
    }

    /// Takes in an inode whose items were just made.
    pub(crate) fn add_new(&self, tree: &Arc<Tree>, ino: Ino, item: InodeItem) -> Arc<Inode> {
        let inode = Inode::new(Arc::clone(tree), ino, item, Arc::clone(self.engine.core()));
        let mut shard = self.shard(inode.id()).lock();
        if tree.is_deleted() {
            inode.remember(|state| state.deleted = true);
        } else {
            self.enter(&mut shard, &inode, 0);
        }
        drop(shard);
        inode
    }

    fn enter(&self, shard: &mut Shard, inode: &Arc<Inode>, lookups: u64) {
        shard.enter(inode.id(), Arc::clone(inode), lookups);
        shard.tidy();
        self.evict(shard);
    }

    fn evict(&self, shard: &mut Shard) {
        if shard.loaded < shard.evict_at.max(self.per_shard + BATCH) {
            return;
        }
        let mut fruitless = 0;
        while shard.loaded > self.per_shard && fruitless < FRUITLESS {
            let before = shard.loaded;
            shard.evict_some();
            fruitless += usize::from(shard.loaded == before);
        }
        shard.evict_at = shard.loaded + BATCH;
    }

    /// The number of inodes that are in memory.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().loaded).sum()
    }

    /// The capacity of the tables: inodes that are in memory or referred to, and places in the order of eviction.
    pub fn room(&self) -> (usize, usize) {
        let shards = self.shards.iter().map(|shard| shard.lock());
        shards.fold((0, 0), |(slots, sweep), shard| (slots + shard.slots.capacity(), sweep + shard.sweep.capacity()))
    }

    /// Whether no inode is in memory.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Counts a lookup that somebody outside remembers.
    pub fn retain(&self, id: InodeId) {
        self.retain_many(id, 1);
    }

    /// Counts `count` of them.
    pub fn retain_many(&self, id: InodeId, count: u64) {
        if count > 0 {
            self.shard(id).lock().slots.entry(id).or_default().users.lookups += count;
        }
    }

    /// The lookups that are remembered outside, by inode.
    pub fn lookups(&self) -> Vec<(InodeId, u64)> {
        let in_shard = |shard: &Mutex<Shard, { order::INODE_CACHE }>| -> Vec<(InodeId, u64)> {
            shard.lock().slots.iter().map(|(id, slot)| (*id, slot.users.lookups)).collect()
        };
        self.shards.iter().flat_map(in_shard).filter(|(_, lookups)| *lookups > 0).collect()
    }

    /// Takes back `count` lookups; deletes the inode if that was all that kept it.
    pub fn forget(&self, id: InodeId, count: u64) {
        self.release_with(id, |users| users.lookups = users.lookups.saturating_sub(count));
    }

    /// Counts an open handle.
    pub fn acquire(&self, id: InodeId) {
        self.shard(id).lock().slots.entry(id).or_default().users.opens += 1;
    }

    /// Takes back an open handle; deletes the inode if that was all that kept it.
    pub fn release(&self, id: InodeId) {
        self.release_with(id, |users| users.opens = users.opens.saturating_sub(1));
    }

    fn release_with(&self, id: InodeId, release: impl FnOnce(&mut Users)) {
        let unreferenced = {
            let mut shard = self.shard(id).lock();
            let Some(users) = shard.users(id) else { return };
            release(users);
            let (is_unused, is_orphan) = (users.is_empty(), users.orphan);
            if is_unused {
                shard.drop_users(id);
            }
            is_unused && is_orphan
        };
        if unreferenced {
            self.delete(id);
        }
    }

    /// The inode lost its last name: it is deleted now, or with its last reference. No lock and no handle is held.
    pub(crate) fn dispose(&self, id: InodeId) {
        if !self.is_used_orphan(id) {
            self.delete(id);
        }
    }

    /// The same for an orphan that was found in a tree; somebody else may have deleted it meanwhile.
    pub(crate) fn dispose_recorded(&self, id: InodeId) -> Result<()> {
        if self.is_used_orphan(id) {
            return Ok(());
        }
        match self.get(id) {
            Ok(inode) => orphan::delete(self, &inode),
            Err(error) if error.is(Errno::ENOENT) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether an inode without a name is still referred to; then its last reference deletes it.
    fn is_used_orphan(&self, id: InodeId) -> bool {
        self.shard(id).lock().users(id).map(|users| users.orphan = true).is_some()
    }

    /// An inode without names got one.
    pub(crate) fn spare(&self, id: InodeId) {
        if let Some(users) = self.shard(id).lock().users(id) {
            users.orphan = false;
        }
    }

    /// Deletes an orphan. Nobody waits for it to succeed: what is left of it is deleted at the next mount.
    fn delete(&self, id: InodeId) {
        let Ok(inode) = self.get(id) else { return };
        if !inode.tree.is_deleted() {
            let _ = orphan::delete(self, &inode);
        }
    }

    /// Deletes all orphans that are still referred to: the filesystem is being closed.
    pub fn delete_orphans(&self) {
        for shard in &self.shards {
            let orphans: Vec<InodeId> =
                shard.lock().slots.iter().filter(|(_, slot)| slot.users.orphan).map(|(id, _)| *id).collect();
            for id in orphans {
                shard.lock().drop_users(id);
                self.delete(id);
            }
        }
    }

    /// Ends all inodes of a deleted subvolume: operations on them that are under way finish, others are refused, and
    /// no content of them is written any more. No lock and no handle is held.
    pub fn discard_tree(&self, tree: TreeId) {
        for shard in &self.shards {
            let inodes: Vec<Arc<Inode>> = {
                let mut shard = shard.lock();
                let ids: Vec<InodeId> = shard.slots.keys().filter(|id| id.tree == tree).copied().collect();
                ids.into_iter().filter_map(|id| shard.take(id)).collect()
            };
            for inode in inodes {
                let _guard = inode.lock.write();
                inode.remember(|state| state.deleted = true);
                inode.data.discard();
            }
        }
    }

    /// Waits until operations that are under way on inodes of a subvolume have ended. No lock and no handle is held.
    pub fn await_operations(&self, tree: TreeId) {
        for shard in &self.shards {
            let inodes: Vec<Arc<Inode>> = {
                let shard = shard.lock();
                let of_tree = shard.slots.iter().filter(|(id, _)| id.tree == tree);
                of_tree.filter_map(|(_, slot)| slot.inode.clone()).collect()
            };
            inodes.iter().for_each(|inode| drop(inode.lock.write()));
        }
    }

    /// All inodes in memory are what their trees say: what was done to them is taken back. Nobody uses them meanwhile.
    pub(crate) fn reload(&self) -> Result<()> {
        for shard in &self.shards {
            let (inodes, users): (Vec<Arc<Inode>>, Vec<InodeId>) = {
                let shard = shard.lock();
                (
                    shard.slots.values().filter_map(|slot| slot.inode.clone()).collect(),
                    shard.slots.iter().filter(|(_, slot)| !slot.users.is_empty()).map(|(id, _)| *id).collect(),
                )
            };
            for inode in inodes {
                match self.stored_item(inode.id())? {
                    Some(item) => inode.start_again(item, self.engine.generation()),
                    None => {
                        inode.remember(|state| state.deleted = true);
                        self.discard(inode.id());
                    }
                }
            }
            for id in users {
                let is_orphan = self.stored_item(id)?.is_some_and(|item| item.nlink == 0);
                if let Some(users) = shard.lock().users(id) {
                    users.orphan = is_orphan;
                }
            }
        }
        Ok(())
    }

    /// The item of an inode, where both it and its subvolume exist.
    fn stored_item(&self, id: InodeId) -> Result<Option<InodeItem>> {
        let found = self.engine.tree(id.tree).and_then(|tree| read_item(&self.engine, &tree, id.ino));
        match found {
            Err(error) if error.is(Errno::ENOENT) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Forgets an inode whose items are gone.
    pub(crate) fn discard(&self, id: InodeId) {
        self.shard(id).lock().take(id);
    }

    /// Records the items of the dirty inodes of a deleted subvolume, whose tree is about to be dropped: until its first
    /// block is gone, others may look at it. No lock and no handle is held.
    pub fn record_inodes_of(&self, tree: TreeId) -> Result<()> {
        loop {
            let handle = self.engine.start(Reserve::removal(DIRTY_BATCH as u64))?;
            if !self.engine.dirty_inodes.record_some_of(&handle, tree, DIRTY_BATCH)? {
                return Ok(());
            }
        }
    }

    /// Keeps the number of dirty inodes bounded. No lock and no handle is held.
    pub fn relieve(&self) -> Result<()> {
        if self.engine.dirty_inodes.len() < DIRTY_MAX {
            return Ok(());
        }
        let handle = self.engine.start(Reserve::items(DIRTY_BATCH as u64))?;
        self.engine.dirty_inodes.record_some(&handle, DIRTY_BATCH)
    }
}

impl Inode {
    /// Whether nothing about the inode is known only in memory.
    fn is_recorded(&self) -> bool {
        self.with(|state| !state.dirty && !state.deleted && state.orphan != Orphan::Due)
    }
}
