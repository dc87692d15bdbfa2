//! Walking whole trees in the order of their keys.
//!
//! Invariants: (1) levels fall by one with each step, and keys ascend strictly through a whole level, so a walk ends
//! and enters no block twice, whatever the pointers are; (2) a block that cannot be used is left out, and the walk says
//! so.

use crate::finding::{Finding, Tree};
use crate::session::Session;
use butterfs_ondisk::Key;
use butterfs_tree::{Node, NodePtr};
use std::sync::Arc;

/// The progress of dropping a deleted tree: everything before it is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DropPoint {
    pub key: Key,
    pub level: u8,
}

/// Calls `with` for every block of the tree at `root`; true when no block was missing.
pub(crate) fn walk(
    session: &Session<'_>,
    root: NodePtr,
    from: Option<DropPoint>,
    with: &mut dyn FnMut(&Arc<Node>, usize),
) -> bool {
    visit(session, &root, None, from, with)
}

/// Calls `with` for every item of the tree at `root`; true when no block was missing.
pub(crate) fn items(session: &Session<'_>, root: NodePtr, with: &mut dyn FnMut(Key, &[u8])) -> bool {
    walk(session, root, None, &mut |node, _| {
        if node.is_leaf() {
            node.items().for_each(|(key, data)| with(key, data));
        }
    })
}

/// `with` gets the first slot that is still alive, which is not 0 only on the path of a drop.
fn visit(
    session: &Session<'_>,
    ptr: &NodePtr,
    upper: Option<Key>,
    from: Option<DropPoint>,
    with: &mut dyn FnMut(&Arc<Node>, usize),
) -> bool {
    let Some(node) = session.block(ptr) else { return false };
    if let Some((last, next)) = node.last_key().zip(upper).filter(|(last, next)| last >= next) {
        session.report(Finding::KeyOrder { tree: Tree(ptr.tree), at: ptr.at, last, next });
        return false;
    }
    let from = from.filter(|from| node.level().get() >= from.level);
    let first = from.map_or(0, |from| node.child_slot(from.key));
    with(&node, first);
    if node.is_leaf() {
        return true;
    }
    let mut complete = true;
    for slot in first..node.nritems() {
        let upper = if slot + 1 < node.nritems() { Some(node.key(slot + 1)) } else { upper };
        let from = from.filter(|from| slot == first && node.level().get() > from.level);
        complete &= visit(session, &node.child_ptr(slot, ptr.tree), upper, from, with);
    }
    complete
}
