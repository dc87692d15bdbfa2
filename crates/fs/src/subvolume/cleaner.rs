//! The cleaner: drops the trees of deleted subvolumes, a step at a time.

use super::delete::orphan_key;
use super::drop_tree::{self, Stop};
use crate::commit::Engine;
use crate::error::Result;
use crate::transaction::{Core, Fetched, Tree};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Generation, Key, KeyType, TreeId};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Deleted subvolumes that are not dropped yet, oldest first.
pub fn deleted(core: &Core) -> Result<Vec<TreeId>> {
    let mut found = Vec::new();
    let key = |offset| Key::new(objectid::ORPHAN, KeyType::ORPHAN_ITEM, offset);
    core.globals().root.scan(core, key(0), key(u64::MAX), &mut |key, _| {
        found.push(TreeId(key.offset));
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(found)
}

/// The deleted subvolume with the lowest number that is at least `from`.
pub fn first_deleted(core: &Core, from: TreeId) -> Result<Option<TreeId>> {
    let mut found = None;
    let key = |offset| Key::new(objectid::ORPHAN, KeyType::ORPHAN_ITEM, offset);
    core.globals().root.scan(core, key(from.0), key(u64::MAX), &mut |key, _| {
        found = Some(TreeId(key.offset));
        Ok(ControlFlow::Break(()))
    })?;
    Ok(found)
}

/// Whether nothing is written any more into the tree of the deleted subvolume `id`.
pub fn is_dropping(core: &Core, id: TreeId) -> Result<bool> {
    Ok(dead_tree(core, id)?.is_none_or(|tree| tree.is_dropping() || !tree.is_deleted()))
}

/// From now on nothing is written into the tree of the deleted subvolume `id`, of which blocks are about to be freed.
pub fn begin_dropping(core: &Core, id: TreeId) -> Result<()> {
    dead_tree(core, id).map(|tree| tree.iter().for_each(|tree| tree.begin_dropping()))
}

/// Does one step of dropping the deleted subvolume `id`. True when nothing is left of it.
pub fn clean_step(engine: &Engine, id: TreeId) -> Result<bool> {
    let mut fetched = Fetched::default();
    loop {
        match clean_in_memory(engine, id)? {
            Stop::Gone => return Ok(true),
            Stop::Budget => return Ok(false),
            Stop::Missing(ptr) => fetched.load(engine, &ptr)?,
        }
    }
}

fn clean_in_memory(engine: &Engine, id: TreeId) -> Result<Stop> {
    let handle = engine.start(drop_tree::reserve())?;
    let Some(tree) = dead_tree(engine, id)? else {
        engine.globals().root.remove(&handle, orphan_key(id))?;
        return Ok(Stop::Gone);
    };
    if tree.root_item().refs.get() > 0 {
        // Somebody else's orphan item: a version 1 cache inode has the same key form.
        return Ok(Stop::Gone);
    }
    let stop = drop_tree::step(&handle, &tree).inspect_err(|error| handle.failed(error))?;
    if matches!(stop, Stop::Gone) {
        // In this order: the item may be older than the deletion, and who opened the tree by it would find it alive.
        engine.globals().root.remove(&handle, tree.root_item_key())?;
        engine.globals().root.remove(&handle, orphan_key(id))?;
        engine.trees.forget(id);
    }
    Ok(stop)
}

/// Generation of the root node of a deleted subvolume; 0 when nothing is left of it.
pub fn deleted_generation(core: &Core, id: TreeId) -> Result<Generation> {
    Ok(core.stored_tree(&core.globals().root, id)?.map_or(Generation(0), |tree| tree.root().generation))
}

/// The tree of a deleted subvolume, kept open until it is gone.
fn dead_tree(core: &Core, id: TreeId) -> Result<Option<Arc<Tree>>> {
    if let Some(tree) = core.trees.get(id) {
        return Ok(Some(tree));
    }
    Ok(core.stored_tree(&core.globals().root, id)?.map(|tree| core.trees.enter(tree)))
}
