//! The space and the properties of a filesystem.

use crate::error::Result;
use crate::filesystem::Filesystem;
use crate::mkfs::Checksum;
use crate::types::Uuid;
use butterfs_fs::filesystem::Trim;
use butterfs_ondisk::ChecksumKind;
use butterfs_ondisk::items::block_group_flags as bits;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// The space of a filesystem, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// All devices, as far as the data profile can use them.
    pub total: u64,
    /// Used by data and metadata.
    pub used: u64,
    /// The least space that is available for file data.
    pub available: u64,
    /// Allocated to block groups for data, and used in them.
    pub data: (u64, u64),
    /// Allocated to block groups for metadata, and used in them.
    pub metadata: (u64, u64),
}

/// The properties of a filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FilesystemInfo {
    /// The UUID.
    pub uuid: Uuid,
    /// The label.
    pub label: OsString,
    /// Bytes of a tree block.
    pub node_bytes: u32,
    /// Bytes of a sector.
    pub sector_bytes: u32,
    /// The checksum.
    pub checksum: Checksum,
    /// The number of the last commit.
    pub generation: u64,
}

impl Filesystem {
    /// The space of the filesystem.
    pub fn usage(&self) -> Usage {
        let engine = self.shared.memory();
        let totals = engine.statfs();
        let groups = engine.block_groups();
        let sum = |kind: u64| {
            let of_kind = groups.iter().filter(|group| group.flags & kind != 0);
            of_kind.fold((0, 0), |(length, used), group| (length + group.length, used + group.used))
        };
        let bytes = |blocks: u64| blocks * u64::from(totals.block_size);
        Usage {
            total: bytes(totals.blocks),
            used: bytes(totals.blocks - totals.blocks_free.min(totals.blocks)),
            available: bytes(totals.blocks_available),
            data: sum(bits::DATA),
            metadata: sum(bits::METADATA),
        }
    }

    /// UUID, label, sizes and checksum.
    pub fn info(&self) -> FilesystemInfo {
        let superblock = self.shared.memory().superblock();
        let label = superblock.label.iter().copied().take_while(|&byte| byte != 0).collect();
        let checksum = ChecksumKind::from_raw(superblock.csum_type.get()).unwrap_or_default();
        FilesystemInfo {
            uuid: Uuid::from_bytes(superblock.fsid),
            label: OsString::from_vec(label),
            node_bytes: superblock.nodesize.get(),
            sector_bytes: superblock.sectorsize.get(),
            checksum: Checksum::of(checksum),
            generation: superblock.generation().get(),
        }
    }

    /// Changes the label; durable when this returns.
    pub fn set_label(&self, label: impl AsRef<[u8]>) -> Result<()> {
        Ok(self.shared.engine()?.set_label(label.as_ref())?)
    }

    /// Tells the devices which space is free (`fstrim`), in runs of at least `least` bytes, so that image files shrink
    /// and flash storage can reuse it. Returns the bytes that the devices discarded, all copies together. By default
    /// freed space is discarded in the background; this also reaches space that was free before.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if no device supports it.
    pub fn discard_free_space(&self, least: u64) -> Result<u64> {
        Ok(self.shared.engine()?.trim(&Trim { least, ..Trim::ALL }, &|| false)?)
    }
}
