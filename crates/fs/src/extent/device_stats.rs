//! The error counters of devices, which the device tree keeps from mount to mount.
//!
//! A commit that has something else to write brings them up to date. Errors alone make no commit, but at the end of a
//! scrub.

use crate::error::Result;
use crate::transaction::{Core, Handle};
use butterfs_ondisk::items::DevStats;
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{DeviceId, Key, KeyType};
use butterfs_volume::DeviceStats;
use zerocopy::{FromBytes, IntoBytes};

fn key(device: DeviceId) -> Key {
    Key::new(objectid::DEV_STATS, KeyType::PERSISTENT_ITEM, device.0)
}

/// Starts the counters with what the device tree says. What was counted since the devices were opened is kept.
pub(crate) fn load_device_stats(core: &Core) -> Result<()> {
    for (device, since) in core.volume.device_stats() {
        let stored = core.globals().dev.get(core, key(device))?;
        let stored = stored.and_then(|data| Some(stats_of(&DevStats::read_from_prefix(&data).ok()?.0)));
        let stored = stored.unwrap_or_default();
        core.volume.set_device_stats(device, sum(&stored, &since));
        core.devices.stats.lock().insert(device, stored);
    }
    Ok(())
}

/// Writes the counters that have changed. True when there was one.
pub(crate) fn write_device_stats(handle: &Handle) -> Result<bool> {
    let core = handle.core();
    let mut any = false;
    for (device, stats) in core.volume.device_stats() {
        if core.devices.stats.lock().insert(device, stats).unwrap_or_default() != stats {
            any = true;
            core.globals().dev.put(handle, key(device), item_of(&stats).as_bytes())?;
        }
    }
    Ok(any)
}

/// Whether errors were counted that the device tree does not have yet.
pub(crate) fn has_counted_errors(core: &Core) -> bool {
    let stored = core.devices.stats.lock();
    core.volume
        .device_stats()
        .into_iter()
        .any(|(device, stats)| stored.get(&device).copied().unwrap_or_default() != stats)
}

fn stats_of(item: &DevStats) -> DeviceStats {
    let [write_errors, read_errors, flush_errors, corruption_errors, generation_errors] =
        item.values.map(|value| value.get());
    DeviceStats { write_errors, read_errors, flush_errors, corruption_errors, generation_errors }
}

fn item_of(stats: &DeviceStats) -> DevStats {
    let DeviceStats { write_errors, read_errors, flush_errors, corruption_errors, generation_errors } = *stats;
    let values = [write_errors, read_errors, flush_errors, corruption_errors, generation_errors];
    DevStats { values: values.map(Into::into) }
}

fn sum(a: &DeviceStats, b: &DeviceStats) -> DeviceStats {
    DeviceStats {
        write_errors: a.write_errors.saturating_add(b.write_errors),
        read_errors: a.read_errors.saturating_add(b.read_errors),
        flush_errors: a.flush_errors.saturating_add(b.flush_errors),
        corruption_errors: a.corruption_errors.saturating_add(b.corruption_errors),
        generation_errors: a.generation_errors.saturating_add(b.generation_errors),
    }
}
