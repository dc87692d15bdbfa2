//! Where the logical space lies, from everything that still says so.
//!
//! ```text
//! superblock's array ─► chunk tree (also older roots) ─► chunk items of any leaf that a scan found
//!                    ─► device extents with block groups, where there is no chunk item
//! ```
//!
//! Invariants: (1) of chunks that overlap the one of the newest leaf counts; (2) the order of stripes is never guessed:
//! tree blocks that lie on them prove it, or checksums of data (`order`), or the chunk is not recovered.

use crate::index::{Found, Index};
use butterfs_ondisk::chunk::{Chunk, ChunkLimits, ChunkStripe, STRIPE_LEN, SysChunkEntries};
use butterfs_ondisk::items::{BlockGroupItem, DevExtent, DevItem, block_group_flags as bits};
use butterfs_ondisk::superblock::{SYS_CHUNK_ARRAY_LEN, Superblock};
use butterfs_ondisk::{DeviceId, Key, KeyType, Logical, Physical, Profile};
use butterfs_tree::Node;
use butterfs_volume::{ChunkMap, Layout};
use std::collections::BTreeMap;
use zerocopy::FromBytes;

/// Where a chunk is known from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Origin {
    /// Device extents and a block group.
    DeviceExtents,
    /// A leaf that no known root leads to.
    FoundLeaf,
    /// The chunk tree that the superblock names.
    ChunkTree,
    /// The superblock itself.
    Superblock,
}

/// A chunk that somebody says exists.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The parsed item.
    pub chunk: Chunk,
    /// Of which generation that is.
    pub generation: u64,
    /// The source of the statement.
    pub origin: Origin,
}

/// Everything known about chunks and devices.
#[derive(Debug, Default)]
pub struct Knowledge {
    candidates: Vec<Candidate>,
    devices: BTreeMap<u64, (u64, DevItem)>,
    extents: BTreeMap<(u64, u64), (u64, DevExtent)>,
    groups: BTreeMap<u64, (u64, u64, u64)>,
}

/// The chunks that were chosen.
#[derive(Debug, Default)]
pub struct Chosen {
    /// As a map.
    pub map: ChunkMap,
    /// Where each is known from, by address.
    pub origins: Vec<(u64, Origin)>,
    /// Chunks that must have existed and cannot be read: a sentence each.
    pub lost: Vec<String>,
}

/// The system chunks in a superblock, as far as they obey the rules.
pub fn system_chunks(sb: &Superblock) -> Vec<Chunk> {
    let used = (sb.sys_chunk_array_size.get() as usize).min(SYS_CHUNK_ARRAY_LEN);
    let limits = ChunkLimits::from(sb);
    let entries = SysChunkEntries::new(&sb.sys_chunk_array[..used]).map_while(std::result::Result::ok);
    let entries = entries.filter(|(key, _)| key.kind == KeyType::CHUNK_ITEM);
    entries.filter_map(|(key, payload)| Chunk::parse(Logical(key.offset), payload, &limits).ok()).collect()
}

impl Knowledge {
    /// Takes in the system chunks of a superblock.
    pub fn learn_superblock(&mut self, sb: &Superblock) {
        let generation = sb.chunk_root_generation.get();
        let of = |chunk| Candidate { chunk, generation, origin: Origin::Superblock };
        self.candidates.extend(system_chunks(sb).into_iter().map(of));
    }

    /// Takes in what a leaf of any tree says about chunks, devices, device extents and block groups.
    pub fn learn_leaf(&mut self, leaf: &Node, limits: &ChunkLimits, origin: Origin) {
        let generation = leaf.generation().0;
        for (key, data) in leaf.items() {
            self.learn_item(key, data, generation, limits, origin);
        }
    }

