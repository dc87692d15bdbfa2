//! How full a filesystem is.

use super::Filesystem;
use crate::error::{Errno, Error, Result};
use crate::space::{Class, GroupInfo};
use crate::transaction::Reserve;
use butterfs_ondisk::DeviceId;
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_ondisk::profile::{PROFILES, Profile};
use butterfs_volume::DeviceStats;

/// Totals as `statfs(2)` reports them, in blocks of `block_size` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks of all devices, as far as the data profile can use them.
    pub blocks: u64,
    /// Blocks that hold nothing.
    pub blocks_free: u64,
    /// Blocks that file data can still take.
    pub blocks_available: u64,
    /// Longest name in bytes.
    pub name_len: u32,
    /// A number that tells filesystems apart.
    pub fsid: u64,
}

/// How far a device is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceCondition {
    /// It has everything.
    Whole,
    /// It has missed writes and is brought up to date.
    Stale,
    /// It failed, and is not used any more.
    Failed,
}

impl Filesystem {
    /// Gives the filesystem another label; durable on return. `EINVAL` for more than 255 bytes or a NUL or newline.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        let _operation = self.begin();
        if label.len() > 255 || label.iter().any(|byte| [0, b'\n'].contains(byte)) {
            return Err(Error::refused(Errno::EINVAL, "a label has at most 255 bytes, no NUL and no newline"));
        }
        // The right to write, and space for the block that makes it a transaction.
        let handle = self.0.files.start(Reserve::items(1))?;
        let mut padded = [0; 256];
        padded[..label.len()].copy_from_slice(label);
        handle.transaction().books().label = Some(padded);
        let generation = handle.generation();
        drop(handle);
        self.0.engine.commit_operation(generation)
    }

    /// The block groups: where they lie, what they may hold, and how much of each is used.
    pub fn block_groups(&self) -> Vec<GroupInfo> {
        let _operation = self.begin();
        self.0.engine.space.groups()
    }

    /// The devices that are there, with their names and what went wrong on them, ascending by number.
    pub fn device_stats(&self) -> Vec<(DeviceId, String, DeviceStats)> {
        let _operation = self.begin();
        let volume = self.0.engine.volume();
        let stats = volume.device_stats().into_iter().map(|(_, stats)| stats);
        volume.devices().into_iter().zip(stats).map(|((id, name), stats)| (id, name, stats)).collect()
    }

    /// Sets the error counters of all devices, or of one, to zero; durable on return. Returns what they were.
    pub fn reset_device_stats(&self, only: Option<DeviceId>) -> Result<Vec<(DeviceId, String, DeviceStats)>> {
        let _operation = self.begin();
        if self.is_read_only() {
            return Err(Error::refused(Errno::EROFS, "the filesystem is read-only"));
        }
        let mut before = self.device_stats();
        before.retain(|(id, ..)| only.is_none_or(|only| only == *id));
        if before.is_empty() {
            return Err(Error::refused(Errno::ENODEV, "there is no such device"));
        }
        for (id, ..) in &before {
            self.0.engine.volume().set_device_stats(*id, DeviceStats::default());
        }
        self.0.engine.commit_anyway()?;
        Ok(before)
    }

    /// How far each device is believed, ascending by number.
    pub fn device_conditions(&self) -> Vec<(DeviceId, DeviceCondition)> {
        let _operation = self.begin();
        let volume = self.0.engine.volume();
        let condition = |id| match () {
            () if !volume.is_usable(id) => DeviceCondition::Failed,
            () if volume.is_stale(id) => DeviceCondition::Stale,
            () => DeviceCondition::Whole,
        };
        volume.devices().into_iter().map(|(id, _)| (id, condition(id))).collect()
    }

    /// Devices of the filesystem that are not there.
    pub fn missing_devices(&self) -> u64 {
        let _operation = self.begin();
        self.0.engine.volume().missing_devices()
    }

    /// Why nothing is written any more, after an error.
    pub fn stopped(&self) -> Option<String> {
        let _operation = self.begin();
        self.0.engine.aborted().map(|error| error.to_string())
    }

    /// See [`StatFs`]. As in the kernel, inodes are not counted: there is no limit.
    pub fn statfs(&self) -> StatFs {
        let _operation = self.begin();
        let core = &self.0.engine;
        let groups = core.space.groups();
        let copies = |flags: u64| Profile::of(flags & bits::PROFILE_MASK).map_or(1, |profile| profile.copies as u64);
        let data = groups.iter().find(|group| group.flags & bits::DATA != 0).and_then(|group| Profile::of(group.flags));
        let data = data.unwrap_or(&PROFILES[0]);
        let data_copies = data.copies as u64;
        let superblock = core.superblock();
        let total = superblock.total_bytes.get() / data_copies;
        let used: u64 = groups.iter().map(|group| group.used * copies(group.flags) / data_copies).sum();
        let unallocated = core.devices.space.lock().unallocated(data);
        // As in the kernel, what lies under copies of the superblock is counted.
        let here = core.space.totals(Class::Data);
        let available = (here.length - here.used).saturating_sub(here.reserved) + unallocated;
        // As in the kernel, data that could not be recorded has no room.
        let available = if core.are_trees_full() { 0 } else { available };
        let free = total.saturating_sub(used);
        // What only a commit may use is not free, as long as there is more.
        let reserve = core.global_reserve();
        let free = if free > reserve { free - reserve } else { free };
        let block_size = core.sectorsize();
        let blocks = |bytes: u64| bytes / u64::from(block_size);
        let fsid = superblock.fsid;
        let half = |from: usize| u64::from_le_bytes(fsid[from..from + 8].try_into().expect("eight bytes"));
        StatFs {
            block_size,
            blocks: blocks(total),
            blocks_free: blocks(free),
            blocks_available: blocks(available.min(free)),
            name_len: 255,
            fsid: half(0) ^ half(8) ^ self.root().tree.0,
        }
    }
}
