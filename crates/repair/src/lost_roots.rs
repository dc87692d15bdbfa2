//! Root items that are lost while their trees are there: the extent tree still has the reference that each root item
//! made to its tree's root. The rest of the item comes from the newest older root tree that has one.
//!
//! Invariant: what the root tree had beside root items is taken from an older root tree only where it says something
//! about trees that are there.

use crate::action::Pass;
use crate::forest::{Forest, Root, empty_root_item, root_ptr};
use crate::orphans::{self, Orphan};
use crate::roots;
use crate::trouble::Result;
use butterfs_ondisk::items::RootItem;
use butterfs_ondisk::superblock::RootBackup;
use butterfs_ondisk::{Generation, Ino, Key, KeyType, Level, Logical, TreeId};
use butterfs_tree::{Node, NodePtr};
use std::collections::BTreeMap;

/// Root items and names as older root trees have them, the newest version of each.
#[derive(Default)]
struct Older {
    items: BTreeMap<TreeId, (Key, RootItem)>,
    rest: BTreeMap<Key, Vec<u8>>,
}

/// Restores the root items that nobody has and whose trees are there. `has_lost_blocks`: items of the root tree were
/// lost with their block, so that subvolumes which no older root tree knows are missing too.
pub(crate) fn restore(forest: &mut Forest, has_lost_blocks: bool) -> Result<()> {
    roots::find_in_backup(forest, TreeId::EXTENT);
    let older = older(forest);
    let orphans = orphans::find(forest);
    for id in lost_trees(forest, &orphans, &older, has_lost_blocks) {
        let of_tree: Vec<Orphan> =
            orphans.iter().filter(|orphan| orphan.is_of_tree() && orphan.source.from == id.get()).copied().collect();
        let Some(ptr) = root_above(forest, id, &of_tree)? else { continue };
        let (key, item) = match older.items.get(&id) {
            Some((key, item)) if id.is_subvolume() && id != TreeId::FS => (*key, *item),
            Some((key, item)) => (Key { offset: 0, ..*key }, *item),
            None => (Key::new(id.get(), KeyType::ROOT_ITEM, 0), fresh_item(id)),
        };
        forest.trees.insert(id, Root { key, item, ptr, changed: true });
        let what = format!("makes the root item of tree {} again, whose root the extent tree names", id.get() as i64);
        if older.items.contains_key(&id) || !id.is_subvolume() {
            forest.did(Pass::Roots, what);
        } else {
            forest.lose(Pass::Roots, what, "its UUID, and whether it was read-only");
        }
    }
    if has_lost_blocks {
        restore_from_older(forest, &older)?;
        restore_rest(forest, &older)?;
    }
    Ok(())
}

/// Trees of which a reference is left and no root item.
fn lost_trees(forest: &Forest, orphans: &[Orphan], older: &Older, has_lost_blocks: bool) -> Vec<TreeId> {
    let named = orphans.iter().filter(|orphan| orphan.is_of_tree()).map(|orphan| TreeId(orphan.source.from));
    let mut lost: Vec<TreeId> = named
        .filter(|id| {
            let is_known = roots::is_global(*id) || older.items.contains_key(id);
            let may_be = id.is_subvolume() && has_lost_blocks;
            !forest.trees.contains_key(id) && (is_known || may_be)
        })
        .collect();
    lost.sort_unstable();
    lost.dedup();
    lost
}

/// The root of a tree of these blocks: the only one of the highest level, or a new node above several.
fn root_above(forest: &Forest, id: TreeId, blocks: &[Orphan]) -> Result<Option<NodePtr>> {
    let Some(level) = blocks.iter().map(|orphan| orphan.level).max() else { return Ok(None) };
    let above =
        NodePtr { at: Logical(0), generation: Generation(0), level: Level(level + 1), tree: id, first_key: None };
    let children = orphans::children(blocks, &above, None);
    if let [only] = children[..] {
        return Ok(Some(root_ptr(id, only.at.get(), only.generation.get(), only.level)));
    }
    let at = forest.store.allocate(id)?;
    let generation = forest.store.generation;
    let mut node = Node::new_empty(&forest.store.identity, at, above.level, generation, id);
    for (slot, child) in children.iter().take(node.max_pointers()).enumerate() {
        node.insert_pointer(slot, child.first, child.at, child.generation);
    }
    forest.store.add(node, false);
    Ok(Some(NodePtr { at, generation, ..above }))
}

fn fresh_item(id: TreeId) -> RootItem {
    let mut item = empty_root_item();
    if id.is_subvolume() || id == TreeId::DATA_RELOC {
        item.root_dirid = Ino::ROOT_DIR.get().into();
    }
    item
}

/// The items of the root trees in the superblock's backup slots, the newest of each.
fn older(forest: &Forest) -> Older {
    let mut slots: Vec<&RootBackup> = forest.sb.super_roots.iter().filter(|slot| slot.tree_root.get() != 0).collect();
    slots.sort_by_key(|slot| std::cmp::Reverse(slot.tree_root_gen.get()));
    let mut older = Older::default();
    for slot in slots {
        let ptr = root_ptr(TreeId::ROOT, slot.tree_root.get(), slot.tree_root_gen.get(), slot.tree_root_level);
        crate::walk::items(&forest.store, &ptr, &mut |key, data| match key.kind {
            KeyType::ROOT_ITEM => {
                if let Some(item) = RootItem::parse(data).filter(|_| key.objectid != TreeId::TREE_RELOC.get()) {
                    older.items.entry(TreeId(key.objectid)).or_insert((key, item));
                }
            }
            _ => drop(older.rest.entry(key).or_insert_with(|| data.to_vec())),
        });
    }
    older
}

/// Subvolumes of which the extent tree says nothing, as an older root tree has them, if their blocks are still there.
fn restore_from_older(forest: &mut Forest, older: &Older) -> Result<()> {
    if crate::extents::is_readable(forest, TreeId::EXTENT) {
        return Ok(());
    }
    for (id, (key, item)) in &older.items {
        let ptr = root_ptr(*id, item.bytenr.get(), item.generation.get(), item.level);
        let is_wanted = id.is_subvolume() && item.refs.get() > 0 && !forest.trees.contains_key(id);
        if is_wanted && forest.store.read(&ptr).is_ok() {
            forest.trees.insert(*id, Root { key: *key, item: *item, ptr, changed: true });
            let generation = item.generation.get();
            let what = format!("makes the root item of tree {id} that of an older root tree");
            forest.lose(Pass::Roots, what, format!("what was committed in it after generation {generation}"));
        }
    }
    Ok(())
}

/// Names of subvolumes, the directory that names the default one, and that directory itself.
fn restore_rest(forest: &mut Forest, older: &Older) -> Result<()> {
    for (key, data) in &older.rest {
        let is_there = |id: u64| forest.trees.contains_key(&TreeId(id));
        let is_wanted = match key.kind {
            KeyType::ROOT_REF | KeyType::ROOT_BACKREF => is_there(key.objectid) && is_there(key.offset),
            KeyType::INODE_ITEM | KeyType::INODE_REF | KeyType::DIR_ITEM | KeyType::DIR_INDEX => {
                key.objectid == Ino::TREE_ROOT_DIR.get() || key.objectid == TreeId::FS.get()
            }
            _ => false,
        };
        if is_wanted && forest.get(TreeId::ROOT, *key)?.is_none() {
            forest.put(TreeId::ROOT, *key, data)?;
        }
    }
    Ok(())
}
