//! Changing items: insert, change in place, replace, remove.
//!
//! # How every function here works
//! 1. *Descend* without changing anything ([`path::Path`]): find the place, and decide.
//! 2. *Prepare*, which may fail: fetch siblings that will be needed, shadow the path from the root down, make new
//!    nodes. Whenever this stops, the tree is valid and its items are the same.
//! 3. *Apply*, which cannot fail.
//!
//! # Invariants
//! 1. A parent's key for a child equals the child's first key.
//! 2. No leaf is empty, except a root. A root that is a node has at least two children (a tree from elsewhere may
//!    have one; the next removal repairs it).
//! 3. No `Arc` of a node that is about to be edited is held, so that the store need not copy it.

mod bulk;
mod path;
mod removal;
mod split;

pub use bulk::insert_many;
pub use removal::{remove, remove_range};

use crate::{NodeEditor, NodePtr};
use butterfs_ondisk::Key;
use butterfs_ondisk::header::{ITEM_LEN, max_item_size};
use path::Path;

/// Inserts an item; returns false, without an error and without a change, when the key exists.
///
/// # Panics
/// When the data is larger than an item can be ([`max_item_size`]).
pub fn insert<E: NodeEditor>(ed: &E, root: &mut NodePtr, key: &Key, data: &[u8]) -> Result<bool, E::Error> {
    assert!(data.len() <= max_item_size(ed.nodesize()), "item {key} of {} bytes is too large", data.len());
    let mut path = Path::descend(ed, root, *key)?;
    if path.found {
        return Ok(false);
    }
    if path.leaf().free_space() < ITEM_LEN + data.len() {
        split::insert(ed, root, path, *key, data)?;
        return Ok(true);
    }
    path.make_writable(ed, root)?;
    let slot = path.slot(0);
    ed.edit(path.at(0), |leaf| leaf.insert_item(slot, *key, data));
    if slot == 0 {
        path.set_first_key(ed, 0, *key);
    }
    Ok(true)
}

/// Changes an item's data in place, and returns what `change` returns; `None` when the key does not exist.
pub fn update<E: NodeEditor, R>(
    ed: &E,
    root: &mut NodePtr,
    key: &Key,
    change: impl FnOnce(&mut [u8]) -> R,
) -> Result<Option<R>, E::Error> {
    let mut path = Path::descend(ed, root, *key)?;
    if !path.found {
        return Ok(None);
    }
    path.make_writable(ed, root)?;
    let slot = path.slot(0);
    Ok(Some(ed.edit(path.at(0), |leaf| change(leaf.item_mut(slot)))))
}

/// Gives an item other data of any size; returns false when the key does not exist.
///
/// # Panics
/// When the data is larger than an item can be ([`max_item_size`]).
pub fn replace<E: NodeEditor>(ed: &E, root: &mut NodePtr, key: &Key, data: &[u8]) -> Result<bool, E::Error> {
    assert!(data.len() <= max_item_size(ed.nodesize()), "item {key} of {} bytes is too large", data.len());
    let mut path = Path::descend(ed, root, *key)?;
    if !path.found {
        return Ok(false);
    }
    let slot = path.slot(0);
    if path.leaf().free_space() + path.leaf().item_len(slot) < data.len() {
        split::insert(ed, root, path, *key, data)?;
        return Ok(true);
    }
    path.make_writable(ed, root)?;
    ed.edit(path.at(0), |leaf| leaf.replace_item(slot, data));
    Ok(true)
}
