//! The extent tree: extents and references to them.

use crate::key::DiskKey;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

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

layout! { 9,
/// `btrfs_extent_inline_ref`, behind an [`ExtentItem`]. One to data by its owner is the type and an [`ExtentDataRef`];
/// one to data by its leaf is followed by a [`SharedDataRef`].
pub struct InlineRef {
    /// The key type of the reference.
    pub kind: u8,
    /// The tree, or the address of the parent block.
    pub offset: U64,
}}

layout! { 4,
/// `btrfs_shared_data_ref`.
pub struct SharedDataRef {
    /// File extent items in the leaf that make up this reference.
    pub count: U32,
}}
