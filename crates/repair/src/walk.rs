//! Walks over whole trees that may be damaged.
//!
//! Invariants: levels fall by one with each step and keys ascend, so a walk ends whatever the pointers are.

use crate::store::Store;
use butterfs_ondisk::Key;
use butterfs_ondisk::items::RootItem;
use butterfs_tree::{Node, NodePtr};
use std::sync::Arc;

/// Where the dropping of a deleted tree has come to: everything before it is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DropPoint {
    pub key: Key,
    pub level: u8,
}

impl DropPoint {
    /// That of a root item, if dropping has begun.
    pub fn of(item: &RootItem) -> Option<DropPoint> {
        let key = Key::from(item.drop_progress);
        (item.refs.get() == 0 && key.objectid != 0).then_some(DropPoint { key, level: item.drop_level })
    }
}

/// Calls `with` for each block that can be read, with the first slot that is alive; its children are visited where it
/// says so. True when no block was missing.
pub(crate) fn walk(
    store: &Store,
    ptr: &NodePtr,
    from: Option<DropPoint>,
    with: &mut dyn FnMut(&Arc<Node>, usize) -> bool,
) -> bool {
    visit(store, ptr, None, from, with)
}

/// Calls `with` for each item that can be read; true when no block was missing.
pub(crate) fn items(store: &Store, ptr: &NodePtr, with: &mut dyn FnMut(Key, &[u8])) -> bool {
    walk(store, ptr, None, &mut |node, _| {
        if node.is_leaf() {
            node.items().for_each(|(key, data)| with(key, data));
        }
        true
    })
}

fn visit(
    store: &Store,
    ptr: &NodePtr,
    upper: Option<Key>,
    from: Option<DropPoint>,
    with: &mut dyn FnMut(&Arc<Node>, usize) -> bool,
) -> bool {
    let Ok(node) = store.read(ptr) else { return false };
    if node.last_key().zip(upper).is_some_and(|(last, next)| last >= next) {
        return false;
    }
    let from = from.filter(|from| node.level().get() >= from.level);
    let first = from.map_or(0, |from| node.child_slot(from.key));
    if !with(&node, first) || node.is_leaf() {
        return true;
    }
    let mut complete = true;
    for slot in first..node.nritems() {
        let upper = if slot + 1 < node.nritems() { Some(node.key(slot + 1)) } else { upper };
        let from = from.filter(|from| slot == first && node.level().get() > from.level);
        complete &= visit(store, &node.child_ptr(slot, ptr.tree), upper, from, with);
    }
    complete
}
