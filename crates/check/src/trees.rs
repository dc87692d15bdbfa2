//! One reading of all trees: each block in every copy, the references it makes, and the inodes of live subvolumes.
//!
//! A block that several trees share is read once: what was learned of it and of everything below it is kept, up to
//! [`Options::cache_bytes`](crate::Options), and joined to each tree.

use crate::block_set::BlockSet;
use crate::csums::Checksums;
use crate::extents::ExtentScan;
use crate::finding::{Finding, Tree};
use crate::fold::{Fold, Parent, Part, Way};
use crate::inodes::{self, Inodes};
use crate::ledger::{Sums, Unowned};
use crate::references;
use crate::session::{Seen, Session};
use butterfs_ondisk::{Generation, Key, Level, Logical, TreeId};
use butterfs_tree::{Node, NodePtr};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The position of the revision of back references in the header's flags.
const REVISION_SHIFT: u32 = 56;

/// State that all trees share.
pub(crate) struct Trees<'s, 'a> {
    pub session: &'s Session<'a>,
    pub scan: &'s ExtentScan,
    pub checksums: &'s Checksums,
    pub unowned: Unowned,
    visited: BlockSet,
    sums: Mutex<Sums>,
    shared: Mutex<SharedBlocks>,
}

/// The record of a shared block.
struct SharedBlock {
    generation: Generation,
    level: Level,
    first: Option<Key>,
    last: Option<Key>,
    owner: TreeId,
    /// Of subvolumes only.
    inodes: Option<Arc<Inodes>>,
}

#[derive(Default)]
struct SharedBlocks {
    blocks: FxHashMap<u64, SharedBlock>,
    bytes: usize,
}

impl<'s, 'a> Trees<'s, 'a> {
    pub fn new(session: &'s Session<'a>, scan: &'s ExtentScan, checksums: &'s Checksums) -> Self {
        let visited = BlockSet::new(session.sectorsize());
        let (unowned, sums, shared) = Default::default();
        Trees { session, scan, checksums, unowned, visited, sums, shared }
    }

    /// The sums of all references that the trees read so far make.
    pub fn sums(&self) -> Sums {
        *self.sums.lock()
    }

    /// Reads a tree and, of a live subvolume, its inodes.
    pub fn read(&self, root: NodePtr, from: Option<crate::walk::DropPoint>, with_inodes: bool) -> Part<Inodes> {
        let mut sums = Sums::default();
        let source = references::source_of_root(root.at, root.tree);
        sums.add_source(self.session.options.seed, root.at.get(), &source, 1);
        sums.add_length(self.session.options.seed, root.at.get(), self.session.nodesize(), 1);
        self.sums.lock().add(&sums);
        crate::fold::fold(self.session, &TreeFold { trees: self, with_inodes }, root, from)
    }

    fn is_shared(&self, at: Logical) -> bool {
        self.scan.shared.binary_search(&at.get()).is_ok()
    }

    /// The references that a block makes, when it was not asked before.
    fn add_references(&self, node: &Node, first: usize) {
        let (seed, mut sums) = (self.session.options.seed, Sums::default());
        let full = self.scan.is_full(node.at().get());
        references::each(node, first, full, self.session.nodesize(), &mut |found| {
            sums.add_source(seed, found.at, &found.source, 1);
            sums.add_length(seed, found.at, found.length, 1);
        });
        sums.add_block(seed, node.at().get(), node.level().get().into(), node.generation().get());
        self.sums.lock().add(&sums);
    }

    fn confirm_owner(&self, at: Logical, owner: TreeId, way: &Way, is_new: bool) {
        if self.scan.is_full(at.get()) {
            return;
        }
        let owned = match way.parent {
            Some(parent) => parent.is_reloc || (!parent.full && parent.owner == owner),
            None => way.ptr.tree == owner,
        };
        match (owned, is_new) {
            (true, false) => self.unowned.remove(at.get()),
            (false, true) => {
                self.unowned.insert(at.get(), &Seen { level: 0, generation: 0, owner: owner.get(), is_reloc: false })
            }
            _ => {}
        }
    }
}

/// The fold of one tree.
struct TreeFold<'t, 's, 'a> {
    trees: &'t Trees<'s, 'a>,
    with_inodes: bool,
}

impl Fold for TreeFold<'_, '_, '_> {
    type Value = Inodes;

    fn block(&self, node: &Node, way: &Way, first: usize) -> Inodes {
        let trees = self.trees;
        let is_new = trees.visited.insert(node.at().get());
        trees.confirm_owner(node.at(), node.owner(), way, is_new);
        if is_new {
            check_revision(trees.session, node, way);
            trees.add_references(node, first);
        }
        if !(self.with_inodes && node.is_leaf()) {
            return Inodes::default();
        }
        inodes::of_leaf(trees.session, trees.checksums, way.ptr.tree, node)
    }

    fn join(&self, value: &mut Inodes, next: Inodes, tree: TreeId) {
        if self.with_inodes {
            value.join(next, self.trees.session, tree);
        }
    }

    fn as_parent(&self, node: &Node) -> Parent {
        Parent { owner: node.owner(), full: self.trees.scan.is_full(node.at().get()), is_reloc: node.is_reloc() }
    }

    fn known(&self, way: &Way) -> Option<Part<Inodes>> {
        let ptr = &way.ptr;
        if way.from.is_some() || !self.trees.is_shared(ptr.at) {
            return None;
        }
        let (owner, part) = {
            let shared = self.trees.shared.lock();
            let block = shared.blocks.get(&ptr.at.get())?;
            let as_promised = (block.generation, block.level) == (ptr.generation, ptr.level)
                && ptr.first_key.is_none_or(|first| Some(first) == block.first)
                && (block.owner == ptr.tree || (ptr.first_key.is_some() && block.owner.is_subvolume()));
            if !as_promised || (self.with_inodes && block.inodes.is_none()) {
                return None;
            }
            (block.owner, (block.inodes.clone(), block.last))
        };
        self.trees.confirm_owner(ptr.at, owner, way, false);
        let value = part.0.filter(|_| self.with_inodes).map_or_else(Inodes::default, |inodes| (*inodes).clone());
        Some(Part { value, last: part.1, complete: true })
    }

    fn keep(&self, node: &Node, part: &Part<Inodes>) {
        if !node.owner().is_subvolume() || !self.trees.is_shared(node.at()) {
            return;
        }
        let bytes = size_of::<(u64, SharedBlock)>() + if self.with_inodes { part.value.bytes() } else { 0 };
        let inodes = self.with_inodes.then(|| Arc::new(part.value.clone()));
        let mut shared = self.trees.shared.lock();
        // Leaves leave room for the nodes above them, each of which stands for hundreds.
        let limit = self.trees.session.options.cache_bytes as usize / if node.is_leaf() { 4 } else { 2 };
        if shared.bytes + bytes > limit {
            return;
        }
        shared.bytes += bytes;
        let block = SharedBlock {
            generation: node.generation(),
            level: node.level(),
            first: node.first_key(),
            last: part.last,
            owner: node.owner(),
            inodes,
        };
        shared.blocks.insert(node.at().get(), block);
    }
}

/// Back references have been as they are since 2009; a block that says otherwise would be taken for one from before.
fn check_revision(session: &Session<'_>, node: &Node, way: &Way) {
    let revision = node.flags() >> REVISION_SHIFT;
    if revision != 1 {
        let reason = format!("its back references are of revision {revision}, expect 1");
        session.report(Finding::BlockBad { tree: Tree(way.ptr.tree), at: node.at(), reason });
    }
}
