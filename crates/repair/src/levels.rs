//! Levels and addresses of roots, in root items and in the superblock, that are damaged while everything else fits.
//!
//! Invariant: a block of a higher level than its name says is the root, because a tree has nothing above it. Of a lower
//! one the address may be wrong instead, and the block a part of the tree: it counts only if a backup root says the
//! same, or if no block of the tree is left over then.

use crate::action::{Action, Pass};
use crate::forest::{Forest, root_ptr};
use crate::headers;
use crate::orphans;
use crate::roots::remembered;
use crate::store::Store;
use butterfs_ondisk::{Level, Superblock, TreeId};
use butterfs_tree::NodePtr;

/// Gives the superblock the level that the root tree's or the chunk tree's root has.
pub(crate) fn of_superblock(store: &Store, sb: &mut Superblock, tree: TreeId) -> Option<Action> {
    let ptr = match tree {
        TreeId::CHUNK => root_ptr(tree, sb.chunk_root.get(), sb.chunk_root_generation.get(), sb.chunk_root_level),
        _ => root_ptr(tree, sb.root.get(), sb.generation.get(), sb.root_level),
    };
    let level = other_level(store, &ptr).filter(|level| *level > ptr.level || is_in_slot(sb, &ptr, *level))?;
    match tree {
        TreeId::CHUNK => sb.chunk_root_level = level.get(),
        _ => sb.root_level = level.get(),
    }
    let what = format!("gives the root of tree {tree} the level {level} in the superblock, which its block has");
    Some(Action { pass: Pass::Superblocks, what, lost: None })
}

/// Gives root items the levels that the roots have, or the addresses.
pub(crate) fn of_root_items(forest: &mut Forest) {
    let (mut found, mut doubtful) = (Vec::new(), false);
    for root in forest.trees.values() {
        let (id, ptr) = (root.id(), root.ptr);
        let Some(level) = other_level(&forest.store, &ptr) else { continue };
        let is_sure = level > ptr.level || is_in_slot(&forest.sb, &ptr, level);
        // The extent tree is no witness of itself; it follows from the others.
        if is_sure || id != TreeId::EXTENT {
            doubtful |= !is_sure;
            found.push((id, ptr, level, is_sure));
        }
    }
    for (id, ptr, level, _) in &found {
        forest.set_root(*id, NodePtr { level: *level, ..*ptr });
    }
    let has_lost = forest.trees.values().map(|root| &root.ptr).any(is_unreadable(forest));
    let orphans = if doubtful || has_lost { orphans::find(forest) } else { Vec::new() };
    for (id, ptr, level, is_sure) in found {
        let is_left_over = |orphan: &orphans::Orphan| orphan.is_of_tree() && orphan.source.from == id.get();
        if !is_sure && orphans.iter().any(is_left_over) {
            forest.set_root(id, ptr);
            continue;
        }
        let what = format!("gives the root item of tree {} the level {level}, which its block has", id.get() as i64);
        forest.did(Pass::Roots, what);
    }
    let lost: Vec<NodePtr> = forest.trees.values().map(|root| root.ptr).filter(is_unreadable(forest)).collect();
    for ptr in lost {
        let is_it = |orphan: &&orphans::Orphan| {
            let is_of_tree = orphan.is_of_tree() && orphan.source.from == ptr.tree.get();
            is_of_tree && (orphan.level, orphan.generation) == (ptr.level.get(), ptr.generation)
        };
        let mut fitting = orphans.iter().filter(is_it);
        if let (Some(right), None) = (fitting.next(), fitting.next()) {
            forest.set_root(ptr.tree, NodePtr { at: right.at, ..ptr });
            let tree = ptr.tree.get() as i64;
            let what =
                format!("gives the root item of tree {tree} the address {}, which the extent tree has", right.at);
            forest.did(Pass::Roots, what);
        }
    }
}

/// Whether a root cannot be read. The extent tree follows from the others.
fn is_unreadable(forest: &Forest) -> impl Fn(&NodePtr) -> bool + '_ {
    |ptr| ptr.tree != TreeId::EXTENT && forest.store.read(ptr).is_err()
}

/// The level of the block to which a pointer leads, if it differs and everything else fits, the children too: else the
/// block may be the one whose level is wrong.
fn other_level(store: &Store, ptr: &NodePtr) -> Option<Level> {
    let level = if store.read(ptr).is_ok() { None } else { store.other_level(ptr) }?;
    let found = NodePtr { level, ..*ptr };
    store.read(&found).is_ok_and(|node| headers::has_child(store, &found, &node)).then_some(level)
}

/// Whether a backup root names this root with this level.
fn is_in_slot(sb: &Superblock, ptr: &NodePtr, level: Level) -> bool {
    let root = (ptr.at.get(), ptr.generation.get(), level.get());
    sb.super_roots.iter().any(|slot| remembered(slot, ptr.tree) == Some(root))
}
