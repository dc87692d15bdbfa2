//! The pass `chunks`: chunks, device items and device extents.
//!
//! The chunk tree decides, and the device tree follows. A chunk that breaks a rule, cannot be mapped, or lies on
//! another one, is put right from its witnesses: device extents, block group, devices, and the addresses that the tree
//! blocks on it have. So is one of which they say something else, if more tree blocks and sectors fit their checksums
//! then. A chunk tree with a leaf that breaks rules is made anew, if every leaf has its right checksum.

use crate::action::Pass;
use crate::extents::is_readable;
use crate::forest::{Forest, root_ptr};
use crate::salvage;
use crate::store::Store;
use crate::trouble::Result;
use crate::walk;
use butterfs_ondisk::chunk::{Chunk, ChunkLimits, ChunkStripe, STRIPE_LEN, parse_sys_chunk_array};
use butterfs_ondisk::features::compat_ro;
use butterfs_ondisk::header::Header;
use butterfs_ondisk::items::{DevExtent, DevItem, RootItem, block_group_flags as bits};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{DeviceId, Key, KeyType, Logical, Profile, Superblock, TreeId};
use butterfs_tree::{self as tree, NodePtr};
use butterfs_volume::{ChunkMap, Kind, Place, Volume, Witnesses, claimed_start, lenient_chunk};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Items of the chunk tree that have to be changed; `None` removes one.
pub(crate) type ChunkEdits = BTreeMap<Key, Option<Vec<u8>>>;

/// Profiles in which the order of the stripes matters.
const STRIPED: u64 = bits::RAID0 | bits::RAID10 | bits::RAID5 | bits::RAID6;

/// The chunk tree as it was read, and how to put it right.
#[derive(Default)]
pub(crate) struct ChunkTree {
    pub edits: ChunkEdits,
    pub state: State,
    /// Device items that keep the rules.
    devices: BTreeMap<Key, Vec<u8>>,
}

/// How much of a chunk tree can be read.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// All of it.
    #[default]
    Sound,
    /// All items, but some block breaks a rule: it is made anew.
    Odd,
    /// Not all.
    Lost,
}

fn limits(sb: &Superblock) -> ChunkLimits {
    ChunkLimits { sectorsize: sb.sectorsize.get(), incompat: sb.incompat_flags.get() }
}

/// A chunk item. Its chunk is good for reading; where the item breaks a rule, its kind is doubtful.
struct Item {
    key: Key,
    chunk: Chunk,
    kind: Kind,
}

impl Item {
    fn is_of_trees(&self) -> bool {
        self.kind == Kind::Doubtful || self.chunk.kind & bits::METADATA != 0
    }
}

/// Reads the chunk tree, sets the chunk map, and says which items have to be changed.
pub(crate) fn read(store: &Store, sb: &Superblock) -> ChunkTree {
    let root = root_ptr(TreeId::CHUNK, sb.chunk_root.get(), sb.chunk_root_generation.get(), sb.chunk_root_level);
    // The chunk tree is read through the superblock's chunks: they are right.
    let system = parse_sys_chunk_array(sb).unwrap_or_default();
    set_map(&store.volume, system.clone());
    let (mut tree, mut items) = (ChunkTree::default(), Vec::new());
    let is_sound = walk::items(store, &root, &mut |_, _| {});
    let has_all = each_item(store, &root, &mut |key, data| {
        if key.kind == KeyType::DEV_ITEM {
            tree.devices.extend(is_device_item(key, data).then(|| (key, data.to_vec())));
        } else {
            items.extend(item(sb, key, data));
        }
    });
    tree.state = match (is_sound, has_all) {
        (true, _) => State::Sound,
        (false, true) => State::Odd,
        (false, false) => State::Lost,
    };
    let keys: Vec<(Key, Chunk)> = items.iter().map(|item| (item.key, item.chunk.clone())).collect();
    items.retain(|item| !system.iter().any(|chunk| chunk.start == item.chunk.start));
    let witnesses = witnesses(store, sb, &system, &mut items);
    let mut chunks: BTreeMap<u64, Chunk> = system.iter().map(|chunk| (chunk.start.get(), chunk.clone())).collect();
    for item in &items {
        let start = item.chunk.start.get();
        match witnesses.corrected(&item.chunk, item.kind) {
            // It has no device extents, and there are some of a chunk without an item.
            Some(other) if other.start != item.chunk.start => drop(chunks.entry(other.start.get()).or_insert(other)),
            Some(other) if item.kind == Kind::Doubtful => drop(chunks.insert(start, other)),
            None if item.kind == Kind::Doubtful => {}
            _ => drop(chunks.insert(start, item.chunk.clone())),
        }
    }
    let system: Vec<u64> = system.iter().map(|chunk| chunk.start.get()).collect();
    settle(store, sb, &mut chunks, &witnesses, &system);
    let is_right = |key: &Key, chunk: &Chunk| {
        keys.iter().any(|(other, read)| other == key && read.maps_like(chunk) && *other == chunk.key())
    };
    for (key, _) in keys.iter().filter(|(key, _)| !chunks.values().any(|chunk| chunk.key() == *key)) {
        let is_of_known = |item: &&Item| item.key == *key && witnesses.corrected(&item.chunk, item.kind).is_some();
        // Of one that is not understood the item stays.
        let is_moved = items.iter().any(|item| is_of_known(&item)) || !items.iter().any(|item| item.key == *key);
        tree.edits.extend(is_moved.then_some((*key, None)));
    }
    for chunk in chunks.values().filter(|chunk| !is_right(&chunk.key(), chunk)) {
        tree.edits.insert(chunk.key(), Some(chunk.encode()));
    }
    // A tree that is made anew has what is understood, and nothing else.
    let is_understood = |item: &Item| {
        let corrected = witnesses.corrected(&item.chunk, item.kind);
        chunks.contains_key(&corrected.map_or(item.chunk.start, |other| other.start).get())
    };
    tree.state = match tree.state {
        State::Lost if is_accounted_for(&chunks, &witnesses) => State::Odd,
        State::Odd if !items.iter().all(is_understood) => State::Lost,
        state => state,
    };
    if tree.state == State::Lost {
        tree.edits.clear();
    }
    tree
}

