//! The engine's knowledge of the devices beside that of the volume: their free space, and their items in the trees.

use super::chunk_allocation::DeviceSpace;
use butterfs_ondisk::DeviceId;
use butterfs_ondisk::items::{DevItem, DevReplaceItem, LeftState, StaleDevice};
use butterfs_sync::{Mutex, order};
use butterfs_volume::DeviceStats;
use std::collections::BTreeMap;

/// The item in the device tree about a device that has missed writes.
pub(crate) struct StaleItem {
    /// Its item.
    pub item: StaleDevice,
    /// It was written since the filesystem was opened.
    pub is_written: bool,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Devices {
    /// The space that is in no chunk.
    pub space: Mutex<DeviceSpace, { order::DEVICE_SPACE }>,
    /// The device items in the superblocks of the last commit.
    pub committed: Mutex<Vec<DevItem>, { order::COMMITTED_DEVICES }>,
    /// The error counters as the device tree has them.
    pub stats: Mutex<BTreeMap<DeviceId, DeviceStats>, { order::DEVICE_STATS }>,
    /// Those that the device tree calls stale.
    pub stale: Mutex<BTreeMap<DeviceId, StaleItem>, { order::STALE_ITEMS }>,
    /// The last replacement of a device.
    pub replacement: Mutex<DevReplaceItem, { order::REPLACEMENT }>,
    /// The last commits, newest first, in which devices may have been left behind.
    pub last_states: Mutex<[LeftState; 4], { order::LAST_STATES }>,
}
