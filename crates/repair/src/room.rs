//! Room for tree blocks: where the chunks of trees are nearly full, more are made, like the last one of them, in
//! space that no chunk uses.
//!
//! Invariant: a new chunk lies behind all others in the logical space, and on each device behind the first MiB and
//! beside all stripes.

use crate::action::Pass;
use crate::chunks::ChunkEdits;
use crate::forest::Forest;
use crate::ranges::Ranges;
use butterfs_ondisk::chunk::{Chunk, STRIPE_LEN};
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_ondisk::{DeviceId, Logical, Physical};
use butterfs_volume::ChunkMap;
use std::ops::Range;

/// Free space that a small repair takes at most.
const LEAST_FREE: u64 = 4 << 20;
/// Free space should be so large a part of what is used: one of so many.
const PART: u64 = 4;
/// A stripe of a new chunk.
const STRIPES: [u64; 3] = [256 << 20, 64 << 20, 8 << 20];
/// Stripes begin at multiples of this.
const ALIGNED: u64 = 1 << 20;

/// How many times the usual room is made: repairs of leaves that many snapshots share take more.
pub(crate) const FACTORS: [u64; 3] = [1, 8, 64];

/// Makes chunks as far as they are needed and possible.
pub(crate) fn make(forest: &mut Forest, edits: &mut ChunkEdits, factor: u64) {
    loop {
        let map = forest.store.volume.chunk_map();
        let (mut size, mut used) = (0, 0);
        for chunk in map.iter().filter(|chunk| chunk.kind & bits::METADATA != 0) {
            size += chunk.length;
            used += forest.store.space.borrow().busy.bytes_within(chunk.start.get()..chunk.end().get());
        }
        let wanted = (LEAST_FREE + used / PART).saturating_mul(factor);
        let free = size.saturating_sub(used);
        if free >= wanted {
            return;
        }
        let Some(chunk) = another(forest, &map, wanted - free) else { return };
        let mut larger: ChunkMap = (*map).clone();
        if larger.insert(chunk.clone()).is_err() || forest.store.volume.check_chunk_map(&larger).is_err() {
            return;
        }
        let what = format!("makes a chunk of {} bytes for trees, whose chunks are nearly full", chunk.length);
        forest.did(Pass::Chunks, what);
        edits.insert(chunk.key(), Some(chunk.encode()));
        forest.store.volume.set_chunk_map(larger);
    }
}

/// A chunk like the last one of trees, as large as is wanted if the devices have the room.
fn another(forest: &Forest, map: &ChunkMap, wanted: u64) -> Option<Chunk> {
    let like = map.iter().filter(|chunk| chunk.kind & bits::METADATA != 0).max_by_key(|chunk| chunk.start)?;
    let columns = like.profile().data_stripes(like.stripes.len()).max(1) as u64;
    let start = map.iter().map(|chunk| chunk.end().get()).max()?.checked_next_multiple_of(STRIPE_LEN)?;
    let fitting = STRIPES.iter().rev().filter(|stripe| **stripe * columns >= wanted);
    let order: Vec<u64> = fitting.chain(&STRIPES).copied().collect();
    order.into_iter().find_map(|stripe_len| {
        let mut chunk = Chunk { start: Logical(start), length: stripe_len * columns, ..like.clone() };
        let mut taken: Vec<(DeviceId, Range<u64>)> = Vec::new();
        for stripe in &mut chunk.stripes {
            let at = hole(forest, map, stripe.device, stripe_len, &taken)?;
            taken.push((stripe.device, at..at + stripe_len));
            stripe.physical = Physical(at);
        }
        Some(chunk)
    })
}

/// The first place of so many bytes on a device that nothing has.
fn hole(forest: &Forest, map: &ChunkMap, device: DeviceId, len: u64, taken: &[(DeviceId, Range<u64>)]) -> Option<u64> {
    let total = forest.store.volume.device_item(device)?.total_bytes.get();
    let mut used = Ranges::default();
    used.insert(0..ALIGNED);
    for chunk in map.iter() {
        for stripe in chunk.stripes.iter().filter(|stripe| stripe.device == device) {
            used.insert(stripe.physical.get()..stripe.physical.get().saturating_add(chunk.stripe_length()));
        }
    }
    taken.iter().filter(|(other, _)| *other == device).for_each(|(_, range)| used.insert(range.clone()));
    let fits = |gap: &Range<u64>| gap.start.next_multiple_of(ALIGNED).saturating_add(len) <= gap.end;
    used.gaps(0..total).into_iter().find(fits).map(|gap| gap.start.next_multiple_of(ALIGNED))
}
