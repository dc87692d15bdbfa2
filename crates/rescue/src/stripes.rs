//! Chunks of which the item and other structures contradict each other: what lies there decides.
//!
//! Invariant: device extents and block groups are believed about places only where something fits its checksum there,
//! and nothing does at the place of the item; about the length only together.

use crate::roots::Roots;
use crate::tree::Tree;
use crate::trust::Trust;
use crate::wreck::Wreck;
use butterfs_ondisk::chunk::{Chunk, ChunkStripe};
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{DeviceId, Key, KeyType, Logical, Physical, TreeId};
use butterfs_volume::{Kind, Layout, Place, StripeAddress, Witnesses};
use std::ops::ControlFlow;

/// Sectors or blocks that are looked at for one chunk.
const MOST_LOOKED_AT: usize = 65_536;
/// Sectors or blocks that fit at one place only, after which it is decided.
const ENOUGH: usize = 64;

/// A chunk that is not as its item has it.
pub(crate) struct Moved {
    /// The address that the item has.
    pub from: Logical,
    pub chunk: Chunk,
    /// For the user.
    pub sentence: String,
}

/// The chunks of which the device tree and the block groups know better where or how long they are.
pub(crate) fn moved(wreck: &Wreck, roots: &Roots) -> Vec<Moved> {
    let tree = |id: TreeId| roots.trees.get(&id).map(|root| Tree::new(wreck, root.root));
    let Some(devices) = tree(TreeId::DEV) else { return Vec::new() };
    let mut witnesses = Witnesses::default();
    for item in wreck.found_device_items().iter().chain(wreck.device_items().iter().flatten()) {
        witnesses.learn_device(DeviceId(item.devid.get()), item.uuid);
    }
    devices.scan(Key::MIN, Key::MAX, &mut |key, data, quality| {
        if key.kind == KeyType::DEV_EXTENT && quality.trust() == Trust::Proved {
            witnesses.learn_item(key, data);
        }
        ControlFlow::Continue(())
    });
    let map = &wreck.chunks().map;
    let is_told = |start: u64, places: &[Place]| {
        map.get(Logical(start)).is_some_and(|chunk| chunk.start.0 == start && is_at(chunk, places))
    };
    let odd: Vec<u64> =
        witnesses.extents().filter(|(start, places)| !is_told(*start, places)).map(|(start, _)| start).collect();
    for groups in [TreeId::BLOCK_GROUP, TreeId::EXTENT].into_iter().filter_map(tree).filter(|_| !odd.is_empty()) {
        for start in &odd {
            let key = |offset| Key::new(*start, KeyType::BLOCK_GROUP_ITEM, offset);
            groups.scan(key(0), key(u64::MAX), &mut |key, data, quality| {
                if quality.trust() == Trust::Proved {
                    witnesses.learn_item(key, data);
                }
                ControlFlow::Continue(())
            });
        }
    }
    let of_chunk = |chunk: &Chunk| {
        let other = witnesses.corrected(chunk, Kind::Known)?;
        let is_in_place = other.start == chunk.start && places(&other).eq(places(chunk));
        if is_in_place && other.length == chunk.length || !is_in_place && !is_proved(wreck, chunk, &other) {
            return None;
        }
        Some(Moved { from: chunk.start, sentence: sentence(chunk, &other), chunk: other })
    };
    let chunks = map.iter().filter(|chunk| chunk.kind & bits::SYSTEM == 0 && !odd.is_empty());
    chunks.filter_map(of_chunk).collect()
}

fn places(chunk: &Chunk) -> impl Iterator<Item = (u64, u64)> {
    chunk.stripes.iter().map(|stripe| (stripe.device.0, stripe.physical.0))
}

/// Whether these are the device extents of a chunk.
fn is_at(chunk: &Chunk, extents: &[Place]) -> bool {
    let length = chunk.stripe_length();
    let mut own: Vec<(u64, u64)> = places(chunk).collect();
    let mut told: Vec<(u64, u64)> = extents.iter().map(|place| (place.device.0, place.physical.0)).collect();
    own.sort_unstable();
    told.sort_unstable();
    own == told && extents.iter().all(|place| place.length == length)
}

fn sentence(chunk: &Chunk, other: &Chunk) -> String {
    let differs =
        |(own, other): &(&ChunkStripe, &ChunkStripe)| (own.device, own.physical) != (other.device, other.physical);
    let pairs = chunk.stripes.iter().zip(&other.stripes).filter(differs);
    let mut wrong: Vec<String> = pairs
        .map(|(own, other)| match own.device == other.device {
            true => format!(
                "its data fits its checksums at {} of device {}, and not at {}",
                other.physical.0, other.device.0, own.physical.0
            ),
            false => format!(
                "its data fits its checksums at {} of device {}, and not of device {}",
                other.physical.0, other.device.0, own.device.0
            ),
        })
        .collect();
    if other.start != chunk.start {
        wrong.push(format!("its data fits its checksums if it begins at {}", other.start.0));
    }
    if other.length != chunk.length {
        wrong.push(format!("its length is {}, and not {}", other.length, chunk.length));
    }
    format!(
        "chunk {}: {}, as the device tree says; 'butterfs rescue chunk-recover' repairs the chunk's item",
        chunk.start.0,
        wrong.join("; ")
    )
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
    let (first, last) = (key(other.start.0.saturating_sub(reach)), key(other.end().0 - 1));
    Tree::new(wreck, checksums).scan(first, last, &mut |key, data, _| {
        for (index, sum) in data.chunks_exact(width).enumerate() {
            let at = Logical(key.offset.saturating_add(index as u64 * sector));
            if other.start <= at && at < other.end() {
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
    for at in (other.start.0..other.end().0).step_by(step) {
        if votes.is_done() {
            return;
        }
        let at = Logical(at);
        vote(wreck, (chunk, other), (at, step), &|bytes| wreck.is_block_of(at, bytes), votes);
    }
}

/// Counts whether the bytes at an address fit at one of two places only, for each copy that has two.
fn vote(
    wreck: &Wreck,
    (chunk, other): (&Chunk, &Chunk),
    (at, len): (Logical, usize),
    fits: &dyn Fn(&[u8]) -> bool,
    votes: &mut Votes,
) {
    votes.looked_at += 1;
    let (own, other) = (copies(chunk, at, len), copies(other, at, len));
    let mut bytes = vec![0; len];
    let mut is_at = |(device, physical): (DeviceId, Physical)| {
        wreck.volume().read_device(device, physical, &mut bytes).is_ok() && fits(&bytes)
    };
    for index in 0..own.len().max(other.len()) {
        let (own, other) = (own.get(index).copied(), other.get(index).copied());
        if own == other {
            continue;
        }
        match (own.is_some_and(&mut is_at), other.is_some_and(&mut is_at)) {
            (true, false) => votes.own += 1,
            (false, true) => votes.other += 1,
            _ => {}
        }
    }
}

/// The places of the copies of a range that lies in one element.
fn copies(chunk: &Chunk, at: Logical, len: usize) -> Vec<(DeviceId, Physical)> {
    let Ok(layout) = Layout::of(chunk) else { return Vec::new() };
    if at < chunk.start || chunk.end().0 < at.0.saturating_add(len as u64) {
        return Vec::new();
    }
    let Some(piece) = layout.pieces(at, len).next().filter(|piece| piece.range.len() == len) else { return Vec::new() };
    let address = |mirror| {
        let StripeAddress { stripe, physical } = layout.stripe_address(&piece, mirror);
        (chunk.stripes[stripe].device, physical)
    };
    (0..layout.mirrors()).map(address).collect()
}