    pub(crate) fn learn_item(&mut self, key: Key, data: &[u8], generation: u64, limits: &ChunkLimits, origin: Origin) {
        match key.kind {
            KeyType::CHUNK_ITEM => {
                let parsed = Chunk::parse(Logical(key.offset), data, limits).ok();
                self.candidates.extend(parsed.map(|chunk| Candidate { chunk, generation, origin }));
            }
            KeyType::DEV_ITEM => {
                if let Ok((item, _)) = DevItem::read_from_prefix(data) {
                    newer(&mut self.devices, item.devid.get(), generation, item);
                }
            }
            KeyType::DEV_EXTENT => {
                if let Ok((extent, _)) = DevExtent::read_from_prefix(data) {
                    newer(&mut self.extents, (key.objectid, key.offset), generation, extent);
                }
            }
            KeyType::BLOCK_GROUP_ITEM => {
                if let Ok((group, _)) = BlockGroupItem::read_from_prefix(data) {
                    let known = self.groups.get(&key.objectid).map_or(0, |known| known.0);
                    if known <= generation {
                        self.groups.insert(key.objectid, (generation, key.offset, group.flags.get()));
                    }
                }
            }
            _ => {}
        }
    }

    /// All chunks that are known by their items.
    pub fn chunks(&self) -> Vec<Chunk> {
        self.candidates.iter().map(|one| one.chunk.clone()).collect()
    }

    /// Gives the chunk that begins at `from` another beginning.
    pub(crate) fn move_chunk(&mut self, from: Logical, to: Logical) {
        self.candidates.iter_mut().filter(|one| one.chunk.start == from).for_each(|one| one.chunk.start = to);
    }

    /// The newest item of each device that any leaf has.
    pub fn device_items(&self) -> impl Iterator<Item = &DevItem> {
        self.devices.values().map(|(_, item)| item)
    }

    /// The chunks that count. `index` and `numbers`, the device numbers by place on the command line, prove the order
    /// of stripes.
    pub fn choose(&self, limits: &ChunkLimits, index: Option<&Index>, numbers: &[Option<DeviceId>]) -> Chosen {
        let mut chosen = Chosen::default();
        let mut ordered: Vec<&Candidate> = self.candidates.iter().collect();
        // Of two of one leaf that overlap the shorter one is more likely to be right.
        ordered.sort_by_key(|one| (std::cmp::Reverse((one.generation, one.origin)), one.chunk.length));
        for candidate in &ordered {
            let start = candidate.chunk.start.0;
            if chosen.map.insert(candidate.chunk.clone()).is_ok() {
                chosen.origins.push((start, candidate.origin));
            }
        }
        // Its first part can be read all the same.
        for candidate in ordered.into_iter().filter(|one| one.origin == Origin::ChunkTree) {
            let shortened = shortened(&candidate.chunk, &chosen.map);
            if shortened.is_some_and(|chunk| chosen.map.insert(chunk).is_ok()) {
                chosen.origins.push((candidate.chunk.start.0, candidate.origin));
            }
        }
        for (start, extents) in self.extents_by_chunk() {
            if chosen.map.get(Logical(start)).is_some() {
                continue;
            }
            match self.rebuild(start, &extents, limits, index, numbers) {
                Ok(chunk) => {
                    let inserted = chosen.map.insert(chunk);
                    chosen.origins.extend(inserted.is_ok().then_some((start, Origin::DeviceExtents)));
                }
                Err(why) => chosen.lost.push(format!("chunk {start}: {why}")),
            }
        }
        let groups = self.groups.iter().filter(|(start, _)| chosen.map.get(Logical(**start)).is_none());
        let known: Vec<u64> = self.extents_by_chunk().into_keys().collect();
        let missing = groups.filter(|(start, _)| !known.contains(start));
        chosen
            .lost
            .extend(missing.map(|(start, _)| format!("chunk {start}: no chunk item and no device extent was found")));
        chosen
    }

    /// Number, address and length of the device extents of each chunk.
    fn extents_by_chunk(&self) -> BTreeMap<u64, Vec<(u64, u64, u64)>> {
        let mut by_chunk: BTreeMap<u64, Vec<(u64, u64, u64)>> = BTreeMap::new();
        for ((device, physical), (_, extent)) in &self.extents {
            by_chunk.entry(extent.chunk_offset.get()).or_default().push((*device, *physical, extent.length.get()));
        }
        by_chunk
    }

