//! Bringing into memory what an edit is going to need, before anything is held that others wait for.
//!
//! It decides nothing, and may be left out ([`Calm`]): if others change the tree meanwhile, the edit may need another
//! block and reads it under its handle. The edit also reports what cannot be read, if it needs it.

use super::{BlockSource, Core, Tree, without_waiting};
use crate::error::Result;
use butterfs_ondisk::header::{Header, leaf_data_size};
use butterfs_ondisk::{Generation, Key, Logical};
use butterfs_tree::{Node, NodePtr, NodeSource};
use std::sync::atomic::{AtomicU64, Ordering};

/// Operations in a row that missed no block, after which the next ones are not preloaded: where everything is in
/// memory, that would cost a third of a small operation. The first block that is missing again is read under the
/// handle, and ends this.
const CALM: u64 = 4096;
/// Bits of [`Calm`] that count.
const COUNT_BITS: u32 = 13;

/// The number of operations on a tree that were preloaded since a block was last missing: that number below the low
/// bits of [`departures`](crate::node_io::NodeCache::departures).
#[derive(Default)]
pub(super) struct Calm(AtomicU64);

impl Calm {
    /// Counts an operation; whether it need not be preloaded.
    fn is_long(&self, departures: u64) -> bool {
        let (known, now) = (self.0.load(Ordering::Relaxed), departures << COUNT_BITS);
        let count = known.wrapping_sub(now);
        if count > CALM {
            self.0.store(now, Ordering::Relaxed);
        } else if count < CALM {
            self.0.store(known + 1, Ordering::Relaxed);
        }
        count == CALM
    }
}

/// Blocks of earlier transactions on the ways to leaves that are going to change: these are copied, and what says so of
/// them changes too.
pub(crate) type Copied = Vec<Logical>;

/// A leaf's range of keys: its first key, and the first one behind it.
struct Leaf {
    first: Option<Key>,
    upper: Option<Key>,
}

/// How much of a leaf is going to change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Amount {
    /// A small change: half a leaf remains about half a leaf.
    Few,
    /// Perhaps all.
    Many,
}

/// Keys in one leaf from which on all of it may change.
const MANY: usize = 8;

/// The neighbourhood that is loaded beside the path to a leaf.
struct Scope<'a> {
    copied: &'a mut Copied,
    /// Blocks up to this generation may be shared.
    shared: Generation,
    amount: Amount,
}

impl Leaf {
    fn covers(&self, key: &Key) -> bool {
        self.first.is_some_and(|first| first <= *key) && self.upper.is_none_or(|upper| *key < upper)
    }
}

impl Tree {
    /// Has in memory what edits at `keys` look at: the blocks on the way, the neighbours that one of them may join, and
    /// what says who else refers to one that a snapshot may share. Ascending keys of one leaf cost as much as one.
    pub(crate) fn preload(&self, core: &Core, keys: &[Key]) {
        self.preload_keys(core, || keys);
    }

    /// The same for keys that take time to make.
    pub(crate) fn preload_keys<K: AsRef<[Key]>>(&self, core: &Core, keys: impl FnOnce() -> K) {
        if !self.calm.is_long(core.nodes.departures()) {
            self.preload_copied(core, keys().as_ref(), &mut Copied::new());
        }
    }

    /// The same; adds the blocks that are going to be copied to `copied`.
    pub(crate) fn preload_copied(&self, core: &Core, keys: &[Key], copied: &mut Copied) {
        let (mut last, mut in_leaf) = (None::<Leaf>, 0);
        let mut scope = Scope { copied, shared: self.last_snapshot(), amount: Amount::Few };
        for key in keys {
            let is_near = last.as_ref().is_some_and(|leaf| leaf.covers(key));
            in_leaf = if is_near { in_leaf + 1 } else { 0 };
            if !is_near || in_leaf == MANY {
                scope.amount = if is_near { Amount::Many } else { Amount::Few };
                last = self.preload_one(core, *key, &mut scope).ok();
            }
        }
    }

    /// The same where a snapshot of the tree comes before the edits.
    pub(crate) fn preload_shared(&self, core: &Core, keys: &[Key]) {
        let mut scope = Scope { copied: &mut Copied::new(), shared: core.generation(), amount: Amount::Few };
        for key in keys {
            let _ = self.preload_one(core, *key, &mut scope);
        }
    }

    /// The same for the first `most` leaves with keys from `from` to `to`.
    pub(crate) fn preload_range(&self, core: &Core, from: Key, to: Key, most: usize) {
        if self.calm.is_long(core.nodes.departures()) {
            return;
        }
        let mut scope = Scope { copied: &mut Copied::new(), shared: self.last_snapshot(), amount: Amount::Many };
        let mut next = Some(from);
        for _ in 0..most {
            let Some(from) = next.filter(|from| *from <= to) else { return };
            let upper = self.preload_one(core, from, &mut scope).ok().and_then(|leaf| leaf.upper);
            // In a damaged tree keys may go back.
            next = upper.filter(|upper| *upper > from);
        }
    }

    /// The same for the last ones.
    pub(crate) fn preload_end_of_range(&self, core: &Core, from: Key, to: Key, most: usize) {
        if self.calm.is_long(core.nodes.departures()) {
            return;
        }
        let mut scope = Scope { copied: &mut Copied::new(), shared: self.last_snapshot(), amount: Amount::Many };
        let mut next = Some(to);
        for _ in 0..most {
            let Some(to) = next.filter(|to| *to >= from) else { return };
            let first = self.preload_one(core, to, &mut scope).ok().and_then(|leaf| leaf.first);
            next = first.and_then(|first| self.last_before(core, first).ok()?.map(|(key, _)| key));
        }
    }

    fn preload_one(&self, core: &Core, key: Key, scope: &mut Scope<'_>) -> Result<Leaf> {
        without_waiting(core, self, |source| self.with_root(|root| self.look_at_path(&source, root, key, scope)))
    }

    fn look_at_path(&self, source: &BlockSource<'_>, root: &NodePtr, key: Key, scope: &mut Scope<'_>) -> Result<Leaf> {
        let (mut node, mut upper) = (source.node(root)?, None);
        let running = source.core().generation();
        loop {
            if node.generation() < running {
                scope.copied.push(node.at());
            }
            if node.is_leaf() {
                return Ok(Leaf { first: node.first_key(), upper });
            }
            let slot = node.child_slot(key);
            let child = source.node(&node.child_ptr(slot, root.tree))?;
            self.look_at_refs(source, &child, scope.shared)?;
            // It joins a neighbour when it is nearly empty.
            if scope.amount == Amount::Many || child.used() < leaf_data_size(source.nodesize()) / 2 {
                let neighbours = [slot.checked_sub(1), Some(slot + 1).filter(|slot| *slot < node.nritems())];
                for slot in neighbours.into_iter().flatten() {
                    let neighbour = source.node(&node.child_ptr(slot, root.tree))?;
                    self.look_at_refs(source, &neighbour, scope.shared)?;
                }
            }
            if slot + 1 < node.nritems() {
                upper = Some(node.key(slot + 1));
            }
            node = child;
        }
    }

    fn look_at_refs(&self, source: &BlockSource<'_>, node: &Node, shared: Generation) -> Result<()> {
        let may_be_shared = node.generation() <= shared || node.flags() & Header::RELOC != 0;
        if self.id().is_subvolume() && may_be_shared {
            source.core().stored_refs(source, node.at(), node.level())?;
        }
        Ok(())
    }
}
