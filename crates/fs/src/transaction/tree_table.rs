//! The trees that are open: those that every filesystem has once, and subvolumes.

use super::Tree;
use super::running::Transaction;
use crate::error::{Errno, Error, Result};
use butterfs_ondisk::items::RootItem;
use butterfs_ondisk::{Generation, TreeId};
use butterfs_sync::{Mutex, order};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// The trees that every filesystem has once.
pub struct GlobalTrees {
    /// Root tree.
    pub root: Arc<Tree>,
    /// Chunks and devices.
    pub chunk: Arc<Tree>,
    /// Extents and their references.
    pub extent: Arc<Tree>,
    /// Device extents.
    pub dev: Arc<Tree>,
    /// Data checksums.
    pub csum: Arc<Tree>,
    /// Free space, where the filesystem has the tree and it is valid.
    pub free_space: Option<Arc<Tree>>,
    /// Block groups, where they have a tree of their own.
    pub block_group: Option<Arc<Tree>>,
}

impl GlobalTrees {
    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Tree>> {
        let always = [&self.root, &self.chunk, &self.extent, &self.dev, &self.csum];
        always.into_iter().chain(&self.free_space).chain(&self.block_group)
    }
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct TreeTable {
    globals: OnceLock<GlobalTrees>,
    open: Mutex<FxHashMap<TreeId, Arc<Tree>>, { order::OPEN_TREES }>,
    /// The number that was left open when unused ones were last closed.
    left: AtomicUsize,
    next_id: AtomicU64,
}

impl TreeTable {
    /// The global trees.
    pub fn globals(&self) -> &GlobalTrees {
        self.globals.get().expect("the global trees are opened first")
    }

    /// Sets the global trees, once.
    pub fn set_globals(&self, globals: GlobalTrees) {
        let all = [&globals.root, &globals.chunk, &globals.extent, &globals.dev, &globals.csum];
        let mut open = self.open.lock();
        let optional = [&globals.free_space, &globals.block_group];
        for tree in all.into_iter().chain(optional.into_iter().flatten()) {
            open.insert(tree.id(), Arc::clone(tree));
        }
        drop(open);
        assert!(self.globals.set(globals).is_ok(), "the global trees are opened once");
    }

    /// The tree with this id, if it is open.
    pub fn get(&self, id: TreeId) -> Option<Arc<Tree>> {
        self.open.lock().get(&id).cloned()
    }

    /// Enters a tree that was just opened, unless somebody else was faster; the one that is open.
    pub fn enter(&self, tree: Tree) -> Arc<Tree> {
        Arc::clone(self.open.lock().entry(tree.id()).or_insert_with(|| Arc::new(tree)))
    }

    /// The root item of a tree as it is now: the one in memory if the tree is open, since what is stored follows only
    /// when the transaction freezes; else `stored`.
    pub fn current_root_item(&self, id: TreeId, stored: RootItem) -> RootItem {
        self.open.lock().get(&id).map_or(stored, |tree| tree.root_item())
    }

    /// Makes a tree known that was made by the running transaction.
    pub fn remember(&self, tree: Arc<Tree>) {
        self.open.lock().insert(tree.id(), tree);
    }

    /// Forgets a tree that was deleted.
    pub fn forget(&self, id: TreeId) {
        self.open.lock().remove(&id);
    }

    /// Numbers for new subvolumes begin behind `last`. Before anything can be deleted: a number that went with its tree
    /// would come again, while memory and whoever is served still know what had it.
    pub fn number_from(&self, last: u64) {
        self.next_id.store(last.saturating_add(1).max(butterfs_ondisk::Ino::FIRST_FREE.0), Ordering::Relaxed);
    }

    /// A number for a new subvolume. Numbers are not used again while the filesystem is open.
    pub fn next_id(&self) -> Result<TreeId> {
        let id = TreeId(self.next_id.fetch_add(1, Ordering::Relaxed));
        if !id.is_subvolume() {
            return Err(Error::refused(Errno::ENOSPC, "all subvolume numbers are used up"));
        }
        Ok(id)
    }

    /// All that are open.
    pub fn all(&self) -> Vec<Arc<Tree>> {
        self.open.lock().values().cloned().collect()
    }

    /// Approximate bytes of the blocks of all that are open.
    pub fn bytes_used(&self, nodesize: u32) -> u64 {
        self.open.lock().values().map(|tree| tree.bytes_used(nodesize)).sum()
    }

    /// The trees that may have something to record in `transaction`, by id; each is noted again when it changes after
    /// this.
    pub fn take_unrecorded(&self, transaction: &Transaction) -> Vec<Arc<Tree>> {
        let noted = transaction.take_unrecorded();
        let open = self.open.lock();
        let mut taken: Vec<Arc<Tree>> = noted.iter().filter_map(|id| open.get(id).cloned()).collect();
        drop(open);
        taken.sort_unstable_by_key(|tree| tree.id());
        taken.iter().for_each(|tree| tree.looked_at());
        taken
    }

    /// Whether some tree has something to record in `transaction`.
    pub fn has_unrecorded(&self, transaction: &Transaction) -> bool {
        let noted = transaction.unrecorded();
        let open = self.open.lock();
        noted.iter().filter_map(|id| open.get(id)).any(|tree| tree.has_unrecorded())
    }

    /// Closes subvolumes that nobody uses when many are open, and twice as many as were left the last time. Trees with
    /// changes stay, and those that a snapshot of the running transaction shares, which only the tree in memory knows.
    pub fn close_unused(&self, running: Generation) {
        /// They take some hundred bytes each.
        const MANY_TREES: usize = 256;
        let mut open = self.open.lock();
        if open.len() <= MANY_TREES.max(2 * self.left.load(Ordering::Relaxed)) {
            return;
        }
        open.retain(|id, tree| {
            let shared_now = tree.forced_cow.load(Ordering::Relaxed) >= running.0;
            !id.is_subvolume() || Arc::strong_count(tree) > 1 || shared_now || tree.has_unrecorded()
        });
        self.left.store(open.len(), Ordering::Relaxed);
    }
}
