//! The trees of the last commit, to look at without a lock.
//!
//! Nothing holds that commit: what it refers to may be used again after the next one. [`View::look`] notices.

use crate::error::{Errno, Error, Result};
use crate::transaction::Core;
use crate::transaction::extent_item::ExtentRecord;
use butterfs_ondisk::items::{ExtentItem, RootItem, extent_flags};
use butterfs_ondisk::{Generation, Key, KeyType, Level, Logical, TreeId};
use butterfs_tree::{Node, NodePtr, NodeSource};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::sync::Arc;
use zerocopy::FromBytes;

use super::ExtentAt;

/// See the [module](self).
pub(crate) struct View<'a> {
    pub core: &'a Core,
    /// The commit.
    pub generation: Generation,
    roots: RefCell<FxHashMap<TreeId, Option<NodePtr>>>,
}

fn root_at(tree: TreeId, at: u64, level: u8, generation: Generation) -> NodePtr {
    NodePtr { at: Logical(at), generation, level: Level(level), tree, first_key: None }
}

/// A tree block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub at: Logical,
    pub level: Level,
    /// Its first key.
    pub key: Key,
}

impl Block {
    /// None of an empty block, which leads nowhere.
    pub fn of(node: &Node) -> Option<Block> {
        node.first_key().map(|key| Block { at: node.at(), level: node.level(), key })
    }
}

impl NodeSource for View<'_> {
    type Error = Error;

    fn nodesize(&self) -> u32 {
        self.core.nodesize()
    }

    fn node(&self, ptr: &NodePtr) -> Result<Arc<Node>> {
        match self.core.nodes.load_unless_doubtful(ptr)? {
            Some(node) => Ok(node),
            // It is damaged.
            None if self.is_last_commit() => self.core.nodes.load(ptr),
            None => Err(Error::refused(Errno::ESTALE, "the commit that is being read is no longer the last one")),
        }
    }
}

