//! Removing items, and what follows for the nodes above: an emptied node is freed, a nearly empty one merges with a
//! sibling, and a root with one child is replaced by it.

use super::path::Path;
use crate::search::check_range;
use crate::{Node, NodeEditor, NodePtr};
use butterfs_ondisk::header::{KEY_POINTER_LEN, leaf_data_size};
use butterfs_ondisk::units::MAX_LEVELS;
use butterfs_ondisk::{Key, Level, Logical};
use std::ops::Range;
use std::sync::Arc;

/// The callback of [`remove_range`] for each item before its removal.
type Visit<'a, E> = &'a mut dyn FnMut(Key, &[u8]) -> Result<(), E>;

/// Removes an item; returns false when the key does not exist.
pub fn remove<E: NodeEditor>(ed: &E, root: &mut NodePtr, key: &Key) -> Result<bool, E::Error> {
    let path = descend(ed, root, *key)?;
    if !path.found {
        return Ok(false);
    }
    let slot = path.slot(0);
    remove_slots(ed, root, path, slot..slot + 1, None)?;
    Ok(true)
}

/// Removes the first items from `from` to `to_inclusive`, at most those of one leaf; returns whether there may be
/// more. `visit` sees every item, ascending, when nothing else can fail any more; when it fails itself, exactly the
/// items that it accepted are gone. It must not call into this tree's editor.
pub fn remove_range<E: NodeEditor>(
    ed: &E,
    root: &mut NodePtr,
    from: &Key,
    to_inclusive: &Key,
    visit: Visit<'_, E::Error>,
) -> Result<bool, E::Error> {
    let (mut from, to_inclusive) = (*from, *to_inclusive);
    loop {
        if from > to_inclusive {
            return Ok(false);
        }
        let path = descend(ed, root, from)?;
        let (leaf, start) = (path.leaf(), path.slot(0));
        let next_leaf = path.upper.filter(|upper| *upper <= to_inclusive);
        let end = leaf.find(to_inclusive).map_or_else(|slot| slot, |slot| slot + 1);
        if start < end {
            let more = end == leaf.nritems() && next_leaf.is_some();
            remove_slots(ed, root, path, start..end, Some(visit))?;
            return Ok(more);
        }
        match next_leaf {
            Some(next) if start == leaf.nritems() => from = next,
            _ => return Ok(false),
        }
    }
}

/// Descends from a root that is a leaf or has at least two children.
fn descend<E: NodeEditor>(ed: &E, root: &mut NodePtr, key: Key) -> Result<Path, E::Error> {
    loop {
        let path = Path::descend(ed, root, key)?;
        if path.top == 0 || path.node(path.top).nritems() > 1 {
            return Ok(path);
        }
        drop(path);
        collapse_root(ed, root)?;
    }
}

/// Makes a root's only child the root.
fn collapse_root<E: NodeEditor>(ed: &E, root: &mut NodePtr) -> Result<(), E::Error> {
    let node = ed.node(root)?;
    let only_child = node.child_ptr(0, root.tree);
    let child = ed.node(&only_child)?;
    let old = ed.shadow(&node, true)?;
    drop(node);
    (root.at, root.generation) = (old, ed.generation());
    let at = ed.shadow(&child, false)?;
    *root = NodePtr { at, generation: ed.generation(), first_key: None, ..only_child };
    ed.free(old, Level(only_child.level.get() + 1));
    Ok(())
}

/// The change of one node of the path.
#[derive(Default)]
enum NodeChange {
    /// It stays in its parent.
    #[default]
    Stays,
    /// It is empty and is freed.
    Freed,
    /// Its remaining items go to the end of its left sibling.
    MergesLeft(Sibling),
    /// Its remaining items go to the front of its right sibling.
    MergesRight(Sibling),
}

/// Another child of a path's node, that is going to be needed.
struct Sibling {
    /// Its slot in the parent.
    slot: usize,
    node: Option<Arc<Node>>,
    at: Logical,
}

