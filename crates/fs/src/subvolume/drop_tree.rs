//! Dropping a deleted subvolume's tree, in steps that survive a crash.
//!
//! Blocks are read, never copied. What only this tree refers to is freed from the leaves up; what others share
//! loses this tree's reference.
//!
//! ```text
//! child C of a block that only we refer to      what happens
//! only we refer to C                            descend, and free it when its children are done
//! shared, older than the snapshot or full leaf  drop our reference to C
//! shared, and ours (younger than g)             first convert its subtree to full back references, then drop
//! ```
//! The conversion to full back references goes from the leaves up: a block is converted after all blocks below it. How
//! far it came within one child is kept in memory only; after a crash the child is looked at from its beginning, and
//! what is converted already is left alone. That a block has full back references says nothing about those below it:
//! Linux converts from the top down.
//!
//! A step reads nothing from a device: where a block is not in memory it stops, and whoever takes steps reads the block
//! while no handle and no lock is held.
//!
//! # Invariants
//! 1. A step drops references and stores how far it came (`drop_progress`, `drop_level`) in one transaction.
//! 2. Everything left of the stored path is gone and never read again; the path itself is still allocated.
//! 3. g is the offset of the root item's key, 0 for a subvolume: blocks of generations up to it are never a snapshot's
//!    own. It is the generation of a snapshot's creation, or the one before where the snapshot could change in it.

use crate::error::{Error, Result};
use crate::transaction::refs::{Changed, ExtentKind, RefBy, RefQueue};
use crate::transaction::{Core, Handle, Reserve, Tree};
use butterfs_ondisk::key::DiskKey;
use butterfs_ondisk::{Generation, Key, Level, Logical, TreeId};
use butterfs_tree::{Node, NodePtr};
use std::sync::Arc;

/// Blocks that one step looks at.
const STEP_BLOCKS: usize = 512;

/// A block on the way down, and the child that is next.
struct PathBlock {
    node: Arc<Node>,
    full: bool,
    slot: usize,
}

struct Walk<'a> {
    core: &'a Core,
    refs: &'a RefQueue,
    handle: &'a Handle,
    tree: TreeId,
    created: Generation,
    path: Vec<PathBlock>,
    budget: usize,
    /// Within the child whose blocks are being given full back references: everything before is done.
    converted_to: Option<Key>,
}

/// Why a step ended.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Nothing is left of the tree.
    Gone,
    /// It has looked at as many blocks as it may.
    Budget,
    /// This block is not in memory.
    Missing(NodePtr),
}

/// Does one step of dropping `tree`, whose root item says that it is deleted. When nothing is left of it the caller
/// removes the root item under the same handle.
pub(crate) fn step(handle: &Handle, tree: &Tree) -> Result<Stop> {
    let core = handle.core();
    let item = tree.root_item();
    let created = Generation(tree.root_item_key().offset);
    let converted_to = tree.converted_to.lock().take();
    let refs = &handle.transaction().refs;
    let mut walk =
        Walk { core, refs, handle, tree: tree.id(), created, path: Vec::new(), budget: STEP_BLOCKS, converted_to };
    let stop = match walk.resume(tree.root(), item.drop_progress.into(), Level(item.drop_level)) {
        Ok(()) => walk.run(),
        Err(error) => Err(error),
    };
    *tree.converted_to.lock() = walk.converted_to;
    let stop = match stop {
        Err(Error::Missing(ptr)) => Stop::Missing(*ptr),
        other => other?,
    };
    if let Some(block) = walk.path.last()
        && walk.budget < STEP_BLOCKS
    {
        let (key, level) = (block.node.key(block.slot), block.node.level());
        tree.change_root_item(handle, |item| {
            item.drop_progress = DiskKey::from(key);
            item.drop_level = level.0;
        });
    }
    Ok(stop)
}

/// The reservation of a step: it edits nothing itself but queues references, whose cost the commit's estimate covers.
pub(super) fn reserve() -> Reserve {
    Reserve::removal(16)
}

