//! Everything that must change so that some extents get other addresses: the extents that are tree blocks, the leaves
//! that refer to those that are data, and every block above them, up to all roots.
//!
//! ```text
//!        root 256     root 257 (a snapshot)
//!             \        /
//!              node              shared: it appears once, and gets one copy that both roots refer to
//!               |
//!              leaf ──► data that moves
//! ```
//! A block of the running transaction can be changed where it is: its address stays, so nothing above it changes.
//!
//! # Invariants
//! 1. A closure is complete: as many references were found of each block and of all data as the extent tree counts.
//!    Where they differ, that is an error and nothing is changed.
//! 2. Each step goes up by one level, so that it ends on any image.

use super::live::{Live, LiveRefs};
use crate::backref::{ExtentAt, range_of};
use crate::error::{Error, Result};
use crate::file_extent::FileExtent;
use crate::transaction::Tree;
use crate::transaction::refs::RefBy;
use butterfs_ondisk::{Key, KeyType, Level, Logical, TreeId};
use butterfs_tree::{Node, NodePtr};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// Data that gets another address; its bytes are at both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataMove {
    /// The address in the trees.
    pub from: Logical,
    /// The new address.
    pub to: Logical,
    /// Bytes on disk.
    pub len: u64,
}

/// A block of the closure.
pub(super) struct Affected {
    pub node: Arc<Node>,
    /// Its referrers, each once, and the block that a reference comes from; none where it is a root, or stays.
    pub by: Vec<(RefBy, Option<Logical>)>,
    /// Its children are referenced by its address.
    pub full: bool,
    /// It is of the running transaction, and stays where it is.
    pub stays: bool,
    /// Trees that begin with it.
    pub roots: Vec<Arc<Tree>>,
    /// Only its owner reaches it, over blocks that only its owner reaches.
    private: bool,
}

impl Affected {
    /// Whether its copy must say that it may be shared: the copy is younger than every snapshot that shares it.
    pub fn is_marked(&self) -> bool {
        !self.stays && self.node.owner().is_subvolume() && self.roots.is_empty() && !self.private
    }

    /// Whether the children of what it becomes are referenced by that one's address. `btrfs check` takes it for granted
    /// of marked blocks.
    pub fn becomes_full(&self) -> bool {
        self.full || self.is_marked()
    }
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Closure {
    pub blocks: FxHashMap<Logical, Affected>,
    pub data: Vec<DataMove>,
}

impl Closure {
    /// Adds a tree block that must get another address. False when there is no such block any more.
    pub fn add_block(&mut self, live: &Live<'_>, at: Logical, level: Level) -> Result<bool> {
        let Some(refs) = live.block_refs(at, level)? else { return Ok(false) };
        let node = live.block(at, level, refs.generation)?;
        self.climb(live, node, refs)?;
        Ok(true)
    }

    /// Adds data that has been copied. False when there is no such extent any more.
    pub fn add_data(&mut self, live: &Live<'_>, data: DataMove) -> Result<bool> {
        let Some(refs) = live.data_refs(data.from, data.len)? else { return Ok(false) };
        let extent = ExtentAt { start: data.from, len: data.len, level: None };
        let (mut seen, mut leaves, mut items) = (FxHashSet::default(), Vec::new(), 0);
        for by in &refs.by {
            for (leaf, found) in self.leaves_of(live, &extent, *by)? {
                if seen.insert(leaf.at()) {
                    items += found;
                    leaves.push(leaf);
                }
            }
        }
        if items != refs.count {
            return Err(Error::corrupt(format!(
                "the extent at {} has {} references, but {items} places lead to it",
                data.from, refs.count
            )));
        }
        for leaf in leaves {
            if !self.blocks.contains_key(&leaf.at()) {
                let refs = refs_of(live, &leaf)?;
                self.climb(live, leaf, refs)?;
            }
        }
        self.data.push(data);
        Ok(true)
    }

    /// Adds a block and everything above it.
    fn climb(&mut self, live: &Live<'_>, node: Arc<Node>, refs: LiveRefs) -> Result<()> {
        let mut waiting = vec![(node, refs)];
        while let Some((node, refs)) = waiting.pop() {
            if self.blocks.contains_key(&node.at()) {
                continue;
            }
            let (at, stays) = (node.at(), node.generation() == live.running());
            let mut block = Affected {
                node: Arc::clone(&node),
                by: refs.by.into_iter().map(|by| (by, None)).collect(),
                full: refs.full,
                stays,
                roots: Vec::new(),
                private: false,
            };
            if !stays {
                for (by, from) in &mut block.by {
                    match self.above(live, &node, *by)? {
                        Above::Root(tree) => block.roots.push(tree),
                        Above::Block(parent) => {
                            *from = Some(parent.at());
                            if !self.blocks.contains_key(&parent.at()) {
                                let refs = refs_of(live, &parent)?;
                                waiting.push((parent, refs));
                            }
                        }
                    }
                }
                let found = block.by.len() as u64;
                if found != refs.count {
                    return Err(Error::corrupt(format!("tree block {at}: {} references, {found} places", refs.count)));
                }
            }
            self.blocks.insert(at, block);
        }
        Ok(())
    }

    /// The block at an address; `None` where there is no such block.
    fn block(&self, live: &Live<'_>, at: Logical, level: Level) -> Result<Option<Arc<Node>>> {
        if let Some(known) = self.blocks.get(&at).filter(|known| known.node.level() == level) {
            return Ok(Some(Arc::clone(&known.node)));
        }
        let Some(refs) = live.block_refs(at, level)? else { return Ok(None) };
        live.block(at, level, refs.generation).map(Some)
    }

