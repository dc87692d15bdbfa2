//! The pass `chunks`: chunks, device items and device extents.
//!
//! The chunk tree decides, and the device tree follows. A chunk that cannot be mapped, or lies on another one, is put
//! right from the device extents: where one stripe is wrong, or the stripes are alike. So is one of which the device
//! extents say something else, if more tree blocks and sectors fit their checksums where they say.

use crate::action::Pass;
use crate::extents::is_readable;
use crate::forest::{Forest, root_ptr};
use crate::store::Store;
use crate::trouble::Result;
use crate::walk;
use butterfs_ondisk::chunk::{Chunk, ChunkLimits, ChunkStripe, STRIPE_LEN, parse_sys_chunk_array};
use butterfs_ondisk::items::{BlockGroupItem, DevExtent, DevItem, RootItem, block_group_flags as bits};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{DeviceId, Key, KeyType, Logical, Physical, Profile, Superblock, TreeId};
use butterfs_tree::{self as tree, NodePtr};
use butterfs_volume::{ChunkMap, Volume};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Items of the chunk tree that have to be changed; `None` removes one.
pub(crate) type ChunkEdits = BTreeMap<Key, Option<Vec<u8>>>;

/// Device extents by chunk: device, physical address, length.
type Extents = BTreeMap<u64, Vec<(u64, u64, u64)>>;

/// Profiles in which the order of the stripes matters.
const STRIPED: u64 = bits::RAID0 | bits::RAID10 | bits::RAID5 | bits::RAID6;

fn limits(sb: &Superblock) -> ChunkLimits {
    ChunkLimits { sectorsize: sb.sectorsize.get(), incompat: sb.incompat_flags.get() }
}

/// Reads the chunk tree, sets the chunk map, and says which items have to be changed.
pub(crate) fn read(store: &Store, sb: &Superblock) -> ChunkEdits {
    let root = root_ptr(TreeId::CHUNK, sb.chunk_root.get(), sb.chunk_root_generation.get(), sb.chunk_root_level);
    let (mut chunks, mut odd) = (BTreeMap::new(), BTreeMap::new());
    let complete = walk::items(store, &root, &mut |key, data| {
        if key.kind == KeyType::CHUNK_ITEM {
            match Chunk::parse(Logical(key.offset), data, &limits(sb)) {
                Ok(chunk) if key.objectid == objectid::FIRST_CHUNK_TREE => {
                    chunks.insert(key.offset, chunk);
                }
                _ => drop(odd.insert(key, data.to_vec())),
            }
        }
    });
    let mut edits = ChunkEdits::new();
    for chunk in parse_sys_chunk_array(sb).unwrap_or_default() {
        let start = chunk.start.get();
        if chunks.get(&start).is_none_or(|other| !other.maps_like(&chunk)) {
            // The chunk tree was read through it.
            if complete {
                edits.insert(chunk.key(), Some(chunk.encode()));
            }
            chunks.insert(start, chunk);
        }
    }
    set_map(&store.volume, chunks.values().cloned().collect());
    for chunk in lost_chunks(store, sb, &chunks) {
        edits.insert(chunk.key(), Some(chunk.encode()));
        chunks.insert(chunk.start.get(), chunk);
    }
    let wrong = wrong_chunks(&store.volume, &chunks);
    let good = chunks.values().filter(|chunk| !wrong.contains(&chunk.start.get())).cloned();
    set_map(&store.volume, good.collect());
    if !wrong.is_empty() {
        let extents = device_extents(store, sb);
        for start in &wrong {
            let fixed = chunks.get(start).and_then(|chunk| corrected(&store.volume, chunk, &extents));
            if let Some(chunk) = fixed {
                edits.insert(chunk.key(), Some(chunk.encode()));
                chunks.insert(*start, chunk);
            }
        }
        let still = wrong_chunks(&store.volume, &chunks);
        edits.retain(|key, _| !still.contains(&key.offset));
        chunks.retain(|start, _| !still.contains(start));
        set_map(&store.volume, chunks.values().cloned().collect());
    }
    // Chunks of trees first: the checksum tree, which the proofs for data need, lies in them.
    for of_trees in [true, false] {
        for chunk in moved_chunks(store, sb, &chunks, of_trees) {
            edits.insert(chunk.key(), Some(chunk.encode()));
            chunks.insert(chunk.start.get(), chunk);
        }
        set_map(&store.volume, chunks.values().cloned().collect());
    }
    edits
}