impl Sibling {
    fn fetch<E: NodeEditor>(ed: &E, parent: &Node, slot: usize, path: &Path) -> Result<Sibling, E::Error> {
        let ptr = parent.child_ptr(slot, path.tree);
        let node = ed.node(&ptr)?;
        let upper = (slot + 1 < parent.nritems()).then(|| parent.key(slot + 1));
        check_range(&node, &ptr, upper)?;
        Ok(Sibling { slot, node: Some(node), at: ptr.at })
    }

    /// Makes it writable, and lets go of it.
    fn shadow<E: NodeEditor>(&mut self, ed: &E, parent: Logical) -> Result<(), E::Error> {
        let node = self.node.take().expect("a sibling is shadowed once");
        let at = ed.shadow(&node, false)?;
        drop(node);
        if at != self.at {
            self.at = at;
            ed.edit(parent, |node| node.set_child(self.slot, at, ed.generation()));
        }
        Ok(())
    }
}

/// All changes of nodes that a removal makes, with every node that it needs.
#[derive(Default)]
struct Rebalance {
    changes: [NodeChange; MAX_LEVELS],
    /// The root's last child, and that one's only child, and so on: the last of them becomes the root.
    only_children: Vec<Sibling>,
}

/// Removes items of the path's leaf; `slots` is not empty.
fn remove_slots<E: NodeEditor>(
    ed: &E,
    root: &mut NodePtr,
    mut path: Path,
    slots: Range<usize>,
    visit: Option<Visit<'_, E::Error>>,
) -> Result<(), E::Error> {
    let mut rebalance = Rebalance::make(ed, &path, &slots)?;
    let leaf = visit.is_some().then(|| path.leaf().clone());
    path.make_writable(ed, root)?;
    rebalance.shadow(ed, &path)?;
    if let (Some(leaf), Some(visit)) = (leaf, visit) {
        for slot in slots.clone() {
            if let Err(error) = visit(leaf.key(slot), leaf.item(slot)) {
                drop(leaf);
                remove_some(ed, &path, slots.start..slot);
                return Err(error);
            }
        }
    }
    rebalance.apply(ed, root, &path, slots);
    Ok(())
}

/// Removes items of a leaf in which others remain, without looking at how few they are.
fn remove_some<E: NodeEditor>(ed: &E, path: &Path, slots: Range<usize>) {
    if slots.is_empty() {
        return;
    }
    let first = ed.edit(path.at(0), |leaf| {
        leaf.remove_items(slots.clone());
        leaf.key(0)
    });
    if slots.start == 0 {
        path.set_first_key(ed, 0, first);
    }
}

impl Rebalance {
    fn make<E: NodeEditor>(ed: &E, path: &Path, slots: &Range<usize>) -> Result<Rebalance, E::Error> {
        let mut rebalance = Rebalance::default();
        let leaf = path.leaf();
        let mut left = leaf.nritems() - slots.len();
        let mut used = leaf.used() - slots.clone().map(|slot| leaf.item_bytes(slot)).sum::<usize>();
        for level in 0..path.top {
            rebalance.changes[level] = if left == 0 { NodeChange::Freed } else { change_of(ed, path, level, used)? };
            if matches!(rebalance.changes[level], NodeChange::Stays) {
                return Ok(rebalance);
            }
            let parent = path.node(level + 1);
            left = parent.nritems() - 1;
            used = parent.used() - KEY_POINTER_LEN;
        }
        if path.top > 0 && left == 1 {
            rebalance.find_only_children(ed, path)?;
        }
        Ok(rebalance)
    }

    /// The root keeps one child. Unless that has just been merged with its sibling, it may itself have only one.
    fn find_only_children<E: NodeEditor>(&mut self, ed: &E, path: &Path) -> Result<(), E::Error> {
        if !matches!(self.changes[path.top - 1], NodeChange::Freed) {
            return Ok(());
        }
        let mut slot = 1 - path.slot(path.top);
        let mut parent = path.node(path.top).clone();
        loop {
            let child = Sibling::fetch(ed, &parent, slot, path)?;
            let node = child.node.clone().expect("just fetched");
            self.only_children.push(child);
            if node.is_leaf() || node.nritems() > 1 {
                return Ok(());
            }
            (parent, slot) = (node, 0);
        }
    }

