//! The places of stripes, where the item of a chunk and the device tree contradict each other: what lies there decides.
//!
//! Invariant: the device tree is believed only where something fits its checksum at the place that it names, and
//! nothing does at the one of the item.

use crate::roots::Roots;
use crate::tree::Tree;
use crate::trust::Trust;
use crate::wreck::Wreck;
use butterfs_ondisk::chunk::{Chunk, ChunkStripe};
use butterfs_ondisk::items::{DevExtent, block_group_flags as bits};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Key, KeyType, Logical, Physical};
use butterfs_volume::Layout;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use zerocopy::FromBytes;

/// Sectors or blocks that are looked at for one chunk.
const MOST_LOOKED_AT: usize = 65_536;
/// Sectors or blocks that fit at one place only, after which it is decided.
const ENOUGH: usize = 64;

/// Device, address and length of a device extent.
type Place = (u64, u64, u64);

/// The chunks of which the device tree knows better where a stripe is, each with a sentence for the user.
pub(crate) fn moved(wreck: &Wreck, devices: Tree<'_>) -> Vec<(Chunk, String)> {
    let mut extents: BTreeMap<u64, Vec<Place>> = BTreeMap::new();
    devices.scan(Key::MIN, Key::MAX, &mut |key, data, quality| {
        let is_extent = key.kind == KeyType::DEV_EXTENT && quality.trust() == Trust::Proved;
        if let Some((extent, _)) = DevExtent::read_from_prefix(data).ok().filter(|_| is_extent) {
            let places = extents.entry(extent.chunk_offset.get()).or_default();
            places.push((key.objectid, key.offset, extent.length.get()));
        }
        ControlFlow::Continue(())
    });
    let of_chunk = |chunk: &Chunk| {
        let other = by_extents(chunk, extents.get(&chunk.start.0)?)?;
        is_proved(wreck, chunk, &other).then(|| (other.clone(), sentence(chunk, &other)))
    };
    let chunks = wreck.chunks().map.iter().filter(|chunk| chunk.kind & bits::SYSTEM == 0);
    chunks.filter_map(of_chunk).collect()
}

fn sentence(chunk: &Chunk, other: &Chunk) -> String {
    let pairs = chunk.stripes.iter().zip(&other.stripes).filter(|(own, other)| own.physical != other.physical);
    let places = pairs.map(|(own, other)| {
        format!("{} of device {}, and not at {}", other.physical.0, other.device.0, own.physical.0)
    });
    let places: Vec<String> = places.collect();
    format!(
        "chunk {}: its data fits its checksums at {}, as the device tree says; 'butterfs rescue chunk-recover' repairs \
         the chunk's item",
        chunk.start.0,
        places.join("; ")
    )
}

/// The chunk with the stripes that no device extent confirms at the only places on their devices that are left; `None`
/// where all are confirmed, or nothing says which place is meant.
fn by_extents(chunk: &Chunk, places: &[Place]) -> Option<Chunk> {
    let len = chunk.stripe_length();
    let is_at = |stripe: &ChunkStripe, place: &Place| *place == (stripe.device.0, stripe.physical.0, len);
    let is_confirmed = |stripe: &ChunkStripe| places.iter().any(|place| is_at(stripe, place));
    let is_taken = |place: &Place| chunk.stripes.iter().any(|stripe| is_at(stripe, place));
    let mut other = chunk.clone();
    for stripe in other.stripes.iter_mut().filter(|stripe| !is_confirmed(stripe)) {
        let is_left = |place: &&Place| (place.0, place.2) == (stripe.device.0, len) && !is_taken(place);
        let mut left = places.iter().filter(is_left);
        let (Some(place), None) = (left.next(), left.next()) else { return None };
        stripe.physical = Physical(place.1);
    }
    (other.stripes != chunk.stripes).then_some(other)
}

/// How often something fits its checksum at one of two places only.
#[derive(Default)]
struct Votes {
    own: usize,
    other: usize,
    looked_at: usize,
}

impl Votes {
    fn is_done(&self) -> bool {
        self.own + self.other >= ENOUGH || self.looked_at >= MOST_LOOKED_AT
    }
}

fn is_proved(wreck: &Wreck, chunk: &Chunk, other: &Chunk) -> bool {
    let mut votes = Votes::default();
    if chunk.kind & bits::DATA != 0 {
        vote_by_sectors(wreck, chunk, other, &mut votes)
    } else {
        vote_by_blocks(wreck, chunk, other, &mut votes);
    }
    votes.own == 0 && votes.other > 0
}

fn vote_by_sectors(wreck: &Wreck, chunk: &Chunk, other: &Chunk, votes: &mut Votes) {
    let Some(checksums) = Roots::assemble(wreck).checksums() else { return };
    let (sector, width) = (wreck.sectorsize(), wreck.checksum().len());
    let reach = wreck.nodesize() as u64 / width as u64 * sector;
    let key = |at| Key::new(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM, at);
    let (first, last) = (key(chunk.start.0.saturating_sub(reach)), key(chunk.end().0 - 1));
    Tree::new(wreck, checksums).scan(first, last, &mut |key, data, _| {
        for (index, sum) in data.chunks_exact(width).enumerate() {
            let at = Logical(key.offset.saturating_add(index as u64 * sector));
            if chunk.start <= at && at < chunk.end() {
                vote(
                    wreck,
                    (chunk, other),
                    (at, sector as usize),
                    &|bytes| wreck.checksum().matches(bytes, sum),
                    votes,
                );
            }
            if votes.is_done() {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    });
}

fn vote_by_blocks(wreck: &Wreck, chunk: &Chunk, other: &Chunk, votes: &mut Votes) {
    let step = wreck.nodesize();
    for at in (chunk.start.0..chunk.end().0).step_by(step) {
        if votes.is_done() {
            return;
        }
        let at = Logical(at);
        vote(wreck, (chunk, other), (at, step), &|bytes| wreck.is_block_of(at, bytes), votes);
    }
}

/// Counts whether the bytes at an address fit at one of two places only, in each stripe that has two.
fn vote(
    wreck: &Wreck,
    (chunk, other): (&Chunk, &Chunk),
    (at, len): (Logical, usize),
    fits: &dyn Fn(&[u8]) -> bool,
    votes: &mut Votes,
) {
    let Ok(layout) = Layout::of(chunk) else { return };
    let Some(piece) = layout.pieces(at, len).next().filter(|piece| piece.range.len() == len) else { return };
    votes.looked_at += 1;
    let mut bytes = vec![0; len];
    let mut is_at = |stripe: &ChunkStripe| {
        let physical = Physical(stripe.physical.0.saturating_add(piece.depth));
        wreck.volume().read_device(stripe.device, physical, &mut bytes).is_ok() && fits(&bytes)
    };
    for mirror in 0..layout.mirrors() {
        let stripe = layout.stripe_address(&piece, mirror).stripe;
        let (own, other) = (&chunk.stripes[stripe], &other.stripes[stripe]);
        if own.physical == other.physical {
            continue;
        }
        match (is_at(own), is_at(other)) {
            (true, false) => votes.own += 1,
            (false, true) => votes.other += 1,
            _ => {}
        }
    }
}