/// Calls `with` for each item of each leaf that has its right checksum, whatever the items are; true when no block was
/// missing.
fn each_item(store: &Store, ptr: &NodePtr, with: &mut dyn FnMut(Key, &[u8])) -> bool {
    match store.read(ptr) {
        Ok(node) if node.is_leaf() => {
            node.items().for_each(|(key, data)| with(key, data));
            true
        }
        Ok(node) => {
            let mut has_all = true;
            for slot in 0..node.nritems() {
                let child = NodePtr { first_key: None, ..node.child_ptr(slot, ptr.tree) };
                has_all &= each_item(store, &child, with);
            }
            has_all
        }
        Err(_) => {
            let Some(bytes) = salvage::intact_leaf(store, ptr) else { return false };
            salvage::items(&bytes).fold(true, |all, (key, data)| {
                data.into_iter().for_each(|data| with(key, data));
                all && data.is_some()
            })
        }
    }
}

fn item(sb: &Superblock, key: Key, data: &[u8]) -> Option<Item> {
    if key.kind != KeyType::CHUNK_ITEM && key.objectid != objectid::FIRST_CHUNK_TREE {
        return None;
    }
    let start = Logical(key.offset);
    let parsed = Chunk::parse(start, data, &limits(sb)).ok();
    let known = parsed.map(|chunk| Item { key, chunk, kind: Kind::Known });
    known.or_else(|| Some(Item { key, chunk: lenient_chunk(start, data, &limits(sb))?, kind: Kind::Doubtful }))
}

fn is_device_item(key: Key, data: &[u8]) -> bool {
    let of_key = |item: &DevItem| key == Key::new(objectid::DEV_ITEMS, KeyType::DEV_ITEM, item.devid.get());
    DevItem::read_from_bytes(data).is_ok_and(|item| of_key(&item) && item.bytes_used.get() <= item.total_bytes.get())
}

/// The statements of other structures about chunks. They are read through the chunks of the items; where they cannot be
/// read, chunks of trees may begin elsewhere, and are moved to where their tree blocks say.
fn witnesses(store: &Store, sb: &Superblock, system: &[Chunk], items: &mut [Item]) -> Witnesses {
    set_map(&store.volume, readable(&store.volume, system, items));
    let (mut best, is_complete) = said(store, sb, items);
    if is_complete {
        return best;
    }
    for number in (0..items.len()).filter(|number| items[*number].is_of_trees()).collect::<Vec<_>>() {
        let own = items[number].chunk.start;
        let Some(start) = claimed(store, &items[number].chunk).filter(|start| *start != own) else { continue };
        items[number].chunk.start = start;
        set_map(&store.volume, readable(&store.volume, system, items));
        let (other, _) = said(store, sb, items);
        if other.statements() > best.statements() {
            best = other;
        } else {
            items[number].chunk.start = own;
        }
    }
    set_map(&store.volume, readable(&store.volume, system, items));
    best
}