impl<'a> View<'a> {
    /// Lets `look` see the last commit, again if that is another one after an error.
    pub fn look<R>(core: &'a Core, mut look: impl FnMut(&View<'a>) -> Result<R>) -> Result<R> {
        loop {
            let view = View::new(core);
            match look(&view) {
                Err(_) if !view.is_last_commit() => {}
                other => return other,
            }
        }
    }

    fn new(core: &'a Core) -> View<'a> {
        let superblock = core.superblock.lock();
        let (generation, chunks) = (superblock.generation(), Generation(superblock.chunk_root_generation.get()));
        let root = root_at(TreeId::ROOT, superblock.root.get(), superblock.root_level, generation);
        let chunk = root_at(TreeId::CHUNK, superblock.chunk_root.get(), superblock.chunk_root_level, chunks);
        drop(superblock);
        let roots = [(TreeId::ROOT, Some(root)), (TreeId::CHUNK, Some(chunk))].into_iter().collect();
        View { core, generation, roots: RefCell::new(roots) }
    }

    fn is_last_commit(&self) -> bool {
        self.core.superblock.lock().generation() == self.generation
    }

    /// The root node of a tree, also of one that is deleted and not dropped yet.
    pub fn root(&self, id: TreeId) -> Result<Option<NodePtr>> {
        let known = self.roots.borrow().get(&id).copied();
        if let Some(root) = known {
            return Ok(root);
        }
        let root = self.find_root(id)?;
        self.roots.borrow_mut().insert(id, root);
        Ok(root)
    }

    fn find_root(&self, id: TreeId) -> Result<Option<NodePtr>> {
        let Some(tree_root) = self.root(TreeId::ROOT)? else { return Ok(None) };
        let behind = Key::new(id.0, KeyType(KeyType::ROOT_ITEM.0 + 1), 0);
        let Some((leaf, slot)) = butterfs_tree::last_before(self, &tree_root, &behind)? else { return Ok(None) };
        let key = leaf.key(slot);
        if key.objectid != id.0 || key.kind != KeyType::ROOT_ITEM {
            return Ok(None);
        }
        let item = RootItem::parse(leaf.item(slot))
            .ok_or_else(|| Error::corrupt(format!("root item {key} has {} bytes", leaf.item(slot).len())))?;
        Ok(Some(root_at(id, item.bytenr.get(), item.level, Generation(item.generation.get()))))
    }

    /// The root node of the extent tree.
    pub fn extents(&self) -> Result<NodePtr> {
        self.root(TreeId::EXTENT)?.ok_or_else(|| Error::corrupt("the extent tree has no root item"))
    }

    /// The extent that an address lies in.
    pub fn extent_at(&self, at: Logical) -> Result<Option<ExtentAt>> {
        let extents = self.extents()?;
        let mut behind = Key::new(at.0, KeyType(KeyType::METADATA_ITEM.0 + 1), 0);
        // Behind the item and before the address there can be references of the extent, with its address in their keys,
        // and the item of its block group.
        loop {
            let Some((leaf, slot)) = butterfs_tree::last_before(self, &extents, &behind)? else { return Ok(None) };
            let (key, nodesize) = (leaf.key(slot), u64::from(self.core.nodesize()));
            let found = |len: u64, level| {
                let inside = at.0 - key.objectid < len;
                Ok(inside.then_some(ExtentAt { start: Logical(key.objectid), len, level }))
            };
            match key.kind {
                KeyType::METADATA_ITEM => return found(nodesize, Some(Level(key.offset as u8))),
                KeyType::EXTENT_ITEM => {
                    let item = ExtentItem::ref_from_prefix(leaf.item(slot)).ok();
                    let is_block = item.is_some_and(|(item, _)| item.flags.get() & extent_flags::TREE_BLOCK != 0);
                    if !is_block {
                        return found(key.offset, None);
                    }
                    let record = ExtentRecord::parse(Logical(key.objectid), key.kind, leaf.item(slot))?;
                    return found(nodesize, record.block_info.map(|info| Level(info.level)));
                }
                KeyType::BLOCK_GROUP_ITEM => behind = key,
                _ => behind = Key::new(key.objectid, KeyType(KeyType::METADATA_ITEM.0 + 1), 0),
            }
        }
    }

    /// The extent item of a tree block.
    pub fn record(&self, at: Logical, level: Level) -> Result<Option<ExtentRecord>> {
        let extents = self.extents()?;
        let skinny = Key::new(at.0, KeyType::METADATA_ITEM, u64::from(level.0));
        let full = Key::new(at.0, KeyType::EXTENT_ITEM, u64::from(self.core.nodesize()));
        for key in [skinny, full] {
            let found = butterfs_tree::search(self, &extents, &key)?;
            if found.found {
                return ExtentRecord::parse(at, key.kind, found.leaf.item(found.slot)).map(Some);
            }
        }
        Ok(None)
    }

    /// The extent item of data.
    pub fn data_record(&self, extent: &ExtentAt) -> Result<Option<ExtentRecord>> {
        let key = Key::new(extent.start.0, KeyType::EXTENT_ITEM, extent.len);
        let found = butterfs_tree::search(self, &self.extents()?, &key)?;
        let record = found.found.then(|| ExtentRecord::parse(extent.start, key.kind, found.leaf.item(found.slot)));
        record.transpose()
    }

    /// Whether what a block refers to names the block's address.
    pub fn is_full(&self, block: &Block) -> Result<bool> {
        Ok(self.record(block.at, block.level)?.is_some_and(|record| record.is_full()))
    }

    /// The tree block at an address, of whichever tree; its generation is that of its extent.
    pub fn block(&self, at: Logical, level: Level) -> Result<Option<Arc<Node>>> {
        let Some(record) = self.record(at, level)? else { return Ok(None) };
        let generation = Generation(record.generation);
        self.node(&NodePtr { at, generation, level, tree: TreeId(0), first_key: None }).map(Some)
    }

    /// The node of `level` on the way to `key` from `root`, which is higher.
    pub fn above(&self, root: &NodePtr, key: Key, level: Level) -> Result<Arc<Node>> {
        let mut ptr = *root;
        loop {
            let node = self.node(&ptr)?;
            if node.level() <= level {
                return Ok(node);
            }
            ptr = node.child_ptr(node.child_slot(key), root.tree);
        }
    }
}
