//! Keeping the UUID tree: making it where there is none, and repairing it where somebody left it behind.

use super::uuid_tree::{self, Stretch, repair};
use crate::commit::Engine;
use crate::error::Result;
use crate::transaction::{Core, Reserve, Tree};
use butterfs_ondisk::items::{InodeItem, RootItem};
use butterfs_ondisk::{Key, TreeId};
use std::sync::Arc;

/// Flaws that one transaction repairs.
const BATCH: usize = 256;

/// Makes the UUID tree complete and right, whatever it holds; from then on commits say that it is. Returns how many
/// entries were wrong. `go_on` is asked between batches.
pub fn repair_uuid_tree(engine: &Engine, go_on: &dyn Fn() -> bool) -> Result<usize> {
    if uuid_tree::tree(engine)?.is_none() {
        let handle = engine.start(Reserve::items(2))?;
        let generation = handle.generation().0;
        let item = RootItem {
            inode: InodeItem { generation: 1.into(), size: 3.into(), nlink: 1.into(), ..InodeItem::default() },
            generation: generation.into(),
            generation_v2: generation.into(),
            refs: 1.into(),
            ..RootItem::default()
        };
        engine.trees.remember(Arc::new(Tree::create(&handle, TreeId::UUID, item)?));
    }
    let mut repaired = 0;
    // A subvolume that is made or deleted meanwhile keeps its own entries; only a pass that found nothing to do says
    // that the tree is right.
    loop {
        let stale = repair_pass(engine, go_on, &uuid_tree::stale_entries)?;
        let missing = repair_pass(engine, go_on, &uuid_tree::missing_entries)?;
        match (stale, missing) {
            (Some(0), Some(0)) => break,
            (Some(stale), Some(missing)) => repaired += stale + missing,
            // Interrupted: the next mount does it.
            _ => return Ok(repaired),
        }
    }
    engine.set_uuid_tree_current();
    Ok(repaired)
}

/// Repairs the flaws that `find` reports, section by section; returns their number. `None` if asked to stop.
fn repair_pass(
    engine: &Engine,
    go_on: &dyn Fn() -> bool,
    find: &dyn Fn(&Core, Key, usize) -> Result<Stretch>,
) -> Result<Option<usize>> {
    let (mut repaired, mut from) = (0, Some(Key::MIN));
    while let Some(key) = from {
        if !go_on() {
            return Ok(None);
        }
        let (flaws, next) = find(engine, key, BATCH)?;
        from = next;
        if flaws.is_empty() {
            continue;
        }
        let handle = engine.start(Reserve::items(flaws.len() as u64))?;
        // An operation that gives a subvolume a UUID inserts the entry first and changes the root item later, under
        // this lock.
        let _table = engine.subvolume_table.lock();
        for flaw in flaws {
            repaired += usize::from(repair(&handle, flaw).inspect_err(|error| handle.failed(error))?);
        }
    }
    Ok(Some(repaired))
}
