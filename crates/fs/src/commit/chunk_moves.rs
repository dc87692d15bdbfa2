//! Chunks that get other stripes: their items go with the transaction that freezes, and the old places are free when it
//! is durable.
//!
//! # Invariants
//! 1. Until the transaction is durable the old stripes get every write, and the chunk map and the device space hold
//!    them.
//! 2. The superblock of the transaction names the new stripes of system chunks, as its trees do.

use crate::error::Result;
use crate::extent;
use crate::transaction::{Core, Handle, MovedChunk};

/// Brings the moves that wait into the trees. True when there was one.
pub(super) fn book(handle: &Handle) -> Result<bool> {
    let moves = std::mem::take(&mut handle.transaction().books().moves);
    for moved in &moves {
        extent::move_chunk_items(handle, &moved.from, &moved.to)?;
    }
    let any = !moves.is_empty();
    handle.transaction().books().moved_chunks.extend(moves);
    Ok(any)
}

/// The transaction that says so is durable: requests go to the new stripes, and the old places are free.
pub(super) fn end_moves(core: &Core, moved: &[MovedChunk]) {
    if moved.is_empty() {
        return;
    }
    swap(core, moved);
    for MovedChunk { from, to } in moved {
        core.volume.end_move(to.start);
        core.space.set_flags(to.start, to.kind);
        core.devices.space.lock().remove_stripes(from, to);
    }
}

fn swap(core: &Core, moved: &[MovedChunk]) {
    // Chunks are added under this lock too.
    let _devices = core.devices.space.lock();
    let mut map = (*core.volume.chunk_map()).clone();
    for MovedChunk { to, .. } in moved {
        map.remove(to.start);
        map.insert(to.clone()).expect("it has the range of the one that was removed");
    }
    core.volume.set_chunk_map(map);
}
