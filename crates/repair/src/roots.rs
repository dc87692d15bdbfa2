//! The pass `roots`: root items that are missing, doubled, or stand under a wrong key.

use crate::action::Pass;
use crate::forest::{Forest, Root, empty_root_item, root_ptr};
use crate::trouble::Result;
use butterfs_ondisk::features::compat_ro;
use butterfs_ondisk::superblock::RootBackup;
use butterfs_ondisk::{Ino, Key, KeyType, TreeId};
use butterfs_tree::NodePtr;

/// Removes what is too much: of several root items of a tree the one stays whose block is good and newest.
pub(crate) fn single(forest: &mut Forest) -> Result<()> {
    for (key, item) in std::mem::take(&mut forest.doubled) {
        let id = TreeId(key.objectid);
        let ptr = root_ptr(id, item.bytenr.get(), item.generation.get(), item.level);
        let is_snapshot = id.is_subvolume() && id != TreeId::FS;
        let other = forest.trees.get(&id).copied();
        let is_better = forest.store.read(&ptr).is_ok()
            && other
                .is_none_or(|other| forest.store.read(&other.ptr).is_err() || other.ptr.generation < ptr.generation);
        let shown = id.get() as i64;
        match (is_better, other) {
            (true, other) => {
                let key_of_tree = if is_snapshot { key } else { Key { offset: 0, ..key } };
                if let Some(other) = other.filter(|other| other.key != key_of_tree) {
                    forest.remove(TreeId::ROOT, other.key)?;
                }
                if key != key_of_tree {
                    forest.remove(TreeId::ROOT, key)?;
                }
                forest.trees.insert(id, Root { key: key_of_tree, item, ptr, changed: true });
                forest.did(Pass::Roots, format!("makes the root item {key} the one of tree {shown}, as {key_of_tree}"));
            }
            (false, _) => {
                forest.remove(TreeId::ROOT, key)?;
                let what = format!("removes the root item {key}: another one leads to tree {shown}");
                forest.lose(Pass::Roots, what, format!("what an older or damaged version of tree {shown} has"));
            }
        }
    }
    Ok(())
}

/// Root items under a type that does not exist, which stop the kernel where it looks for the tree: they count where
/// there is no other one, and go.
pub(crate) fn strays(forest: &mut Forest) -> Result<()> {
    for key in std::mem::take(&mut forest.strays) {
        forest.remove(TreeId::ROOT, key)?;
        let right = Key { kind: KeyType::ROOT_ITEM, ..key };
        let is_used = forest.trees.get(&TreeId(key.objectid)).is_some_and(|root| root.key == right && root.changed);
        match is_used {
            true => forest.did(Pass::Roots, format!("gives the root item {key} its key {right}")),
            false => {
                let what = format!("removes the root item {key}, whose type does not exist");
                forest.lose(Pass::Roots, what, "a version of the tree that another root item leads to, or none");
            }
        }
    }
    Ok(())
}

/// The number of the root directory, which is the same in all subvolumes.
pub(crate) fn directories(forest: &mut Forest) {
    let is_odd = |root: &&mut Root| root.id().is_subvolume() && root.item.root_dirid.get() != Ino::ROOT_DIR.get();
    let mut odd = Vec::new();
    for root in forest.trees.values_mut().filter(is_odd) {
        (root.item.root_dirid, root.changed) = (Ino::ROOT_DIR.get().into(), true);
        odd.push(root.id());
    }
    for tree in odd {
        forest.did(Pass::Roots, format!("makes the root directory of tree {tree} the one with number 256"));
    }
}

/// Finds the roots of trees that have no root item: in the backup roots of the last commit, or makes the tree anew.
pub(crate) fn complete(forest: &mut Forest) -> Result<()> {
    for id in needed(forest) {
        if forest.trees.contains_key(&id) || find_in_backup(forest, id) {
            continue;
        }
        forest.start_anew(id)?;
        let what = format!("makes tree {} anew, of which no root is known", id.get() as i64);
        match id {
            TreeId::CSUM => forest.lose(Pass::Roots, what, "all checksums of data"),
            TreeId::FS => {
                crate::inodes::make_root_directory(forest, id)?;
                forest.lose(Pass::Roots, what, "the top-level subvolume with its files");
            }
            TreeId::DATA_RELOC => {
                crate::inodes::make_root_directory(forest, id)?;
                forest.did(Pass::Roots, what);
            }
            _ => forest.did(Pass::Roots, what),
        }
    }
    Ok(())
}

