//! Every rule that a superblock must obey by itself, when it is read and again before it is written.
//!
//! Not here: what its features and flags allow (see [`crate::admission`]), and agreement with the trees.

use super::{MAGIC, SUPERBLOCK_LEN, Superblock};
use crate::checksum::ChecksumKind;
use crate::chunk;
use crate::features::incompat;
use crate::units::{MAX_LEVELS, Physical};
use std::fmt;
use zerocopy::{FromBytes, IntoBytes};

/// Why bytes are not a usable superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SuperblockError {
    /// There is no btrfs here: too few bytes, or another magic.
    NotBtrfs,
    /// A checksum kind that no known filesystem has.
    UnknownChecksumKind(u16),
    /// The checksum does not fit the bytes.
    ChecksumMismatch {
        /// The kind that the superblock names.
        kind: ChecksumKind,
    },
    /// The checksum is right, but a field breaks a rule.
    Invalid {
        /// The field.
        field: &'static str,
        /// The rule, with the values that break it.
        rule: String,
    },
}

impl SuperblockError {
    /// Whether this was a btrfs superblock, though a damaged one.
    pub fn is_corruption(&self) -> bool {
        *self != SuperblockError::NotBtrfs
    }
}

impl fmt::Display for SuperblockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SuperblockError::NotBtrfs => write!(f, "not a btrfs superblock: the magic is missing"),
            SuperblockError::UnknownChecksumKind(kind) => {
                write!(f, "corrupt superblock: unsupported checksum type {kind}")
            }
            SuperblockError::ChecksumMismatch { kind } => {
                write!(f, "corrupt superblock: {} checksum mismatch", kind.name())
            }
            SuperblockError::Invalid { field, rule } => write!(f, "corrupt superblock: {field}: {rule}"),
        }
    }
}

impl std::error::Error for SuperblockError {}

/// The values that `sectorsize` may have.
const SECTOR_SIZES: std::ops::RangeInclusive<u32> = 4096..=65536;
/// The largest `nodesize`.
const MAX_NODESIZE: u32 = 65536;
/// Tree blocks that the smallest filesystem has.
const MIN_BLOCKS: u64 = 6;

impl Superblock {
    /// The superblock in the first 4096 of `bytes`, which were read from the copy at `at`, if it is valid.
    pub fn parse(bytes: &[u8], at: Physical) -> Result<Superblock, SuperblockError> {
        let Ok((sb, _)) = Superblock::read_from_prefix(bytes) else {
            return Err(SuperblockError::NotBtrfs);
        };
        if sb.magic != MAGIC {
            return Err(SuperblockError::NotBtrfs);
        }
        let Some(kind) = sb.checksum_kind() else {
            return Err(SuperblockError::UnknownChecksumKind(sb.csum_type.get()));
        };
        if !kind.matches(&bytes[32..SUPERBLOCK_LEN], &sb.csum) {
            return Err(SuperblockError::ChecksumMismatch { kind });
        }
        sb.validate(at)?;
        Ok(sb)
    }

    /// Checks every field but magic and checksum, for the copy at `at`.
    pub fn validate(&self, at: Physical) -> Result<(), SuperblockError> {
        let invalid = |field| move |rule| SuperblockError::Invalid { field, rule };
        self.check_place(at).map_err(invalid("bytenr"))?;
        self.check_sizes().map_err(invalid("sizes"))?;
        self.check_roots().map_err(invalid("roots"))?;
        self.check_uuids().map_err(invalid("dev_item.fsid"))?;
        self.check_counts().map_err(invalid("counts"))?;
        chunk::parse_sys_chunk_array(self).map_err(invalid("sys_chunk_array"))?;
        Ok(())
    }

    /// Computes the checksum; the last step before the superblock is written.
    pub fn seal(&mut self) {
        let kind = self.checksum_kind().unwrap_or_default();
        self.csum = kind.digest(&self.as_bytes()[32..]);
    }

    fn check_place(&self, at: Physical) -> Result<(), String> {
        ensure!(self.bytenr.get() == at.0, "superblock bytenr {} found at {at}", self.bytenr);
        Ok(())
    }

    fn check_sizes(&self) -> Result<(), String> {
        let (sector, node) = (self.sectorsize.get(), self.nodesize.get());
        ensure!(sector.is_power_of_two() && SECTOR_SIZES.contains(&sector), "invalid sectorsize {sector}");
        let legal = node.is_power_of_two() && (sector..=MAX_NODESIZE).contains(&node);
        ensure!(legal, "invalid nodesize {node}, with sectorsize {sector}");
        ensure!(self.leafsize.get() == node, "invalid leafsize {}, should be {node}", self.leafsize);
        ensure!(self.stripesize.get().is_power_of_two(), "invalid stripesize {}", self.stripesize);
        let mixed = self.incompat_flags.get() & incompat::MIXED_GROUPS != 0;
        ensure!(!mixed || node == sector, "nodesize {node} and sectorsize {sector} differ with mixed block groups");
        Ok(())
    }

    fn check_roots(&self) -> Result<(), String> {
        let sector = u64::from(self.sectorsize.get());
        let roots = [
            ("tree_root", self.root.get(), self.root_level),
            ("chunk_root", self.chunk_root.get(), self.chunk_root_level),
            ("log_root", self.log_root.get(), self.log_root_level),
        ];
        for (name, at, level) in roots {
            ensure!(usize::from(level) < MAX_LEVELS, "{name} level too big: {level} >= {MAX_LEVELS}");
            ensure!(at.is_multiple_of(sector), "{name} block unaligned: {at}");
        }
        ensure!(self.root.get() != 0, "tree_root block is 0");
        Ok(())
    }

    fn check_uuids(&self) -> Result<(), String> {
        let uuid = |bytes| uuid::Uuid::from_bytes(bytes);
        let (have, expect) = (self.dev_item.fsid, self.block_fsid());
        ensure!(have == expect, "dev_item UUID does not match metadata fsid: {} != {}", uuid(expect), uuid(have));
        Ok(())
    }

    fn check_counts(&self) -> Result<(), String> {
        let least = MIN_BLOCKS * u64::from(self.nodesize.get());
        ensure!(self.bytes_used.get() >= least, "bytes_used is too small {}, expect at least {least}", self.bytes_used);
        ensure!(self.num_devices.get() != 0, "number of devices is 0");
        Ok(())
    }
}

#[cfg(test)]
mod tests;
