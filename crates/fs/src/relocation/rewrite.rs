//! Giving the blocks of a [`Closure`] other addresses, all in one transaction: one copy of each, shared by whoever
//! shared the original.
//!
//! # What is owed for block B that becomes B'
//! | reference | becomes |
//! |---|---|
//! | B by the root, or by a block that stays | B' by the same |
//! | B by a block P that becomes P' | B' by P', or by the tree if P' is private |
//! | a child C by B, or by B's owner | C, or what C becomes, by B', or by the owner if B' is private |
//! | data D by B, or by a file, that becomes N | the same of N |
//!
//! # Invariants
//! 1. Nothing is changed before every address is allocated: there is no failure halfway. No block leads to a copy
//!    before all copies are in memory: readers go by, and a copy is nowhere else.
//! 2. Copies below a root of a subvolume, unless only their owner reaches them, carry the RELOC flag: they are younger
//!    than the last snapshot and nevertheless shared. Marked ones have full back references: `btrfs check` concludes
//!    that from the flag.

use super::closure::{Affected, Closure};
use crate::error::{Error, Result};
use crate::options::Canary;
use crate::space::{Class, Found};
use crate::transaction::refs::{ExtentKind, RefBy, RefQueue};
use crate::transaction::{Core, Handle};
use butterfs_ondisk::items::{FileExtent, file_extent_type};
use butterfs_ondisk::{Generation, KeyType, Level, Logical, TreeId};
use butterfs_tree::{Node, NodePtr};
use rustc_hash::FxHashMap;
use zerocopy::FromBytes;

/// The outcome of an attempt to find addresses.
pub(super) enum Addresses {
    /// One for each block that gets a copy.
    Found(FxHashMap<Logical, Logical>),
    /// This group's free space must be read first.
    Load(Logical),
    /// There are not enough.
    Nothing { system: bool },
}

/// Allocates an address for each block that gets a copy.
pub(super) fn allocate(core: &Core, closure: &Closure) -> Addresses {
    let mut found = FxHashMap::default();
    for (at, block) in closure.blocks.iter().filter(|(_, block)| !block.stays) {
        let system = block.node.owner() == TreeId::CHUNK;
        match core.space.allocate_node(if system { Class::System } else { Class::Metadata }) {
            Found::Extent(new, _) => {
                found.insert(*at, new);
            }
            other => {
                found.values().for_each(|new| core.space.give_back(*new, u64::from(core.nodesize())));
                return match other {
                    Found::Load(group) => Addresses::Load(group),
                    _ => Addresses::Nothing { system },
                };
            }
        }
    }
    Addresses::Found(found)
}

/// See the [module](self).
pub(super) struct Rewrite<'a> {
    pub handle: &'a Handle,
    pub closure: &'a Closure,
    /// From the old addresses of blocks to the new ones.
    pub blocks: FxHashMap<Logical, Logical>,
    /// The same of data.
    pub data: FxHashMap<Logical, Logical>,
}