    /// The chunks of these addresses as their device extents and block groups describe them, but for the order of their
    /// stripes.
    pub fn unordered(&self, starts: &[u64], limits: &ChunkLimits) -> Vec<Chunk> {
        let extents = self.extents_by_chunk();
        let described = |start: &u64| self.described(*start, extents.get(start)?, limits).ok();
        starts.iter().filter_map(described).collect()
    }

    /// The chunks of which device extents are known.
    pub fn starts(&self) -> Vec<u64> {
        self.extents_by_chunk().into_keys().collect()
    }

    fn rebuild(
        &self,
        start: u64,
        extents: &[(u64, u64, u64)],
        limits: &ChunkLimits,
        index: Option<&Index>,
        numbers: &[Option<DeviceId>],
    ) -> Result<Chunk, String> {
        let chunk = self.described(start, extents, limits)?;
        let is_striped = chunk.profile().bit & (bits::RAID0 | bits::RAID10 | bits::RAID5 | bits::RAID6) != 0;
        if !is_striped || chunk.stripes.len() == 1 {
            return Ok(chunk);
        }
        proven_order(chunk, index.ok_or("the order of its stripes is not known without a scan")?, numbers)
    }

    fn described(&self, start: u64, extents: &[(u64, u64, u64)], limits: &ChunkLimits) -> Result<Chunk, String> {
        let length_on_device = extents[0].2;
        if extents.iter().any(|extent| extent.2 != length_on_device) {
            return Err("its device extents have several lengths".to_owned());
        }
        let flags = self.groups.get(&start).map(|group| group.2).or_else(|| plain_profile(extents));
        let flags = flags.ok_or("no block group says which profile it has")?;
        let profile = Profile::of(flags).ok_or("its block group has more than one profile")?;
        let uuid = |device: u64| self.devices.get(&device).map_or([0; 16], |(_, item)| item.uuid);
        let stripe = |(device, physical, _): &(u64, u64, u64)| ChunkStripe {
            device: DeviceId(*device),
            physical: Physical(*physical),
            dev_uuid: uuid(*device),
        };
        let chunk = Chunk {
            start: Logical(start),
            length: length_on_device.saturating_mul(profile.data_stripes(extents.len()) as u64),
            owner: 2,
            stripe_len: STRIPE_LEN,
            kind: flags,
            io_align: 65536,
            io_width: 65536,
            sector_size: limits.sectorsize,
            sub_stripes: profile.sub_stripes,
            stripes: extents.iter().map(stripe).collect(),
        };
        let chunk = Chunk::parse(chunk.start, &chunk.encode(), limits)?;
        Layout::of(&chunk)?;
        Ok(chunk)
    }
}

/// The part of a chunk up to where another one begins; `None` where its beginning is another one's.
fn shortened(chunk: &Chunk, map: &ChunkMap) -> Option<Chunk> {
    let next = map.iter().find(|other| chunk.start <= other.start)?.start.min(chunk.end());
    let row = STRIPE_LEN * chunk.profile().data_stripes(chunk.stripes.len()) as u64;
    let length = (next.0 - chunk.start.0) / row * row;
    (map.get(chunk.start).is_none() && length > 0).then(|| Chunk { length, ..chunk.clone() })
}

fn newer<K: Ord, V>(map: &mut BTreeMap<K, (u64, V)>, key: K, generation: u64, value: V) {
    if map.get(&key).is_none_or(|(known, _)| *known <= generation) {
        map.insert(key, (generation, value));
    }
}

/// The profile of a chunk of which no block group is known, where its extents leave no choice.
fn plain_profile(extents: &[(u64, u64, u64)]) -> Option<u64> {
    match extents {
        [_] => Some(bits::DATA),
        [first, second] if first.0 == second.0 => Some(bits::DATA | bits::DUP),
        _ => None,
    }
}

