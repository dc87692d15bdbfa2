//! The references that the trees make, one by one, and as compact records to be compared with those in the extent tree.
//!
//! A block is asked once, however many trees share it: its own flag says whether its children are referenced by its
//! owner or by its address. Records are collected for one window of logical addresses at a time, so that memory is
//! bounded.

use crate::extents::ExtentScan;
use crate::session::Seen;
use butterfs_ondisk::items::{FileExtent, file_extent_type};
use butterfs_ondisk::{KeyType, Logical, TreeId};
use butterfs_tree::Node;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::ops::Range;
use zerocopy::FromBytes;

/// A reference to an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Source {
    /// TREE_BLOCK_REF, EXTENT_DATA_REF, SHARED_BLOCK_REF or SHARED_DATA_REF.
    pub kind: u8,
    /// The tree, or the parent block.
    pub from: u64,
    pub inode: u64,
    pub offset: u64,
}

impl Source {
    pub fn tree(tree: u64) -> Source {
        Source { kind: KeyType::TREE_BLOCK_REF.0, from: tree, inode: 0, offset: 0 }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match KeyType(self.kind) {
            KeyType::TREE_BLOCK_REF => write!(f, "tree {}", self.from as i64),
            KeyType::SHARED_BLOCK_REF | KeyType::SHARED_DATA_REF => write!(f, "block {}", self.from),
            _ => write!(f, "inode {} of tree {} at {}", self.inode, self.from as i64, self.offset as i64),
        }
    }
}

/// One reference, derived from a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reference {
    pub at: u64,
    pub source: Source,
    /// Bytes that the referrer takes the extent for.
    pub length: u64,
    pub count: u64,
}

/// The reference to a tree's root block.
pub(crate) fn source_of_root(at: Logical, tree: TreeId) -> Source {
    match tree {
        TreeId::TREE_RELOC => Source { kind: KeyType::SHARED_BLOCK_REF.0, from: at.get(), inode: 0, offset: 0 },
        tree => Source::tree(tree.get()),
    }
}

/// Calls `with` for every reference that a block makes from slot `first` on. `full`: the block has the flag.
pub(crate) fn each(node: &Node, first: usize, full: bool, nodesize: u64, with: &mut dyn FnMut(Reference)) {
    if node.is_leaf() {
        return each_of_leaf(node, full, with);
    }
    let source = if full {
        Source { kind: KeyType::SHARED_BLOCK_REF.0, from: node.at().get(), inode: 0, offset: 0 }
    } else {
        Source::tree(node.owner().get())
    };
    for slot in first..node.nritems() {
        with(Reference { at: node.child(slot).0.get(), source, length: nodesize, count: 1 });
    }
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
            Source { kind: KeyType::SHARED_DATA_REF.0, from: node.at().get(), inode: 0, offset: 0 }
        } else {
            let offset = key.offset.wrapping_sub(extent.body.offset.get());
            Source { kind: KeyType::EXTENT_DATA_REF.0, from: owner.get(), inode: key.objectid, offset }
        };
        with(Reference { at, source, length: extent.body.disk_num_bytes.get(), count: 1 });
    }
}

#[derive(Default)]
struct Collected {
    records: Vec<Reference>,
    seen: FxHashMap<u64, Seen>,
}

/// The references of one window of addresses, as records.
pub(crate) struct References {
    pub window: Range<u64>,
    nodesize: u64,
    collected: Mutex<Collected>,
}

impl References {
    pub fn new(window: Range<u64>, nodesize: u64) -> References {
        References { window, nodesize, collected: Mutex::default() }
    }

    /// The reference to a tree's root block.
    pub fn add_root(&self, at: Logical, tree: TreeId) {
        if self.window.contains(&at.get()) {
            let record = Reference { at: at.get(), source: source_of_root(at, tree), length: self.nodesize, count: 1 };
            self.collected.lock().records.push(record);
        }
    }

    /// Adds the references of `node` from slot `first` on, unless it was asked before.
    pub fn add(&self, node: &Node, first: usize, extents: &ExtentScan) {
        let seen = Seen {
            level: node.level().get(),
            generation: node.generation().get(),
            owner: node.owner().get(),
            is_reloc: node.is_reloc(),
        };
        let mut collected = self.collected.lock();
        if collected.seen.insert(node.at().get(), seen).is_none() {
            let full = extents.is_full(node.at().get());
            each(node, first, full, self.nodesize, &mut |found| {
                if self.window.contains(&found.at) {
                    collected.records.push(found);
                }
            });
        }
    }

    /// The records, sorted, those of one source and length as one, and the blocks that were asked.
    pub fn finish(self) -> (Vec<Reference>, FxHashMap<u64, Seen>) {
        let Collected { mut records, seen } = self.collected.into_inner();
        records.sort_unstable();
        records.dedup_by(|next, kept| {
            let same = (next.at, next.source, next.length) == (kept.at, kept.source, kept.length);
            kept.count += if same { next.count } else { 0 };
            same
        });
        (records, seen)
    }
}
