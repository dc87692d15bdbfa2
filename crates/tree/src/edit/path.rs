//! The way from the root to one leaf, and what has to be done along all of it.

use crate::search::check_range;
use crate::{Corrupt, Node, NodeEditor, NodePtr, NodeSource};
use butterfs_ondisk::units::MAX_LEVELS;
use butterfs_ondisk::{Generation, Key, Level, Logical, TreeId};
use std::sync::Arc;

/// A node of a path and the slot in it.
#[derive(Default)]
struct PathLevel {
    /// Held until the node is made writable.
    node: Option<Arc<Node>>,
    at: Logical,
    slot: usize,
}

/// A descent to a key, by level: the leaf is level 0.
pub(super) struct Path {
    levels: [PathLevel; MAX_LEVELS],
    /// Level of the root.
    pub top: usize,
    /// Whether the leaf has the key.
    pub found: bool,
    /// The smallest key of the next leaf.
    pub upper: Option<Key>,
    pub tree: TreeId,
}

impl Path {
    /// Finds `key`, without changing anything.
    pub fn descend<S: NodeSource + ?Sized>(src: &S, root: &NodePtr, key: Key) -> Result<Path, S::Error> {
        let mut path = Path {
            levels: Default::default(),
            top: root.level.get().into(),
            found: false,
            upper: None,
            tree: root.tree,
        };
        let mut ptr = *root;
        loop {
            let node = src.node(&ptr)?;
            check_range(&node, &ptr, path.upper)?;
            let level = usize::from(ptr.level.get());
            if level == 0 {
                let search = node.find(key);
                path.found = search.is_ok();
                path.levels[0] = PathLevel { at: ptr.at, slot: search.unwrap_or_else(|slot| slot), node: Some(node) };
                return Ok(path);
            }
            let slot = node.child_slot(key);
            if slot + 1 < node.nritems() {
                path.upper = Some(node.key(slot + 1));
            }
            let child = node.child_ptr(slot, root.tree);
            path.levels[level] = PathLevel { node: Some(node), at: ptr.at, slot };
            ptr = child;
        }
    }

    /// The node of `level`; only before the path is made writable.
    pub fn node(&self, level: usize) -> &Arc<Node> {
        self.levels[level].node.as_ref().expect("the path is not yet writable")
    }

    /// The leaf; only before the path is made writable.
    pub fn leaf(&self) -> &Arc<Node> {
        self.node(0)
    }

    /// The address of the node of `level`.
    pub fn at(&self, level: usize) -> Logical {
        self.levels[level].at
    }

    /// The slot on the path in the node of `level`.
    pub fn slot(&self, level: usize) -> usize {
        self.levels[level].slot
    }

    /// Shadows every node from the root down, and lets go of them. Stopping halfway leaves a valid tree.
    pub fn make_writable<E: NodeEditor>(&mut self, ed: &E, root: &mut NodePtr) -> Result<(), E::Error> {
        for level in (0..=self.top).rev() {
            let node = self.levels[level].node.take().expect("the path is not yet writable");
            let at = ed.shadow(&node, level == self.top)?;
            drop(node);
            if at == self.levels[level].at {
                continue;
            }
            self.levels[level].at = at;
            if level == self.top {
                (root.at, root.generation) = (at, ed.generation());
            } else {
                self.set_child(ed, level + 1, self.slot(level + 1), at);
            }
        }
        Ok(())
    }

    /// Points `slot` of the path's node of `level` at a node of this generation.
    pub fn set_child<E: NodeEditor>(&self, ed: &E, level: usize, slot: usize, at: Logical) {
        let generation: Generation = ed.generation();
        ed.edit(self.at(level), |parent| parent.set_child(slot, at, generation));
    }

    /// Tells the parents that the first key of the node of `level` is now `key`.
    pub fn set_first_key<E: NodeEditor>(&self, ed: &E, level: usize, key: Key) {
        for parent in level + 1..=self.top {
            let slot = self.slot(parent);
            ed.edit(self.at(parent), |node| node.set_key(slot, key));
            if slot > 0 {
                break;
            }
        }
    }

    /// The node of `level` stands in the way of an edit.
    pub fn corrupt(&self, level: usize, rule: String) -> Corrupt {
        let level_of_node = Level(level as u8);
        Corrupt { at: self.at(level), tree: self.tree, level: level_of_node, slot: None, key: None, rule }
    }
}