/// The chunk with its stripes in the order that tree blocks on them prove.
fn proven_order(chunk: Chunk, index: &Index, numbers: &[Option<DeviceId>]) -> Result<Chunk, String> {
    let layout = Layout::of(&chunk)?;
    let mut places: Vec<Option<usize>> = vec![None; chunk.stripes.len()];
    let inside = |found: &&Found| chunk.start.0 <= found.logical && found.logical < chunk.end().0;
    for found in index.iter().filter(inside) {
        let Some(Some(device)) = numbers.get(usize::from(found.device)) else { continue };
        let Some(piece) = layout.pieces(Logical(found.logical), 1).next() else { continue };
        // Which of the extents has it, and which stripes could that be.
        let extent = chunk.stripes.iter().position(|stripe| {
            stripe.device == *device && stripe.physical.0.checked_add(piece.depth) == Some(found.physical)
        });
        let Some(extent) = extent else { continue };
        let stripes: Vec<usize> =
            (0..layout.mirrors()).map(|mirror| layout.stripe_address(&piece, mirror).stripe).collect();
        let free = stripes.iter().find(|stripe| places[**stripe].is_none());
        if !stripes.iter().any(|stripe| places[*stripe] == Some(extent)) {
            let free = *free.ok_or("its tree blocks contradict each other about the order of its stripes")?;
            places[free] = Some(extent);
        }
    }
    ordered(chunk, places).ok_or_else(|| "nothing proves the order of its stripes".to_owned())
}

/// The chunk with its stripes in this order, if all but one of them are known.
pub(crate) fn ordered(chunk: Chunk, mut places: Vec<Option<usize>>) -> Option<Chunk> {
    let mut left: Vec<usize> = (0..places.len()).filter(|extent| !places.contains(&Some(*extent))).collect();
    if left.len() == 1 {
        places.iter_mut().filter(|place| place.is_none()).for_each(|place| *place = left.pop());
    }
    let order: Vec<usize> = places.into_iter().collect::<Option<_>>()?;
    let stripes = order.iter().map(|extent| chunk.stripes[*extent]).collect();
    Some(Chunk { stripes, ..chunk })
}

/// The number of each device that has no superblock, by its place on the command line: the only one that is left, or
/// the one on whose stripes of `map` tree blocks were found on it.
pub fn number_devices(
    known: &[Option<DeviceId>],
    all: &[DeviceId],
    chunks: &[Chunk],
    index: &Index,
) -> Vec<Option<DeviceId>> {
    let mut numbers = known.to_vec();
    for place in 0..numbers.len() {
        if numbers[place].is_some() {
            continue;
        }
        let free: Vec<DeviceId> = all.iter().copied().filter(|id| !numbers.contains(&Some(*id))).collect();
        numbers[place] = match free[..] {
            [only] => Some(only),
            _ => free
                .into_iter()
                .max_by_key(|id| votes(place, *id, chunks, index))
                .filter(|id| votes(place, *id, chunks, index) > 0),
        };
    }
    numbers
}

/// Tree blocks on a device that lie where a stripe of the device `id` has them.
fn votes(place: usize, id: DeviceId, chunks: &[Chunk], index: &Index) -> usize {
    let has = |chunk: &Chunk, found: &Found| {
        let Ok(layout) = Layout::of(chunk) else { return false };
        let Some(piece) = layout.pieces(Logical(found.logical), 1).next() else { return false };
        let addresses = (0..layout.mirrors()).map(|mirror| layout.stripe_address(&piece, mirror));
        let mut own = addresses.filter(|address| chunk.stripes[address.stripe].device == id);
        own.any(|address| address.physical.0 == found.physical)
    };
    let here = index.iter().filter(|found| usize::from(found.device) == place).take(100_000);
    here.filter(|found| {
        let holds = |chunk: &&Chunk| chunk.start.0 <= found.logical && found.logical < chunk.end().0;
        chunks.iter().find(holds).is_some_and(|chunk| has(chunk, found))
    })
    .count()
}
