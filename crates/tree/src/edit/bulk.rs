//! Inserting many items in ascending order: one descent, one path made writable, and one edit per leaf.

use super::path::Path;
use super::split::{self, Cut, SplitSide};
use crate::{NodeEditor, NodePtr};
use butterfs_ondisk::Key;
use butterfs_ondisk::header::{ITEM_LEN, leaf_data_size, max_item_size};

/// Inserts a prefix of `items`, which ascend strictly, and returns its length: at least 1, and all of them unless
/// something failed after the first leaf; then the caller goes on with the rest. After an error nothing has been
/// inserted. A key that exists is an error.
///
/// # Panics
/// When the keys do not ascend, or data is larger than an item can be ([`max_item_size`]).
pub fn insert_many<E: NodeEditor>(ed: &E, root: &mut NodePtr, items: &[(Key, &[u8])]) -> Result<usize, E::Error> {
    assert!(items.is_sorted_by(|(before, _), (after, _)| before < after), "keys do not ascend");
    let limit = max_item_size(ed.nodesize());
    assert!(items.iter().all(|(_, data)| data.len() <= limit), "an item is too large");
    let mut done = 0;
    while done < items.len() {
        match insert_run(ed, root, &items[done..]) {
            Ok(count) => done += count,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Inserts as many items as the leaf of the first one takes, at least one.
fn insert_run<E: NodeEditor>(ed: &E, root: &mut NodePtr, items: &[(Key, &[u8])]) -> Result<usize, E::Error> {
    let mut path = Path::descend(ed, root, items[0].0)?;
    if path.found {
        return Err(path.corrupt(0, format!("key {} exists already", items[0].0)).into());
    }
    let count = fitting(items, path.leaf().free_space(), |key| belongs(&path, key));
    if count == 0 {
        return split_for_run(ed, root, path, items);
    }
    path.make_writable(ed, root)?;
    ed.edit(path.at(0), |leaf| leaf.insert_items(&items[..count]));
    if path.slot(0) == 0 {
        path.set_first_key(ed, 0, items[0].0);
    }
    Ok(count)
}

/// Splits the leaf where the first item does not fit.
fn split_for_run<E: NodeEditor>(
    ed: &E,
    root: &mut NodePtr,
    path: Path,
    items: &[(Key, &[u8])],
) -> Result<usize, E::Error> {
    let (leaf, slot) = (path.leaf(), path.slot(0));
    let capacity = leaf_data_size(ed.nodesize());
    let next = if slot < leaf.nritems() { Some(leaf.key(slot)) } else { path.upper };
    let in_gap = |key: Key| next.is_none_or(|next| key < next);
    let fresh = fitting(items, capacity, in_gap);
    if slot == leaf.nritems() {
        split::split(ed, root, path, Cut { stay: slot, new_items: SplitSide::Right }, &items[..fresh])?;
        return Ok(fresh);
    }
    let bytes: usize = items[..fresh].iter().map(|(_, data)| ITEM_LEN + data.len()).sum();
    if bytes < capacity / 2 {
        split::insert(ed, root, path, items[0].0, items[0].1)?;
        return Ok(1);
    }
    // A long run goes into this gap: open it, so that what follows is appended to full leaves.
    let before: usize = (0..slot).map(|slot| ITEM_LEN + leaf.item_len(slot)).sum();
    let (count, new_items) = match fitting(items, capacity - before, in_gap) {
        0 => (fresh, SplitSide::Between),
        count => (count, SplitSide::Left),
    };
    split::split(ed, root, path, Cut { stay: slot, new_items }, &items[..count])?;
    Ok(count)
}

/// The number of items, from the first on, that fit into `room` bytes, all of them accepted.
fn fitting(items: &[(Key, &[u8])], room: usize, accepts: impl Fn(Key) -> bool) -> usize {
    let mut left = room;
    items
        .iter()
        .take_while(|(key, data)| {
            let fits = ITEM_LEN + data.len() <= left && accepts(*key);
            left = left.saturating_sub(ITEM_LEN + data.len());
            fits
        })
        .count()
}

/// Whether `key`, not below the path's key, lies in the range of the path's leaf and is not there.
fn belongs(path: &Path, key: Key) -> bool {
    let leaf = path.leaf();
    let appended = path.slot(0) == leaf.nritems();
    path.upper.is_none_or(|upper| key < upper) && (appended || leaf.find(key).is_err())
}
