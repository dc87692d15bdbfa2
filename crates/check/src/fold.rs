//! Learning something of a whole tree, on all cores: each block gives a part, and the parts are joined in the order of
//! the keys.
//!
//! Invariants: (1) levels fall by one with each step, and keys ascend strictly through a whole level, so a fold ends
//! and enters no block twice, whatever the pointers are; (2) a block that cannot be used is left out, and the result
//! says so;
//! (3) the result does not depend on the number of threads.

use crate::finding::{Finding, Tree};
use crate::session::Session;
use crate::walk::DropPoint;
use butterfs_ondisk::{Key, TreeId};
use butterfs_tree::{Node, NodePtr};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The parent of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parent {
    pub owner: TreeId,
    /// Its references are those of its address.
    pub full: bool,
    /// A balance made it: its children need neither the flag nor their owner.
    pub is_reloc: bool,
}

/// How a block was come by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub ptr: NodePtr,
    /// None for a root.
    pub parent: Option<Parent>,
    /// The first key behind the block, by its parents.
    pub upper: Option<Key>,
    /// Of a tree that is being dropped: everything before it is gone.
    pub from: Option<DropPoint>,
}

/// A part of a tree.
pub(crate) struct Part<T> {
    pub value: T,
    pub last: Option<Key>,
    /// No block was missing.
    pub complete: bool,
}

/// The values that a fold collects.
pub(crate) trait Fold: Sync {
    /// Of a block and everything below it.
    type Value: Send + Default;

    /// Looks at a block. `first` is the first slot that is alive, which is not 0 only on the path of a drop.
    fn block(&self, node: &Node, way: &Way, first: usize) -> Self::Value;

    /// Adds what lies directly behind; `tree` is the tree that is being read.
    fn join(&self, value: &mut Self::Value, next: Self::Value, tree: TreeId);

    /// How the children see this block.
    fn as_parent(&self, node: &Node) -> Parent;

    /// The known values of a block, so that it need not be read again.
    fn known(&self, way: &Way) -> Option<Part<Self::Value>>;

    /// Remembers what was learned of a block and everything below it.
    fn keep(&self, node: &Node, part: &Part<Self::Value>);
}

/// Children of one node that one thread takes at a time.
const GRAIN: usize = 8;

/// Folds the tree at `root`.
pub(crate) fn fold<F: Fold>(session: &Session<'_>, fold: &F, root: NodePtr, from: Option<DropPoint>) -> Part<F::Value> {
    let way = Way { ptr: root, parent: None, upper: None, from };
    Folder { session, fold }.enter(&way, true)
}

struct Folder<'s, 'a, F> {
    session: &'s Session<'a>,
    fold: &'s F,
}

impl<F: Fold> Folder<'_, '_, F> {
    /// `spread`: other threads may help.
    fn enter(&self, way: &Way, spread: bool) -> Part<F::Value> {
        let missing = || Part { value: F::Value::default(), last: None, complete: false };
        if let Some(part) = self.fold.known(way) {
            return if self.is_ordered(way, part.last) { part } else { missing() };
        }
        let Some(node) = self.session.block(&way.ptr) else { return missing() };
        if !self.is_ordered(way, node.last_key()) {
            return missing();
        }
        let from = way.from.filter(|from| node.level().get() >= from.level);
        let first = from.map_or(0, |from| node.child_slot(from.key));
        let value = self.fold.block(&node, way, first);
        let mut part = Part { value, last: node.last_key(), complete: true };
        if !node.is_leaf() {
            self.below(&node, way, first, spread, &mut part);
        }
        if part.complete && way.from.is_none() {
            self.fold.keep(&node, &part);
        }
        part
    }

    fn is_ordered(&self, way: &Way, last: Option<Key>) -> bool {
        let Some((last, next)) = last.zip(way.upper).filter(|(last, next)| last >= next) else { return true };
        self.session.report(Finding::KeyOrder { tree: Tree(way.ptr.tree), at: way.ptr.at, last, next });
        false
    }

    fn below(&self, node: &Node, way: &Way, first: usize, spread: bool, part: &mut Part<F::Value>) {
        let (parent, tree) = (Some(self.fold.as_parent(node)), way.ptr.tree);
        let child = |slot: usize| {
            let upper = if slot + 1 < node.nritems() { Some(node.key(slot + 1)) } else { way.upper };
            let from = way.from.filter(|from| slot == first && node.level().get() > from.level);
            Way { ptr: node.child_ptr(slot, tree), parent, upper, from }
        };
        let slots = node.nritems() - first;
        let threads = self.session.options.threads.min(slots.div_ceil(GRAIN));
        if threads < 2 || !spread || node.level().get() > 2 {
            for slot in first..node.nritems() {
                let next = self.enter(&child(slot), spread);
                self.join(part, next, tree);
            }
            return;
        }
        for next in self.on_threads(threads, slots, &|slot| self.enter(&child(first + slot), false)) {
            self.join(part, next, tree);
        }
    }

    fn join(&self, part: &mut Part<F::Value>, next: Part<F::Value>, tree: TreeId) {
        self.fold.join(&mut part.value, next.value, tree);
        part.last = next.last.or(part.last);
        part.complete &= next.complete;
    }

    /// The results for `0..count`, in order; each thread takes a run of numbers at a time.
    fn on_threads(
        &self,
        threads: usize,
        count: usize,
        one: &(dyn Fn(usize) -> Part<F::Value> + Sync),
    ) -> impl Iterator<Item = Part<F::Value>> + use<F> {
        let runs = count.div_ceil(GRAIN);
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(runs)));
        let work = || loop {
            let run = next.fetch_add(1, Ordering::Relaxed);
            if run >= runs {
                return;
            }
            let parts: Vec<Part<F::Value>> = (run * GRAIN..count.min((run + 1) * GRAIN)).map(one).collect();
            done.lock().push((run, parts));
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(work);
            }
            work();
        });
        let mut done = done.into_inner();
        done.sort_by_key(|(run, _)| *run);
        done.into_iter().flat_map(|(_, parts)| parts)
    }
}
