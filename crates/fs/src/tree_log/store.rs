//! The blocks of a transaction's logs, all of them in memory, and the log trees made of them.
//!
//! # Invariants
//! 1. A block that was handed out for writing never changes: a later edit copies it to a new address, and the old one
//!    is not used again in this transaction, because the superblock on disk may lead to it.
//! 2. Nothing refers to a log block but its parent, so copying one settles no references.
//! 3. Addresses are taken in runs, so that what is written together mostly lies together.

use super::OWNER;
use crate::error::{Error, Result};
use crate::extent::items::{EditItems, Items, Visit};
use crate::space::Class;
use crate::transaction::{Core, Transaction};
use butterfs_ondisk::{Generation, Key, Level, Logical};
use butterfs_tree::{Node, NodeEditor, NodePtr, NodeSource};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;

/// Addresses that are taken at once.
const RUN_BLOCKS: usize = 16;
/// Items that are inserted at once: those of several leaves.
const ITEMS_AT_ONCE: usize = 4096;

#[derive(Default)]
struct Blocks {
    nodes: FxHashMap<Logical, Arc<Node>>,
    /// Changed since they were last handed out for writing, or never handed out.
    dirty: FxHashSet<Logical>,
    /// Taken and not used yet, the next one last.
    spare: Vec<Logical>,
}

/// All log blocks of one transaction.
pub(super) struct LogStore {
    transaction: Arc<Transaction>,
    blocks: RefCell<Blocks>,
}

impl LogStore {
    pub fn new(transaction: Arc<Transaction>) -> LogStore {
        LogStore { transaction, blocks: RefCell::default() }
    }

    /// The transaction.
    pub fn generation(&self) -> Generation {
        self.transaction.generation()
    }

    /// The number of blocks.
    pub fn len(&self) -> usize {
        self.blocks.borrow().nodes.len()
    }

    /// An empty tree.
    pub fn new_tree(&self, core: &Core) -> Result<NodePtr> {
        let level = Level(0);
        let at = self.editor(core).new_node(level)?;
        Ok(NodePtr { at, generation: self.generation(), level, tree: OWNER, first_key: None })
    }

    fn editor<'a>(&'a self, core: &'a Core) -> LogEditor<'a> {
        LogEditor { core, store: self }
    }

    /// A tree of this store as items to look at and to edit.
    pub fn items<'a>(&'a self, core: &'a Core, root: &'a mut NodePtr) -> LogItems<'a> {
        LogItems { editor: self.editor(core), root }
    }

    /// Hands out what changed, by address, to be written; it changes no more.
    pub fn freeze(&self) -> Vec<Arc<Node>> {
        let Blocks { nodes, dirty, .. } = &mut *self.blocks.borrow_mut();
        let mut frozen: Vec<_> = dirty.drain().map(|at| Arc::clone(&nodes[&at])).collect();
        frozen.sort_unstable_by_key(|node| node.at());
        frozen
    }
}

/// Edits the trees of a store.
struct LogEditor<'a> {
    core: &'a Core,
    store: &'a LogStore,
}

impl LogEditor<'_> {
    fn allocate(&self) -> Result<Logical> {
        let blocks = &mut *self.store.blocks.borrow_mut();
        if blocks.spare.is_empty() {
            blocks.spare.push(self.core.allocate_log_block(&self.store.transaction)?);
            // The next log must not share parity with this one.
            let run = if self.core.space.has_rows(Class::Metadata) { 1 } else { RUN_BLOCKS };
            while blocks.spare.len() < run
                && let Ok(at) = self.core.allocate_log_block(&self.store.transaction)
            {
                blocks.spare.push(at);
            }
            blocks.spare.reverse();
        }
        Ok(blocks.spare.pop().expect("just filled"))
    }
}

impl NodeSource for LogEditor<'_> {
    type Error = Error;

    fn nodesize(&self) -> u32 {
        self.core.nodesize()
    }

    fn node(&self, ptr: &NodePtr) -> Result<Arc<Node>> {
        Ok(Arc::clone(&self.store.blocks.borrow().nodes[&ptr.at]))
    }
}

