//! Which devices have missed writes: an item for each in the device tree, from the first commit without it until it has been
//! brought up to date.
//!
//! The superblock of a device that was away tells so only until somebody writes it again, which the kernel does at once. The
//! item outlives that: the kernel keeps items of the device tree that it does not know, and `btrfs check` accepts them.
//!
//! # Invariants
//! 1. A commit that is made while a device is missing or known to be stale has an item that says so.
//! 2. In each mount the first commit writes the item of a stale device anew, so that it is found on that device too, should it
//!    ever be opened without the others.
//! 3. The item of a device that is not written any more names the states that it can be in ([`StaleDevice::left`]), by which
//!    one that was away is told from one that was written without the others.

use crate::error::Result;
use crate::transaction::{Core, Handle, StaleItem};
use butterfs_ondisk::header::Header;
use butterfs_ondisk::items::{LeftState, StaleDevice};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::superblock::RootBackup;
use butterfs_ondisk::{DeviceId, Key, KeyType, Logical};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use zerocopy::{FromBytes, IntoBytes};

fn key(device: DeviceId) -> Key {
    Key::new(objectid::STALE_DEVICE, KeyType::PERSISTENT_ITEM, device.0)
}

/// Reads the items. What they say about devices that are there is so.
pub(crate) fn load_stale_devices(core: &Core) -> Result<()> {
    let mut stale = core.stale_items.lock();
    core.globals().dev.scan(core, key(DeviceId(0)), key(DeviceId(u64::MAX)), &mut |key, data| {
        if let Ok((item, _)) = StaleDevice::read_from_prefix(data) {
            stale.insert(DeviceId(key.offset), StaleItem { item, is_written: false });
        }
        Ok(ControlFlow::Continue(()))
    })?;
    core.volume.set_stale(&|id| stale.contains_key(&id));
    let is_foreign = |known: &StaleItem| known.item.flags.get() & StaleDevice::FOREIGN != 0;
    core.volume.set_foreign(&|id| stale.get(&id).is_some_and(is_foreign));
    core.volume.set_recorded_stale(&|id| stale.contains_key(&id));
    Ok(())
}

/// Whether a commit is due because of the items alone: a device has missed writes since it was opened, or has been brought up to
/// date.
pub(crate) fn stale_devices_changed(core: &Core) -> bool {
    let stale = core.stale_items.lock();
    let has_changed = |id: DeviceId| match stale.contains_key(&id) {
        true => core.volume.is_whole_device(id),
        false => core.volume.missed_writes(id) > 0 && !core.volume.is_whole_device(id),
    };
    core.volume.devices().into_iter().any(|(id, _)| has_changed(id))
}

/// Brings the items up to date, and lets superblocks go to the stale devices that they name. True when there was one to write.
pub(crate) fn write_stale_devices(handle: &Handle) -> Result<bool> {
    let core = handle.core();
    let devices: BTreeSet<DeviceId> = core.device_space.lock().devices.keys().copied().collect();
    let mut stale = core.stale_items.lock();
    let mut any = false;
    let surplus: Vec<DeviceId> = stale.keys().filter(|id| !devices.contains(*id)).copied().collect();
    for &id in devices.iter().chain(&surplus) {
        if surplus.contains(&id) || core.volume.is_whole_device(id) {
            if stale.remove(&id).is_some() {
                any = true;
                core.globals().dev.remove(handle, key(id))?;
            }
            continue;
        }
        let known = stale.get(&id);
        let item = stale_item(core, handle, id, known.map(|known| known.item));
        if known.is_none_or(|known| !known.is_written || known.item != item) {
            any = true;
            core.globals().dev.put(handle, key(id), item.as_bytes())?;
            stale.insert(id, StaleItem { item, is_written: true });
        }
    }
    core.volume.set_recorded_stale(&|id| stale.contains_key(&id));
    Ok(any)
}

fn stale_item(core: &Core, handle: &Handle, id: DeviceId, known: Option<StaleDevice>) -> StaleDevice {
    let mut item = known.unwrap_or(StaleDevice { since: handle.generation().0.into(), ..StaleDevice::default() });
    if core.volume.is_foreign(id) {
        item.flags = (item.flags.get() | StaleDevice::FOREIGN).into();
    }
    if core.volume.is_usable(id) {
        item.left = Default::default();
    } else if item.left[0].generation.get() == 0 {
        item.left = left_states(core);
    }
    item
}

/// The last commits, newest first.
fn left_states(core: &Core) -> [LeftState; 4] {
    let mut backups = core.superblock().super_roots.to_vec();
    backups.sort_by_key(|backup| std::cmp::Reverse(backup.tree_root_gen.get()));
    std::array::from_fn(|index| backups.get(index).and_then(|backup| left_state(core, backup)).unwrap_or_default())
}

/// `None` for one whose root is not on disk any more: a device that was left with it is told by other means.
fn left_state(core: &Core, backup: &RootBackup) -> Option<LeftState> {
    let mut block = vec![0; core.nodesize() as usize];
    let (generation, root) = (backup.tree_root_gen, backup.tree_root);
    let verify = &mut |bytes: &[u8]| match Header::read_from_prefix(bytes) {
        Ok((header, _)) if header.generation == generation && header.bytenr == root => Ok(()),
        _ => Err("the block is another one".to_owned()),
    };
    let exists = generation.get() > 0 && core.volume.copies(Logical(root.get())) > 0;
    if !exists || core.volume.peek(Logical(root.get()), &mut block, verify).is_err() {
        return None;
    }
    let checksum = Header::read_from_prefix(&block).ok()?.0.csum;
    Some(LeftState { generation, root, checksum })
}
