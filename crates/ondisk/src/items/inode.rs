//! Inodes: their items, names, directory entries, extended attributes and file extents.

use crate::key::DiskKey;
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

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
    /// The fields that inline extents have too.
    pub head: FileExtentHead,
    /// The place of the data.
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