impl NodeEditor for LogEditor<'_> {
    fn generation(&self) -> Generation {
        self.store.generation()
    }

    fn shadow(&self, node: &Arc<Node>, _is_root: bool) -> Result<Logical> {
        if self.store.blocks.borrow().dirty.contains(&node.at()) {
            return Ok(node.at());
        }
        let at = self.allocate()?;
        let mut copy = (**node).clone();
        copy.set_identity(at, self.store.generation(), OWNER);
        self.store.blocks.borrow_mut().nodes.remove(&node.at());
        self.put(copy);
        Ok(at)
    }

    fn new_node(&self, level: Level) -> Result<Logical> {
        let at = self.allocate()?;
        self.put(Node::new_empty(&self.core.nodes.identity(), at, level, self.store.generation(), OWNER));
        Ok(at)
    }

    fn edit<R>(&self, at: Logical, change: impl FnOnce(&mut Node) -> R) -> R {
        let blocks = &mut *self.store.blocks.borrow_mut();
        assert!(blocks.dirty.contains(&at), "log block {at} is edited, but it may be on disk");
        change(Arc::make_mut(blocks.nodes.get_mut(&at).expect("all log blocks are in memory")))
    }

    fn take(&self, at: Logical) -> Node {
        let node = self.store.blocks.borrow_mut().nodes.remove(&at).expect("all log blocks are in memory");
        Arc::try_unwrap(node).unwrap_or_else(|shared| (*shared).clone())
    }

    fn put(&self, node: Node) {
        let blocks = &mut *self.store.blocks.borrow_mut();
        blocks.dirty.insert(node.at());
        blocks.nodes.insert(node.at(), Arc::new(node));
    }

    fn free(&self, at: Logical, _level: Level) {
        let blocks = &mut *self.store.blocks.borrow_mut();
        blocks.nodes.remove(&at);
        if blocks.dirty.remove(&at) {
            blocks.spare.push(at);
        }
    }
}

/// An item of a log tree, shared with its leaf.
pub(super) struct LogItem {
    leaf: Arc<Node>,
    slot: usize,
}

impl Deref for LogItem {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.leaf.item(self.slot)
    }
}

/// One log tree.
pub(super) struct LogItems<'a> {
    editor: LogEditor<'a>,
    root: &'a mut NodePtr,
}

impl LogItems<'_> {
    /// Inserts items with ascending keys, none of which exists.
    pub fn insert_many<'i>(&mut self, mut items: impl Iterator<Item = (Key, &'i [u8])>) -> Result<()> {
        let mut some = Vec::with_capacity(ITEMS_AT_ONCE);
        loop {
            some.clear();
            some.extend(items.by_ref().take(ITEMS_AT_ONCE));
            if some.is_empty() {
                return Ok(());
            }
            let mut done = 0;
            while done < some.len() {
                done += butterfs_tree::insert_many(&self.editor, self.root, &some[done..])?;
            }
        }
    }

    /// Inserts an item or replaces it.
    pub fn put(&mut self, key: Key, payload: &[u8]) -> Result<()> {
        if !self.insert(key, payload)? {
            self.replace(key, payload)?;
        }
        Ok(())
    }

    /// Removes the items from `from` to `to`, both included.
    pub fn remove_range(&mut self, from: Key, to: Key) -> Result<()> {
        while butterfs_tree::remove_range(&self.editor, self.root, &from, &to, &mut |_, _| Ok(()))? {}
        Ok(())
    }
}

impl Items for LogItems<'_> {
    type Payload = LogItem;

    fn last_before(&self, key: Key) -> Result<Option<(Key, LogItem)>> {
        let found = butterfs_tree::last_before(&self.editor, self.root, &key)?;
        Ok(found.map(|(leaf, slot)| (leaf.key(slot), LogItem { leaf, slot })))
    }

    fn scan(&self, from: Key, to: Key, each: &mut Visit<'_>) -> Result<()> {
        butterfs_tree::scan(&self.editor, self.root, &from, &to, each)
    }
}

impl EditItems for LogItems<'_> {
    fn insert(&mut self, key: Key, payload: &[u8]) -> Result<bool> {
        butterfs_tree::insert(&self.editor, self.root, &key, payload)
    }

    fn replace(&mut self, key: Key, payload: &[u8]) -> Result<bool> {
        butterfs_tree::replace(&self.editor, self.root, &key, payload)
    }

    fn update(&mut self, key: Key, change: &mut dyn FnMut(&mut [u8])) -> Result<bool> {
        Ok(butterfs_tree::update(&self.editor, self.root, &key, |payload| change(payload))?.is_some())
    }

    fn remove(&mut self, key: Key) -> Result<bool> {
        butterfs_tree::remove(&self.editor, self.root, &key)
    }
}
