//! The differences between two trees that share blocks, such as two snapshots of one subvolume.
//!
//! # Invariants
//! 1. A subtree that both trees refer to by the same address and generation is not read: the work grows with what
//!    differs, not with what is there.
//! 2. Differences come in key order, each key once. In each tree the keys rise strictly, whatever a damaged one
//!    contains; a key that does not is [`Corrupt`].
//!
//! # Not here
//! What the items mean. Both trees must stay as they are meanwhile: read-only snapshots do.

use crate::{Corrupt, Node, NodePtr, NodeSource};
use butterfs_ondisk::{Key, TreeId};
use std::cmp::Ordering;
use std::ops::ControlFlow;
use std::sync::Arc;

/// One item that is not the same in both trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference<'a> {
    /// Only the old tree has it.
    Removed(&'a [u8]),
    /// Only the new tree has it.
    Added(&'a [u8]),
    /// Both have it, with another content: the old one, the new one.
    Changed(&'a [u8], &'a [u8]),
}

/// The callback of [`diff`] for every difference.
pub type DifferenceVisitor<'a, E> = &'a mut dyn FnMut(Key, Difference<'_>) -> Result<ControlFlow<()>, E>;

/// Shows every item that differs, in key order, until `visit` breaks. No old tree: everything is new.
pub fn diff<S, E>(src: &S, old: Option<&NodePtr>, new: &NodePtr, visit: DifferenceVisitor<'_, E>) -> Result<(), E>
where
    S: NodeSource + ?Sized,
    E: From<S::Error>,
{
    let mut old = Cursor::new(old);
    let mut new = Cursor::new(Some(new));
    loop {
        let (left, right) = (old.key(), new.key());
        let order = match (left, right) {
            (None, None) => return Ok(()),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(left), Some(right)) => left.cmp(&right),
        };
        // Whoever is behind goes on alone; at the same key the one that stands higher goes down first, so that blocks
        // that both have meet at one level.
        match order {
            Ordering::Less if !old.at_item() => old.descend(src)?,
            Ordering::Greater if !new.at_item() => new.descend(src)?,
            Ordering::Less => {
                let (key, leaf, slot) = old.item();
                if visit(key, Difference::Removed(leaf.item(slot)))?.is_break() {
                    return Ok(());
                }
                old.advance().map_err(S::Error::from)?;
            }
            Ordering::Greater => {
                let (key, leaf, slot) = new.item();
                if visit(key, Difference::Added(leaf.item(slot)))?.is_break() {
                    return Ok(());
                }
                new.advance().map_err(S::Error::from)?;
            }
            Ordering::Equal => match old.height().cmp(&new.height()) {
                Ordering::Greater => old.descend(src)?,
                Ordering::Less => new.descend(src)?,
                Ordering::Equal if old.at_item() => {
                    let (key, before, slot) = old.item();
                    let (_, after, other) = new.item();
                    let (before, after) = (before.item(slot), after.item(other));
                    if before != after && visit(key, Difference::Changed(before, after))?.is_break() {
                        return Ok(());
                    }
                    old.advance().map_err(S::Error::from)?;
                    new.advance().map_err(S::Error::from)?;
                }
                Ordering::Equal if old.block() == new.block() => {
                    old.advance().map_err(S::Error::from)?;
                    new.advance().map_err(S::Error::from)?;
                }
                Ordering::Equal => {
                    old.descend(src)?;
                    new.descend(src)?;
                }
            },
        }
    }
}

/// A place in a tree: an item, or a block that has not been entered.
struct Cursor {
    /// The root, until it is entered; its key is as small as a key can be.
    root: Option<NodePtr>,
    /// Blocks that have been entered, from the top, each with the slot that is looked at.
    path: Vec<(Arc<Node>, usize)>,
    tree: TreeId,
    /// The last item that was passed.
    passed: Option<Key>,
}

impl Cursor {
    fn new(root: Option<&NodePtr>) -> Cursor {
        let tree = root.map_or(TreeId(0), |root| root.tree);
        Cursor { root: root.copied(), path: Vec::new(), tree, passed: None }
    }

    /// The key of what is looked at; none at the end.
    fn key(&self) -> Option<Key> {
        match self.root {
            Some(_) => Some(Key::MIN),
            None => self.path.last().map(|(node, slot)| node.key(*slot)),
        }
    }

    fn at_item(&self) -> bool {
        self.root.is_none() && self.path.last().is_some_and(|(node, _)| node.is_leaf())
    }

    /// 0 for an item; one more than its level for a block.
    fn height(&self) -> u8 {
        match (&self.root, self.path.last()) {
            (Some(root), _) => root.level.get() + 1,
            (None, Some((node, _))) => node.level().get(),
            (None, None) => 0,
        }
    }

    fn block(&self) -> Option<(u64, u64)> {
        if let Some(root) = &self.root {
            return Some((root.at.get(), root.generation.get()));
        }
        let (node, slot) = self.path.last().filter(|(node, _)| !node.is_leaf())?;
        let (at, generation) = node.child(*slot);
        Some((at.get(), generation.get()))
    }

    fn item(&self) -> (Key, &Node, usize) {
        let (node, slot) = self.path.last().expect("an item is looked at");
        (node.key(*slot), node, *slot)
    }

    /// Enters the block that is looked at.
    fn descend<S: NodeSource + ?Sized>(&mut self, src: &S) -> Result<(), S::Error> {
        let ptr = match self.root.take() {
            Some(root) => root,
            None => {
                let (node, slot) = self.path.last().expect("a block is looked at");
                node.child_ptr(*slot, self.tree)
            }
        };
        let node = src.node(&ptr)?;
        if node.is_empty() {
            // An empty root, or a damaged tree: there is nothing in it.
            return Ok(self.leave()?);
        }
        self.path.push((node, 0));
        Ok(self.confirm(&ptr)?)
    }

    /// Goes to the item or the block behind what is looked at.
    fn advance(&mut self) -> Result<(), Corrupt> {
        if self.root.take().is_some() {
            return Ok(());
        }
        if self.at_item() {
            self.passed = self.key();
        }
        self.leave()
    }

    fn leave(&mut self) -> Result<(), Corrupt> {
        while let Some((node, slot)) = self.path.last_mut() {
            *slot += 1;
            if *slot < node.nritems() {
                let ptr = here(node, self.tree);
                return self.confirm(&ptr);
            }
            self.path.pop();
        }
        Ok(())
    }

    /// The current position must lie behind every item that was passed: no block shows this by itself.
    fn confirm(&self, ptr: &NodePtr) -> Result<(), Corrupt> {
        match (self.passed, self.key()) {
            (Some(passed), Some(key)) if key <= passed => {
                Err(Corrupt::new(ptr, format!("bad key order across blocks, last {passed} next {key}")))
            }
            _ => Ok(()),
        }
    }
}

fn here(node: &Node, tree: TreeId) -> NodePtr {
    NodePtr { at: node.at(), generation: node.generation(), level: node.level(), tree, first_key: node.first_key() }
}