/// The chunks of the superblock and of the items, shortened to where the next one begins, on devices that there are.
fn readable(volume: &Volume, system: &[Chunk], items: &[Item]) -> Vec<Chunk> {
    let mut chunks = system.to_vec();
    let mut starts: Vec<Logical> = items.iter().map(|item| item.chunk.start).collect();
    starts.extend(system.iter().map(|chunk| chunk.start));
    for item in items {
        let mut chunk = item.chunk.clone();
        let next = starts.iter().filter(|start| **start > chunk.start).min();
        if let Some(next) = next.filter(|next| **next < chunk.end()) {
            let row = STRIPE_LEN * chunk.profile().data_stripes(chunk.stripes.len()) as u64;
            chunk.length = (next.get() - chunk.start.get()) / row * row;
        }
        for stripe in chunk.stripes.iter_mut().filter(|stripe| volume.device_item(stripe.device).is_none()) {
            let named = volume.present_devices().into_iter().find(|(item, _)| item.uuid == stripe.dev_uuid);
            stripe.device = named.map_or(stripe.device, |(item, _)| DeviceId(item.devid.get()));
        }
        chunks.push(chunk);
    }
    chunks
}

/// The start of a chunk, as the headers of the tree blocks on it say.
fn claimed(store: &Store, chunk: &Chunk) -> Option<Logical> {
    let devices = store.volume.present_devices();
    let mut bytes = vec![0; store.nodesize() as usize];
    claimed_start(chunk, store.nodesize(), &mut |id, at| {
        let (_, device) = devices.iter().find(|(item, _)| item.devid.get() == id.get())?;
        device.read_at(at.get(), &mut bytes).ok()?;
        let (header, _) = Header::read_from_prefix(&bytes).ok()?;
        let at = Logical(header.bytenr.get());
        store.sealed_header(at, &bytes).map(|_| at)
    })
}

/// The device extents that can be read, the block groups of these and of `items`, and whether no block was missing.
fn said(store: &Store, sb: &Superblock, items: &[Item]) -> (Witnesses, bool) {
    let mut witnesses = Witnesses::default();
    for device in store.volume.device_items() {
        witnesses.learn_device(DeviceId(device.devid.get()), device.uuid);
    }
    let has_group_tree = sb.compat_ro_flags.get() & compat_ro::BLOCK_GROUP_TREE != 0;
    let of_groups = if has_group_tree { TreeId::BLOCK_GROUP } else { TreeId::EXTENT };
    let (devices, groups) = (tree_of(store, sb, TreeId::DEV), tree_of(store, sb, of_groups));
    let mut is_complete = devices.is_some() && groups.is_some();
    if let Some(ptr) = devices {
        is_complete &= walk::items(store, &ptr, &mut |key, data| witnesses.learn_item(key, data));
    }
    let mut starts: BTreeSet<u64> = witnesses.extents().map(|(start, _)| start).collect();
    starts.extend(items.iter().map(|item| item.chunk.start.get()));
    for (ptr, start) in groups.iter().flat_map(|ptr| starts.iter().map(move |start| (ptr, *start))) {
        let key = |length| Key::new(start, KeyType::BLOCK_GROUP_ITEM, length);
        let found = tree::scan(&store.editor(of_groups), ptr, &key(0), &key(u64::MAX), &mut |key, data| {
            witnesses.learn_item(key, data);
            Ok(ControlFlow::Continue(()))
        });
        is_complete &= found.is_ok();
    }
    (witnesses, is_complete)
}

/// Whether device extents and block groups are exactly those of the chunks.
fn is_accounted_for(chunks: &BTreeMap<u64, Chunk>, witnesses: &Witnesses) -> bool {
    let is_said = |chunk: &Chunk| witnesses.corrected(chunk, Kind::Known).is_some_and(|other| other.maps_like(chunk));
    chunks.values().all(is_said)
        && witnesses.extents().all(|(start, _)| chunks.contains_key(&start))
        && witnesses.groups().all(|(start, ..)| chunks.contains_key(&start))
}

