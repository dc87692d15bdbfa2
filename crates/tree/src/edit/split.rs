//! Making room: splitting a leaf, and the nodes above it that have no room for one more pointer.
//!
//! New nodes always go to the right of the one that splits, so a node keeps its address and its place in its parent.

use super::path::Path;
use crate::{Node, NodeEditor, NodePtr};
use butterfs_ondisk::header::ITEM_LEN;
use butterfs_ondisk::units::MAX_LEVELS;
use butterfs_ondisk::{Generation, Key, Level, Logical};

/// The point at which a leaf splits for new items, which all go to one place between two old ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// How many of the old items stay; an item that is being replaced does not count.
    pub stay: usize,
    /// Which leaf has the new items.
    pub new_items: SplitSide,
}

/// A leaf at a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SplitSide {
    /// The leaf that was there.
    Left,
    /// The leaf that is new.
    Right,
    /// A leaf of their own between the two.
    Between,
}

/// Inserts an item, or replaces it when the path has found it, where the leaf has no room for it.
pub(super) fn insert<E: NodeEditor>(
    ed: &E,
    root: &mut NodePtr,
    path: Path,
    key: Key,
    data: &[u8],
) -> Result<(), E::Error> {
    let cut = Sizes::of(&path, data.len()).cut(&path, key);
    split(ed, root, path, cut, &[(key, data)])
}

/// Splits the path's leaf and inserts `items` at the path's slot, replacing the item there if it was found.
pub(super) fn split<E: NodeEditor>(
    ed: &E,
    root: &mut NodePtr,
    mut path: Path,
    cut: Cut,
    items: &[(Key, &[u8])],
) -> Result<(), E::Error> {
    let leaves = if cut.new_items == SplitSide::Between { 2 } else { 1 };
    let growth = Growth::plan(&path, leaves)?;
    path.make_writable(ed, root)?;
    let fresh = growth.make_nodes(ed)?;

    let pointers = split_leaf(ed, &path, cut, items, &fresh[..leaves]);
    if path.slot(0) == 0 && !path.found {
        path.set_first_key(ed, 0, items[0].0);
    }
    growth.add_pointers(ed, root, &path, pointers, &fresh[leaves..]);
    Ok(())
}

/// Spreads old and new items over the leaf and the fresh ones, and returns what the parent must learn.
fn split_leaf<E: NodeEditor>(
    ed: &E,
    path: &Path,
    cut: Cut,
    items: &[(Key, &[u8])],
    fresh: &[Logical],
) -> Vec<(Key, Logical)> {
    let mut left = ed.take(path.at(0));
    let mut right = ed.take(fresh[0]);
    if path.found {
        left.remove_items(path.slot(0)..path.slot(0) + 1);
    }
    left.split_off(cut.stay, &mut right);
    let mut pointers = Vec::with_capacity(2);
    match cut.new_items {
        SplitSide::Left => left.insert_items(items),
        SplitSide::Right => right.insert_items(items),
        SplitSide::Between => {
            ed.edit(fresh[1], |between| between.insert_items(items));
            pointers.push((items[0].0, fresh[1]));
        }
    }
    pointers.push((right.key(0), fresh[0]));
    ed.put(left);
    ed.put(right);
    pointers
}

/// Bytes of the items of a leaf, as if the new item were among them: by this the leaf is cut.
struct Sizes {
    /// Bytes with header of each item, in the order after the change.
    bytes: Vec<usize>,
    /// The slot of the new item.
    new_slot: usize,
    /// Bytes that a leaf has for items.
    capacity: usize,
}

impl Sizes {
    fn of(path: &Path, new_len: usize) -> Sizes {
        let (leaf, new_slot) = (path.leaf(), path.slot(0));
        let mut bytes: Vec<usize> = (0..leaf.nritems()).map(|slot| ITEM_LEN + leaf.item_len(slot)).collect();
        if path.found {
            bytes.remove(new_slot);
        }
        bytes.insert(new_slot, ITEM_LEN + new_len);
        Sizes { bytes, new_slot, capacity: leaf.used() + leaf.free_space() }
    }

    fn cut(&self, path: &Path, key: Key) -> Cut {
        let last = self.bytes.len() - 1;
        // Ascending insertions fill leaf after leaf, and so do descending ones.
        if self.new_slot == last || self.new_slot == 0 {
            return self.cut_before(self.new_slot.max(1));
        }
        self.cut_after_group(path, key)
            .or_else(|| self.cut_in_balance())
            .unwrap_or(Cut { stay: self.new_slot, new_items: SplitSide::Between })
    }

    /// The cut that leaves `count` items, the new one among them or not, in the left leaf.
    fn cut_before(&self, count: usize) -> Cut {
        if count > self.new_slot {
            Cut { stay: count - 1, new_items: SplitSide::Left }
        } else {
            Cut { stay: count, new_items: SplitSide::Right }
        }
    }