impl Walk<'_> {
    fn node(&self, ptr: &NodePtr) -> Result<Arc<Node>> {
        self.core.nodes.get(ptr).ok_or_else(|| Error::Missing(Box::new(*ptr)))
    }

    fn path_block(&self, ptr: &NodePtr, slot: usize) -> Result<PathBlock> {
        let node = self.node(ptr)?;
        let full = self.core.block_refs(self.refs, node.at(), node.level())?.full;
        Ok(PathBlock { node, full, slot })
    }

    /// Goes down to where the last step stopped, or stands at the root.
    fn resume(&mut self, root: NodePtr, progress: Key, level: Level) -> Result<()> {
        let mut block = self.path_block(&root, 0)?;
        if progress.objectid == 0 {
            self.path.push(block);
            return Ok(());
        }
        loop {
            if block.node.level() < level || block.node.level().0 == 0 {
                return Err(Error::corrupt(format!("tree {}: drop progress names level {level}", self.tree)));
            }
            block.slot = block.node.child_slot(progress);
            let child = block.node.child_ptr(block.slot, self.tree);
            let arrived = block.node.level() == level;
            self.path.push(block);
            if arrived {
                return Ok(());
            }
            block = self.path_block(&child, 0)?;
        }
    }

    /// Works until the budget is used up or the tree is gone. The next step begins at the lowest block on the path.
    fn run(&mut self) -> Result<Stop> {
        while let Some(block) = self.path.last() {
            let (level, slot, count) = (block.node.level(), block.slot, block.node.nritems());
            if level.0 > 0 && slot < count {
                if self.budget == 0 {
                    return Ok(Stop::Budget);
                }
                self.budget -= 1;
                self.child()?;
            } else {
                self.leave()?;
            }
        }
        Ok(Stop::Gone)
    }

    /// Deals with the next child of the lowest block on the path.
    fn child(&mut self) -> Result<()> {
        let core = self.core;
        let _turn = core.sharing.lock();
        let block = self.path.last().expect("the path is not empty");
        let ptr = block.node.child_ptr(block.slot, self.tree);
        let refs = self.core.block_refs(self.refs, ptr.at, ptr.level)?;
        if !refs.shared() {
            let block = self.path_block(&ptr, 0)?;
            self.path.push(block);
            return Ok(());
        }
        let ours = ptr.generation > self.created && !(ptr.level.0 == 0 && refs.full);
        let from = self.converted_to;
        if ours && !self.convert_to_full_backrefs(&ptr, from)? {
            // Out of budget: the next step goes on with this child.
            self.budget = 0;
            return Ok(());
        }
        self.converted_to = None;
        let block = self.path.last_mut().expect("the path is not empty");
        let by = if block.full { RefBy::Block(block.node.at()) } else { RefBy::Tree(self.tree) };
        block.slot += 1;
        self.drop_block(ptr.at, ptr.level, by, false);
        Ok(())
    }

    /// All children of the lowest block are done: frees it.
    fn leave(&mut self) -> Result<()> {
        let block = self.path.pop().expect("the path is not empty");
        if block.node.level().0 == 0 {
            let parent = block.full.then(|| block.node.at());
            self.refs.change_children(&block.node, self.tree, parent, -1);
        }
        let by = match self.path.last_mut() {
            Some(parent) => {
                parent.slot += 1;
                if parent.full { RefBy::Block(parent.node.at()) } else { RefBy::Tree(self.tree) }
            }
            None if block.full => RefBy::Block(block.node.at()),
            None => RefBy::Tree(self.tree),
        };
        self.drop_block(block.node.at(), block.node.level(), by, true);
        Ok(())
    }

    fn drop_block(&self, at: Logical, level: Level, by: RefBy, gone: bool) {
        let nodesize = u64::from(self.core.nodesize());
        let changed = self.refs.change(at, nodesize, ExtentKind::Block(level), by, -1, false);
        if gone && changed != Changed::Conflict {
            self.core.nodes.remove(at);
        }
        if changed == Changed::Vanished {
            self.core.space.give_back(at, nodesize);
        }
        debug_assert!(self.handle.generation() == self.core.generation());
    }

    /// In the subtree at `ptr`, every block that this tree owns and others keep gets full back references: its
    /// children name it instead of us. Children before `from` have them. False when the budget ended before the
    /// subtree did; `converted_to` then says how far it came.
    fn convert_to_full_backrefs(&mut self, ptr: &NodePtr, from: Option<Key>) -> Result<bool> {
        if self.budget == 0 {
            return Ok(false);
        }
        self.budget -= 1;
        let node = self.node(ptr)?;
        if node.owner() != self.tree {
            return Ok(true);
        }
        if node.level().0 > 0 {
            let first = from.map_or(0, |key| node.child_slot(key));
            for slot in first..node.nritems() {
                let child = node.child_ptr(slot, self.tree);
                let from = from.filter(|_| slot == first);
                if child.generation > self.created && !self.convert_to_full_backrefs(&child, from)? {
                    return Ok(false);
                }
                if slot + 1 < node.nritems() {
                    self.converted_to = Some(node.key(slot + 1));
                }
            }
        }
        if !self.core.block_refs(self.refs, node.at(), node.level())?.full {
            self.refs.change_children(&node, self.tree, Some(node.at()), 1);
            self.refs.change_children(&node, self.tree, None, -1);
            self.refs.set_full(node.at(), u64::from(self.core.nodesize()), node.level());
        }
        Ok(true)
    }
}
