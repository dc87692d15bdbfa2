//! The trees of the running transaction with the references that still wait: who refers to an extent *now*.
//!
//! It answers exactly while no other handle is open, and then reads nothing from a device ([`Live::new`]). Without that
//! it may find anything, which is good enough to have the blocks in memory that will be needed ([`Live::ahead`]).

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
    source: BlockSource<'a>,
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
        Live::from(BlockSource::in_memory(core, misses), refs)
    }

    /// The same with missing blocks read, which `misses` keeps in memory. What it finds may be wrong.
    pub fn ahead(core: &'a Core, refs: &'a RefQueue, misses: &'a Misses) -> Live<'a> {
        Live::from(BlockSource::ahead(core, misses), refs)
    }

    fn from(source: BlockSource<'a>, refs: &'a RefQueue) -> Live<'a> {
        let core = source.core();
        Live { core, refs, source, running: core.generation(), trees: RefCell::default() }
    }

    pub fn source(&self) -> BlockSource<'a> {
        self.source
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
        self.refs_of(at, |key| key == skinny || key == whole)
    }

    /// The references of data; `None` where there is no such extent.
    pub fn data_refs(&self, at: Logical, len: u64) -> Result<Option<LiveRefs>> {
        let whole = Key::new(at.0, KeyType::EXTENT_ITEM, len);
        self.refs_of(at, |key| key == whole)
    }

    /// The references of the extent with this address whose key `is_item` accepts: the item, and behind it the
    /// references with keys of their own.
    fn refs_of(&self, at: Logical, is_item: impl Fn(Key) -> bool) -> Result<Option<LiveRefs>> {
        let (from, to) = (Key::new(at.0, KeyType::EXTENT_ITEM, 0), Key::new(at.0, KeyType::SHARED_DATA_REF, u64::MAX));
        let (mut stored, mut keyed) = (None, Vec::new());
        self.core.globals().extent.scan(self.source(), from, to, &mut |key, payload| {
            if is_item(key) {
                stored = Some(ExtentRecord::parse(at, key.kind, payload)?);
            } else {
                keyed.extend(keyed_reference(key, payload));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        self.with_pending(at, stored, keyed)
    }

    /// Combines the stored references with the pending changes.
    fn with_pending(&self, at: Logical, stored: Option<ExtentRecord>, keyed: Vec<RefBy>) -> Result<Option<LiveRefs>> {
        let mut by: Vec<RefBy> = Vec::new();
        let (mut count, mut full, mut generation) = (0, false, self.running);
        if let Some(record) = &stored {
            (count, full, generation) = (record.refs, record.is_full(), Generation(record.generation));
            by.extend(record.inline.iter().map(|reference| reference.by));
            by.extend(keyed);
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