    /// The block or root above that a reference stands for.
    fn above(&self, live: &Live<'_>, node: &Node, by: RefBy) -> Result<Above> {
        let (at, level) = (node.at(), Level(node.level().0 + 1));
        let astray = || Error::corrupt(format!("tree block {at}: its reference {by:?} leads nowhere"));
        let first_key = || node.first_key().ok_or_else(astray);
        let parent = match by {
            RefBy::Tree(id) => {
                let tree = live.tree(id)?.ok_or_else(astray)?;
                let root = tree.root();
                if root.at == at {
                    return Ok(Above::Root(tree));
                }
                if root.level < level {
                    return Err(astray());
                }
                live.above(&root, first_key()?, level)?
            }
            RefBy::Block(parent) => self.block(live, parent, level)?.ok_or_else(astray)?,
            RefBy::File { .. } | RefBy::Leaf(_) => return Err(astray()),
        };
        let key = first_key()?;
        let leads = parent.level() == level && parent.child(parent.child_slot(key)).0 == at;
        if leads { Ok(Above::Block(parent)) } else { Err(astray()) }
    }

    /// The leaves that a reference of data stands for, and how many of their items lead to the extent.
    fn leaves_of(&self, live: &Live<'_>, extent: &ExtentAt, by: RefBy) -> Result<Vec<(Arc<Node>, u64)>> {
        match by {
            RefBy::Leaf(at) => {
                let Some(leaf) = self.block(live, at, Level(0))? else { return Ok(Vec::new()) };
                let items = items_in(live, &leaf, extent)?;
                Ok(vec![(leaf, items)])
            }
            RefBy::File { tree, ino, offset } => {
                let Some(tree) = live.tree(tree)? else { return Ok(Vec::new()) };
                self.leaves_between(live, &tree.root(), tree.id(), extent, range_of(extent, ino, offset))
            }
            RefBy::Tree(_) | RefBy::Block(_) => Ok(Vec::new()),
        }
    }

    /// The leaves with keys in a range that a tree owns, whose references are not by their addresses, and that lead to
    /// the extent.
    fn leaves_between(
        &self,
        live: &Live<'_>,
        root: &NodePtr,
        tree: TreeId,
        extent: &ExtentAt,
        (from, to): (Key, Key),
    ) -> Result<Vec<(Arc<Node>, u64)>> {
        let (mut leaves, mut next, source) = (Vec::new(), Some(from), live.source());
        while let Some(key) = next.filter(|key| *key <= to) {
            let position = butterfs_tree::search(&source, root, &key)?;
            // In a damaged tree keys may go back.
            next = position.upper.filter(|upper| *upper > key);
            let leaf = position.leaf;
            if leaf.owner() != tree {
                continue;
            }
            let items = items_in(live, &leaf, extent)?;
            if items == 0 {
                continue;
            }
            let is_full = match self.blocks.get(&leaf.at()) {
                Some(known) => known.full,
                None => refs_of(live, &leaf)?.full,
            };
            if !is_full {
                leaves.push((leaf, items));
            }
        }
        Ok(leaves)
    }

    /// Finds out which blocks only their owner reaches.
    pub fn judge_privacy(&mut self, live: &Live<'_>) -> Result<()> {
        let mut order: Vec<(std::cmp::Reverse<Level>, Logical)> =
            self.blocks.iter().map(|(at, block)| (std::cmp::Reverse(block.node.level()), *at)).collect();
        order.sort_unstable();
        for (_, at) in order {
            let block = &self.blocks[&at];
            let owner = block.node.owner();
            let alone = matches!(block.by[..], [(RefBy::Tree(tree), _)] if tree == owner) && !block.full;
            let private = if block.stays {
                let forced = live.tree(owner)?.is_none_or(|tree| tree.is_copying_again(live.running()));
                alone && !block.node.is_reloc() && !forced
            } else {
                alone && block.by.iter().filter_map(|(_, from)| *from).all(|parent| self.blocks[&parent].private)
            };
            self.blocks.get_mut(&at).expect("just listed").private = private;
        }
        Ok(())
    }

    /// Blocks that get a copy.
    pub fn copies(&self) -> usize {
        self.blocks.values().filter(|block| !block.stays).count()
    }

    /// About how many references change, and of how many extents.
    pub fn changes(&self) -> (u64, u64) {
        let (mut changes, mut extents) = (0, 2 * self.data.len() as u64);
        for block in self.blocks.values().filter(|block| !block.stays) {
            let children = if block.becomes_full() { block.node.nritems() as u64 } else { 0 };
            changes += 2 * block.by.len() as u64 + 2 * children;
            extents += 2 + children;
        }
        let data: u64 = self.blocks.values().filter(|block| block.node.is_leaf()).map(|_| 8).sum();
        (changes + data, extents)
    }
}

/// The references of a block that a tree leads to.
fn refs_of(live: &Live<'_>, node: &Node) -> Result<LiveRefs> {
    let refs = live.block_refs(node.at(), node.level())?;
    refs.ok_or_else(|| Error::corrupt(format!("tree block {} has no extent item", node.at())))
}

enum Above {
    Root(Arc<Tree>),
    Block(Arc<Node>),
}

/// The number of items of a leaf that lead to the extent.
fn items_in(live: &Live<'_>, leaf: &Node, extent: &ExtentAt) -> Result<u64> {
    let mut found = 0;
    for (key, payload) in leaf.items().filter(|(key, _)| key.kind == KeyType::EXTENT_DATA) {
        let item = FileExtent::parse(key, payload, u64::from(live.core.sectorsize()))?;
        if item.is_on_disk() && item.at == extent.start {
            if item.disk_len != extent.len {
                return Err(Error::corrupt(format!("{key}: the extent at {} has {} bytes", item.at, extent.len)));
            }
            found += 1;
        }
    }
    Ok(found)
}
