//! The changes of the running transaction in a tree, found by comparing it with the committed one: blocks that both
//! trees have are skipped, with everything below them.
//!
//! Invariant: of a range of keys, an item that is not in the leaves returned is the same in both trees.

use super::tree::Fetched;
use super::{BlockSource, Core, Misses, Tree};
use crate::error::{Error, Result};
use butterfs_ondisk::{Key, Level};
use butterfs_tree::{Node, NodePtr, NodeSource};
use rustc_hash::FxHashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Leaves, ascending.
pub(crate) type Leaves = Vec<Arc<Node>>;

/// A committed tree, to look at.
#[derive(Clone, Copy)]
pub(crate) struct Committed<'a> {
    pub source: BlockSource<'a>,
    pub root: NodePtr,
}

impl Committed<'_> {
    /// Shows the item at `key` to `look`.
    pub fn get<R>(&self, key: Key, look: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let found = butterfs_tree::search(&self.source, &self.root, &key)?;
        Ok(found.found.then(|| look(found.leaf.item(found.slot))))
    }

    /// The greatest item before `key`.
    pub fn last_before(&self, key: Key) -> Result<Option<(Key, Vec<u8>)>> {
        let found = butterfs_tree::last_before(&self.source, &self.root, &key)?;
        Ok(found.map(|(leaf, slot)| (leaf.key(slot), leaf.item(slot).to_vec())))
    }

    /// Shows the items from `from` to `to`, both included, until the callback breaks.
    pub fn scan(&self, from: Key, to: Key, visit: &mut dyn FnMut(Key, &[u8]) -> Result<ControlFlow<()>>) -> Result<()> {
        butterfs_tree::scan(&self.source, &self.root, &from, &to, visit)
    }
}

impl Tree {
    /// The leaves with items from `from` to `to` that only the committed tree has, and those that only this one has.
    pub(crate) fn changed_leaves(&self, committed: &Committed<'_>, from: Key, to: Key) -> Result<(Leaves, Leaves)> {
        let core = committed.source.core();
        let mut fetched = Fetched::default();
        loop {
            let mut missing = Vec::new();
            let found = self.with_root(|root| compare(core, committed.root, *root, (from, to), &mut missing))?;
            if missing.is_empty() {
                return Ok(found);
            }
            if let Some(misses) = committed.source.misses() {
                misses.note(&missing);
                return Err(Error::Missing(Box::new(missing[0])));
            }
            for ptr in missing {
                fetched.load(core, &ptr)?;
            }
        }
    }
}

/// One side of the comparison: all nodes of one level that the range touches.
struct Side(Vec<NodePtr>);

impl Side {
    fn level(&self) -> Option<Level> {
        self.0.first().map(|ptr| ptr.level)
    }

    /// Goes one level down.
    fn expand(&mut self, reader: &BlockSource<'_>, (from, to): (Key, Key), missing: &mut Vec<NodePtr>) -> Result<()> {
        let mut children = Vec::new();
        for ptr in &self.0 {
            let node = match reader.node(ptr) {
                Err(Error::Missing(ptr)) => {
                    missing.push(*ptr);
                    continue;
                }
                other => other?,
            };
            let last = node.nritems().saturating_sub(1);
            let touches =
                |slot: &usize| (*slot == 0 || node.key(*slot) <= to) && (*slot == last || node.key(*slot + 1) > from);
            children.extend((0..node.nritems()).filter(touches).map(|slot| node.child_ptr(slot, ptr.tree)));
        }
        self.0 = children;
        Ok(())
    }

    fn leaves(&self, reader: &BlockSource<'_>, missing: &mut Vec<NodePtr>) -> Result<Leaves> {
        let mut leaves = Vec::with_capacity(self.0.len());
        for ptr in &self.0 {
            match reader.node(ptr) {
                Err(Error::Missing(ptr)) => missing.push(*ptr),
                other => leaves.push(other?),
            }
        }
        Ok(leaves)
    }
}

