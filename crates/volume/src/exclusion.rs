//! The parts of a chunk that must never be allocated because a superblock copy lies on them.
//!
//! The free space tree lists them as free, and nothing accounts for them; the allocator has to know.

use crate::chunk_map::ChunkMap;
use butterfs_ondisk::Logical;
use butterfs_ondisk::chunk::{Chunk, STRIPE_LEN};
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_ondisk::superblock::OFFSETS;
use std::ops::Range;

impl ChunkMap {
    /// The ranges of `chunk` that no extent may lie in, ascending and disjoint: the rows or elements under the three
    /// places of superblock copies on any device, also where the device is too small to have the copy, and whatever
    /// lies below logical 64 KiB.
    pub fn superblock_exclusions(&self, chunk: &Chunk) -> Vec<Range<Logical>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        if chunk.start.0 < STRIPE_LEN {
            ranges.push(0..STRIPE_LEN - chunk.start.0);
        }
        for (stripe, first) in chunk.stripes.iter().map(|stripe| stripe.physical.0).enumerate() {
            let behind = OFFSETS.iter().filter_map(|at| at.0.checked_sub(first));
            ranges.extend(behind.filter(|&depth| depth < chunk.stripe_length()).map(|depth| row(chunk, stripe, depth)));
        }
        let clipped = ranges.into_iter().map(|range| range.start..range.end.min(chunk.length));
        merged(clipped.filter(|range| range.start < range.end).collect(), chunk.start)
    }
}

/// The logical bytes, from the chunk's start, that share a row with `depth` of this stripe.
fn row(chunk: &Chunk, stripe: usize, depth: u64) -> Range<u64> {
    let (element, inside) = (depth / STRIPE_LEN, depth % STRIPE_LEN);
    let (stripe, stripes) = (stripe as u64, chunk.stripes.len() as u64);
    let data = chunk.profile().data_stripes(chunk.stripes.len()) as u64;
    let (start, len) = match chunk.kind & bits::PROFILE_MASK {
        bits::RAID0 => ((element * stripes + stripe) * STRIPE_LEN + inside, STRIPE_LEN),
        bits::RAID10 => ((element * stripes + stripe) / 2 * STRIPE_LEN + inside, STRIPE_LEN),
        bits::RAID5 | bits::RAID6 => (element * STRIPE_LEN * data, STRIPE_LEN * data),
        _ => (depth, STRIPE_LEN),
    };
    start..start + len
}

/// Sorts, joins what overlaps or touches, and makes addresses of it.
fn merged(mut ranges: Vec<Range<u64>>, start: Logical) -> Vec<Range<Logical>> {
    ranges.sort_by_key(|range| range.start);
    let mut out: Vec<Range<Logical>> = Vec::new();
    for range in ranges {
        let (from, to) = (start.plus(range.start), start.plus(range.end));
        match out.last_mut() {
            Some(last) if from <= last.end => last.end = last.end.max(to),
            _ => out.push(from..to),
        }
    }
    out
}

#[cfg(test)]
mod tests;
