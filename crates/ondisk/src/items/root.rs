//! Roots of trees, and references between subvolumes.

use super::inode::{InodeItem, Timespec};
use crate::key::DiskKey;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

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
    /// The key at which dropping the tree continues.
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