fn compare(
    core: &Core,
    old: NodePtr,
    new: NodePtr,
    range: (Key, Key),
    missing: &mut Vec<NodePtr>,
) -> Result<(Leaves, Leaves)> {
    let misses = Misses::default();
    let reader = BlockSource::in_memory(core, &misses);
    let (mut old, mut new) = (Side(vec![old]), Side(vec![new]));
    while missing.is_empty() {
        let (old_level, new_level) = (old.level(), new.level());
        if old_level == new_level {
            drop_common(&mut old, &mut new);
        }
        let level = old_level.max(new_level).unwrap_or(Level(0));
        if level == Level(0) {
            return Ok((old.leaves(&reader, missing)?, new.leaves(&reader, missing)?));
        }
        for side in [&mut old, &mut new] {
            if side.level() == Some(level) {
                side.expand(&reader, range, missing)?;
            }
        }
    }
    Ok((Vec::new(), Vec::new()))
}

fn drop_common(old: &mut Side, new: &mut Side) {
    let identity = |ptr: &NodePtr| (ptr.at.0, ptr.generation.0);
    let in_new: FxHashSet<_> = new.0.iter().map(identity).collect();
    let common: FxHashSet<_> = old.0.iter().map(identity).filter(|at| in_new.contains(at)).collect();
    if !common.is_empty() {
        old.0.retain(|ptr| !common.contains(&identity(ptr)));
        new.0.retain(|ptr| !common.contains(&identity(ptr)));
    }
}

/// Looks at an item that is not the same on both sides.
pub(crate) type VisitDifference<'a, E> =
    dyn FnMut(Key, Option<&[u8]>, Option<&[u8]>) -> std::result::Result<(), E> + 'a;

/// A position in a list of leaves.
struct Cursor<'a> {
    leaves: &'a [Arc<Node>],
    slot: usize,
    to: Key,
}

impl<'a> Cursor<'a> {
    /// At the first item from `from` on; it ends behind `to`.
    fn new(mut leaves: &'a [Arc<Node>], from: Key, to: Key) -> Cursor<'a> {
        while let [first, rest @ ..] = leaves
            && first.last_key().is_none_or(|last| last < from)
        {
            leaves = rest;
        }
        let slot = leaves.first().map_or(0, |leaf| leaf.find(from).unwrap_or_else(|slot| slot));
        Cursor { leaves, slot, to }
    }

    fn item(&self) -> Option<(Key, &'a [u8])> {
        let leaf = self.leaves.first()?;
        let key = leaf.key(self.slot);
        (key <= self.to).then(|| (key, leaf.item(self.slot)))
    }

    /// Goes on by so many items, all of them in this leaf.
    fn advance(&mut self, count: usize) {
        self.slot += count;
        while let [first, rest @ ..] = self.leaves
            && self.slot >= first.nritems()
        {
            (self.leaves, self.slot) = (rest, 0);
        }
    }
}

/// Shows every key from `from` to `to` whose item differs between two lists of leaves.
pub(crate) fn merge_leaves<E>(
    (old, new): (&Leaves, &Leaves),
    (from, to): (Key, Key),
    visit: &mut VisitDifference<'_, E>,
) -> std::result::Result<(), E> {
    let (mut old, mut new) = (Cursor::new(old, from, to), Cursor::new(new, from, to));
    loop {
        match (old.item(), new.item()) {
            (None, None) => return Ok(()),
            (Some((key, was)), Some((other, is))) if key == other => {
                let mut same = old.leaves[0].same_items(old.slot, &new.leaves[0], new.slot);
                if same == 0 {
                    visit(key, Some(was), Some(is))?;
                    same = 1;
                }
                old.advance(same);
                new.advance(same);
            }
            (Some((key, was)), other) if other.is_none_or(|(other, _)| key < other) => {
                visit(key, Some(was), None)?;
                old.advance(1);
            }
            (_, Some((key, is))) => {
                visit(key, None, Some(is))?;
                new.advance(1);
            }
            _ => unreachable!("one of the keys is the smaller one"),
        }
    }
}
