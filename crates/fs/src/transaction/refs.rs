//! The queue of reference changes that wait to become edits of the extent tree (delayed references).
//!
//! Trees need space and space is booked in trees; this queue is what keeps that from being a cycle. While a
//! transaction runs, changes of the same reference cancel here; a tree block made and dropped within one
//! transaction leaves no trace at all.
//!
//! # Invariants
//! 1. One head per extent. Its changes are net: no reference occurs twice, none with a count of 0.
//! 2. Each transaction has its own, which is empty when the transaction ends.
//! 3. Bytes from disk decide what is queued: file extent items may disagree about the length of their extent, and a
//!    damaged tree may lead to a block that somebody else has just allocated. That is [`Changed::Conflict`]: nothing is
//!    queued, and the transaction must not be committed ([`RefQueue::conflict`]).
//! 4. A change costs about the same however many changes of one extent wait.

use crate::error::Error;
use butterfs_ondisk::items::{FileExtent, file_extent_type};
use butterfs_ondisk::{Key, KeyType, Level, Logical, TreeId};
use butterfs_sync::{Mutex, order};
use butterfs_tree::Node;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use zerocopy::FromBytes;

pub use super::ref_changes::Changes;

/// A reference to an extent.
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

/// The kind of the extent.
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
    pub changes: Changes,
}

impl RefHead {
    fn new(len: u64, kind: ExtentKind, new: bool) -> RefHead {
        RefHead { len, kind, new, set_full: false, changes: Changes::default() }
    }

    /// Sum of all changes.
    pub fn net(&self) -> i64 {
        self.changes.net()
    }

    /// Whether more references to a new block would be dropped than it got.
    fn lacks(&self, by: &RefBy, count: i64) -> bool {
        let of_new_block = count < 0 && self.new && matches!(self.kind, ExtentKind::Block(_));
        of_new_block && self.changes.of(by) + count < 0
    }
}

/// The outcome of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changed {
    /// It is queued, or cancelled what was.
    Queued,
    /// An extent that is new has lost its last reference: it leaves no trace.
    Vanished,
    /// It contradicts what is queued.
    Conflict,
}

/// The pending changes of one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pending {
    /// Sum of all changes.
    pub net: i64,
    /// The block has no extent item yet.
    pub new: bool,
    /// The block gets the FULL_BACKREF flag.
    pub set_full: bool,
}

#[derive(Default)]
struct Heads {
    by_address: BTreeMap<Logical, RefHead>,
    /// The address at which [`RefQueue::take_some`] continues.
    next: Logical,
}

/// See the [module](self).
#[derive(Default)]
pub struct RefQueue {
    heads: Mutex<Heads, { order::REFERENCES }>,
    count: AtomicUsize,
    conflict: Mutex<Option<String>, { order::REFERENCE_CONFLICT }>,
    changes: AtomicUsize,
}

impl RefQueue {
    /// Number of extents with pending changes.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Number of pending changes; an extent without any counts as one.
    pub fn weight(&self) -> usize {
        self.changes.load(Ordering::Relaxed).max(self.len())
    }

