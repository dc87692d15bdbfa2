//! The trees of the running transaction with the references that still wait: who refers to an extent *now*.
//!
//! It answers exactly while no other handle is open. Without that it may find anything, which is good enough to learn
//! which blocks will be needed in memory. It never reads from a device.

use crate::backref::keyed_reference;
use crate::error::{Error, Result};
use crate::transaction::extent_item::ExtentRecord;
use crate::transaction::refs::{RefBy, RefQueue};
use crate::transaction::{BlockSource, Core, Misses, Tree};
use butterfs_ondisk::{Generation, Key, KeyType, Level, Logical, TreeId};
use butterfs_tree::{Node, NodePtr, NodeSource};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::Arc;

/// See the [module](self).
pub(super) struct Live<'a> {
    pub core: &'a Core,
    refs: &'a RefQueue,
    misses: &'a Misses,
    running: Generation,
    trees: RefCell<FxHashMap<TreeId, Option<Arc<Tree>>>>,
}

/// All references of one extent.
#[derive(Debug, Clone)]
pub(super) struct LiveRefs {
    /// Its referrers; of data each once, whatever its count.
    pub by: Vec<RefBy>,
    /// The number of references, counts included.
    pub count: u64,
    /// Its children are referenced by its address.
    pub full: bool,
    /// The transaction that allocated it.
    pub generation: Generation,
}

impl<'a> Live<'a> {
    /// The state of the running transaction, of which `refs` is the queue; blocks that are not in memory go to
    /// `misses`.
    pub fn new(core: &'a Core, refs: &'a RefQueue, misses: &'a Misses) -> Live<'a> {
        Live { core, refs, misses, running: core.generation(), trees: RefCell::default() }
    }

    pub fn source(&self) -> BlockSource<'a> {
        BlockSource::in_memory(self.core, self.misses)
    }

    pub fn running(&self) -> Generation {
        self.running
    }

    /// The tree with this id, also a deleted one that nobody has begun to drop.
    pub fn tree(&self, id: TreeId) -> Result<Option<Arc<Tree>>> {
        if let Some(known) = self.trees.borrow().get(&id) {
            return Ok(known.clone());
        }
        let tree = match self.core.trees.get(id) {
            Some(tree) => Some(tree),
            None => self
                .core
                .stored_tree_from(self.source(), &self.core.globals().root, id)?
                .map(|tree| self.core.trees.enter(tree)),
        };
        self.trees.borrow_mut().insert(id, tree.clone());
        Ok(tree)
    }

    /// The references of a tree block; `None` where there is no such block.
    pub fn block_refs(&self, at: Logical, level: Level) -> Result<Option<LiveRefs>> {
        let skinny = Key::new(at.0, KeyType::METADATA_ITEM, u64::from(level.0));
        let whole = Key::new(at.0, KeyType::EXTENT_ITEM, u64::from(self.core.nodesize()));
        match self.record(skinny)? {
            Some(record) => self.with_pending(at, Some(record)),
            None => self.with_pending(at, self.record(whole)?),
        }
    }

    /// The references of data; `None` where there is no such extent.
    pub fn data_refs(&self, at: Logical, len: u64) -> Result<Option<LiveRefs>> {
        self.with_pending(at, self.record(Key::new(at.0, KeyType::EXTENT_ITEM, len))?)
    }

    fn record(&self, key: Key) -> Result<Option<ExtentRecord>> {
        let item = self.core.globals().extent.get(self.source(), key)?;
        item.map(|item| ExtentRecord::parse(Logical(key.objectid), key.kind, &item)).transpose()
    }

    /// Combines the stored references with the pending changes.
    fn with_pending(&self, at: Logical, stored: Option<ExtentRecord>) -> Result<Option<LiveRefs>> {
        let mut by: Vec<RefBy> = Vec::new();
        let (mut count, mut full, mut generation) = (0, false, self.running);
        if let Some(record) = &stored {
            (count, full, generation) = (record.refs, record.is_full(), Generation(record.generation));
            by.extend(record.inline.iter().map(|reference| reference.by));
            by.extend(self.keyed(at)?);
        }
        let pending = self.refs.look(at, |head| {
            let changes: Vec<(RefBy, i64)> = head.changes.iter().collect();
            (head.new, head.set_full, head.net(), changes)
        });
        if let Some((_, set_full, net, changes)) = &pending {
            full |= set_full;
            count = count
                .checked_add_signed(*net)
                .ok_or_else(|| Error::corrupt(format!("extent {at}: {count} references and {net} pending ones")))?;
            let gained = changes.iter().filter(|(_, change)| *change > 0).map(|(by, _)| *by);
            let gained: Vec<RefBy> = gained.filter(|new| !by.contains(new)).collect();
            if stored.as_ref().is_none_or(|record| record.block_info.is_some() || !is_data(record)) {
                // Of a block each reference counts once.
                let lost = |by: &RefBy| changes.iter().any(|(other, change)| other == by && *change < 0);
                by.retain(|by| !lost(by));
            }
            by.extend(gained);
        }
        let known = stored.is_some() || pending.is_some_and(|(new, ..)| new);
        Ok((known && count > 0).then_some(LiveRefs { by, count, full, generation }))
    }

    /// References with keys of their own.
    fn keyed(&self, at: Logical) -> Result<Vec<RefBy>> {
        let (from, to) =
            (Key::new(at.0, KeyType::TREE_BLOCK_REF, 0), Key::new(at.0, KeyType::SHARED_DATA_REF, u64::MAX));
        let mut found = Vec::new();
        self.core.globals().extent.scan(self.source(), from, to, &mut |key, payload| {
            found.extend(keyed_reference(key, payload));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
    }

    /// The block at an address, of whichever tree.
    pub fn block(&self, at: Logical, level: Level, generation: Generation) -> Result<Arc<Node>> {
        self.source().node(&NodePtr { at, generation, level, tree: TreeId(0), first_key: None })
    }

    /// The node of `level` on the way to `key` from `root`.
    pub fn above(&self, root: &NodePtr, key: Key, level: Level) -> Result<Arc<Node>> {
        let source = self.source();
        let mut node = source.node(root)?;
        while node.level() > level {
            node = source.node(&node.child_ptr(node.child_slot(key), root.tree))?;
        }
        Ok(node)
    }
}

fn is_data(record: &ExtentRecord) -> bool {
    record.flags & butterfs_ondisk::items::extent_flags::DATA != 0
}