    /// Items of one object and type often come in ascending order (directory indexes, file extents). When the new
    /// one is the last of its group, the leaf is cut behind it, so that the next ones fill the left leaf.
    fn cut_after_group(&self, path: &Path, key: Key) -> Option<Cut> {
        let (leaf, before) = (path.leaf(), self.new_slot - 1);
        let group = |key: Key| (key.objectid, key.kind);
        let after = self.new_slot + usize::from(path.found);
        if group(leaf.key(before)) != group(key) || group(leaf.key(after)) == group(key) {
            return None;
        }
        let left: usize = self.bytes[..self.new_slot].iter().sum();
        if left < self.capacity / 3 {
            return None;
        }
        let count = if left + self.bytes[self.new_slot] <= self.capacity { self.new_slot + 1 } else { self.new_slot };
        let right: usize = self.bytes[count..].iter().sum();
        (right <= self.capacity).then(|| self.cut_before(count))
    }

    /// The cut that makes both leaves equally full, if two leaves are enough.
    fn cut_in_balance(&self) -> Option<Cut> {
        let total: usize = self.bytes.iter().sum();
        let mut left = 0;
        let mut best: Option<(usize, usize)> = None;
        for (before, bytes) in self.bytes[..self.bytes.len() - 1].iter().enumerate() {
            left += bytes;
            let right = total - left;
            let unbalance = left.abs_diff(right);
            if left.max(right) <= self.capacity && best.is_none_or(|(least, _)| unbalance < least) {
                best = Some((unbalance, before + 1));
            }
        }
        best.map(|(_, count)| self.cut_before(count))
    }
}

/// The work of the nodes above a splitting leaf.
struct Growth {
    /// New leaves.
    leaves: usize,
    /// The nodes of levels 1 to this one split.
    full_levels: usize,
    /// The root splits, so it gets a parent.
    new_root: bool,
    top: usize,
}

impl Growth {
    fn plan(path: &Path, leaves: usize) -> Result<Growth, crate::Corrupt> {
        let mut full_levels = 0;
        let mut added = leaves;
        while full_levels < path.top {
            let node = path.node(full_levels + 1);
            if node.nritems() + added <= node.max_pointers() {
                break;
            }
            full_levels += 1;
            added = 1;
        }
        let new_root = full_levels == path.top;
        if new_root && path.top + 1 >= MAX_LEVELS {
            return Err(path.corrupt(path.top, format!("full root at level {}, the tree cannot grow", path.top)));
        }
        Ok(Growth { leaves, full_levels, new_root, top: path.top })
    }

    /// The new nodes: leaves, then one for each level that splits, then the root. All of them or none.
    fn make_nodes<E: NodeEditor>(&self, ed: &E) -> Result<Vec<Logical>, E::Error> {
        let leaves = std::iter::repeat_n(0, self.leaves);
        let levels = leaves.chain(1..=self.full_levels).chain(self.new_root.then_some(self.top + 1));
        let mut made: Vec<(Logical, Level)> = Vec::with_capacity(MAX_LEVELS);
        for level in levels.map(|level| Level(level as u8)) {
            match ed.new_node(level) {
                Ok(at) => made.push((at, level)),
                Err(error) => {
                    made.iter().for_each(|&(at, level)| ed.free(at, level));
                    return Err(error);
                }
            }
        }
        Ok(made.into_iter().map(|(at, _)| at).collect())
    }

    /// Inserts pointers behind the path's slot in level 1, and so on upwards. `fresh` are the nodes above the leaves.
    fn add_pointers<E: NodeEditor>(
        &self,
        ed: &E,
        root: &mut NodePtr,
        path: &Path,
        mut pointers: Vec<(Key, Logical)>,
        fresh: &[Logical],
    ) {
        for level in 1..=self.full_levels {
            pointers = vec![split_node(ed, path.at(level), fresh[level - 1], path.slot(level) + 1, &pointers)];
        }
        let generation = ed.generation();
        if !self.new_root {
            let level = self.full_levels + 1;
            let slot = path.slot(level) + 1;
            ed.edit(path.at(level), |node| insert_pointers(node, slot, &pointers, generation));
            return;
        }
        let (at, old) = (fresh[self.full_levels], path.at(self.top));
        let first = ed.edit(old, |node| node.key(0));
        pointers.insert(0, (first, old));
        ed.edit(at, |node| insert_pointers(node, 0, &pointers, generation));
        *root = NodePtr { at, generation, level: Level(self.top as u8 + 1), tree: root.tree, first_key: None };
    }
}

/// Splits a full node and inserts pointers at `slot`; returns the pointer to the new right node.
fn split_node<E: NodeEditor>(
    ed: &E,
    at: Logical,
    fresh: Logical,
    slot: usize,
    pointers: &[(Key, Logical)],
) -> (Key, Logical) {
    let generation = ed.generation();
    let mut left = ed.take(at);
    let mut right = ed.take(fresh);
    let count = left.nritems();
    // Ascending insertions fill node after node.
    let stay = if slot == count { count } else { count / 2 };
    left.split_off(stay, &mut right);
    if slot <= stay && stay < count {
        insert_pointers(&mut left, slot, pointers, generation);
    } else {
        insert_pointers(&mut right, slot - stay, pointers, generation);
    }
    let pointer = (right.key(0), fresh);
    ed.put(left);
    ed.put(right);
    pointer
}

fn insert_pointers(node: &mut Node, slot: usize, pointers: &[(Key, Logical)], generation: Generation) {
    for (nth, &(key, at)) in pointers.iter().enumerate() {
        node.insert_pointer(slot + nth, key, at, generation);
    }
}