    /// Whether nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds `count` references (negative: drops them). `new` says that the extent has no item yet.
    pub fn change(&self, at: Logical, len: u64, kind: ExtentKind, by: RefBy, count: i64, new: bool) -> Changed {
        let mut locked = self.heads.lock();
        let heads = &mut locked.by_address;
        let head = heads.entry(at).or_insert_with(|| {
            self.count.fetch_add(1, Ordering::Relaxed);
            RefHead::new(len, kind, new)
        });
        if head.len != len || head.kind != kind {
            let (known, known_len) = (head.kind, head.len);
            drop(locked);
            return self.conflicts(|| {
                format!("extent {at} is {known} of {known_len} bytes in one place, {kind} of {len} in another")
            });
        }
        if head.lacks(&by, count) {
            drop(locked);
            return self.conflicts(|| format!("{kind} {at} was just allocated, and {by:?} has had it for longer"));
        }
        head.new |= new;
        let before = head.changes.len();
        head.changes.change(by, count);
        self.count_changes(before, head.changes.len());
        if head.new && head.net() == 0 && matches!(kind, ExtentKind::Block(_)) {
            self.count_changes(head.changes.len(), 0);
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

    fn count_changes(&self, before: usize, after: usize) {
        if after >= before {
            self.changes.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.changes.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// The block gets the FULL_BACKREF flag.
    pub fn set_full(&self, at: Logical, nodesize: u64, level: Level) {
        let heads = &mut self.heads.lock().by_address;
        let head = heads.entry(at).or_insert_with(|| {
            self.count.fetch_add(1, Ordering::Relaxed);
            RefHead::new(nodesize, ExtentKind::Block(level), false)
        });
        head.set_full = true;
    }

    /// Looks at the pending changes of `at`, if there are any.
    pub fn look<R>(&self, at: Logical, look: impl FnOnce(&RefHead) -> R) -> Option<R> {
        self.heads.lock().by_address.get(&at).map(look)
    }

    /// The sum of the pending changes of `at`.
    pub fn pending(&self, at: Logical) -> Option<Pending> {
        self.look(at, |head| Pending { net: head.net(), new: head.new, set_full: head.set_full })
    }

    /// The keys of the extent tree at which about `most` changes that [`take_some`](Self::take_some) takes next are
    /// going to be made, in order, and the extents of data that may go with them.
    pub fn next_keys(&self, most: usize) -> (Vec<Key>, Vec<Logical>) {
        let heads = self.heads.lock();
        let (mut keys, mut going) = (Vec::new(), Vec::new());
        for (&at, head) in heads.by_address.range(heads.next..) {
            if keys.len() >= most {
                break;
            }
            keys.push(Key::new(at.0, KeyType::EXTENT_ITEM, head.len));
            going.extend((head.kind == ExtentKind::Data && head.net() < 0).then_some(at));
            let by_key = |(by, _): (RefBy, i64)| Key::new(at.0, by.kind(), by.sequence());
            keys.extend(head.changes.iter().take(most).map(by_key));
        }
        keys.sort_unstable();
        (keys, going)
    }

    /// Takes everything that is pending, by address.
    pub fn take(&self) -> BTreeMap<Logical, RefHead> {
        let mut heads = self.heads.lock();
        self.count.store(0, Ordering::Relaxed);
        self.changes.store(0, Ordering::Relaxed);
        std::mem::take(&mut heads.by_address)
    }

    /// Takes at most about `most` changes, of extents by address from where the last call stopped. Of an extent with
    /// more than that it takes some, additions first; the rest waits as changes of an extent that has its item.
    pub fn take_some(&self, most: usize) -> Vec<(Logical, RefHead)> {
        let Heads { by_address, next } = &mut *self.heads.lock();
        let (mut taken, mut left) = (Vec::new(), most);
        while left > 0 {
            let Some((&at, head)) = by_address.range_mut(*next..).next() else { break };
            let weight = head.changes.len().max(1);
            if weight > left {
                let changes = head.changes.split_off(left);
                let set_full = std::mem::take(&mut head.set_full);
                let new = std::mem::take(&mut head.new);
                self.changes.fetch_sub(changes.len(), Ordering::Relaxed);
                taken.push((at, RefHead { len: head.len, kind: head.kind, new, set_full, changes }));
                return taken;
            }
            *next = Logical(at.0 + 1);
            if let Some(head) = by_address.remove(&at) {
                self.count.fetch_sub(1, Ordering::Relaxed);
                self.changes.fetch_sub(head.changes.len(), Ordering::Relaxed);
                taken.push((at, head));
            }
            left -= weight;
        }
        if left > 0 {
            *next = Logical(0);
        }
        taken
    }
}

impl RefQueue {
    /// Changes the reference to each child of `node`, blocks or data: by the block `parent` if given, else by `tree`.
    pub(crate) fn change_children(&self, node: &Node, tree: TreeId, parent: Option<Logical>, count: i64) {
        if node.level().0 > 0 {
            let kind = ExtentKind::Block(Level(node.level().0 - 1));
            let by = parent.map_or(RefBy::Tree(tree), RefBy::Block);
            for slot in 0..node.nritems() {
                let (at, _) = node.child(slot);
                self.change(at, node.bytes().len() as u64, kind, by, count, false);
            }
            return;
        }
        for slot in 0..node.nritems() {
            let key = node.key(slot);
            if key.kind != KeyType::EXTENT_DATA {
                continue;
            }
            let Ok(extent) = FileExtent::read_from_bytes(node.item(slot)) else { continue };
            let at = extent.body.disk_bytenr.get();
            if extent.head.kind == file_extent_type::INLINE || at == 0 {
                continue;
            }
            let offset = key.offset.wrapping_sub(extent.body.offset.get());
            let by = parent.map_or(RefBy::File { tree, ino: key.objectid, offset }, RefBy::Leaf);
            self.change(Logical(at), extent.body.disk_num_bytes.get(), ExtentKind::Data, by, count, false);
        }
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
    fn a_contradicting_change_is_an_error_and_changes_nothing() {
        let queue = RefQueue::default();
        let (at, data) = (Logical(4096), RefBy::File { tree: TreeId::FS, ino: 257, offset: 0 });
        queue.change(at, 4096, ExtentKind::Data, data, -1, false);
        assert!(queue.conflict().is_none());
        assert_eq!(queue.change(at, 8192, ExtentKind::Data, data, -1, false), Changed::Conflict);
        assert!(queue.conflict().is_some_and(|error| error.to_string().contains("extent 4096")));
        assert_eq!(queue.look(at, |head| (head.changes.len(), head.changes.of(&data))), Some((1, -1)));
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
        assert_eq!(queue.weight(), 1);
        assert!(queue.take()[&Logical(4096)].changes.is_empty());
        assert_eq!(queue.weight(), 0);
    }

    #[test]
    fn some_is_taken_additions_first() {
        let queue = RefQueue::default();
        let by = |offset| RefBy::File { tree: TreeId::FS, ino: 257, offset };
        let change = |at, offset, count, new| {
            queue.change(Logical(at), 4096, ExtentKind::Data, by(offset), count, new);
        };
        (0..100).for_each(|n| change(8192, n, 1, true));
        (100..110).for_each(|n| change(8192, n, -1, false));
        change(4096, 0, 1, false);
        assert_eq!((queue.len(), queue.weight()), (2, 111));
        let first = queue.take_some(50);
        assert_eq!(
            first.iter().map(|(at, head)| (at.0, head.changes.len())).collect::<Vec<_>>(),
            [(4096, 1), (8192, 49)]
        );
        assert!(first[1].1.new && first[1].1.net() == 49);
        assert_eq!((queue.len(), queue.weight()), (1, 61));
        // What comes meanwhile goes before what waits there already, or with it.
        change(8192, 99, -1, false);
        let second = queue.take_some(1000);
        assert!(!second[0].1.new);
        assert_eq!(second[0].1.net(), 51 - 10 - 1);
        assert!(queue.is_empty() && queue.weight() == 0 && queue.take_some(10).is_empty());
    }
}
