//! The queue of reference changes that wait to become edits of the extent tree (delayed references).
//!
//! Trees need space and space is booked in trees; this queue is what keeps that from being a cycle. While a
//! transaction runs, changes of the same reference cancel here; a tree block made and dropped within one
//! transaction leaves no trace at all.
//!
//! # Invariants
//! 1. One head per extent. Its changes are net: no reference occurs twice, none with a count of 0.
//! 2. The queue is empty whenever a transaction starts writing.
//! 3. Bytes from disk decide what is queued: file extent items may disagree about the length of their extent, and a
//!    damaged tree may lead to a block that somebody else has just allocated. That is [`Changed::Conflict`]: nothing is
//!    queued, and the transaction must not be committed ([`RefQueue::conflict`]).

use crate::error::Error;
use butterfs_ondisk::{Level, Logical, TreeId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
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

impl fmt::Display for ExtentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExtentKind::Block(level) => write!(f, "a tree block (level {level})"),
            ExtentKind::Data => f.write_str("data"),
        }
    }
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

    /// Whether more references to a new block would be dropped than it got.
    fn lacks(&self, by: &RefBy, count: i64) -> bool {
        let has = || self.changes.iter().find(|(existing, _)| existing == by).map_or(0, |(_, count)| *count);
        count < 0 && self.new && matches!(self.kind, ExtentKind::Block(_)) && has() + count < 0
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

/// What became of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changed {
    /// It is queued, or cancelled what was.
    Queued,
    /// An extent that is new has lost its last reference: it leaves no trace.
    Vanished,
    /// It contradicts what is queued.
    Conflict,
}

/// See the [module](self).
#[derive(Default)]
pub struct RefQueue {
    heads: Mutex<BTreeMap<Logical, RefHead>>,
    count: AtomicUsize,
    conflict: Mutex<Option<String>>,
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

    /// Adds `count` references (negative: drops them). `new` says that the extent has no item yet.
    pub fn change(&self, at: Logical, len: u64, kind: ExtentKind, by: RefBy, count: i64, new: bool) -> Changed {
        let mut heads = self.heads.lock();
        let head = heads.entry(at).or_insert_with(|| {
            self.count.fetch_add(1, Ordering::Relaxed);
            RefHead { len, kind, new, set_full: false, changes: Vec::new() }
        });
        if head.len != len || head.kind != kind {
            let (known, known_len) = (head.kind, head.len);
            drop(heads);
            return self.conflicts(|| {
                format!("extent {at} is {known} of {known_len} bytes in one place, {kind} of {len} in another")
            });
        }
        if head.lacks(&by, count) {
            drop(heads);
            return self.conflicts(|| format!("{kind} {at} was just allocated, and {by:?} has had it for longer"));
        }
        head.new |= new;
        head.change(by, count);
        if head.new && head.net() == 0 && matches!(kind, ExtentKind::Block(_)) {
            heads.remove(&at);
            self.count.fetch_sub(1, Ordering::Relaxed);
            return Changed::Vanished;
        }
        Changed::Queued
    }

    fn conflicts(&self, what: impl FnOnce() -> String) -> Changed {
        self.conflict.lock().get_or_insert_with(what);
        Changed::Conflict
    }

    /// The first contradiction there was.
    pub fn conflict(&self) -> Option<Error> {
        self.conflict.lock().clone().map(Error::corrupt)
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
        assert_eq!(queue.change(at, 16384, kind, by, 1, true), Changed::Queued);
        assert_eq!(queue.len(), 1);
        assert_eq!(queue.change(at, 16384, kind, by, -1, false), Changed::Vanished);
        assert!(queue.is_empty() && queue.take().is_empty());
    }

    #[test]
    fn what_contradicts_the_queue_is_told_and_changes_nothing() {
        let queue = RefQueue::default();
        let (at, data) = (Logical(4096), RefBy::File { tree: TreeId::FS, ino: 257, offset: 0 });
        queue.change(at, 4096, ExtentKind::Data, data, -1, false);
        assert!(queue.conflict().is_none());
        assert_eq!(queue.change(at, 8192, ExtentKind::Data, data, -1, false), Changed::Conflict);
        assert!(queue.conflict().is_some_and(|error| error.to_string().contains("extent 4096")));
        assert_eq!(queue.pending(at).map(|head| head.changes), Some(vec![(data, -1)]));
        let (block, kind) = (Logical(1 << 20), ExtentKind::Block(Level(0)));
        queue.change(block, 16384, kind, RefBy::Tree(TreeId::FS), 1, true);
        assert_eq!(queue.change(block, 16384, kind, RefBy::Tree(TreeId::CSUM), -1, false), Changed::Conflict);
        assert_eq!(queue.change(block, 16384, ExtentKind::Block(Level(1)), data, 1, true), Changed::Conflict);
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
