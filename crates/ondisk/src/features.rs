//! Feature bits, and what a filesystem that has them allows us to do.

/// `incompat_flags` of the superblock.
pub mod incompat {
    /// Mixed back references; always set.
    pub const MIXED_BACKREF: u64 = 1 << 0;
    /// The default subvolume was changed.
    pub const DEFAULT_SUBVOL: u64 = 1 << 1;
    /// Data and metadata share block groups.
    pub const MIXED_GROUPS: u64 = 1 << 2;
    /// Some extent is compressed with LZO.
    pub const COMPRESS_LZO: u64 = 1 << 3;
    /// Some extent is compressed with zstd.
    pub const COMPRESS_ZSTD: u64 = 1 << 4;
    /// Tree blocks are larger than a page.
    pub const BIG_METADATA: u64 = 1 << 5;
    /// INODE_EXTREF items may occur.
    pub const EXTENDED_IREF: u64 = 1 << 6;
    /// RAID5 or RAID6 chunks may occur.
    pub const RAID56: u64 = 1 << 7;
    /// New tree blocks have METADATA_ITEMs.
    pub const SKINNY_METADATA: u64 = 1 << 8;
    /// Holes in files need no items.
    pub const NO_HOLES: u64 = 1 << 9;
    /// Tree blocks carry the metadata UUID instead of the fsid.
    pub const METADATA_UUID: u64 = 1 << 10;
    /// RAID1C3 or RAID1C4 chunks may occur.
    pub const RAID1C34: u64 = 1 << 11;
    /// Zoned device.
    pub const ZONED: u64 = 1 << 12;
    /// Extent tree version 2.
    pub const EXTENT_TREE_V2: u64 = 1 << 13;
    /// RAID stripe tree.
    pub const RAID_STRIPE_TREE: u64 = 1 << 14;
    /// Simple quotas: data extents name their owner.
    pub const SIMPLE_QUOTA: u64 = 1 << 16;
    /// Remap tree.
    pub const REMAP_TREE: u64 = 1 << 17;

    /// The features that we read and write.
    pub const SUPPORTED: u64 = MIXED_BACKREF
        | DEFAULT_SUBVOL
        | MIXED_GROUPS
        | COMPRESS_LZO
        | COMPRESS_ZSTD
        | BIG_METADATA
        | EXTENDED_IREF
        | RAID56
        | SKINNY_METADATA
        | NO_HOLES
        | METADATA_UUID
        | RAID1C34;
    /// The features that we read, but must not write.
    pub const READ_ONLY: u64 = SIMPLE_QUOTA | ZONED;

    /// Names by bit, as `/sys/fs/btrfs/features` has them.
    pub const NAMES: &[(u64, &str)] = &[
        (MIXED_BACKREF, "MIXED_BACKREF"),
        (DEFAULT_SUBVOL, "DEFAULT_SUBVOL"),
        (MIXED_GROUPS, "MIXED_GROUPS"),
        (COMPRESS_LZO, "COMPRESS_LZO"),
        (COMPRESS_ZSTD, "COMPRESS_ZSTD"),
        (BIG_METADATA, "BIG_METADATA"),
        (EXTENDED_IREF, "EXTENDED_IREF"),
        (RAID56, "RAID56"),
        (SKINNY_METADATA, "SKINNY_METADATA"),
        (NO_HOLES, "NO_HOLES"),
        (METADATA_UUID, "METADATA_UUID"),
        (RAID1C34, "RAID1C34"),
        (ZONED, "ZONED"),
        (EXTENT_TREE_V2, "EXTENT_TREE_V2"),
        (RAID_STRIPE_TREE, "RAID_STRIPE_TREE"),
        (SIMPLE_QUOTA, "SIMPLE_QUOTA"),
        (REMAP_TREE, "REMAP_TREE"),
    ];
}

/// `compat_ro_flags` of the superblock.
pub mod compat_ro {
    /// The free space tree exists.
    pub const FREE_SPACE_TREE: u64 = 1 << 0;
    /// The free space tree can be trusted.
    pub const FREE_SPACE_TREE_VALID: u64 = 1 << 1;
    /// fs-verity files may occur.
    pub const VERITY: u64 = 1 << 2;
    /// Block group items live in a tree of their own.
    pub const BLOCK_GROUP_TREE: u64 = 1 << 3;

    /// The features that we maintain when writing.
    pub const SUPPORTED: u64 = FREE_SPACE_TREE | FREE_SPACE_TREE_VALID | VERITY | BLOCK_GROUP_TREE;

    /// Names by bit.
    pub const NAMES: &[(u64, &str)] = &[
        (FREE_SPACE_TREE, "FREE_SPACE_TREE"),
        (FREE_SPACE_TREE_VALID, "FREE_SPACE_TREE_VALID"),
        (VERITY, "VERITY"),
        (BLOCK_GROUP_TREE, "BLOCK_GROUP_TREE"),
    ];
}

/// The names of the bits in `flags`, joined by `|`; bits without a name in hexadecimal.
pub fn describe(flags: u64, names: &[(u64, &str)]) -> String {
    let mut parts: Vec<String> =
        names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| (*name).to_owned()).collect();
    let known = names.iter().fold(0, |all, (bit, _)| all | bit);
    if flags & !known != 0 {
        parts.push(format!("{:#x}", flags & !known));
    }
    parts.join("|")
}
