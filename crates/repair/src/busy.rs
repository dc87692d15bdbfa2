//! Space that must not be overwritten: everything that a root can reach, of the last commit, of the backup roots and of
//! the logs.

use crate::forest::{Forest, root_ptr};
use crate::salvage;
use crate::walk::{DropPoint, walk};
use butterfs_ondisk::items::{ExtentItem, FileExtent, RootItem, extent_flags, file_extent_type};
use butterfs_ondisk::{KeyType, Superblock, TreeId};
use butterfs_tree::{Node, NodePtr};
use rustc_hash::FxHashSet;
use zerocopy::FromBytes;

/// Marks all of it in the forest's space. `originals` are the superblocks as they were found. False where no extent
/// tree could be read whole, so that what damaged trees lead to is not known.
pub(crate) fn mark(forest: &Forest, originals: &[Superblock]) -> bool {
    let mut pass = Pass { forest, seen: FxHashSet::default(), extent_trees: Vec::new() };
    for sb in originals.iter().chain([&forest.sb]) {
        pass.superblock(sb);
    }
    forest.all().iter().for_each(|(ptr, from)| pass.tree(*ptr, *from));
    let mut knows_extents = forest.ptr(TreeId::EXTENT).is_ok_and(|ptr| mark_extent_items(forest, &ptr));
    for ptr in &pass.extent_trees {
        knows_extents |= mark_extent_items(forest, ptr);
    }
    for slot in forest.sb.super_roots.iter().filter(|slot| slot.tree_root_gen == forest.sb.generation) {
        let (at, generation) = (slot.extent_root.get(), slot.extent_root_gen.get());
        let ptr = root_ptr(TreeId::EXTENT, at, generation, slot.extent_root_level);
        knows_extents |= mark_extent_items(forest, &ptr);
    }
    forest.store.space.borrow_mut().exclude_superblocks(&forest.store.volume.chunk_map());
    knows_extents
}

struct Pass<'a> {
    forest: &'a Forest,
    seen: FxHashSet<(u64, u64)>,
    /// Extent trees that a damaged root tree leads to.
    extent_trees: Vec<NodePtr>,
}

impl Pass<'_> {
    fn superblock(&mut self, sb: &Superblock) {
        let generation = sb.generation.get();
        self.tree_of_roots(root_ptr(TreeId::ROOT, sb.root.get(), generation, sb.root_level));
        let chunk_generation = sb.chunk_root_generation.get();
        self.tree(root_ptr(TreeId::CHUNK, sb.chunk_root.get(), chunk_generation, sb.chunk_root_level), None);
        for slot in &sb.super_roots {
            let ptr = root_ptr(TreeId::ROOT, slot.tree_root.get(), slot.tree_root_gen.get(), slot.tree_root_level);
            self.tree_of_roots(ptr);
            let (at, generation) = (slot.chunk_root.get(), slot.chunk_root_gen.get());
            self.tree(root_ptr(TreeId::CHUNK, at, generation, slot.chunk_root_level), None);
        }
        if sb.log_root.get() != 0 {
            let log_generation = generation.saturating_add(1);
            self.tree_of_roots(root_ptr(TreeId::TREE_LOG, sb.log_root.get(), log_generation, sb.log_root_level));
        }
    }

    /// A tree whose items lead to other trees.
    fn tree_of_roots(&mut self, ptr: NodePtr) {
        let mut roots = Vec::new();
        self.visit(ptr, None, &mut |node| {
            for (key, data) in node.items().filter(|(key, _)| key.kind == KeyType::ROOT_ITEM) {
                let Some(item) = RootItem::parse(data) else { continue };
                let (at, generation) = (item.bytenr.get(), item.generation.get());
                // The owner rules of trees are not what matters here.
                let id = if key.objectid == TreeId::TREE_LOG.get() { TreeId::TREE_LOG } else { TreeId(key.objectid) };
                roots.push((root_ptr(id, at, generation, item.level), DropPoint::of(&item)));
            }
        });
        if let Some(bytes) = self.damaged_leaf(&ptr) {
            for (key, data) in salvage::items(&bytes).filter(|(key, _)| key.kind == KeyType::ROOT_ITEM) {
                let Some(item) = data.and_then(RootItem::parse) else { continue };
                let (id, at, generation) = (TreeId(key.objectid), item.bytenr.get(), item.generation.get());
                let root = root_ptr(id, at, generation, item.level);
                self.extent_trees.extend((id == TreeId::EXTENT).then_some(root));
                roots.push((root, DropPoint::of(&item)));
            }
        }
        roots.into_iter().for_each(|(ptr, from)| self.tree(ptr, from));
    }

    /// The bytes of a root tree of one leaf that breaks a rule.
    fn damaged_leaf(&self, ptr: &NodePtr) -> Option<Vec<u8>> {
        let is_damaged = ptr.level.get() == 0 && ptr.at.get() != 0 && self.forest.store.read(ptr).is_err();
        is_damaged.then(|| salvage::intact_leaf(&self.forest.store, ptr)).flatten()
    }

    fn tree(&mut self, ptr: NodePtr, from: Option<DropPoint>) {
        self.visit(ptr, from, &mut |_| {});
    }

    fn visit(&mut self, ptr: NodePtr, from: Option<DropPoint>, leaf: &mut dyn FnMut(&Node)) {
        let store = &self.forest.store;
        if ptr.at.get() == 0 {
            return;
        }
        // A root that cannot be read may be wanted by whoever restores.
        store.space.borrow_mut().busy.insert(ptr.at.get()..ptr.at.get().saturating_add(store.nodesize()));
        walk(store, &ptr, from, &mut |node, first| {
            if !self.seen.insert((node.at().get(), node.generation().get())) && from.is_none() {
                return false;
            }
            let mut space = store.space.borrow_mut();
            space.busy.insert(node.at().get()..node.at().get() + store.nodesize());
            if node.is_leaf() {
                each_data_extent(node, &mut |at, len| space.busy.insert(at..at.saturating_add(len)));
                leaf(node);
            } else {
                for slot in first..node.nritems() {
                    let at = node.child(slot).0.get();
                    space.busy.insert(at..at.saturating_add(store.nodesize()));
                }
            }
            true
        });
    }
}

fn each_data_extent(leaf: &Node, with: &mut dyn FnMut(u64, u64)) {
    for (_, data) in leaf.items().filter(|(key, _)| key.kind == KeyType::EXTENT_DATA) {
        let Ok((extent, _)) = FileExtent::ref_from_prefix(data) else { continue };
        if extent.head.kind != file_extent_type::INLINE && extent.body.disk_bytenr.get() != 0 {
            with(extent.body.disk_bytenr.get(), extent.body.disk_num_bytes.get());
        }
    }
}

/// Space that the extent tree calls used stays too: a tree block that nothing leads to any more may be all that is left
/// of a file.
fn mark_extent_items(forest: &Forest, ptr: &NodePtr) -> bool {
    let (store, map) = (&forest.store, forest.store.volume.chunk_map());
    crate::walk::items(store, ptr, &mut |key, data| {
        let is_block =
            ExtentItem::read_from_prefix(data).is_ok_and(|(item, _)| item.flags.get() & extent_flags::DATA == 0);
        let len = match key.kind {
            KeyType::METADATA_ITEM => store.nodesize(),
            KeyType::EXTENT_ITEM if is_block => store.nodesize(),
            KeyType::EXTENT_ITEM => key.offset,
            _ => return,
        };
        if map.get(butterfs_ondisk::Logical(key.objectid)).is_some() {
            store.space.borrow_mut().busy.insert(key.objectid..key.objectid.saturating_add(len));
        }
    })
}
