//! The items of devices that come, go, get another size, or are replaced.

use crate::error::{Error, Result};
use crate::transaction::{DeviceChange, Handle};
use butterfs_ondisk::items::DevItem;
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{DeviceId, Key, KeyType};
use zerocopy::{FromBytes, IntoBytes};

fn key(id: DeviceId) -> Key {
    Key::new(objectid::DEV_ITEMS, KeyType::DEV_ITEM, id.0)
}

/// Brings a change into the chunk tree and the device tree.
pub(crate) fn write_device_change(handle: &Handle, change: &DeviceChange) -> Result<()> {
    let (core, globals) = (handle.core(), handle.core().globals());
    match change {
        DeviceChange::Resize { id, total_bytes } => {
            let set = |data: &mut [u8]| {
                DevItem::mut_from_bytes(data).map(|item| item.total_bytes = (*total_bytes).into()).is_ok()
            };
            if globals.chunk.update(handle, key(*id), set)? != Some(true) {
                return Err(Error::corrupt(format!("device {id} has no item of the right size")));
            }
            if let Some(mut item) = core.volume.device_item(*id) {
                item.total_bytes = (*total_bytes).into();
                core.volume.set_device_item(item);
            }
        }
        DeviceChange::Add { item, .. } => {
            if !globals.chunk.insert(handle, key(DeviceId(item.devid.get())), item.as_bytes())? {
                return Err(Error::corrupt(format!("new device {}: it has an item already", item.devid)));
            }
            // One of the same number may have left its counters.
            globals.dev.remove(handle, Key::new(objectid::DEV_STATS, KeyType::PERSISTENT_ITEM, item.devid.get()))?;
        }
        DeviceChange::Seed { id, generation } => {
            let set = |data: &mut [u8]| {
                DevItem::mut_from_bytes(data).map(|item| item.generation = (*generation).into()).is_ok()
            };
            if globals.chunk.update(handle, key(*id), set)? != Some(true) {
                return Err(Error::corrupt(format!("device {id} has no item of the right size")));
            }
        }
        DeviceChange::Remove(id) => {
            if !globals.chunk.remove(handle, key(*id))? {
                return Err(Error::corrupt(format!("device {id} has no item")));
            }
            globals.dev.remove(handle, Key::new(objectid::DEV_STATS, KeyType::PERSISTENT_ITEM, id.0))?;
            core.devices.stats.lock().remove(id);
        }
        DeviceChange::Replace(item) | DeviceChange::Replaced { item, .. } => {
            globals.dev.put(handle, Key::new(0, KeyType::DEV_REPLACE, 0), item.as_bytes())?;
        }
    }
    Ok(())
}
