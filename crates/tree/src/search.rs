//! Finding items: one descent from the root, a scan over a range of keys, and a walk over all nodes.
//!
//! A reader holds at most the nodes that it has been given, and no place in a parent: to go on to the next leaf it
//! descends again at [`Position::upper`]. So a scan meets every item that exists throughout, whatever happens to the
//! tree between two steps, and `upper` rises with every step, whatever a damaged tree contains.

use crate::{Corrupt, Node, NodePtr, NodeSource};
use butterfs_ondisk::{Generation, Key};
use std::ops::ControlFlow;
use std::sync::Arc;

/// A place in a leaf.
#[derive(Clone, Debug)]
pub struct Position {
    /// The leaf in whose range the key lies.
    pub leaf: Arc<Node>,
    /// The key's slot, or the slot where it belongs; may be the number of items.
    pub slot: usize,
    /// Whether the key is there.
    pub found: bool,
    /// The smallest key of the next leaf; `None` in the last one.
    pub upper: Option<Key>,
}

/// Finds `key`, or the place where it belongs.
pub fn search<S: NodeSource + ?Sized>(src: &S, root: &NodePtr, key: &Key) -> Result<Position, S::Error> {
    let (mut ptr, mut upper) = (*root, None);
    loop {
        let node = src.node(&ptr)?;
        if node.is_leaf() {
            check_bound(&node, &ptr, upper)?;
            let (slot, found) = match node.find(*key) {
                Ok(slot) => (slot, true),
                Err(slot) => (slot, false),
            };
            return Ok(Position { leaf: node, slot, found, upper });
        }
        let slot = node.child_slot(*key);
        if slot + 1 < node.nritems() {
            upper = Some(node.key(slot + 1));
        }
        ptr = node.child_ptr(slot, root.tree);
    }
}

/// The result of [`search_since`].
#[derive(Clone, Debug)]
pub enum Since {
    /// The leaf where to look on, and the first slot there that is not before the key.
    Leaf(Position),
    /// Nothing in front of this key, or in the rest of the tree, has been changed.
    Nothing(Option<Key>),
}

/// Finds the first leaf at or after `key` that may have been made in transaction `since` or later: a node is never
/// older than its children, so what lies below an older one is not read.
pub fn search_since<S: NodeSource + ?Sized>(
    src: &S,
    root: &NodePtr,
    key: &Key,
    since: Generation,
) -> Result<Since, S::Error> {
    let (mut ptr, mut upper, mut key) = (*root, None, *key);
    loop {
        if ptr.generation < since {
            return Ok(Since::Nothing(upper));
        }
        let node = src.node(&ptr)?;
        if node.is_leaf() {
            check_bound(&node, &ptr, upper)?;
            let at = node.find(key);
            return Ok(Since::Leaf(Position {
                found: at.is_ok(),
                slot: at.unwrap_or_else(|at| at),
                leaf: node,
                upper,
            }));
        }
        let first = node.child_slot(key);
        let Some(slot) = (first..node.nritems()).find(|slot| node.child(*slot).1 >= since) else {
            return Ok(Since::Nothing(upper));
        };
        if slot > first {
            key = node.key(slot);
        }
        if slot + 1 < node.nritems() {
            upper = Some(node.key(slot + 1));
        }
        ptr = node.child_ptr(slot, root.tree);
    }
}

/// The item with the greatest key below `key`.
pub fn last_before<S: NodeSource + ?Sized>(
    src: &S,
    root: &NodePtr,
    key: &Key,
) -> Result<Option<(Arc<Node>, usize)>, S::Error> {
    let mut bound = *key;
    // One round finds it, unless a leaf is empty or its parent's key is not its first; each further round has a
    // smaller bound.
    loop {
        let mut ptr = *root;
        let leaf = loop {
            let node = src.node(&ptr)?;
            if node.is_leaf() {
                break node;
            }
            let below = node.find(bound).unwrap_or_else(|slot| slot);
            ptr = node.child_ptr(below.saturating_sub(1), root.tree);
        };
        let below = leaf.find(bound).unwrap_or_else(|slot| slot);
        if below > 0 {
            return Ok(Some((leaf, below - 1)));
        }
        match ptr.first_key {
            Some(lower) if lower < bound => bound = lower,
            _ => return Ok(None),
        }
    }
}

