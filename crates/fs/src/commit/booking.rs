//! The first half of a freeze: everything that waits is booked, until nothing is left. No handle is open but the
//! commit's.

use super::{Engine, chunk_moves, device_changes};
use crate::error::Result;
use crate::extent;
use crate::transaction::Handle;
use butterfs_ondisk::{Logical, TreeId};
use zerocopy::IntoBytes;

/// Books everything. False when the transaction has changed nothing.
pub(super) fn book_all(engine: &Engine, handle: &Handle) -> Result<bool> {
    let generation = handle.generation();
    engine.trees.close_unused(generation);
    engine.dirty_inodes.record_all(handle)?;
    let (deletes_groups, must_happen) = {
        let mut books = handle.transaction().books();
        (std::mem::take(&mut books.deletes_groups), books.must_happen || books.label.is_some())
    };
    if deletes_groups || has_changes(handle) {
        engine.delete_unused_groups(handle)?;
    }
    if !must_happen && !has_changes(handle) {
        return Ok(false);
    }
    while book(handle)? {}
    let root = &engine.globals().root;
    if root.root().generation != generation {
        root.touch_root(handle)?;
        while book(handle)? {}
    }
    Ok(true)
}

fn has_changes(handle: &Handle) -> bool {
    let (core, transaction) = (handle.core(), handle.transaction());
    core.nodes.dirty_count() > 0
        || !transaction.refs.is_empty()
        || transaction.books().has_chunk_work()
        || core.trees.has_unrecorded(transaction)
        || extent::stale_devices_changed(core)
}

/// One round: chunks, references, block groups, root items. True when there was anything.
fn book(handle: &Handle) -> Result<bool> {
    handle.core().env().passes("a round of booking begins");
    let mut any = !book_chunks(handle)?.is_empty();
    any |= device_changes::book(handle)?;
    any |= chunk_moves::book(handle)?;
    any |= extent::write_device_stats(handle)?;
    any |= extent::write_stale_devices(handle)?;
    any |= extent::run_refs(handle)?;
    // References may have needed one more chunk, whose block group has no item yet.
    any |= !book_chunks(handle)?.is_empty();
    any |= extent::write_block_groups(handle)?;
    any |= write_root_items(handle)?;
    Ok(any)
}

/// Inserts the items of new chunks, also of those that this takes; says where they begin.
pub(super) fn book_chunks(handle: &Handle) -> Result<Vec<Logical>> {
    let mut booked = Vec::new();
    loop {
        let chunks = std::mem::take(&mut handle.transaction().books().new_chunks);
        if chunks.is_empty() {
            return Ok(booked);
        }
        for chunk in &chunks {
            extent::insert_chunk_items(handle, chunk)?;
            booked.push(chunk.start);
        }
    }
}

fn write_root_items(handle: &Handle) -> Result<bool> {
    let (core, mut any) = (handle.core(), false);
    let (generation, now) = (handle.generation(), core.env().now());
    for tree in core.trees.take_unrecorded(handle.transaction()) {
        if matches!(tree.id(), TreeId::ROOT | TreeId::CHUNK) {
            continue;
        }
        let Some(item) = tree.take_unrecorded(core.nodesize(), generation, now) else { continue };
        any = true;
        core.globals().root.put(handle, tree.root_item_key(), item.as_bytes())?;
    }
    Ok(any)
}