impl Rewrite<'_> {
    fn refs(&self) -> &RefQueue {
        &self.handle.transaction().refs
    }

    fn generation(&self) -> Generation {
        self.handle.generation()
    }

    fn nodesize(&self) -> u64 {
        u64::from(self.handle.core().nodesize())
    }

    /// Does it. An error means that the transaction cannot be completed.
    pub fn run(&self) -> Result<()> {
        let core = self.handle.core();
        self.handle.edited();
        self.note();
        // Readers wait for nobody: what leads to a copy changes when all copies are there.
        for (at, block) in &self.closure.blocks {
            if let Some(new) = self.blocks.get(at) {
                self.copy(block, *new);
            }
        }
        core.env().passes("copies of blocks are made");
        for (at, block) in &self.closure.blocks {
            if !self.blocks.contains_key(at) {
                core.nodes.edit(*at, |node| self.redirect(node));
            }
            self.move_references(*at, block);
        }
        for (at, block) in &self.closure.blocks {
            let Some(new) = self.blocks.get(at) else { continue };
            for tree in &block.roots {
                let root = NodePtr { at: *new, generation: self.generation(), ..tree.root() };
                tree.move_root(self.handle, root);
            }
        }
        self.refs().conflict().map_or(Ok(()), Err)
    }

    /// Tells those who keep addresses.
    fn note(&self) {
        let core = self.handle.core();
        let blocks = self.blocks.keys().map(|at| (*at, self.nodesize()));
        let data = self.closure.data.iter();
        let places: Vec<(Logical, u64)> = blocks.chain(data.clone().map(|data| (data.from, data.len))).collect();
        core.note_moved(&places, data.map(|data| (data.from, data.to)));
        self.handle.transaction().books().has_moved_extents = true;
    }

    fn copy(&self, block: &Affected, new: Logical) {
        let mut copy = (*block.node).clone();
        copy.set_identity(new, self.generation(), block.node.owner());
        if block.is_marked() && !self.handle.core().has_canary(Canary::RelocationUnmarked) {
            copy.mark_reloc();
        }
        self.redirect(&mut copy);
        self.handle.core().nodes.insert_dirty(copy);
    }

    /// Points a block at what its children and its data become.
    fn redirect(&self, node: &mut Node) {
        let is_left = node.owner() != TreeId::FS && self.handle.core().has_canary(Canary::RelocationInOneTree);
        for slot in 0..node.nritems() {
            if !node.is_leaf() {
                if let Some(new) = self.blocks.get(&node.child(slot).0) {
                    node.set_child(slot, *new, self.generation());
                }
            } else if node.key(slot).kind == KeyType::EXTENT_DATA
                && let Ok(item) = FileExtent::mut_from_bytes(node.item_mut(slot))
                && item.head.kind != file_extent_type::INLINE
                && let Some(new) = self.data.get(&Logical(item.body.disk_bytenr.get()))
                && !is_left
            {
                item.body.disk_bytenr = new.0.into();
            }
        }
    }

    fn move_references(&self, at: Logical, block: &Affected) {
        let (new, level) = (self.blocks.get(&at).copied(), block.node.level());
        if let Some(new) = new {
            let kind = ExtentKind::Block(level);
            for (by, from) in &block.by {
                self.refs().change(new, self.nodesize(), kind, self.renamed(*by, *from), 1, true);
            }
            if block.becomes_full() {
                self.refs().set_full(new, self.nodesize(), level);
            }
            for (by, _) in &block.by {
                self.refs().change(at, self.nodesize(), kind, *by, -1, false);
            }
        }
        let (old_name, new_name) = (block.full.then_some(at), block.becomes_full().then_some(new.unwrap_or(at)));
        if level.0 == 0 {
            self.rename_data(&block.node, old_name, new_name);
        } else if old_name != new_name {
            let named = |name: Option<Logical>| name.map_or(RefBy::Tree(block.node.owner()), RefBy::Block);
            self.rename_children(&block.node, Level(level.0 - 1), named(old_name), named(new_name));
        }
    }

    /// A reference to a block, from the block `from`, as it is after everything has moved.
    fn renamed(&self, by: RefBy, from: Option<Logical>) -> RefBy {
        let parent = from.and_then(|from| self.closure.blocks.get(&from).zip(self.blocks.get(&from)));
        match parent {
            Some((parent, new)) if parent.becomes_full() => RefBy::Block(*new),
            _ => by,
        }
    }

    /// Children that move have their references moved when it is their turn.
    fn rename_children(&self, node: &Node, level: Level, old: RefBy, new: RefBy) {
        for slot in 0..node.nritems() {
            let (child, _) = node.child(slot);
            if !self.blocks.contains_key(&child) {
                self.refs().change(child, self.nodesize(), ExtentKind::Block(level), new, 1, false);
                self.refs().change(child, self.nodesize(), ExtentKind::Block(level), old, -1, false);
            }
        }
    }

    /// References of a leaf to data: by the leaf's address if it has one to give, else by the files of its owner.
    fn rename_data(&self, leaf: &Node, old: Option<Logical>, new: Option<Logical>) {
        for (key, payload) in leaf.items().filter(|(key, _)| key.kind == KeyType::EXTENT_DATA) {
            let Ok(item) = FileExtent::read_from_bytes(payload) else { continue };
            let at = Logical(item.body.disk_bytenr.get());
            if item.head.kind == file_extent_type::INLINE || at.0 == 0 {
                continue;
            }
            let target = self.data.get(&at).copied();
            if target.is_none() && old == new {
                continue;
            }
            let offset = key.offset.wrapping_sub(item.body.offset.get());
            let file = RefBy::File { tree: leaf.owner(), ino: key.objectid, offset };
            let named = |name: Option<Logical>| name.map_or(file, RefBy::Leaf);
            let len = item.body.disk_num_bytes.get();
            self.refs().change(target.unwrap_or(at), len, ExtentKind::Data, named(new), 1, target.is_some());
            self.refs().change(at, len, ExtentKind::Data, named(old), -1, false);
        }
    }
}

/// The error of a transaction in which no address was found although space was reserved.
pub(super) fn no_addresses() -> Error {
    Error::refused(crate::error::Errno::ENOSPC, "no space left for the tree blocks that a balance must copy")
}
