//! The superblock, 4096 bytes at 64 KiB, 64 MiB and 256 GiB of every device.
//!
//! [`Superblock::parse`] is the only way in for bytes from disk that are going to be trusted, and
//! [`Superblock::seal`] the last step before bytes go out. Which copy to believe is decided in `volume`.

mod validation;

pub use validation::SuperblockError;

use crate::checksum::ChecksumKind;
use crate::items::DevItem;
use crate::units::{Generation, Level, Logical, Physical};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a superblock.
pub const SUPERBLOCK_LEN: usize = 4096;
/// `_BHRfS_M`.
pub const MAGIC: [u8; 8] = *b"_BHRfS_M";
/// The offsets of the copies on a device.
pub const OFFSETS: [Physical; 3] = [Physical(65536), Physical(64 << 20), Physical(256 << 30)];
/// Bytes for chunk items inside the superblock.
pub const SYS_CHUNK_ARRAY_LEN: usize = 2048;
/// Backup root slots.
pub const BACKUP_ROOTS: usize = 4;

layout! { 168,
/// `btrfs_root_backup`: the roots of a recent commit.
pub struct RootBackup {
    /// Root tree.
    pub tree_root: U64,
    /// Its generation.
    pub tree_root_gen: U64,
    /// Chunk tree.
    pub chunk_root: U64,
    /// Its generation.
    pub chunk_root_gen: U64,
    /// Extent tree.
    pub extent_root: U64,
    /// Its generation.
    pub extent_root_gen: U64,
    /// Tree 5.
    pub fs_root: U64,
    /// Its generation.
    pub fs_root_gen: U64,
    /// Device tree.
    pub dev_root: U64,
    /// Its generation.
    pub dev_root_gen: U64,
    /// Checksum tree.
    pub csum_root: U64,
    /// Its generation.
    pub csum_root_gen: U64,
    /// Superblock's `total_bytes`.
    pub total_bytes: U64,
    /// Superblock's `bytes_used`.
    pub bytes_used: U64,
    /// Superblock's `num_devices`.
    pub num_devices: U64,
    /// Zero.
    pub unused_64: [U64; 4],
    /// Level of the tree root.
    pub tree_root_level: u8,
    /// Level of the chunk root.
    pub chunk_root_level: u8,
    /// Level of the extent root.
    pub extent_root_level: u8,
    /// Level of tree 5.
    pub fs_root_level: u8,
    /// Level of the device root.
    pub dev_root_level: u8,
    /// Level of the checksum root.
    pub csum_root_level: u8,
    /// Zero.
    pub unused_8: [u8; 10],
}}

layout! { SUPERBLOCK_LEN,
/// `btrfs_super_block`.
pub struct Superblock {
    /// Checksum of bytes 32 to 4095.
    pub csum: [u8; 32],
    /// The filesystem's UUID.
    pub fsid: [u8; 16],
    /// Physical address of this copy.
    pub bytenr: U64,
    /// See [`super_flags`].
    pub flags: U64,
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// The last committed transaction.
    pub generation: U64,
    /// Root of the root tree.
    pub root: U64,
    /// Root of the chunk tree.
    pub chunk_root: U64,
    /// Root of the log root tree, or 0.
    pub log_root: U64,
    /// Unused, 0.
    pub log_root_transid: U64,
    /// Sum of the devices' sizes.
    pub total_bytes: U64,
    /// Sum of the block groups' used bytes.
    pub bytes_used: U64,
    /// 6.
    pub root_dir_objectid: U64,
    /// Devices.
    pub num_devices: U64,
    /// Bytes of a sector.
    pub sectorsize: U32,
    /// Bytes of a tree block.
    pub nodesize: U32,
    /// Equal to `nodesize`.
    pub leafsize: U32,
    /// The sector size.
    pub stripesize: U32,
    /// Bytes used of `sys_chunk_array`.
    pub sys_chunk_array_size: U32,
    /// Generation of the chunk root.
    pub chunk_root_generation: U64,
    /// Unknown bits are ignored.
    pub compat_flags: U64,
    /// Unknown bits: read-only.
    pub compat_ro_flags: U64,
    /// Unknown bits: refused.
    pub incompat_flags: U64,
    /// See [`ChecksumKind`].
    pub csum_type: U16,
    /// Level of `root`.
    pub root_level: u8,
    /// Level of `chunk_root`.
    pub chunk_root_level: u8,
    /// Level of `log_root`.
    pub log_root_level: u8,
    /// The device that this copy lies on.
    pub dev_item: DevItem,
    /// The filesystem's label, ended by a NUL.
    pub label: [u8; 256],
    /// Generation for which the version 1 space cache is valid.
    pub cache_generation: U64,
    /// Generation for which the UUID tree is complete.
    pub uuid_tree_generation: U64,
    /// UUID in the tree blocks, with the METADATA_UUID feature.
    pub metadata_uuid: [u8; 16],
    /// Global roots (extent tree version 2).
    pub nr_global_roots: U64,
    /// Zero.
    pub reserved: [U64; 27],
    /// Keys and chunk items of the system chunks.
    pub sys_chunk_array: [u8; SYS_CHUNK_ARRAY_LEN],
    /// Ring of recent roots.
    pub super_roots: [RootBackup; BACKUP_ROOTS],
    /// Zero.
    pub padding: [u8; 565],
}}
const _: () = assert!(std::mem::offset_of!(Superblock, label) == 0x12b);
const _: () = assert!(std::mem::offset_of!(Superblock, sys_chunk_array) == 0x32b);

