//! Item payloads, one declaration each. Every structure is packed and little-endian; sizes are asserted.
//!
//! The first line of each type's documentation has the kernel's name for it.

use crate::key::DiskKey;
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

macro_rules! layout {
    ($size:literal, $(#[$doc:meta])* pub struct $name:ident { $($(#[$fdoc:meta])* pub $field:ident: $ty:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Debug)]
        #[repr(C)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }
        const _: () = assert!(size_of::<$name>() == $size);
        impl Default for $name {
            fn default() -> $name { zerocopy::FromZeros::new_zeroed() }
        }
        impl $name {
            /// Bytes on disk.
            pub const LEN: usize = $size;
        }
    };
}

layout! { 12,
/// `btrfs_timespec`.
pub struct Timespec {
    /// Seconds since 1970.
    pub sec: I64,
    /// Nanoseconds, below 10^9.
    pub nsec: U32,
}}

layout! { 160,
/// `btrfs_inode_item`.
pub struct InodeItem {
    /// The transaction that created the inode.
    pub generation: U64,
    /// The transaction that last wrote this item.
    pub transid: U64,
    /// Bytes of content; for a directory twice the sum of its names' lengths.
    pub size: U64,
    /// Bytes that the extents cover.
    pub nbytes: U64,
    /// Unused, 0.
    pub block_group: U64,
    /// Hard links; 1 for a directory, 0 for an orphan.
    pub nlink: U32,
    /// Owner.
    pub uid: U32,
    /// Group.
    pub gid: U32,
    /// `S_IFMT` and permission bits.
    pub mode: U32,
    /// Device number in Linux's internal form, `major << 20 | minor`.
    pub rdev: U64,
    /// See [`inode_flags`].
    pub flags: U64,
    /// Change counter.
    pub sequence: U64,
    /// Zero.
    pub reserved: [U64; 4],
    /// Last access.
    pub atime: Timespec,
    /// Last change of the inode.
    pub ctime: Timespec,
    /// Last change of the content.
    pub mtime: Timespec,
    /// Birth.
    pub otime: Timespec,
}}

/// Flags of an [`InodeItem`].
pub mod inode_flags {
    /// Data has no checksums.
    pub const NODATASUM: u64 = 1 << 0;
    /// Data is overwritten in place.
    pub const NODATACOW: u64 = 1 << 1;
    /// Read-only (unused).
    pub const READONLY: u64 = 1 << 2;
    /// Do not compress.
    pub const NOCOMPRESS: u64 = 1 << 3;
    /// Has or had preallocated extents.
    pub const PREALLOC: u64 = 1 << 4;
    /// Synchronous writes.
    pub const SYNC: u64 = 1 << 5;
    /// Cannot be changed.
    pub const IMMUTABLE: u64 = 1 << 6;
    /// Can only be appended to.
    pub const APPEND: u64 = 1 << 7;
    /// Skipped by dump(8).
    pub const NODUMP: u64 = 1 << 8;
    /// Access times are not kept.
    pub const NOATIME: u64 = 1 << 9;
    /// Synchronous directory changes.
    pub const DIRSYNC: u64 = 1 << 10;
    /// Compress.
    pub const COMPRESS: u64 = 1 << 11;
    /// In a root item's embedded inode: the root item's flags are valid.
    pub const ROOT_ITEM_INIT: u64 = 1 << 31;
    /// Protected by fs-verity.
    pub const VERITY: u64 = 1 << 32;
}

layout! { 439,
/// `btrfs_root_item`. The form of old filesystems ends after `level`, at [`RootItem::LEGACY_LEN`] bytes.
pub struct RootItem {
    /// Embedded inode; only its flags matter.
    pub inode: InodeItem,
    /// Generation of the root node.
    pub generation: U64,
    /// Inode of the root directory, 256, or 0 for trees without one.
    pub root_dirid: U64,
    /// Address of the root node.
    pub bytenr: U64,
    /// Unused, 0.
    pub byte_limit: U64,
    /// Bytes of the tree's blocks (not exact).
    pub bytes_used: U64,
    /// Transaction of the last snapshot taken of this tree.
    pub last_snapshot: U64,
    /// [`RootItem::RDONLY`], [`RootItem::DEAD`].
    pub flags: U64,
    /// 0 for a deleted tree.
    pub refs: U32,
    /// Where dropping the tree goes on.
    pub drop_progress: DiskKey,
    /// Level of `drop_progress`.
    pub drop_level: u8,
    /// Level of the root node.
    pub level: u8,
    /// Equal to `generation`; if not, everything from here on is void.
    pub generation_v2: U64,
    /// The subvolume's UUID.
    pub uuid: [u8; 16],
    /// UUID of the subvolume this is a snapshot of.
    pub parent_uuid: [u8; 16],
    /// UUID of the subvolume this was received from.
    pub received_uuid: [u8; 16],
    /// Transaction of the last change of an inode.
    pub ctransid: U64,
    /// Transaction of creation.
    pub otransid: U64,
    /// Transaction when sent.
    pub stransid: U64,
    /// Transaction when received.
    pub rtransid: U64,
    /// Time of `ctransid`.
    pub ctime: Timespec,
    /// Time of `otransid`.
    pub otime: Timespec,
    /// Time of `stransid`.
    pub stime: Timespec,
    /// Time of `rtransid`.
    pub rtime: Timespec,
    /// Zero.
    pub reserved: [U64; 8],
}}

impl RootItem {
    /// Bytes of the old form, which ends after `level`.
    pub const LEGACY_LEN: usize = 239;
    /// Flag: read-only subvolume.
    pub const RDONLY: u64 = 1;
    /// Flag: deleted subvolume.
    pub const DEAD: u64 = 1 << 48;

    /// Reads either form. A short item, or one whose `generation_v2` is not its generation, reads as zero
    /// from `generation_v2` on, as the kernel does. `None` when the payload has neither length.
    pub fn parse(payload: &[u8]) -> Option<RootItem> {
        let mut bytes = [0u8; RootItem::LEN];
        match payload.len() {
            RootItem::LEN | RootItem::LEGACY_LEN => bytes[..payload.len()].copy_from_slice(payload),
            _ => return None,
        }
        let item: RootItem = zerocopy::transmute!(bytes);
        if item.generation_v2 != item.generation {
            bytes[RootItem::LEGACY_LEN..].fill(0);
            return Some(zerocopy::transmute!(bytes));
        }
        Some(item)
    }
}

layout! { 10,
/// `btrfs_inode_ref`, followed by the name; several in one item.
pub struct InodeRef {
    /// Index of the entry in its directory.
    pub index: U64,
    /// Length of the name.
    pub name_len: U16,
}}

layout! { 18,
/// `btrfs_inode_extref`, followed by the name; several in one item.
pub struct InodeExtref {
    /// The directory.
    pub parent: U64,
    /// Index of the entry in its directory.
    pub index: U64,
    /// Length of the name.
    pub name_len: U16,
}}

layout! { 30,
/// `btrfs_dir_item`, followed by name and data; several in a DIR_ITEM or XATTR_ITEM whose names collide.
pub struct DirItem {
    /// The inode's or the subvolume's key; zero for an extended attribute.
    pub location: DiskKey,
    /// The transaction that made the entry.
    pub transid: U64,
    /// Length of an extended attribute's value.
    pub data_len: U16,
    /// Length of the name.
    pub name_len: U16,
    /// See [`dir_type`].
    pub kind: u8,
}}

/// Entry types of a [`DirItem`].
pub mod dir_type {
    /// Regular file.
    pub const REG_FILE: u8 = 1;
    /// Directory or subvolume.
    pub const DIR: u8 = 2;
    /// Character device.
    pub const CHRDEV: u8 = 3;
    /// Block device.
    pub const BLKDEV: u8 = 4;
    /// FIFO.
    pub const FIFO: u8 = 5;
    /// Socket.
    pub const SOCK: u8 = 6;
    /// Symbolic link.
    pub const SYMLINK: u8 = 7;
    /// Extended attribute.
    pub const XATTR: u8 = 8;
}

layout! { 18,
/// `btrfs_root_ref`, followed by the name.
pub struct RootRef {
    /// Directory that holds the subvolume.
    pub dirid: U64,
    /// Index of the entry.
    pub sequence: U64,
    /// Length of the name.
    pub name_len: U16,
}}

layout! { 21,
/// The head of a `btrfs_file_extent_item`; inline data follows directly, or [`FileExtentBody`].
pub struct FileExtentHead {
    /// The transaction that wrote the extent.
    pub generation: U64,
    /// Uncompressed length of the whole extent.
    pub ram_bytes: U64,
    /// See [`compression`].
    pub compression: u8,
    /// 0.
    pub encryption: u8,
    /// 0.
    pub other_encoding: U16,
    /// See [`file_extent_type`].
    pub kind: u8,
}}

layout! { 32,
/// The rest of a regular or preallocated `btrfs_file_extent_item`.
pub struct FileExtentBody {
    /// Address of the extent; 0 for a hole.
    pub disk_bytenr: U64,
    /// Length of the extent on disk.
    pub disk_num_bytes: U64,
    /// Start of the used part, in uncompressed bytes.
    pub offset: U64,
    /// Bytes of the file that this item covers.
    pub num_bytes: U64,
}}

layout! { 53,
/// `btrfs_file_extent_item`, regular or preallocated.
pub struct FileExtent {
    /// What inline extents have too.
    pub head: FileExtentHead,
    /// Where the data is.
    pub body: FileExtentBody,
}}

/// Compression of a file extent.
pub mod compression {
    /// Uncompressed.
    pub const NONE: u8 = 0;
    /// zlib.
    pub const ZLIB: u8 = 1;
    /// LZO.
    pub const LZO: u8 = 2;
    /// zstd.
    pub const ZSTD: u8 = 3;
}

/// Types of a file extent.
pub mod file_extent_type {
    /// Data in the item.
    pub const INLINE: u8 = 0;
    /// Data in an extent, or a hole.
    pub const REGULAR: u8 = 1;
    /// Allocated, reads as zeros.
    pub const PREALLOC: u8 = 2;
}

layout! { 24,
/// `btrfs_extent_item`.
pub struct ExtentItem {
    /// All references, inline and keyed.
    pub refs: U64,
    /// The transaction that allocated the extent.
    pub generation: U64,
    /// See [`extent_flags`].
    pub flags: U64,
}}

/// Flags of an [`ExtentItem`].
pub mod extent_flags {
    /// File data.
    pub const DATA: u64 = 1;
    /// A tree block.
    pub const TREE_BLOCK: u64 = 2;
    /// The block's children are referenced by its address, not by its owner.
    pub const FULL_BACKREF: u64 = 1 << 8;
}

layout! { 18,
/// `btrfs_tree_block_info`, behind an [`ExtentItem`] of a tree block without skinny metadata.
pub struct TreeBlockInfo {
    /// First key of the block when it was allocated.
    pub key: DiskKey,
    /// Level of the block.
    pub level: u8,
}}

layout! { 28,
/// `btrfs_extent_data_ref`.
pub struct ExtentDataRef {
    /// The tree.
    pub root: U64,
    /// The inode.
    pub objectid: U64,
    /// Position in the file of the extent's first byte, modulo 2^64.
    pub offset: U64,
    /// File extent items that make up this reference.
    pub count: U32,
}}

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

layout! { 32,
/// `btrfs_qgroup_status_item`.
pub struct QgroupStatus {
    /// 1.
    pub version: U64,
    /// The transaction for which the numbers are right.
    pub generation: U64,
    /// [`QgroupStatus::ON`], [`QgroupStatus::RESCAN`], [`QgroupStatus::INCONSISTENT`].
    pub flags: U64,
    /// Where a rescan goes on.
    pub rescan: U64,
}}

impl QgroupStatus {
    /// Flag: quotas are on.
    pub const ON: u64 = 1;
    /// Flag: a rescan runs.
    pub const RESCAN: u64 = 2;
    /// Flag: the numbers are not right.
    pub const INCONSISTENT: u64 = 4;
}

layout! { 40,
/// `btrfs_qgroup_info_item`.
pub struct QgroupInfo {
    /// The transaction that changed it.
    pub generation: U64,
    /// Bytes referenced.
    pub referenced: U64,
    /// The same, compressed.
    pub referenced_compressed: U64,
    /// Bytes that no other group references.
    pub exclusive: U64,
    /// The same, compressed.
    pub exclusive_compressed: U64,
}}

layout! { 40,
/// `btrfs_qgroup_limit_item`.
pub struct QgroupLimit {
    /// Which of the limits are set.
    pub flags: U64,
    /// Bytes that may be referenced.
    pub max_referenced: I64,
    /// Bytes that may be exclusive.
    pub max_exclusive: I64,
    /// Reserved referenced bytes.
    pub rsv_referenced: I64,
    /// Reserved exclusive bytes.
    pub rsv_exclusive: I64,
}}

layout! { 136,
/// `btrfs_disk_balance_args`: which chunks of one type a balance takes.
pub struct BalanceArgs {
    /// Profiles.
    pub profiles: U64,
    /// Lowest usage in percent.
    pub usage_min: U32,
    /// Highest usage in percent.
    pub usage_max: U32,
    /// Device.
    pub devid: U64,
    /// First physical address.
    pub pstart: U64,
    /// Last physical address.
    pub pend: U64,
    /// First logical address.
    pub vstart: U64,
    /// Last logical address.
    pub vend: U64,
    /// Profile to convert to.
    pub target: U64,
    /// Which of the filters are used.
    pub flags: U64,
    /// Fewest chunks.
    pub limit_min: U32,
    /// Most chunks.
    pub limit_max: U32,
    /// Fewest stripes.
    pub stripes_min: U32,
    /// Most stripes.
    pub stripes_max: U32,
    /// Zero.
    pub unused: [U64; 6],
}}

layout! { 448,
/// `btrfs_balance_item`.
pub struct BalanceItem {
    /// Which types are balanced, and what is converted.
    pub flags: U64,
    /// Of data chunks.
    pub data: BalanceArgs,
    /// Of metadata chunks.
    pub metadata: BalanceArgs,
    /// Of system chunks.
    pub system: BalanceArgs,
    /// Zero.
    pub unused: [U64; 4],
}}
