//! Chunks as other structures describe them: device extents, block groups, the devices, and the tree blocks on them.
//!
//! # Invariants
//! 1. A field differs from the chunk's item only where all witnesses that know it agree on another value.
//! 2. The order of stripes is never guessed: where it matters, at most one stripe is put right.
//!
//! # Not here
//! Proofs: whether what lies at a place fits its checksum is the caller's business.

use crate::layout::Layout;
use butterfs_ondisk::chunk::{Chunk, ChunkLimits, ChunkStripe, STRIPE_LEN};
use butterfs_ondisk::items::{BlockGroupItem, ChunkHead, DevExtent, Stripe, block_group_flags as bits};
use butterfs_ondisk::{DeviceId, Key, KeyType, Logical, Physical, Profile};
use std::collections::BTreeMap;
use zerocopy::FromBytes;

/// Profiles in which the order of the stripes matters.
const STRIPED: u64 = bits::RAID0 | bits::RAID10 | bits::RAID5 | bits::RAID6;
/// Tree blocks that are looked for in one chunk.
const MOST_CLAIMS: usize = 64;
/// Places of a stripe where tree blocks are looked for.
const MOST_PLACES: u64 = 4096;

/// A device extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The device.
    pub device: DeviceId,
    /// The first byte on it.
    pub physical: Physical,
    /// Bytes.
    pub length: u64,
}

/// Everything that is known about chunks beside the chunk tree.
#[derive(Clone, Debug, Default)]
pub struct Witnesses {
    extents: BTreeMap<u64, Vec<Place>>,
    groups: BTreeMap<u64, (u64, u64)>,
    devices: BTreeMap<DeviceId, [u8; 16]>,
}

/// The kind of a chunk may be wrong too, or is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The item's kind counts.
    Known,
    /// The block group's kind counts.
    Doubtful,
}

impl Witnesses {
    /// Takes in the UUID of a device.
    pub fn learn_device(&mut self, device: DeviceId, uuid: [u8; 16]) {
        self.devices.insert(device, uuid);
    }

    /// Takes in an item, if it is a device extent or a block group.
    pub fn learn_item(&mut self, key: Key, data: &[u8]) {
        if let Ok(extent) = DevExtent::read_from_bytes(data)
            && key.kind == KeyType::DEV_EXTENT
        {
            let (device, physical) = (DeviceId(key.objectid), Physical(key.offset));
            let place = Place { device, physical, length: extent.length.get() };
            let places = self.extents.entry(extent.chunk_offset.get()).or_default();
            if !places.contains(&place) {
                places.push(place);
            }
        }
        if let Ok((group, _)) = BlockGroupItem::read_from_prefix(data)
            && key.kind == KeyType::BLOCK_GROUP_ITEM
        {
            self.groups.insert(key.objectid, (key.offset, group.flags.get()));
        }
    }

    /// Device extents and block groups.
    pub fn statements(&self) -> usize {
        self.extents.values().map(Vec::len).sum::<usize>() + self.groups.len()
    }

    /// The chunks of which device extents are known, and their extents.
    pub fn extents(&self) -> impl Iterator<Item = (u64, &[Place])> {
        self.extents.iter().map(|(start, places)| (*start, places.as_slice()))
    }

    /// Length and flags of the block group that begins there.
    pub fn group(&self, start: u64) -> Option<(u64, u64)> {
        self.groups.get(&start).copied()
    }

    /// The block groups: start, length and flags.
    pub fn groups(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.groups.iter().map(|(start, (length, flags))| (*start, *length, *flags))
    }

    /// The chunk as its device extents, its block group and the devices describe it, the same where nothing is wrong;
    /// `None` where they do not agree, or do not say enough.
    pub fn corrected(&self, chunk: &Chunk, kind: Kind) -> Option<Chunk> {
        let start = self.start_of(chunk)?;
        let (places, group) = (self.extents.get(&start)?, self.group(start));
        let kind = if kind == Kind::Known { chunk.kind } else { group?.1 };
        let (profile, on_device) = (Profile::of(kind)?, places.first()?.length);
        let length = on_device.checked_mul(profile.data_stripes(places.len()) as u64)?;
        let is_agreed = match group {
            Some((said, _)) => said == length,
            None => chunk.length == length,
        };
        let is_alike = places.iter().all(|place| place.length == on_device);
        if !is_agreed || !is_alike || places.len() != chunk.stripes.len() {
            return None;
        }
        let stripes = self.stripes(chunk, places, kind & STRIPED != 0)?;
        let mut other = Chunk::new(Logical(start), length, kind, chunk.sector_size, stripes);
        // No rule says what these are.
        (other.owner, other.io_align, other.io_width) = (chunk.owner, chunk.io_align, chunk.io_width);
        if Profile::of(chunk.kind) == Some(profile) && profile.bit != bits::RAID10 {
            other.sub_stripes = chunk.sub_stripes;
        }
        Layout::of(&other).ok()?;
        Some(other)
    }

    /// The address of a chunk: its own if there are device extents or a block group for it, else the only one with both
    /// whose device extents lie where all of its stripes do.
    fn start_of(&self, chunk: &Chunk) -> Option<u64> {
        if self.extents.contains_key(&chunk.start.0) || self.groups.contains_key(&chunk.start.0) {
            return Some(chunk.start.0);
        }
        let is_place =
            |stripe: &ChunkStripe, place: &Place| (stripe.device, stripe.physical) == (place.device, place.physical);
        let fits = |places: &[Place]| {
            places.len() == chunk.stripes.len()
                && chunk.stripes.iter().all(|stripe| places.iter().any(|place| is_place(stripe, place)))
        };
        let is_it = |(start, places): &(&u64, &Vec<Place>)| self.groups.contains_key(start) && fits(places);
        let mut found = self.extents.iter().filter(is_it).map(|(start, _)| *start);
        let (Some(start), None) = (found.next(), found.next()) else { return None };
        Some(start)
    }

