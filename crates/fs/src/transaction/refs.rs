//! The queue of reference changes that wait to become edits of the extent tree (delayed references).
//!
//! Trees need space and space is booked in trees; this queue is what keeps that from being a cycle. While a
//! transaction runs, changes of the same reference cancel here; a tree block made and dropped within one
//! transaction leaves no trace at all.
//!
//! # Invariants
//! 1. One head per extent. Its changes are net: no reference occurs twice, none with a count of 0.
//! 2. The queue is empty whenever a transaction starts writing.

use butterfs_ondisk::{Level, Logical, TreeId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Who refers to an extent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RefBy {
    /// A tree, to one of its blocks (TREE_BLOCK_REF).
    Tree(TreeId),
    /// A block with full back references, to a child (SHARED_BLOCK_REF).
    Block(Logical),
    /// File extent items of a tree, to data (EXTENT_DATA_REF).
    File {
        /// The tree.
        tree: TreeId,
        /// The inode.
        ino: u64,
        /// Position in the file of the extent's first byte, modulo 2^64.
        offset: u64,
    },
    /// A leaf with full back references, to data (SHARED_DATA_REF).
    Leaf(Logical),
}

/// What the extent is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentKind {
    /// A tree block of this level.
    Block(Level),
    /// File data.
    Data,
}

/// Pending changes of one extent.
#[derive(Clone, Debug)]
pub struct RefHead {
    /// Bytes.
    pub len: u64,
    /// Data or tree block.
    pub kind: ExtentKind,
    /// Allocated by this transaction: has no extent item yet.
    pub new: bool,
    /// The block gets the FULL_BACKREF flag.
    pub set_full: bool,
    /// Net changes.
    pub changes: Vec<(RefBy, i64)>,
}

impl RefHead {
    /// Sum of all changes.
    pub fn net(&self) -> i64 {
        self.changes.iter().map(|(_, count)| count).sum()
    }

    fn change(&mut self, by: RefBy, count: i64) {
        match self.changes.iter_mut().find(|(existing, _)| *existing == by) {
            Some((_, total)) => {
                *total += count;
                if *total == 0 {
                    self.changes.retain(|(_, total)| *total != 0);
                }
            }
            None => self.changes.push((by, count)),
        }
    }
}

/// See the [module](self).
#[derive(Default)]
pub struct RefQueue {
    heads: Mutex<BTreeMap<Logical, RefHead>>,
    count: AtomicUsize,
}

impl RefQueue {
    /// Number of extents with pending changes.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds `count` references (negative: drops them). `new` says that the extent has no item yet. Returns true
    /// when an extent that is new has lost its last reference and its head is gone from the queue.
    pub fn change(&self, at: Logical, len: u64, kind: ExtentKind, by: RefBy, count: i64, new: bool) -> bool {
        let mut heads = self.heads.lock();
        let head = heads.entry(at).or_insert_with(|| {
            self.count.fetch_add(1, Ordering::Relaxed);
            RefHead { len, kind, new, set_full: false, changes: Vec::new() }
        });
        assert!(
            head.len == len && head.kind == kind,
            "extent {at}: {:?}+{} is changed as {kind:?}+{len}",
            head.kind,
            head.len
        );
        head.new |= new;
        head.change(by, count);
        if head.new && head.net() == 0 && matches!(kind, ExtentKind::Block(_)) {
            heads.remove(&at);
            self.count.fetch_sub(1, Ordering::Relaxed);
            return true;
        }
        false
    }

    /// The block gets the FULL_BACKREF flag.
    pub fn set_full(&self, at: Logical, nodesize: u64, level: Level) {
        let mut heads = self.heads.lock();
        let head = heads.entry(at).or_insert_with(|| {
            self.count.fetch_add(1, Ordering::Relaxed);
            RefHead { len: nodesize, kind: ExtentKind::Block(level), new: false, set_full: false, changes: Vec::new() }
        });
        head.set_full = true;
    }

    /// Pending changes of `at`.
    pub fn pending(&self, at: Logical) -> Option<RefHead> {
        self.heads.lock().get(&at).cloned()
    }

    /// Takes everything that is pending, by address.
    pub fn take(&self) -> BTreeMap<Logical, RefHead> {
        let mut heads = self.heads.lock();
        self.count.store(0, Ordering::Relaxed);
        std::mem::take(&mut *heads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_made_and_dropped_leaves_no_trace() {
        let queue = RefQueue::default();
        let (at, kind, by) = (Logical(1 << 20), ExtentKind::Block(Level(0)), RefBy::Tree(TreeId::FS));
        assert!(!queue.change(at, 16384, kind, by, 1, true));
        assert_eq!(queue.len(), 1);
        assert!(queue.change(at, 16384, kind, by, -1, false));
        assert!(queue.is_empty() && queue.take().is_empty());
    }

    #[test]
    fn changes_of_one_reference_cancel() {
        let queue = RefQueue::default();
        let by = RefBy::File { tree: TreeId::FS, ino: 257, offset: 0 };
        queue.change(Logical(4096), 4096, ExtentKind::Data, by, 1, false);
        queue.change(Logical(4096), 4096, ExtentKind::Data, by, -1, false);
        assert_eq!(queue.take()[&Logical(4096)].changes, vec![]);
    }
}
