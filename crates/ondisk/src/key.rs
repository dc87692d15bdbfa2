//! Keys, the order of every tree, and the table of key types.
//!
//! ```text
//! btrfs_disk_key, 17 bytes
//!  0  objectid  u64
//!  8  type      u8
//!  9  offset    u64
//! ```

use std::fmt;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A key in memory; ordered by object id, type, offset, all unsigned.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Key {
    /// The object that the item belongs to.
    pub objectid: u64,
    /// The type of the item.
    pub kind: KeyType,
    /// The value that distinguishes items of one object and type.
    pub offset: u64,
}

impl Key {
    /// The smallest key.
    pub const MIN: Key = Key { objectid: 0, kind: KeyType(0), offset: 0 };
    /// The largest key.
    pub const MAX: Key = Key { objectid: u64::MAX, kind: KeyType(255), offset: u64::MAX };

    /// A key of its three parts.
    pub const fn new(objectid: u64, kind: KeyType, offset: u64) -> Key {
        Key { objectid, kind, offset }
    }

    /// The next larger key; `Key::MAX` stays.
    pub fn successor(self) -> Key {
        if self.offset < u64::MAX {
            Key { offset: self.offset + 1, ..self }
        } else if self.kind.0 < 255 {
            Key { objectid: self.objectid, kind: KeyType(self.kind.0 + 1), offset: 0 }
        } else if self.objectid < u64::MAX {
            Key { objectid: self.objectid + 1, kind: KeyType(0), offset: 0 }
        } else {
            Key::MAX
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} {} {})", self.objectid, self.kind.0, self.offset)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// `btrfs_disk_key`: a key as it lies on disk.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Default, Debug)]
#[repr(C)]
pub struct DiskKey {
    /// See [`Key::objectid`].
    pub objectid: U64,
    /// See [`Key::kind`].
    pub kind: u8,
    /// See [`Key::offset`].
    pub offset: U64,
}
const _: () = assert!(size_of::<DiskKey>() == 17);

impl From<DiskKey> for Key {
    fn from(key: DiskKey) -> Key {
        Key { objectid: key.objectid.get(), kind: KeyType(key.kind), offset: key.offset.get() }
    }
}

impl From<Key> for DiskKey {
    fn from(key: Key) -> DiskKey {
        DiskKey { objectid: key.objectid.into(), kind: key.kind.0, offset: key.offset.into() }
    }
}

/// The type byte of a key. Unknown types occur and are preserved.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct KeyType(pub u8);

macro_rules! key_types {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl KeyType {
            $($(#[$doc])* pub const $name: KeyType = KeyType($value);)*

            /// The name that btrfs-progs prints for this type, if it is a known one.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

impl KeyType {
    /// Whether no item that is known has this type. Headers of free space caches have type 0.
    pub const fn is_unknown(self) -> bool {
        self.0 != 0 && self.name().is_none()
    }
}

key_types! {
    /// Inode.
    INODE_ITEM = 1, "INODE_ITEM";
    /// Name of an inode; offset is the directory.
    INODE_REF = 12, "INODE_REF";
    /// Name of an inode that found no room in its INODE_REF; offset is a hash.
    INODE_EXTREF = 13, "INODE_EXTREF";
    /// Extended attribute; offset is the name's hash.
    XATTR_ITEM = 24, "XATTR_ITEM";
    /// fs-verity descriptor.
    VERITY_DESC_ITEM = 36, "VERITY_DESC_ITEM";
    /// fs-verity Merkle tree.
    VERITY_MERKLE_ITEM = 37, "VERITY_MERKLE_ITEM";
    /// Inode or tree that waits for deletion.
    ORPHAN_ITEM = 48, "ORPHAN_ITEM";
    /// Range of name hashes for which a log is authoritative (old kernels only).
    DIR_LOG_ITEM = 60, "DIR_LOG_ITEM";
    /// Range of directory indexes for which a log is authoritative.
    DIR_LOG_INDEX = 72, "DIR_LOG_INDEX";
    /// Directory entry by name hash.
    DIR_ITEM = 84, "DIR_ITEM";
    /// Directory entry by index.
    DIR_INDEX = 96, "DIR_INDEX";
    /// File extent; offset is the position in the file.
    EXTENT_DATA = 108, "EXTENT_DATA";
    /// Checksums of data; offset is the logical address.
    EXTENT_CSUM = 128, "EXTENT_CSUM";
    /// Root of a tree.
    ROOT_ITEM = 132, "ROOT_ITEM";
    /// A subvolume's place, seen from itself.
    ROOT_BACKREF = 144, "ROOT_BACKREF";
    /// A subvolume's place, seen from its parent.
    ROOT_REF = 156, "ROOT_REF";
    /// Extent; offset is its length.
    EXTENT_ITEM = 168, "EXTENT_ITEM";
    /// Tree block; offset is its level.
    METADATA_ITEM = 169, "METADATA_ITEM";
    /// Owner of a data extent under simple quotas.
    EXTENT_OWNER_REF = 172, "EXTENT_OWNER_REF";
    /// Reference to a tree block by its owner tree.
    TREE_BLOCK_REF = 176, "TREE_BLOCK_REF";
    /// Reference to a data extent by tree, inode and position.
    EXTENT_DATA_REF = 178, "EXTENT_DATA_REF";
    /// Reference to a tree block by its parent block.
    SHARED_BLOCK_REF = 182, "SHARED_BLOCK_REF";
    /// Reference to a data extent by the leaf that holds it.
    SHARED_DATA_REF = 184, "SHARED_DATA_REF";
    /// Block group; offset is its length.
    BLOCK_GROUP_ITEM = 192, "BLOCK_GROUP_ITEM";
    /// Free space of a block group, summary.
    FREE_SPACE_INFO = 198, "FREE_SPACE_INFO";
    /// Free run; offset is its length.
    FREE_SPACE_EXTENT = 199, "FREE_SPACE_EXTENT";
    /// Free sectors as bits; offset is the length covered.
    FREE_SPACE_BITMAP = 200, "FREE_SPACE_BITMAP";
    /// Allocated range of a device; offset is the physical address.
    DEV_EXTENT = 204, "DEV_EXTENT";
    /// Device.
    DEV_ITEM = 216, "DEV_ITEM";
    /// Chunk; offset is the logical address.
    CHUNK_ITEM = 228, "CHUNK_ITEM";
    /// The place of an extent in a filesystem with a RAID stripe tree.
    RAID_STRIPE = 230, "RAID_STRIPE";
    /// State of quotas.
    QGROUP_STATUS = 240, "QGROUP_STATUS";
    /// Usage of a quota group.
    QGROUP_INFO = 242, "QGROUP_INFO";
    /// Limits of a quota group.
    QGROUP_LIMIT = 244, "QGROUP_LIMIT";
    /// Membership between quota groups.
    QGROUP_RELATION = 246, "QGROUP_RELATION";
    /// Item that lives only as long as something runs (a balance).
    TEMPORARY_ITEM = 248, "TEMPORARY_ITEM";
    /// Item that persists (device statistics).
    PERSISTENT_ITEM = 249, "PERSISTENT_ITEM";
    /// Device replacement.
    DEV_REPLACE = 250, "DEV_REPLACE";
    /// Subvolume by its UUID.
    UUID_KEY_SUBVOL = 251, "UUID_KEY_SUBVOL";
    /// Subvolume by the UUID it was received as.
    UUID_KEY_RECEIVED_SUBVOL = 252, "UUID_KEY_RECEIVED_SUBVOL";
    /// String (unused by the kernel).
    STRING_ITEM = 253, "STRING_ITEM";
}

/// Object ids with a meaning of their own, apart from trees and inodes.
pub mod objectid {
    /// The items of all devices in the chunk tree.
    pub const DEV_ITEMS: u64 = 1;
    /// The objectid of every chunk item.
    pub const FIRST_CHUNK_TREE: u64 = 256;
    /// Device statistics in the device tree.
    pub const DEV_STATS: u64 = 0;
    /// Devices that have missed writes, in the device tree: no number of the format but the letters "butterfs", so that
    /// other writers keep such items and do not know them.
    pub const STALE_DEVICE: u64 = u64::from_be_bytes(*b"butterfs");
    /// A paused or running balance (−4).
    pub const BALANCE: u64 = (-4i64) as u64;
    /// Orphan items (−5).
    pub const ORPHAN: u64 = (-5i64) as u64;
    /// Log trees (−6).
    pub const TREE_LOG: u64 = (-6i64) as u64;
    /// Link-count fix-ups during log replay (−7).
    pub const TREE_LOG_FIXUP: u64 = (-7i64) as u64;
    /// Checksum items (−10).
    pub const EXTENT_CSUM: u64 = (-10i64) as u64;
    /// Headers of the version 1 space cache (−11).
    pub const FREE_SPACE: u64 = (-11i64) as u64;
    /// The inode-number cache of old kernels (−12).
    pub const FREE_INO: u64 = (-12i64) as u64;
}
