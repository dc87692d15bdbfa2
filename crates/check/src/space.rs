//! Devices, chunks, block groups: who has which bytes.

use crate::extents::ExtentScan;
use crate::finding::Finding;
use crate::session::Session;
use crate::walk::items;
use butterfs_ondisk::chunk::{Chunk, ChunkLimits, parse_sys_chunk_array};
use butterfs_ondisk::items::{DevExtent, DevItem, block_group_flags as bits};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{DeviceId, Key, KeyType, Level, Logical, TreeId};
use butterfs_tree::NodePtr;
use butterfs_volume::ChunkMap;
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::FromBytes;

/// The root of the chunk tree.
pub(crate) fn chunk_root(session: &Session<'_>) -> NodePtr {
    let (at, level, generation) = session.sb.chunk_tree_root();
    NodePtr { at, generation, level: Level(level.get()), tree: TreeId::CHUNK, first_key: None }
}

/// Reads the chunk tree and completes the chunk map. Returns the device items.
pub(crate) fn read_chunks(session: &Session<'_>) -> BTreeMap<u64, DevItem> {
    let limits = ChunkLimits { sectorsize: session.identity.sectorsize, incompat: session.identity.incompat };
    // The chunk tree is read through the superblock's chunks: they count.
    let mut system: BTreeMap<Logical, (Chunk, bool)> = BTreeMap::new();
    for chunk in parse_sys_chunk_array(&session.sb).unwrap_or_default() {
        system.insert(chunk.start, (chunk, false));
    }
    let (mut map, mut devices) = (ChunkMap::new(), BTreeMap::new());
    for (chunk, _) in system.values() {
        let _ = map.insert(chunk.clone());
    }
    let complete = items(session, chunk_root(session), &mut |key, data| match key.kind {
        KeyType::DEV_ITEM => {
            if let Ok(item) = DevItem::read_from_bytes(data) {
                devices.insert(item.devid.get(), item);
            }
        }
        KeyType::CHUNK_ITEM => add_chunk(session, &mut map, &mut system, (key, data), &limits),
        _ => {}
    });
    for (start, _) in system.into_iter().filter(|(_, (_, is_confirmed))| complete && !is_confirmed) {
        session.report(Finding::SystemChunk { chunk: start });
    }
    // One whose item is lost is still a device of the filesystem.
    let used: BTreeSet<u64> = map.iter().flat_map(|chunk| &chunk.stripes).map(|stripe| stripe.device.0).collect();
    session.volume.set_chunk_map(map);
    if complete {
        let is_gone = |id: u64| !devices.contains_key(&id) && !used.contains(&id);
        let gone = session.volume.devices().into_iter().filter(|(id, _)| is_gone(id.0));
        gone.for_each(|(id, _)| drop(session.volume.remove_device(id)));
        let given: Vec<u64> = session.volume.devices().into_iter().map(|(id, _)| id.0).collect();
        if let Some(id) = devices.keys().find(|id| !given.contains(id)) {
            session.report(Finding::CannotOpen { reason: format!("device {id} of the filesystem was not given") });
        }
    }
    devices
}

/// Adds a chunk to the map, or notes that it confirms the one of the superblock.
fn add_chunk(
    session: &Session<'_>,
    map: &mut ChunkMap,
    system: &mut BTreeMap<Logical, (Chunk, bool)>,
    (key, data): (Key, &[u8]),
    limits: &ChunkLimits,
) {
    let chunk = Logical(key.offset);
    if key.objectid != objectid::FIRST_CHUNK_TREE {
        let rule = format!("the object of its key is {}", key.objectid);
        return session.report(Finding::ChunkBad { chunk, rule });
    }
    let added = Chunk::parse(chunk, data, limits).and_then(|chunk| {
        let alone = ChunkMap::from_chunks([chunk.clone()]).map_err(|error| error.to_string())?;
        session.volume.check_chunk_map(&alone).map_err(|error| error.to_string())?;
        if let Some((own, is_confirmed)) = system.get_mut(&chunk.start) {
            *is_confirmed |= own.maps_like(&chunk);
            return Ok(());
        }
        map.insert(chunk).map_err(|error| error.to_string())
    });
    if let Err(rule) = added {
        session.report(Finding::ChunkBad { chunk, rule });
    }
}