/// Flags of a [`Superblock`].
pub mod super_flags {
    /// Always set.
    pub const WRITTEN: u64 = 1 << 0;
    /// Relocation was used.
    pub const RELOC: u64 = 1 << 1;
    /// The last writer met an error.
    pub const ERROR: u64 = 1 << 2;
    /// A seed device.
    pub const SEEDING: u64 = 1 << 32;
    /// A metadata-only image.
    pub const METADUMP: u64 = 1 << 33;
    /// A metadata-only image, second form.
    pub const METADUMP_V2: u64 = 1 << 34;
    /// Half-done conversions (35 to 40): the filesystem must not be used.
    pub const CHANGING_MASK: u64 = 0x3f << 35;
}

impl Superblock {
    /// The checksum kind, if the number is a known one.
    pub fn checksum_kind(&self) -> Option<ChecksumKind> {
        ChecksumKind::from_raw(self.csum_type.get())
    }

    /// The last committed generation.
    pub fn generation(&self) -> Generation {
        Generation(self.generation.get())
    }

    /// The generation of the commit before this one, as the backup roots remember it: one less, unless that commit got
    /// no superblock.
    pub fn previous_commit(&self) -> Generation {
        let own = self.generation.get();
        let remembered = self.super_roots.iter().map(|slot| slot.tree_root_gen.get());
        let earlier = remembered.filter(|generation| (1..own).contains(generation)).max();
        Generation(earlier.unwrap_or(own.saturating_sub(1)))
    }

    /// The UUID that every tree block of the filesystem carries.
    pub fn block_fsid(&self) -> [u8; 16] {
        if self.incompat_flags.get() & crate::features::incompat::METADATA_UUID != 0 {
            self.metadata_uuid
        } else {
            self.fsid
        }
    }

    /// Address, level and generation of the root tree.
    pub fn tree_root(&self) -> (Logical, Level, Generation) {
        (Logical(self.root.get()), Level(self.root_level), self.generation())
    }

    /// Address, level and generation of the chunk tree.
    pub fn chunk_tree_root(&self) -> (Logical, Level, Generation) {
        (Logical(self.chunk_root.get()), Level(self.chunk_root_level), Generation(self.chunk_root_generation.get()))
    }

    /// The label up to its NUL.
    pub fn label(&self) -> &[u8] {
        let end = self.label.iter().position(|&byte| byte == 0).unwrap_or(self.label.len());
        &self.label[..end]
    }

    /// Offsets at which a device of `total_bytes` has a copy: those whose whole copy ends before the device does.
    pub fn copies_on(total_bytes: u64) -> impl Iterator<Item = Physical> {
        OFFSETS.into_iter().filter(move |at| at.0 + (SUPERBLOCK_LEN as u64) < total_bytes)
    }
}