/// The callback of [`scan`] for every item.
pub type ItemVisitor<'a, E> = &'a mut dyn FnMut(Key, &[u8]) -> Result<ControlFlow<()>, E>;

/// Shows the items from `from` to `to_inclusive`, ascending, until `visit` breaks. A source that answers a missing node
/// with an error makes it stop there; `visit` has then seen a part.
pub fn scan<S: NodeSource + ?Sized>(
    src: &S,
    root: &NodePtr,
    from: &Key,
    to_inclusive: &Key,
    visit: ItemVisitor<'_, S::Error>,
) -> Result<(), S::Error> {
    let mut next = Some(*from);
    while let Some(from) = next.filter(|from| from <= to_inclusive) {
        let at = search(src, root, &from)?;
        for slot in at.slot..at.leaf.nritems() {
            let key = at.leaf.key(slot);
            if key > *to_inclusive || visit(key, at.leaf.item(slot))?.is_break() {
                return Ok(());
            }
        }
        next = at.upper;
    }
    Ok(())
}

/// The continuation of [`walk`] after a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// Goes on to the node's children, if it has any.
    Into,
    /// Leaves the node's children out.
    Over,
    /// Ends.
    Stop,
}

/// The callback of [`walk`] for every node.
pub type NodeVisitor<'a, E> = &'a mut dyn FnMut(&NodePtr, &Arc<Node>) -> Result<Walk, E>;

/// Visits every node before its children, in key order; returns whether it reached the end. A damaged tree cannot
/// make it visit a node twice, because the ranges of the nodes of one level must not overlap.
pub fn walk<S: NodeSource + ?Sized>(
    src: &S,
    root: &NodePtr,
    visit: NodeVisitor<'_, S::Error>,
) -> Result<bool, S::Error> {
    walk_below(src, root, None, visit)
}

fn walk_below<S: NodeSource + ?Sized>(
    src: &S,
    ptr: &NodePtr,
    upper: Option<Key>,
    visit: NodeVisitor<'_, S::Error>,
) -> Result<bool, S::Error> {
    let node = src.node(ptr)?;
    check_bound(&node, ptr, upper)?;
    match visit(ptr, &node)? {
        Walk::Stop => return Ok(false),
        Walk::Over => return Ok(true),
        Walk::Into if node.is_leaf() => return Ok(true),
        Walk::Into => {}
    }
    for slot in 0..node.nritems() {
        let upper = if slot + 1 < node.nritems() { Some(node.key(slot + 1)) } else { upper };
        if !walk_below(src, &node.child_ptr(slot, ptr.tree), upper, visit)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A node's keys must lie below the range of its right neighbour. No block shows this by itself.
pub(crate) fn check_bound(node: &Node, ptr: &NodePtr, upper: Option<Key>) -> Result<(), Corrupt> {
    match (node.last_key(), upper) {
        (Some(last), Some(upper)) if last >= upper => {
            Err(Corrupt::new(ptr, format!("bad key order across blocks, last {last} next block {upper}")))
        }
        _ => Ok(()),
    }
}

/// Whether a node's keys are those of its place: from exactly the parent's key to below `upper`. An editor must know,
/// or it would hide items; a cache need not have asked again for this parent.
pub(crate) fn check_range(node: &Node, ptr: &NodePtr, upper: Option<Key>) -> Result<(), Corrupt> {
    if ptr.first_key.is_some() && node.first_key() != ptr.first_key {
        let (have, expect) = (node.first_key(), ptr.first_key);
        return Err(Corrupt::new(ptr, format!("first key mismatch, have {have:?} expect {expect:?}")));
    }
    check_bound(node, ptr, upper)
}
