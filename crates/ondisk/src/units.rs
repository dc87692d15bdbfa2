//! The domain's quantities, each a type of its own, so that no two of them can be exchanged by mistake.

use std::fmt;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl $name {
            /// The bare number, for the byte layouts.
            pub const fn get(self) -> $inner {
                self.0
            }
        }
    };
}

unit! {
    /// A byte address in the one logical space that chunks map onto devices (the kernel's `bytenr`).
    Logical(u64)
}
unit! {
    /// A byte address on one device.
    Physical(u64)
}
unit! {
    /// A transaction's number; every tree block and every pointer to one carries it.
    Generation(u64)
}
unit! {
    /// The object id of a tree in the root tree.
    TreeId(u64)
}
unit! {
    /// An inode number, unique within one subvolume.
    Ino(u64)
}
unit! {
    /// A device's number within its filesystem.
    DeviceId(u64)
}
unit! {
    /// Height above the leaves: leaves are level 0, the highest legal level is 7.
    Level(u8)
}

/// Levels a tree can have: 0 to 7.
pub const MAX_LEVELS: usize = 8;

impl Logical {
    /// The address `len` bytes further on.
    pub const fn plus(self, len_bytes: u64) -> Logical {
        Logical(self.0 + len_bytes)
    }
}

impl Physical {
    /// The address `len` bytes further on.
    pub const fn plus(self, len_bytes: u64) -> Physical {
        Physical(self.0 + len_bytes)
    }
}

impl Generation {
    /// The generation after this one. The last one stays: no filesystem is written that has it.
    pub const fn next(self) -> Generation {
        Generation(self.0.saturating_add(1))
    }
}

impl Ino {
    /// The root directory of every subvolume.
    pub const ROOT_DIR: Ino = Ino(256);
    /// The directory in the root tree that names the default subvolume.
    pub const TREE_ROOT_DIR: Ino = Ino(6);
    /// The inode number shown for a subvolume's placeholder inside a snapshot.
    pub const PLACEHOLDER: Ino = Ino(2);
    /// The first number that the format hands out.
    pub const FIRST_FREE: Ino = Ino(256);
    /// The last number that the format hands out (−256).
    pub const LAST_FREE: Ino = Ino((-256i64) as u64);
}

impl TreeId {
    /// Root tree.
    pub const ROOT: TreeId = TreeId(1);
    /// Extent tree.
    pub const EXTENT: TreeId = TreeId(2);
    /// Chunk tree.
    pub const CHUNK: TreeId = TreeId(3);
    /// Device tree.
    pub const DEV: TreeId = TreeId(4);
    /// The top-level subvolume.
    pub const FS: TreeId = TreeId(5);
    /// Data checksum tree.
    pub const CSUM: TreeId = TreeId(7);
    /// Quota tree.
    pub const QUOTA: TreeId = TreeId(8);
    /// UUID tree.
    pub const UUID: TreeId = TreeId(9);
    /// Free space tree.
    pub const FREE_SPACE: TreeId = TreeId(10);
    /// Block group tree.
    pub const BLOCK_GROUP: TreeId = TreeId(11);
    /// RAID stripe tree.
    pub const RAID_STRIPE: TreeId = TreeId(12);
    /// Log trees and the log root tree (−6).
    pub const TREE_LOG: TreeId = TreeId((-6i64) as u64);
    /// Relocation trees (−8).
    pub const TREE_RELOC: TreeId = TreeId((-8i64) as u64);
    /// The tree that data relocation works in (−9).
    pub const DATA_RELOC: TreeId = TreeId((-9i64) as u64);

    /// Whether this is a subvolume tree, whose blocks snapshots may share: 5, or 256 to 2^48 − 1.
    pub const fn is_subvolume(self) -> bool {
        self.0 == 5 || (self.0 >= 256 && self.0 < 1 << 48)
    }
}
