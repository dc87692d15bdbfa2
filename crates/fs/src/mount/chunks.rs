//! The chunk tree: all chunks and devices.

use crate::error::{Error, Result};
use crate::node_io::NodeCache;
use crate::transaction::{Core, DeviceSpace, Tree};
use butterfs_ondisk::chunk::{Chunk, ChunkLimits};
use butterfs_ondisk::items::DevItem;
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::superblock::Superblock;
use butterfs_ondisk::{DeviceId, Key, KeyType, Logical, TreeId};
use butterfs_tree::NodePtr;
use std::ops::ControlFlow;
use zerocopy::FromBytes;

/// The UUID that every block carries, as the chunk tree's root has it.
pub(super) fn chunk_tree_uuid(nodes: &NodeCache, superblock: &Superblock) -> Result<[u8; 16]> {
    let (at, level, generation) = superblock.chunk_tree_root();
    let root = nodes.load(&NodePtr { at, generation, level, tree: TreeId::CHUNK, first_key: None })?;
    Ok(root.header().chunk_tree_uuid)
}

/// Reads all chunks and devices into the volume's chunk map and the device space.
pub(super) fn load(core: &Core, tree: &Tree, superblock: &Superblock) -> Result<()> {
    let limits = ChunkLimits::from(superblock);
    let mut map = (*core.volume.chunk_map()).clone();
    let mut devices = core.devices.space.lock();
    tree.scan(core, Key::MIN, Key::MAX, &mut |key, data| {
        match key.kind {
            KeyType::DEV_ITEM => {
                let item = DevItem::read_from_bytes(data)
                    .map_err(|_| Error::corrupt(format!("device item {key} has {} bytes", data.len())))?;
                let device = devices.devices.entry(DeviceId(item.devid.get())).or_default();
                device.total_bytes = item.total_bytes.get();
                device.uuid = item.uuid;
                device.is_leaving = core.volume.is_seed(DeviceId(item.devid.get()));
                note_device(core, item)?;
            }
            KeyType::CHUNK_ITEM if key.objectid == objectid::FIRST_CHUNK_TREE => {
                let chunk = Chunk::parse(Logical(key.offset), data, &limits)
                    .map_err(|rule| Error::corrupt(format!("chunk {}: {rule}", key.offset)))?;
                if map.get(chunk.start).is_none_or(|known| !known.maps_like(&chunk)) {
                    map.insert(chunk).map_err(|error| Error::corrupt(error.to_string()))?;
                }
            }
            _ => {}
        }
        Ok(ControlFlow::Continue(()))
    })?;
    for chunk in map.iter() {
        for stripe in &chunk.stripes {
            if !devices.devices.contains_key(&stripe.device) {
                return Err(Error::corrupt(format!(
                    "chunk {} lies on device {}, which is missing",
                    chunk.start, stripe.device
                )));
            }
        }
        devices.add_chunk(chunk);
    }
    for (id, device) in &devices.devices {
        let mut end = 0;
        for (&at, &len) in &device.extents {
            if at < end || at + len > device.total_bytes {
                let total = device.total_bytes;
                return Err(Error::corrupt(format!(
                    "device {id}: the extent {at}+{len} overlaps another one or the end at {total}"
                )));
            }
            end = at + len;
        }
    }
    for (id, name) in core.volume.devices() {
        if !devices.devices.contains_key(&id) && core.volume.is_stale(id) {
            core.volume.remove_device(id);
            core.volume
                .tell(format!("{name} (devid {id}) is not a device of the filesystem any more: it is left alone"));
        } else if !devices.devices.contains_key(&id) {
            return Err(Error::corrupt(format!("{name} (devid {id}) is not a device of this filesystem any more")));
        }
    }
    count_missing(core, &devices)?;
    *core.devices.committed.lock() = core.volume.device_items();
    core.volume.check_chunk_map(&map).map_err(|error| Error::corrupt(error.to_string()))?;
    core.volume.set_chunk_map(map);
    Ok(())
}

/// Of those that the superblock counts, some that were given may have left, and others be missing.
fn count_missing(core: &Core, devices: &DeviceSpace) -> Result<()> {
    let given: Vec<DeviceId> = core.volume.devices().into_iter().map(|(id, _)| id).collect();
    let missing: Vec<DeviceId> = devices.devices.keys().copied().filter(|id| !given.contains(id)).collect();
    core.volume.set_missing(missing.len() as u64);
    match missing.first() {
        Some(id) if !core.options().degraded => {
            let (all, given) = (devices.devices.len(), given.len());
            let what = format!("the filesystem has {all} devices, but only {given} were given: device {id} is missing");
            Err(Error::Incomplete(what.into()))
        }
        _ => Ok(()),
    }
}

/// Takes the device item of the chunk tree where the device's own superblock is older.
fn note_device(core: &Core, item: DevItem) -> Result<()> {
    let id = DeviceId(item.devid.get());
    let Some(own) = core.volume.device_item(id) else { return Ok(()) };
    if own.uuid != item.uuid {
        return Err(Error::corrupt(format!("the given device {id} is another one than the filesystem's device {id}")));
    }
    check_seed(core, &item)?;
    if core.volume.is_seed(id) {
        core.volume.set_device_item(item);
    }
    if core.volume.is_stale(id) {
        // No smaller than it is now, so the copies of its superblock lie on it.
        let total_bytes = item.total_bytes.get().min(own.total_bytes.get()).into();
        core.volume.set_device_item(DevItem { total_bytes, ..item });
    }
    Ok(())
}

/// A seed device is of the filesystem and the commit that this one has sprouted from.
fn check_seed(core: &Core, item: &DevItem) -> Result<()> {
    let id = DeviceId(item.devid.get());
    let Some((_, seed)) = core.volume.seeds().into_iter().find(|(of, _)| *of == id) else { return Ok(()) };
    if seed.fsid != item.fsid {
        let what =
            format!("the given device {id} is of another filesystem than the one that this one has sprouted from");
        return Err(Error::corrupt(what));
    }
    match seed.generation {
        Some(given) if given != item.generation.get() => {
            let what = format!(
                "the seed device {id} has generation {given} instead of {}: it was written after this filesystem had \
                 sprouted from it",
                item.generation
            );
            Err(Error::corrupt(what))
        }
        _ => Ok(()),
    }
}