/// Chunks as their device extents have them, where their content proves that the chunk tree is wrong.
fn moved_chunks(store: &Store, sb: &Superblock, chunks: &BTreeMap<u64, Chunk>, of_trees: bool) -> Vec<Chunk> {
    let extents = device_extents(store, sb);
    let is_meant = |chunk: &&Chunk| chunk.kind & bits::SYSTEM == 0 && of_trees == (chunk.kind & bits::METADATA != 0);
    let moved = chunks.values().filter(is_meant).filter_map(|chunk| {
        let other = corrected(&store.volume, chunk, &extents).filter(|other| !other.maps_like(chunk))?;
        let map = ChunkMap::from_chunks([other.clone()]).ok()?;
        store.volume.check_chunk_map(&map).ok()?;
        (proofs(store, sb, &other) > proofs(store, sb, chunk)).then_some(other)
    });
    moved.collect()
}

/// Tree blocks, or sectors of data, of which the chunk is searched for proofs.
const MOST_PROOFS: usize = 1024;

/// How much of what a chunk holds fits its checksums, each copy counted.
fn proofs(store: &Store, sb: &Superblock, chunk: &Chunk) -> usize {
    let volume = Volume::of_devices(store.volume.present_devices());
    set_map(&volume, vec![chunk.clone()]);
    let copies_that = |at: u64, bytes: &mut [u8], fits: &dyn Fn(&[u8]) -> bool| {
        let copies = volume.preferred_copies(Logical(at), bytes.len()).into_iter();
        copies.filter(|copy| volume.read_copy(Logical(at), *copy, bytes).is_ok() && fits(bytes)).count()
    };
    if chunk.kind & bits::METADATA != 0 {
        let mut bytes = vec![0; store.nodesize() as usize];
        let places = (chunk.start.get()..chunk.end().get()).step_by(bytes.len());
        let found =
            places.map(|at| copies_that(at, &mut bytes, &|bytes| store.sealed_header(Logical(at), bytes).is_some()));
        return found.filter(|count| *count > 0).take(MOST_PROOFS).sum();
    }
    let mut bytes = vec![0; store.sectorsize() as usize];
    let known = some_checksums(store, sb, chunk);
    known
        .iter()
        .map(|(at, digest)| copies_that(*at, &mut bytes, &|bytes| store.identity.checksum.matches(bytes, digest)))
        .sum()
}

