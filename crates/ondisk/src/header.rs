//! Tree blocks: the header, a leaf's item headers, a node's key pointers.
//!
//! ```text
//! leaf:  [header 101][item 25]…            …[data of item 1][data of item 0]
//! node:  [header 101][key pointer 33]…
//! ```
//!
//! An item's `offset` counts from byte 101; data is packed from the end of the block towards the front.

use crate::key::DiskKey;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

layout! { HEADER_LEN,
/// `btrfs_header`: the first 101 bytes of every tree block.
pub struct Header {
    /// Checksum of bytes 32 to the end of the block, in its first bytes; the rest is zero.
    pub csum: [u8; 32],
    /// The filesystem's metadata UUID.
    pub fsid: [u8; 16],
    /// The block's own logical address.
    pub bytenr: U64,
    /// [`Header::WRITTEN`], [`Header::RELOC`], and the back-reference revision in the top byte.
    pub flags: U64,
    /// The chunk tree's UUID.
    pub chunk_tree_uuid: [u8; 16],
    /// The transaction that wrote the block.
    pub generation: U64,
    /// The tree that wrote the block.
    pub owner: U64,
    /// Items or key pointers in the block.
    pub nritems: U32,
    /// 0 for a leaf.
    pub level: u8,
}}

/// Bytes of [`Header`].
pub const HEADER_LEN: usize = 101;
/// Bytes of [`ItemHeader`].
pub const ITEM_LEN: usize = 25;
/// Bytes of [`KeyPointer`].
pub const KEY_POINTER_LEN: usize = 33;

impl Header {
    /// Flag: the block has been written to disk.
    pub const WRITTEN: u64 = 1;
    /// Flag: the block was made by relocation; it may have full back references.
    pub const RELOC: u64 = 2;
    /// Back-reference revision 1 in the top byte of the flags.
    pub const BACKREF_REV: u64 = 1 << 56;
}

layout! { ITEM_LEN,
/// `btrfs_item`: where a leaf item's data lies.
pub struct ItemHeader {
    /// The item's key.
    pub key: DiskKey,
    /// Start of the data, in bytes from the end of the block header.
    pub offset: U32,
    /// Length of the data in bytes.
    pub size: U32,
}}

layout! { KEY_POINTER_LEN,
/// `btrfs_key_ptr`: a node's pointer to a child.
pub struct KeyPointer {
    /// The child's first key.
    pub key: DiskKey,
    /// The child's logical address.
    pub blockptr: U64,
    /// The child's generation.
    pub generation: U64,
}}

/// Bytes that a leaf of `nodesize` has for item headers and data.
pub const fn leaf_data_size(nodesize: u32) -> usize {
    nodesize as usize - HEADER_LEN
}

/// The largest payload that one item can have in a leaf of `nodesize`.
pub const fn max_item_size(nodesize: u32) -> usize {
    leaf_data_size(nodesize) - ITEM_LEN
}

/// Key pointers that fit in a node of `nodesize`.
pub const fn pointers_per_node(nodesize: u32) -> usize {
    (nodesize as usize - HEADER_LEN) / KEY_POINTER_LEN
}