/// Device extents against the stripes of the chunks, and their sums against the device items.
pub(crate) fn check_devices(session: &Session<'_>, root: NodePtr, devices: &BTreeMap<u64, DevItem>) {
    let map = session.volume.chunk_map();
    let mut stripes = BTreeMap::new();
    for chunk in map.iter() {
        for stripe in &chunk.stripes {
            let device_and_address = (stripe.device.get(), stripe.physical.get());
            if stripes.insert(device_and_address, (chunk.start.get(), chunk.stripe_length())).is_some() {
                session.report(Finding::DeviceExtentOverlap { device: stripe.device, physical: device_and_address.1 });
            }
        }
    }
    check_stripes_apart(session, &stripes);
    let mut used = BTreeMap::<u64, u64>::new();
    let complete = items(session, root, &mut |key, data| {
        let Ok(extent) = DevExtent::read_from_bytes(data) else { return };
        if key.kind != KeyType::DEV_EXTENT {
            return;
        }
        let (device, physical, length) = (DeviceId(key.objectid), key.offset, extent.length.get());
        let sum = used.entry(key.objectid).or_default();
        *sum = sum.saturating_add(length);
        let device_and_address = (key.objectid, physical);
        if stripes.get(&device_and_address) == Some(&(extent.chunk_offset.get(), length)) {
            stripes.remove(&device_and_address);
        } else {
            let chunk = Logical(extent.chunk_offset.get());
            session.report(Finding::DeviceExtentExtra { chunk, device, physical });
        }
    });
    if !complete {
        return;
    }
    for ((device, physical), (chunk, _)) in stripes {
        let (chunk, device) = (Logical(chunk), DeviceId(device));
        session.report(Finding::DeviceExtentMissing { chunk, device, physical });
    }
    check_device_items(session, devices, &used);
}

/// No two stripes have a byte in common. By device and physical address: chunk and length.
fn check_stripes_apart(session: &Session<'_>, stripes: &BTreeMap<(u64, u64), (u64, u64)>) {
    let mut end = (0, 0);
    for (&(device, physical), &(_, length)) in stripes {
        if end.0 == device && physical < end.1 {
            session.report(Finding::DeviceExtentOverlap { device: DeviceId(device), physical });
        }
        end = (device, physical.saturating_add(length));
    }
}

fn check_device_items(session: &Session<'_>, devices: &BTreeMap<u64, DevItem>, used: &BTreeMap<u64, u64>) {
    let mut total = 0u64;
    for (id, item) in devices {
        total = total.saturating_add(item.total_bytes.get());
        let (stored, found) = (item.bytes_used.get(), used.get(id).copied().unwrap_or(0));
        let given = session.volume.device_item(DeviceId(*id));
        if given.is_none_or(|given| (given.uuid, given.fsid) != (item.uuid, item.fsid)) {
            session.report(Finding::DeviceIdentity { device: DeviceId(*id) });
        }
        if stored != found {
            session.report(Finding::DeviceUsed { device: DeviceId(*id), stored, found });
        }
    }
    for id in used.keys().filter(|id| !devices.contains_key(id)) {
        session.report(Finding::DeviceItemMissing { device: DeviceId(*id) });
    }
    let stored = session.sb.total_bytes.get();
    if total > stored {
        session.report(Finding::SuperblockTotal { stored, found: total });
    }
}

/// Block groups against chunks, and their sums against the extents.
pub(crate) fn check_groups(session: &Session<'_>, scan: &ExtentScan) {
    let map = session.volume.chunk_map();
    for chunk in map.iter().filter(|chunk| !scan.groups.contains_key(&chunk.start.get())) {
        session.report(Finding::GroupMissing { chunk: chunk.start });
    }
    for (&start, item) in &scan.groups {
        let group = Logical(start);
        match map.get(group).filter(|chunk| chunk.start == group && chunk.length == item.length) {
            None => session.report(Finding::GroupExtra { group }),
            Some(chunk) if (chunk.kind ^ item.flags) & (bits::TYPE_MASK | bits::PROFILE_MASK) != 0 => {
                session.report(Finding::GroupKind { group, stored: item.flags, chunk: chunk.kind });
            }
            Some(_) => {}
        }
        let found = scan.used.bytes_within(start..start.saturating_add(item.length));
        if found != item.used && scan.complete {
            session.report(Finding::GroupUsed { group, stored: item.used, found });
        }
    }
    let (stored, found) = (session.sb.bytes_used.get(), scan.used.bytes_within(0..u64::MAX));
    if stored != found && scan.complete {
        session.report(Finding::SuperblockUsed { stored, found });
    }
}