/// Makes the data relocation tree anew: beside its root directory it has only files by which a balance moves data.
pub(crate) fn renew_relocation(forest: &mut Forest) -> Result<()> {
    forest.start_anew(TreeId::DATA_RELOC)?;
    crate::inodes::make_root_directory(forest, TreeId::DATA_RELOC)?;
    forest.did(Pass::Roots, "makes the data relocation tree anew, with its root directory");
    Ok(())
}

/// Makes the root item of a tree that has none from the superblock's backup roots; says whether there is one now.
pub(crate) fn find_in_backup(forest: &mut Forest, id: TreeId) -> bool {
    if forest.trees.contains_key(&id) {
        return true;
    }
    let Some(ptr) = from_backup(forest, id) else { return false };
    let template = forest.trees.get(&TreeId::DEV).or_else(|| forest.trees.get(&TreeId::EXTENT));
    let mut item = template.map_or_else(empty_root_item, |root| root.item);
    if id == TreeId::FS {
        item.root_dirid = 256.into();
    }
    let key = Key::new(id.get(), KeyType::ROOT_ITEM, 0);
    forest.trees.insert(id, Root { key, item, ptr, changed: true });
    let shown = id.get() as i64;
    forest.did(Pass::Roots, format!("makes a root item of tree {shown}, whose root the superblock remembers"));
    true
}

/// Whether this is a tree of which each filesystem has at most one, and which has a root item.
pub(crate) fn is_global(id: TreeId) -> bool {
    const GLOBAL: [TreeId; 9] = [
        TreeId::EXTENT,
        TreeId::DEV,
        TreeId::FS,
        TreeId::CSUM,
        TreeId::QUOTA,
        TreeId::UUID,
        TreeId::FREE_SPACE,
        TreeId::BLOCK_GROUP,
        TreeId::DATA_RELOC,
    ];
    GLOBAL.contains(&id)
}

fn needed(forest: &Forest) -> Vec<TreeId> {
    let mut needed = vec![TreeId::EXTENT, TreeId::DEV, TreeId::FS, TreeId::CSUM, TreeId::DATA_RELOC];
    let flags = forest.sb.compat_ro_flags.get();
    for (bit, tree) in
        [(compat_ro::FREE_SPACE_TREE, TreeId::FREE_SPACE), (compat_ro::BLOCK_GROUP_TREE, TreeId::BLOCK_GROUP)]
    {
        needed.extend((flags & bit != 0).then_some(tree));
    }
    needed
}

/// The root that the superblock remembers of this very commit, if its block is good.
fn from_backup(forest: &Forest, id: TreeId) -> Option<NodePtr> {
    let slots = forest.sb.super_roots.iter();
    let slot = slots
        .into_iter()
        .find(|slot| slot.tree_root_gen == forest.sb.generation && slot.tree_root == forest.sb.root)?;
    let (at, generation, level) = remembered(slot, id)?;
    let ptr = root_ptr(id, at, generation, level);
    forest.store.read(&ptr).is_ok().then_some(ptr)
}

/// Address, generation and level of a tree's root in a slot.
pub(crate) fn remembered(slot: &RootBackup, id: TreeId) -> Option<(u64, u64, u8)> {
    match id {
        TreeId::ROOT => Some((slot.tree_root.get(), slot.tree_root_gen.get(), slot.tree_root_level)),
        TreeId::CHUNK => Some((slot.chunk_root.get(), slot.chunk_root_gen.get(), slot.chunk_root_level)),
        TreeId::EXTENT => Some((slot.extent_root.get(), slot.extent_root_gen.get(), slot.extent_root_level)),
        TreeId::DEV => Some((slot.dev_root.get(), slot.dev_root_gen.get(), slot.dev_root_level)),
        TreeId::FS => Some((slot.fs_root.get(), slot.fs_root_gen.get(), slot.fs_root_level)),
        TreeId::CSUM => Some((slot.csum_root.get(), slot.csum_root_gen.get(), slot.csum_root_level)),
        _ => None,
    }
}