    /// The stripes of a chunk at the places of its device extents.
    fn stripes(&self, chunk: &Chunk, places: &[Place], is_ordered: bool) -> Option<Vec<ChunkStripe>> {
        let mut found: Vec<Option<Place>> = vec![None; chunk.stripes.len()];
        let mut left: Vec<Place> = places.to_vec();
        let rules: [fn(&ChunkStripe, &Place) -> bool; 3] = [
            |stripe, place| (stripe.device, stripe.physical) == (place.device, place.physical),
            |stripe, place| stripe.device == place.device,
            |stripe, place| stripe.physical == place.physical,
        ];
        for (strictness, rule) in rules.into_iter().enumerate() {
            for (stripe, found) in chunk.stripes.iter().zip(&mut found).filter(|(_, found)| found.is_none()) {
                let fitting: Vec<usize> = (0..left.len()).filter(|place| rule(stripe, &left[*place])).collect();
                if strictness == 0 || fitting.len() == 1 {
                    *found = fitting.first().map(|place| left.remove(*place));
                }
            }
        }
        let changed = chunk.stripes.iter().zip(&found);
        let changed = changed.filter(|(stripe, place)| {
            place.is_none_or(|place| (stripe.device, stripe.physical) != (place.device, place.physical))
        });
        if is_ordered && changed.count() > 1 {
            return None;
        }
        let mut left = left.into_iter();
        let placed = |place: Option<Place>| {
            let Place { device, physical, .. } = place.or_else(|| left.next())?;
            Some(ChunkStripe { device, physical, dev_uuid: *self.devices.get(&device)? })
        };
        found.into_iter().map(placed).collect()
    }
}

/// A chunk from an item that breaks rules: fields that can have only one value get it, and of several types or
/// profiles one stays. Only good for reading, until witnesses have confirmed it.
pub fn lenient_chunk(start: Logical, payload: &[u8], limits: &ChunkLimits) -> Option<Chunk> {
    let (head, rest) = ChunkHead::read_from_prefix(payload).ok()?;
    let stripes: Vec<ChunkStripe> = rest
        .chunks_exact(Stripe::LEN)
        .map(|bytes| Stripe::ref_from_bytes(bytes).map(ChunkStripe::from))
        .collect::<Result<_, _>>()
        .ok()?;
    let head_kind = head.kind.get();
    let types = [bits::METADATA, bits::DATA, bits::SYSTEM].into_iter().filter(|kind| head_kind & kind != 0);
    let kinds = types.chain([bits::METADATA]);
    // Profiles in which stripes are alike come first: a chunk of several stripes that lost its bit is one of those.
    let alike = [bits::DUP, bits::RAID1, bits::RAID1C3, bits::RAID1C4];
    let striped = [bits::RAID0, bits::RAID10, bits::RAID5, bits::RAID6];
    let all = || alike.into_iter().chain(striped);
    let named = all().filter(|profile| head_kind & profile != 0);
    let profiles: Vec<u64> = named.chain([0]).chain(all()).collect();
    let chunk = |kind: u64| {
        let chunk = Chunk::new(start, head.length.get(), kind, limits.sectorsize, stripes.clone());
        Chunk::parse(start, &chunk.encode(), limits).ok()
    };
    let both = head_kind & (bits::DATA | bits::METADATA) | head_kind & bits::PROFILE_MASK;
    let combined = kinds.flat_map(|kind| profiles.iter().map(move |profile| kind | profile));
    [both].into_iter().chain(combined).find_map(chunk)
}

/// The address at which a chunk begins, as most of the tree blocks say that lie on its stripes. `read` reads a block of
/// `step` bytes and returns the address that it has, if it is one of the filesystem.
pub fn claimed_start(
    chunk: &Chunk,
    step: u64,
    read: &mut dyn FnMut(DeviceId, Physical) -> Option<Logical>,
) -> Option<Logical> {
    let layout = Layout::of(chunk).ok()?;
    let mut claims: BTreeMap<u64, usize> = BTreeMap::new();
    let mut found = 0;
    let places = (0..chunk.stripe_length()).step_by(usize::try_from(step).ok()?).take(MOST_PLACES as usize);
    for (depth, index) in places.flat_map(|depth| (0..chunk.stripes.len()).map(move |index| (depth, index))) {
        let stripe = &chunk.stripes[index];
        let (Some(offset), Some(at)) = (layout.offset_on(index, depth), stripe.physical.0.checked_add(depth)) else {
            continue;
        };
        let Some(start) = read(stripe.device, Physical(at)).and_then(|at| at.0.checked_sub(offset)) else { continue };
        *claims.entry(start).or_default() += 1;
        found += 1;
        if found == MOST_CLAIMS {
            break;
        }
    }
    let (start, votes) = claims.into_iter().max_by_key(|(_, votes)| *votes)?;
    (votes * 2 > found && start.is_multiple_of(STRIPE_LEN)).then_some(Logical(start))
}

#[cfg(test)]
mod tests;