    /// Makes the siblings writable, each after its parent.
    fn shadow<E: NodeEditor>(&mut self, ed: &E, path: &Path) -> Result<(), E::Error> {
        for level in (0..path.top).rev() {
            if let NodeChange::MergesLeft(sibling) | NodeChange::MergesRight(sibling) = &mut self.changes[level] {
                sibling.shadow(ed, path.at(level + 1))?;
            }
        }
        let mut parent = path.at(path.top);
        for child in &mut self.only_children {
            child.shadow(ed, parent)?;
            parent = child.at;
        }
        Ok(())
    }

    /// Does it, from the leaf upwards.
    fn apply<E: NodeEditor>(&self, ed: &E, root: &mut NodePtr, path: &Path, slots: Range<usize>) {
        let mut first_changed = slots.start == 0;
        ed.edit(path.at(0), |leaf| leaf.remove_items(slots));
        for level in 0..path.top {
            let (at, slot) = (path.at(level), path.slot(level + 1));
            let mut new_key = None;
            match &self.changes[level] {
                NodeChange::Stays if first_changed => {
                    let first = ed.edit(at, |node| node.key(0));
                    return path.set_first_key(ed, level, first);
                }
                NodeChange::Stays => return,
                NodeChange::Freed => {}
                NodeChange::MergesLeft(left) => merge(ed, at, left.at, |node, left| left.append(node)),
                NodeChange::MergesRight(right) => {
                    new_key = Some(ed.edit(at, |node| node.key(0)));
                    merge(ed, at, right.at, |node, right| right.prepend(node));
                }
            }
            ed.edit(path.at(level + 1), |parent| {
                parent.remove_pointer(slot);
                if let Some(key) = new_key {
                    parent.set_key(slot, key);
                }
            });
            ed.free(at, Level(level as u8));
            first_changed = slot == 0;
        }
        self.collapse_root(ed, root, path);
    }

    /// Replaces a root that has one child left by that child.
    fn collapse_root<E: NodeEditor>(&self, ed: &E, root: &mut NodePtr, path: &Path) {
        if path.top == 0 {
            return;
        }
        let (old, level) = (path.at(path.top), path.top);
        let new_root = match &self.changes[level - 1] {
            NodeChange::MergesLeft(sibling) | NodeChange::MergesRight(sibling)
                if ed.edit(old, |node| node.nritems()) == 1 =>
            {
                sibling.at
            }
            _ => match self.only_children.last() {
                Some(child) => child.at,
                None => return,
            },
        };
        let passed_over = &self.only_children[..self.only_children.len().saturating_sub(1)];
        root.at = new_root;
        root.generation = ed.generation();
        root.level = Level((level - 1 - passed_over.len()) as u8);
        let freed = std::iter::once(old).chain(passed_over.iter().map(|node| node.at));
        for (below, at) in freed.enumerate() {
            ed.free(at, Level((level - below) as u8));
        }
    }
}

/// The change of a node that is not empty and will have `used` bytes in use.
fn change_of<E: NodeEditor>(ed: &E, path: &Path, level: usize, used: usize) -> Result<NodeChange, E::Error> {
    let capacity = leaf_data_size(ed.nodesize());
    if used >= capacity / 4 {
        return Ok(NodeChange::Stays);
    }
    let (parent, slot) = (path.node(level + 1), path.slot(level + 1));
    if slot > 0 {
        let sibling = Sibling::fetch(ed, parent, slot - 1, path)?;
        let node = sibling.node.as_ref().expect("just fetched");
        if used + node.used() <= capacity {
            return Ok(NodeChange::MergesLeft(sibling));
        }
    }
    if slot + 1 < parent.nritems() {
        let sibling = Sibling::fetch(ed, parent, slot + 1, path)?;
        if used + sibling.node.as_ref().expect("just fetched").used() <= capacity {
            return Ok(NodeChange::MergesRight(sibling));
        }
    }
    Ok(NodeChange::Stays)
}

/// Changes a node and its sibling at once.
fn merge<E: NodeEditor>(ed: &E, at: Logical, sibling: Logical, change: impl FnOnce(&Node, &mut Node)) {
    let node = ed.take(at);
    let mut into = ed.take(sibling);
    change(&node, &mut into);
    ed.put(node);
    ed.put(into);
}