/// The checksums of some sectors of a chunk.
fn some_checksums(store: &Store, sb: &Superblock, chunk: &Chunk) -> Vec<(u64, Vec<u8>)> {
    let Some(ptr) = tree_of(store, sb, TreeId::CSUM) else { return Vec::new() };
    let key = |at: u64| Key::new(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM, at);
    let (start, end, sector) = (chunk.start.get(), chunk.end().get(), store.sectorsize());
    let mut found = Vec::new();
    // As far as the tree can be read.
    let _ = tree::scan(&store.editor(TreeId::CSUM), &ptr, &key(start), &key(end - 1), &mut |key, data| {
        let digests = data.chunks_exact(store.identity.checksum.len());
        let places = (key.offset..end).step_by(sector as usize);
        found.extend(places.zip(digests.map(<[u8]>::to_vec)));
        Ok(if found.len() < MOST_PROOFS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    });
    found.truncate(MOST_PROOFS);
    found
}

fn set_map(volume: &Volume, chunks: Vec<Chunk>) {
    let mut map = ChunkMap::new();
    for chunk in chunks {
        let _ = map.insert(chunk);
    }
    volume.set_chunk_map(map);
}

/// Chunks that do not lie on the devices, and those whose stripes lie on others and have no device extent.
fn wrong_chunks(volume: &Volume, chunks: &BTreeMap<u64, Chunk>) -> BTreeSet<u64> {
    let mut wrong = BTreeSet::new();
    let mut taken: Vec<(u64, u64, u64, u64, bool)> = Vec::new();
    for chunk in chunks.values() {
        let alone = ChunkMap::from_chunks([chunk.clone()]);
        if !alone.is_ok_and(|map| volume.check_chunk_map(&map).is_ok()) {
            wrong.insert(chunk.start.get());
            continue;
        }
        let is_system = chunk.kind & bits::SYSTEM != 0;
        for stripe in &chunk.stripes {
            let (start, device) = (stripe.physical.get(), stripe.device.get());
            taken.push((device, start, start + chunk.stripe_length(), chunk.start.get(), is_system));
        }
    }
    for (index, one) in taken.iter().enumerate() {
        for other in taken[index + 1..].iter().filter(|other| other.0 == one.0 && other.1 < one.2 && one.1 < other.2) {
            // System chunks are in the superblock too: they are right.
            wrong.extend((!one.4).then_some(one.3));
            wrong.extend((!other.4).then_some(other.3));
        }
    }
    wrong
}

/// Chunks of which the items are lost, and that their device extents and block groups describe in full: those whose
/// stripes are alike.
fn lost_chunks(store: &Store, sb: &Superblock, chunks: &BTreeMap<u64, Chunk>) -> Vec<Chunk> {
    let mut extents = device_extents(store, sb);
    extents.retain(|start, _| !chunks.contains_key(start));
    if extents.is_empty() {
        return Vec::new();
    }
    let groups = block_groups(store, sb);
    let lost = extents.into_iter().filter_map(|(start, stripes)| {
        let (length, flags) = *groups.get(&start)?;
        lost_chunk(store, sb, start, length, flags, &stripes)
    });
    let end = |chunk: &Chunk| chunk.end().get();
    let is_free =
        |lost: &Chunk| chunks.values().all(|chunk| end(chunk) <= lost.start.get() || end(lost) <= chunk.start.get());
    lost.filter(is_free).collect()
}

fn lost_chunk(
    store: &Store,
    sb: &Superblock,
    start: u64,
    length: u64,
    flags: u64,
    stripes: &[(u64, u64, u64)],
) -> Option<Chunk> {
    let profile = Profile::of(flags)?;
    let is_alike = flags & STRIPED == 0 || stripes.len() == 1;
    if !is_alike || stripes.iter().any(|stripe| stripe.2 != length) {
        return None;
    }
    let stripe = |(device, physical, _): &(u64, u64, u64)| {
        let device = DeviceId(*device);
        Some(ChunkStripe { device, physical: Physical(*physical), dev_uuid: store.volume.device_item(device)?.uuid })
    };
    let chunk = Chunk {
        start: Logical(start),
        length,
        owner: TreeId::EXTENT.get(),
        stripe_len: STRIPE_LEN,
        kind: flags,
        io_align: STRIPE_LEN as u32,
        io_width: STRIPE_LEN as u32,
        sector_size: sb.sectorsize.get(),
        sub_stripes: profile.sub_stripes,
        stripes: stripes.iter().map(stripe).collect::<Option<_>>()?,
    };
    Chunk::parse(chunk.start, &chunk.encode(), &limits(sb)).ok()
}

/// Length and flags of the block groups, as far as they can be read.
fn block_groups(store: &Store, sb: &Superblock) -> BTreeMap<u64, (u64, u64)> {
    let mut groups = BTreeMap::new();
    for tree in [TreeId::EXTENT, TreeId::BLOCK_GROUP] {
        let Some(ptr) = tree_of(store, sb, tree) else { continue };
        walk::items(store, &ptr, &mut |key, data| {
            if let Ok((group, _)) = BlockGroupItem::read_from_prefix(data)
                && key.kind == KeyType::BLOCK_GROUP_ITEM
            {
                groups.insert(key.objectid, (key.offset, group.flags.get()));
            }
        });
    }
    groups
}

/// Where a tree begins, as the root tree has it.
fn tree_of(store: &Store, sb: &Superblock, tree: TreeId) -> Option<NodePtr> {
    let root = root_ptr(TreeId::ROOT, sb.root.get(), sb.generation.get(), sb.root_level);
    let mut found = None;
    walk::items(store, &root, &mut |key, data| {
        if key.kind == KeyType::ROOT_ITEM && key.objectid == tree.get() {
            found = RootItem::parse(data);
        }
    });
    found.map(|item| root_ptr(tree, item.bytenr.get(), item.generation.get(), item.level))
}

/// All device extents, as the device tree has them.
fn device_extents(store: &Store, sb: &Superblock) -> Extents {
    let mut extents = Extents::new();
    let Some(ptr) = tree_of(store, sb, TreeId::DEV) else { return extents };
    walk::items(store, &ptr, &mut |key, data| {
        if let Ok(extent) = DevExtent::read_from_bytes(data)
            && key.kind == KeyType::DEV_EXTENT
        {
            let own = extents.entry(extent.chunk_offset.get()).or_default();
            own.push((key.objectid, key.offset, extent.length.get()));
        }
    });
    extents
}

/// The chunk with the stripes that its device extents say, where that is certain.
fn corrected(volume: &Volume, chunk: &Chunk, extents: &Extents) -> Option<Chunk> {
    let mut left: Vec<(u64, u64, u64)> = extents.get(&chunk.start.get())?.clone();
    left.retain(|(_, _, length)| *length == chunk.stripe_length());
    if left.len() != chunk.stripes.len() {
        return None;
    }
    let (mut fixed, mut wrong) = (chunk.clone(), Vec::new());
    for (index, stripe) in chunk.stripes.iter().enumerate() {
        let found =
            left.iter().position(|(device, at, _)| (*device, *at) == (stripe.device.get(), stripe.physical.get()));
        match found {
            Some(position) => drop(left.remove(position)),
            None => wrong.push(index),
        }
    }
    let is_alike = chunk.kind & STRIPED == 0;
    if wrong.len() > 1 && !is_alike {
        return None;
    }
    for (index, (device, at, _)) in wrong.into_iter().zip(left) {
        let device = DeviceId(device);
        let dev_uuid = volume.device_item(device)?.uuid;
        fixed.stripes[index] = ChunkStripe { device, physical: Physical(at), dev_uuid };
    }
    Some(fixed)
}

/// Changes the chunk tree, and makes device items and device extents those of the chunks.
pub(crate) fn write(forest: &mut Forest, edits: &ChunkEdits) -> Result<()> {
    for (key, data) in edits {
        match data {
            Some(data) => forest.put(TreeId::CHUNK, *key, data)?,
            None => forest.remove(TreeId::CHUNK, *key)?,
        };
        forest.did(Pass::Chunks, format!("writes the chunk {} anew", key.offset));
    }
    write_device_extents(forest)?;
    write_device_items(forest)
}

/// The device extents that there should be: by device and physical address, the chunk and the length.
fn stripes(forest: &Forest) -> BTreeMap<(u64, u64), (u64, u64)> {
    let map = forest.store.volume.chunk_map();
    let mut stripes = BTreeMap::new();
    for chunk in map.iter() {
        for stripe in &chunk.stripes {
            stripes.insert((stripe.device.get(), stripe.physical.get()), (chunk.start.get(), chunk.stripe_length()));
        }
    }
    stripes
}

fn write_device_extents(forest: &mut Forest) -> Result<()> {
    if !is_readable(forest, TreeId::DEV) {
        forest.start_anew(TreeId::DEV)?;
        forest.lose(Pass::Chunks, "makes the device tree anew", "the error counters of the devices");
    }
    let mut stored = Vec::new();
    walk::items(&forest.store, &forest.ptr(TreeId::DEV)?, &mut |key, data| {
        if key.kind == KeyType::DEV_EXTENT {
            stored.push((key, data.to_vec()));
        }
    });
    let wanted = stripes(forest);
    let mut changed = 0;
    for (key, _) in stored.iter().filter(|(key, _)| !wanted.contains_key(&(key.objectid, key.offset))) {
        changed += u64::from(forest.remove(TreeId::DEV, *key)?);
    }
    let stored: BTreeMap<Key, Vec<u8>> = stored.into_iter().collect();
    for ((device, physical), (chunk, length)) in wanted {
        let key = Key::new(device, KeyType::DEV_EXTENT, physical);
        let says = stored.get(&key).and_then(|data| DevExtent::read_from_bytes(data).ok());
        let right = |extent: DevExtent| (extent.chunk_offset.get(), extent.length.get()) == (chunk, length);
        if says.is_some_and(right) {
            continue;
        }
        let item = DevExtent {
            chunk_tree: TreeId::CHUNK.get().into(),
            chunk_objectid: objectid::FIRST_CHUNK_TREE.into(),
            chunk_offset: chunk.into(),
            length: length.into(),
            chunk_tree_uuid: forest.store.identity.chunk_tree_uuid,
        };
        changed += u64::from(forest.put(TreeId::DEV, key, item.as_bytes())?);
    }
    if changed > 0 {
        forest.did(Pass::Chunks, format!("makes {changed} device extents those of the chunks"));
    }
    Ok(())
}

fn write_device_items(forest: &mut Forest) -> Result<()> {
    let mut used: BTreeMap<u64, u64> = BTreeMap::new();
    for ((device, _), (_, length)) in stripes(forest) {
        *used.entry(device).or_default() += length;
    }
    let mut total = 0;
    let confirmed = confirmed_devices(forest);
    for device in forest.store.volume.device_items() {
        let id = device.devid.get();
        let key = Key::new(objectid::DEV_ITEMS, KeyType::DEV_ITEM, id);
        let stored = forest.get(TreeId::CHUNK, key)?.and_then(|data| DevItem::read_from_bytes(&data).ok());
        let mut item = stored.unwrap_or(device);
        if (item.uuid, item.fsid) != (device.uuid, device.fsid) && confirmed.contains(&id) {
            (item.uuid, item.fsid) = (device.uuid, device.fsid);
        }
        item.bytes_used = used.get(&id).copied().unwrap_or(0).into();
        total += item.total_bytes.get();
        if forest.put(TreeId::CHUNK, key, item.as_bytes())? {
            forest
                .did(Pass::Chunks, format!("makes the item of device {id} agree with its superblock and its extents"));
        }
        if (item.uuid, item.fsid) == (device.uuid, device.fsid) {
            forest.store.volume.set_device_item(item);
        }
    }
    if total > forest.sb.total_bytes.get() {
        forest.did(Pass::Superblocks, format!("sets total_bytes to {total}"));
        forest.sb.total_bytes = total.into();
    }
    Ok(())
}

/// Devices that the chunks' stripes take for the ones that were given.
fn confirmed_devices(forest: &Forest) -> BTreeSet<u64> {
    let map = forest.store.volume.chunk_map();
    let stripes = map.iter().flat_map(|chunk| chunk.stripes.clone());
    let is_given = |stripe: &ChunkStripe| {
        forest.store.volume.device_item(stripe.device).is_some_and(|item| item.uuid == stripe.dev_uuid)
    };
    stripes.filter(is_given).map(|stripe| stripe.device.get()).collect()
}

/// Makes the superblock's system chunks those of the chunk map.
pub(crate) fn write_system_array(forest: &mut Forest) -> bool {
    let map = forest.store.volume.chunk_map();
    let mut sb = forest.sb;
    sb.sys_chunk_array = FromZeros::new_zeroed();
    sb.sys_chunk_array_size = 0.into();
    let fits = map
        .iter()
        .filter(|chunk| chunk.kind & bits::SYSTEM != 0)
        .all(|chunk| butterfs_ondisk::chunk::append_sys_chunk(&mut sb, chunk));
    if fits {
        forest.sb = sb;
    }
    fits
}
