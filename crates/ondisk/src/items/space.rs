//! Block groups, chunks, devices, free space.

use crate::key::DiskKey;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

layout! { 24,
/// `btrfs_block_group_item`.
pub struct BlockGroupItem {
    /// Bytes allocated.
    pub used: U64,
    /// 256.
    pub chunk_objectid: U64,
    /// See [`block_group_flags`].
    pub flags: U64,
}}

/// Types and profiles of a chunk or block group.
pub mod block_group_flags {
    /// File data.
    pub const DATA: u64 = 1 << 0;
    /// The chunk tree.
    pub const SYSTEM: u64 = 1 << 1;
    /// All other trees.
    pub const METADATA: u64 = 1 << 2;
    /// Striped.
    pub const RAID0: u64 = 1 << 3;
    /// Two copies on two devices.
    pub const RAID1: u64 = 1 << 4;
    /// Two copies on one device.
    pub const DUP: u64 = 1 << 5;
    /// Striped, two copies.
    pub const RAID10: u64 = 1 << 6;
    /// Striped with one parity.
    pub const RAID5: u64 = 1 << 7;
    /// Striped with two parities.
    pub const RAID6: u64 = 1 << 8;
    /// Three copies.
    pub const RAID1C3: u64 = 1 << 9;
    /// Four copies.
    pub const RAID1C4: u64 = 1 << 10;
    /// All type bits.
    pub const TYPE_MASK: u64 = DATA | SYSTEM | METADATA;
    /// All profile bits; none of them is "single".
    pub const PROFILE_MASK: u64 = RAID0 | RAID1 | DUP | RAID10 | RAID5 | RAID6 | RAID1C3 | RAID1C4;
}

layout! { 8,
/// `btrfs_free_space_info`.
pub struct FreeSpaceInfo {
    /// Maximal free runs in the group.
    pub extent_count: U32,
    /// [`FreeSpaceInfo::USING_BITMAPS`] or 0.
    pub flags: U32,
}}

impl FreeSpaceInfo {
    /// Flag: the group's runs are stored as bitmaps.
    pub const USING_BITMAPS: u32 = 1;
}

layout! { 48,
/// The fixed part of a `btrfs_chunk`, followed by its stripes.
pub struct ChunkHead {
    /// Logical bytes.
    pub length: U64,
    /// 2, the extent tree.
    pub owner: U64,
    /// 65536.
    pub stripe_len: U64,
    /// See [`block_group_flags`].
    pub kind: U64,
    /// 65536.
    pub io_align: U32,
    /// 65536.
    pub io_width: U32,
    /// The filesystem's sector size.
    pub sector_size: U32,
    /// Stripes that follow.
    pub num_stripes: U16,
    /// 2 for RAID10, else 1.
    pub sub_stripes: U16,
}}

layout! { 32,
/// `btrfs_stripe`.
pub struct Stripe {
    /// The device.
    pub devid: U64,
    /// Physical address on it.
    pub offset: U64,
    /// The device's UUID.
    pub dev_uuid: [u8; 16],
}}

layout! { 98,
/// `btrfs_dev_item`.
pub struct DevItem {
    /// The device's number.
    pub devid: U64,
    /// Bytes of the device.
    pub total_bytes: U64,
    /// Bytes in device extents.
    pub bytes_used: U64,
    /// The sector size.
    pub io_align: U32,
    /// The sector size.
    pub io_width: U32,
    /// The sector size.
    pub sector_size: U32,
    /// 0.
    pub kind: U64,
    /// 0.
    pub generation: U64,
    /// 0.
    pub start_offset: U64,
    /// 0.
    pub dev_group: U32,
    /// 0.
    pub seek_speed: u8,
    /// 0.
    pub bandwidth: u8,
    /// The device's UUID.
    pub uuid: [u8; 16],
    /// The filesystem's metadata UUID.
    pub fsid: [u8; 16],
}}

layout! { 48,
/// `btrfs_dev_extent`.
pub struct DevExtent {
    /// 3.
    pub chunk_tree: U64,
    /// 256.
    pub chunk_objectid: U64,
    /// Logical start of the chunk.
    pub chunk_offset: U64,
    /// Bytes.
    pub length: U64,
    /// The chunk tree's UUID.
    pub chunk_tree_uuid: [u8; 16],
}}

layout! { 40,
/// `btrfs_dev_stats_item`: error counters of one device.
pub struct DevStats {
    /// write, read, flush, corruption and generation errors.
    pub values: [U64; 5],
}}

layout! { 72,
/// `btrfs_dev_replace_item`: the last replacement of a device.
pub struct DevReplaceItem {
    /// The device that is replaced; all ones where none is.
    pub src_devid: U64,
    /// Everything below this address of the device has been copied.
    pub cursor_left: U64,
    /// End of what is being copied.
    pub cursor_right: U64,
    /// 1 where the device is only read if no other copy is good.
    pub read_mode: U64,
    /// See [`DevReplaceItem::STARTED`].
    pub state: U64,
    /// Seconds since 1970.
    pub time_started: U64,
    /// Seconds since 1970.
    pub time_stopped: U64,
    /// Writes to the new device that failed.
    pub write_errors: U64,
    /// Bytes of which no copy could be read.
    pub uncorrectable_read_errors: U64,
}}

impl DevReplaceItem {
    /// There has been none.
    pub const NEVER_STARTED: u64 = 0;
    /// It runs.
    pub const STARTED: u64 = 1;
    /// It is complete.
    pub const FINISHED: u64 = 2;
    /// It was given up.
    pub const CANCELED: u64 = 3;
    /// It goes on with the next mount.
    pub const SUSPENDED: u64 = 4;
    /// `src_devid` where no device is being replaced.
    pub const NO_DEVICE: u64 = u64::MAX;

    /// Whether there is a new device that takes over.
    pub fn is_active(&self) -> bool {
        matches!(self.state.get(), DevReplaceItem::STARTED | DevReplaceItem::SUSPENDED)
    }
}

layout! { 48,
/// A state of the filesystem that a device can have been left in.
pub struct LeftState {
    /// The commit; 0 in places that are not used.
    pub generation: U64,
    /// The root tree.
    pub root: U64,
    /// The checksum in that block's header.
    pub checksum: [u8; 32],
}}

layout! { 208,
/// (`STALE_DEVICE`, `PERSISTENT_ITEM`, device): the device has missed writes. Not of the kernel's format: it keeps such
/// items and gives them no meaning, and so does `btrfs check`.
pub struct StaleDevice {
    /// The first transaction of which it may lack something.
    pub since: U64,
    /// See [`StaleDevice::FOREIGN`].
    pub flags: U64,
    /// Commits that it can have been left with.
    pub left: [LeftState; 4],
}}

impl StaleDevice {
    /// It was written without the other devices, and that is given up: no block of it is believed, whatever it says.
    pub const FOREIGN: u64 = 1;
    /// It was written, with superblocks too, in the transaction that wrote this item.
    pub const IN_USE: u64 = 2;
}

layout! { 41,
/// `btrfs_free_space_header`: a group's version 1 space cache.
pub struct FreeSpaceHeader {
    /// The cache file's inode.
    pub location: DiskKey,
    /// Generation for which the cache is valid.
    pub generation: U64,
    /// Runs in the cache.
    pub num_entries: U64,
    /// Bitmaps in the cache.
    pub num_bitmaps: U64,
}}
