//! Devices that come, go or get another size: their items go with the transaction that freezes.
//!
//! # Invariants
//! 1. A device that joins gets its first superblock from the transaction that adds it, and one that leaves none from
//!    the transaction on that removes it. Until then it is what the last commit says.
//! 2. A device that has left is let go when that is durable.
//! 3. The number of devices and the sum of their sizes in the superblock are counted anew whenever devices change.

use crate::error::{Error, Result};
use crate::extent;
use crate::transaction::{Core, DeviceChange, DeviceExtents, Handle};
use butterfs_device::BlockDevice;
use butterfs_ondisk::DeviceId;
use butterfs_ondisk::items::DevItem;
use std::sync::Arc;

/// Brings the changes that wait into the trees. True when there was one.
pub(super) fn book(handle: &Handle) -> Result<bool> {
    let changes = std::mem::take(&mut handle.transaction().books().device_changes);
    for change in &changes {
        extent::write_device_change(handle, change)?;
        note(handle.core(), change);
    }
    let any = !changes.is_empty();
    handle.transaction().books().changed_devices.extend(changes);
    Ok(any)
}

/// Notes the devices that new chunks may use from now on.
fn note(core: &Core, change: &DeviceChange) {
    let mut space = core.devices.space.lock();
    match change {
        DeviceChange::Resize { id, total_bytes } => {
            if let Some(device) = space.devices.get_mut(id) {
                device.total_bytes = *total_bytes;
                device.limit = None;
            }
        }
        DeviceChange::Add { item, device } => {
            drop(space);
            join(core, item, device);
        }
        DeviceChange::Remove(id) => {
            space.devices.remove(id);
        }
        DeviceChange::Seed { .. } | DeviceChange::Replace(_) | DeviceChange::Replaced { .. } => {}
    }
}

/// New chunks may lie on a device that joins. It may have joined already.
pub(crate) fn join(core: &Core, item: &DevItem, device: &Arc<dyn BlockDevice>) {
    let id = DeviceId(item.devid.get());
    if core.volume.device_item(id).is_none() {
        core.volume.add_device(*item, Arc::clone(device));
    }
    let extents = DeviceExtents { total_bytes: item.total_bytes.get(), uuid: item.uuid, ..DeviceExtents::default() };
    core.devices.space.lock().devices.entry(id).or_insert(extents);
}

/// The superblocks of the transaction are about to be written.
pub(super) fn publish(core: &Core, changes: &[DeviceChange]) -> Result<()> {
    for change in changes {
        match change {
            DeviceChange::Add { item, .. } => core.volume.take_superblocks(DeviceId(item.devid.get()), true),
            DeviceChange::Remove(id) => core.volume.take_superblocks(*id, false),
            DeviceChange::Replace(item) => core.volume.twins_take_superblocks(item.is_active()),
            DeviceChange::Replaced { device, .. } => {
                if !core.volume.finish_twin(DeviceId(device.devid.get()), *device) {
                    let what = "the device that was to take over has failed in the last moment";
                    return Err(Error::Device(what.into()));
                }
            }
            DeviceChange::Resize { .. } | DeviceChange::Seed { .. } => {}
        }
    }
    Ok(())
}

/// The transaction is durable: devices that have left are let go.
pub(super) fn settle(core: &Core, changes: &[DeviceChange]) {
    for change in changes {
        if let DeviceChange::Remove(id) = change {
            core.volume.remove_device(*id);
        }
    }
}
