//! Checksums and hashes. The format uses CRC-32C in four ways that differ in seed and inversion; each has a
//! function of its own here, and nothing else in the project computes one.

use sha2::{Digest, Sha256};

/// The superblock's `csum_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
#[repr(u16)]
pub enum ChecksumKind {
    /// CRC-32C, 4 bytes.
    #[default]
    Crc32c = 0,
    /// XXH64 with seed 0, 8 bytes, little-endian.
    Xxhash64 = 1,
    /// SHA-256, 32 bytes.
    Sha256 = 2,
    /// BLAKE2b with a digest of 32 bytes.
    Blake2b = 3,
}

/// A checksum in a field of 32 bytes, zero after its own length.
pub type Digest32 = [u8; 32];

impl ChecksumKind {
    /// The kind for a superblock's `csum_type`.
    pub const fn from_raw(raw: u16) -> Option<ChecksumKind> {
        match raw {
            0 => Some(ChecksumKind::Crc32c),
            1 => Some(ChecksumKind::Xxhash64),
            2 => Some(ChecksumKind::Sha256),
            3 => Some(ChecksumKind::Blake2b),
            _ => None,
        }
    }

    /// Bytes that a checksum of this kind has on disk.
    #[allow(clippy::len_without_is_empty)] // no kind is empty
    pub const fn len(self) -> usize {
        match self {
            ChecksumKind::Crc32c => 4,
            ChecksumKind::Xxhash64 => 8,
            ChecksumKind::Sha256 | ChecksumKind::Blake2b => 32,
        }
    }

    /// The name that btrfs-progs uses.
    pub const fn name(self) -> &'static str {
        match self {
            ChecksumKind::Crc32c => "crc32c",
            ChecksumKind::Xxhash64 => "xxhash64",
            ChecksumKind::Sha256 => "sha256",
            ChecksumKind::Blake2b => "blake2",
        }
    }

    /// The checksum of `data`; only the first [`len`](Self::len) bytes count.
    pub fn digest(self, data: &[u8]) -> Digest32 {
        let mut out = [0; 32];
        match self {
            ChecksumKind::Crc32c => out[..4].copy_from_slice(&crc32c::crc32c(data).to_le_bytes()),
            ChecksumKind::Xxhash64 => out[..8].copy_from_slice(&xxhash_rust::xxh64::xxh64(data, 0).to_le_bytes()),
            ChecksumKind::Sha256 => out.copy_from_slice(&Sha256::digest(data)),
            ChecksumKind::Blake2b => {
                out.copy_from_slice(blake2b_simd::Params::new().hash_length(32).hash(data).as_bytes());
            }
        }
        out
    }

    /// Whether `stored`, at least [`len`](Self::len) bytes, is the checksum of `data`.
    pub fn matches(self, data: &[u8], stored: &[u8]) -> bool {
        self.digest(data)[..self.len()] == stored[..self.len()]
    }
}

/// CRC-32C register update from `seed`, without initial or final inversion.
pub fn crc32c_raw(seed: u32, data: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, data)
}

/// The hash of a name in the key of a DIR_ITEM or XATTR_ITEM.
pub fn name_hash(name: &[u8]) -> u64 {
    u64::from(crc32c_raw(0xFFFF_FFFE, name))
}

/// The hash of a name in the key of an INODE_EXTREF under the directory `parent`.
pub fn extref_hash(parent: u64, name: &[u8]) -> u64 {
    u64::from(crc32c_raw(parent as u32, name))
}

/// The hash of an EXTENT_DATA_REF: its key offset, and its order among inline references.
pub fn extent_data_ref_hash(root: u64, objectid: u64, offset: u64) -> u64 {
    let high = crc32c_raw(!0, &root.to_le_bytes());
    let low = crc32c_raw(crc32c_raw(!0, &objectid.to_le_bytes()), &offset.to_le_bytes());
    (u64::from(high) << 31) ^ u64::from(low)
}

/// The checksum of a send stream's command, over the header with a zero checksum field and the payload.
pub fn send_command_crc(header: &[u8], payload: &[u8]) -> u32 {
    crc32c_raw(crc32c_raw(0, header), payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_have_the_kernels_values() {
        assert_eq!(name_hash(b"default"), 2378154706);
        assert_eq!(name_hash(b"foo"), 2507850652);
        assert_eq!(extent_data_ref_hash(5, 299, 0), 1007496935290996414);
        assert_eq!(extent_data_ref_hash(5, 270, 0), 1007496935421277909);
    }
}