/// Puts chunks right that cannot be where their items say, and those of which the content proves that.
fn settle(store: &Store, sb: &Superblock, chunks: &mut BTreeMap<u64, Chunk>, witnesses: &Witnesses, system: &[u64]) {
    for chunk in lost_chunks(store, sb, witnesses, chunks) {
        chunks.insert(chunk.start.get(), chunk);
    }
    let wrong = wrong_chunks(&store.volume, chunks);
    for start in wrong.iter().filter(|start| !system.contains(start)) {
        let corrected = chunks.get(start).and_then(|chunk| witnesses.corrected(chunk, Kind::Known));
        chunks.extend(corrected.filter(|other| other.start.get() == *start).map(|other| (*start, other)));
    }
    let still = wrong_chunks(&store.volume, chunks);
    chunks.retain(|start, _| !still.contains(start));
    set_map(&store.volume, chunks.values().cloned().collect());
    // Chunks of trees first: the checksum tree, which the proofs for data need, lies in them.
    for of_trees in [true, false] {
        for chunk in moved_chunks(store, sb, chunks, witnesses, of_trees) {
            chunks.insert(chunk.start.get(), chunk);
        }
        set_map(&store.volume, chunks.values().cloned().collect());
    }
}

/// Chunks as their witnesses have them, where their content proves that the chunk tree is wrong, or does not contradict
/// another length.
fn moved_chunks(
    store: &Store,
    sb: &Superblock,
    chunks: &BTreeMap<u64, Chunk>,
    witnesses: &Witnesses,
    of_trees: bool,
) -> Vec<Chunk> {
    let is_meant = |chunk: &&Chunk| chunk.kind & bits::SYSTEM == 0 && of_trees == (chunk.kind & bits::METADATA != 0);
    let moved = chunks.values().filter(is_meant).filter_map(|chunk| {
        let other = witnesses.corrected(chunk, Kind::Known).filter(|other| !other.maps_like(chunk))?;
        let map = ChunkMap::from_chunks([other.clone()]).ok()?;
        store.volume.check_chunk_map(&map).ok()?;
        let (new, old) = (proofs(store, sb, &other), proofs(store, sb, chunk));
        let is_in_place = (other.start, &other.stripes) == (chunk.start, &chunk.stripes);
        (other.start == chunk.start && (new > old || is_in_place && new == old)).then_some(other)
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
fn lost_chunks(store: &Store, sb: &Superblock, witnesses: &Witnesses, chunks: &BTreeMap<u64, Chunk>) -> Vec<Chunk> {
    let lost = witnesses.extents().filter(|(start, _)| !chunks.contains_key(start));
    let lost = lost.filter_map(|(start, places)| {
        let (length, flags) = witnesses.group(start)?;
        lost_chunk(store, sb, start, length, flags, places)
    });
    let end = |chunk: &Chunk| chunk.end().get();
    let is_free =
        |lost: &Chunk| chunks.values().all(|chunk| end(chunk) <= lost.start.get() || end(lost) <= chunk.start.get());
    lost.filter(is_free).collect()
}

fn lost_chunk(store: &Store, sb: &Superblock, start: u64, length: u64, flags: u64, places: &[Place]) -> Option<Chunk> {
    let profile = Profile::of(flags)?;
    let is_alike = flags & STRIPED == 0 || places.len() == 1;
    if !is_alike || places.iter().any(|place| place.length != length) {
        return None;
    }
    let stripe = |place: &Place| {
        let dev_uuid = store.volume.device_item(place.device)?.uuid;
        Some(ChunkStripe { device: place.device, physical: place.physical, dev_uuid })
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
        stripes: places.iter().map(stripe).collect::<Option<_>>()?,
    };
    Chunk::parse(chunk.start, &chunk.encode(), &limits(sb)).ok()
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

/// Changes the chunk tree, and makes device items and device extents those of the chunks.
pub(crate) fn write(forest: &mut Forest, tree: &ChunkTree) -> Result<()> {
    if tree.state == State::Odd {
        forest.start_chunks_anew()?;
        forest.did(Pass::Chunks, "makes the chunk tree anew, of which a block breaks rules");
        let map = forest.store.volume.chunk_map();
        let chunks = map.iter().map(|chunk| (chunk.key(), chunk.encode()));
        for (key, data) in tree.devices.clone().into_iter().chain(chunks) {
            forest.put(TreeId::CHUNK, key, &data)?;
        }
    }
    for (key, data) in &tree.edits {
        match data {
            Some(data) => {
                forest.put(TreeId::CHUNK, *key, data)?;
                forest.did(Pass::Chunks, format!("writes the chunk {} anew", key.offset));
            }
            None => {
                forest.remove(TreeId::CHUNK, *key)?;
                forest.did(Pass::Chunks, format!("removes the item {key} of the chunk tree"));
            }
        }
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
