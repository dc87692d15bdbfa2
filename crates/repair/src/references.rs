//! The references that the trees make, derived from the trees alone.
//!
//! A block's children are referenced by its owner, or by its address where it has full back references. It has them
//! where the extent tree says so, and where its owner does not lead to it any more; so references can be derived
//! without an extent tree.

use crate::forest::Forest;
use crate::walk::{DropPoint, walk};
use butterfs_ondisk::items::{FileExtent, file_extent_type};
use butterfs_ondisk::{Key, KeyType, TreeId};
use butterfs_tree::{Node, NodePtr};
use rustc_hash::{FxHashMap, FxHashSet};
use zerocopy::FromBytes;

/// The referrer of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Source {
    /// TREE_BLOCK_REF, EXTENT_DATA_REF, SHARED_BLOCK_REF or SHARED_DATA_REF.
    pub kind: u8,
    /// The tree, or the parent block.
    pub from: u64,
    pub inode: u64,
    pub offset: u64,
}

impl Source {
    pub fn tree(tree: TreeId) -> Source {
        Source { kind: KeyType::TREE_BLOCK_REF.0, from: tree.get(), inode: 0, offset: 0 }
    }
}

/// One reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reference {
    pub at: u64,
    pub source: Source,
    /// Bytes that the referrer takes the extent for.
    pub length: u64,
    pub count: u64,
    /// Of data: the generation in the file's item.
    pub generation: u64,
}

/// A tree block as it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub level: u8,
    pub generation: u64,
    pub first: Key,
    pub full: bool,
}

/// All references, and all blocks.
#[derive(Debug, Default)]
pub(crate) struct References {
    /// Ascending; those of one source and length are one.
    pub records: Vec<Reference>,
    pub blocks: FxHashMap<u64, Block>,
    /// No block was missing.
    pub complete: bool,
}

/// Derives them. `stored_full` are the blocks that the extent tree gives full back references.
pub(crate) fn collect(forest: &Forest, stored_full: &FxHashSet<u64>) -> References {
    let owned = owned_blocks(forest, stored_full);
    let dying: FxHashSet<u64> =
        forest.trees.values().filter(|root| root.is_dead()).map(|root| root.id().get()).collect();
    let knows_flags = !stored_full.is_empty();
    let is_full = |node: &Node| {
        let (at, owner) = (node.at().get(), node.owner().get());
        // While a deleted tree is dropped, its shared blocks are given full references one after the other.
        let waits = knows_flags && dying.contains(&owner);
        stored_full.contains(&at) || (!owned.contains(&at) && !waits)
    };
    let mut found = References { complete: true, ..References::default() };
    let (records, blocks) = (&mut found.records, &mut found.blocks);
    for (ptr, from) in forest.all() {
        let source = match ptr.tree {
            TreeId::TREE_RELOC => Source { kind: KeyType::SHARED_BLOCK_REF.0, from: ptr.at.get(), inode: 0, offset: 0 },
            tree => Source::tree(tree),
        };
        let length = forest.store.nodesize();
        records.push(Reference { at: ptr.at.get(), source, length, count: 1, generation: 0 });
        found.complete &= walk(&forest.store, &ptr, from, &mut |node, first| {
            let full = is_full(node);
            let block = Block {
                level: node.level().get(),
                generation: node.generation().get(),
                first: crate::store::first_key(node),
                full,
            };
            if blocks.insert(node.at().get(), block).is_some() {
                return false;
            }
            each(node, first, full, length, &mut |reference| records.push(reference));
            true
        });
    }
    found.join();
    found
}

impl References {
    /// Sorts the records and counts equal ones together.
    fn join(&mut self) {
        self.records.sort_unstable();
        self.records.dedup_by(|next, kept| {
            let same = (next.at, next.source, next.length) == (kept.at, kept.source, kept.length);
            if same {
                kept.count += next.count;
                kept.generation = kept.generation.min(next.generation);
            }
            same
        });
    }
}

/// Blocks to which their own tree leads through blocks that name it, and the roots of all trees.
fn owned_blocks(forest: &Forest, stored_full: &FxHashSet<u64>) -> FxHashSet<u64> {
    let mut owned = FxHashSet::default();
    for (ptr, from) in forest.all() {
        own(forest, &ptr, from, stored_full, &mut owned);
    }
    owned
}

fn own(
    forest: &Forest,
    root: &NodePtr,
    from: Option<DropPoint>,
    stored_full: &FxHashSet<u64>,
    owned: &mut FxHashSet<u64>,
) {
    let tree = root.tree;
    // A block with full references does not name its owner to its children; one that a balance made leaves them as they
    // are.
    let mut named: FxHashSet<u64> = FxHashSet::from_iter([root.at.get()]);
    walk(&forest.store, root, from, &mut |node, first| {
        let at = node.at().get();
        let is_own = node.owner() == tree || tree == TreeId::TREE_RELOC;
        if !is_own || !named.contains(&at) || !owned.insert(at) {
            return false;
        }
        if stored_full.contains(&at) && !node.is_reloc() {
            return false;
        }
        if !node.is_leaf() {
            named.extend((first..node.nritems()).map(|slot| node.child(slot).0.get()));
        }
        true
    });
}

/// Calls `with` for every reference that a block makes from slot `first` on.
fn each(node: &Node, first: usize, full: bool, nodesize: u64, with: &mut dyn FnMut(Reference)) {
    if node.is_leaf() {
        return each_of_leaf(node, full, with);
    }
    let source = if full { by_block(node, KeyType::SHARED_BLOCK_REF) } else { Source::tree(node.owner()) };
    for slot in first..node.nritems() {
        with(Reference { at: node.child(slot).0.get(), source, length: nodesize, count: 1, generation: 0 });
    }
}

fn by_block(node: &Node, kind: KeyType) -> Source {
    Source { kind: kind.0, from: node.at().get(), inode: 0, offset: 0 }
}

fn each_of_leaf(node: &Node, full: bool, with: &mut dyn FnMut(Reference)) {
    let owner = node.owner();
    if !(owner.is_subvolume() || owner == TreeId::ROOT || owner == TreeId::DATA_RELOC) {
        return;
    }
    for (key, data) in node.items().filter(|(key, _)| key.kind == KeyType::EXTENT_DATA) {
        let Ok((extent, _)) = FileExtent::ref_from_prefix(data) else { continue };
        let at = extent.body.disk_bytenr.get();
        if extent.head.kind == file_extent_type::INLINE || at == 0 {
            continue;
        }
        let source = if full {
            by_block(node, KeyType::SHARED_DATA_REF)
        } else {
            let offset = key.offset.wrapping_sub(extent.body.offset.get());
            Source { kind: KeyType::EXTENT_DATA_REF.0, from: owner.get(), inode: key.objectid, offset }
        };
        let (length, generation) = (extent.body.disk_num_bytes.get(), extent.head.generation.get());
        with(Reference { at, source, length, count: 1, generation });
    }
}
