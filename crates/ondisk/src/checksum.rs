//! Checksums and hashes. The format uses CRC-32C in four ways that differ in seed and inversion; each has a
//! function of its own here, and nothing else in the project computes one.

use blake2b_simd::many::{HashManyJob, hash_many};
use sha2::{Digest, Sha256};

/// Sectors whose checksums are computed beside each other.
const BATCH: usize = 32;

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
            ChecksumKind::Crc32c => out[..4].copy_from_slice(&crc_fast::crc32_iscsi(data).to_le_bytes()),
            ChecksumKind::Xxhash64 => out[..8].copy_from_slice(&xxhash_rust::xxh64::xxh64(data, 0).to_le_bytes()),
            ChecksumKind::Sha256 => out.copy_from_slice(&Sha256::digest(data)),
            ChecksumKind::Blake2b => {
                out.copy_from_slice(blake2b().hash(data).as_bytes());
            }
        }
        out
    }

    /// The checksums of the sectors of `data`, [`len`](Self::len) bytes each, one behind the other. The last sector may
    /// be shorter.
    pub fn digests(self, data: &[u8], sector: usize) -> Vec<u8> {
        let mut digests = Vec::with_capacity(data.len().div_ceil(sector) * self.len());
        match self {
            ChecksumKind::Blake2b => {
                let params = blake2b();
                for batch in data.chunks(BATCH * sector) {
                    let job = |sector| HashManyJob::new(&params, sector);
                    let mut jobs: Vec<HashManyJob<'_>> = batch.chunks(sector).map(job).collect();
                    hash_many(jobs.iter_mut());
                    jobs.iter().for_each(|job| digests.extend_from_slice(job.to_hash().as_bytes()));
                }
            }
            _ => data.chunks(sector).for_each(|data| digests.extend_from_slice(&self.digest(data)[..self.len()])),
        }
        digests
    }

    /// The sectors of `data`, by index and ascending, whose checksum is not the one that `stored` has at their place.
    /// Sectors behind the end of `stored` are not looked at.
    pub fn differing(self, data: &[u8], sector: usize, stored: &[u8]) -> Vec<usize> {
        let len = self.len();
        let data = &data[..data.len().min(stored.len() / len * sector)];
        let computed = match self {
            // Unoptimised, as in tests, it is slower: compiling its unrolled rounds well takes minutes.
            ChecksumKind::Sha256 if !cfg!(debug_assertions) => quick_sha256(data, sector),
            _ => self.digests(data, sector),
        };
        let pairs = computed.chunks(len).zip(stored.chunks(len)).enumerate();
        let differing = pairs.filter(|(_, (computed, stored))| computed != stored).map(|(index, _)| index);
        // Only `matches`, which also made the stored checksums, decides that data is damaged.
        let is_bad = |index: &usize| {
            let data = data[index * sector..].chunks(sector).next().unwrap_or_default();
            !self.matches(data, &stored[index * len..])
        };
        differing.filter(is_bad).collect()
    }

    /// Whether `stored`, at least [`len`](Self::len) bytes, is the checksum of `data`.
    pub fn matches(self, data: &[u8], stored: &[u8]) -> bool {
        self.digest(data)[..self.len()] == stored[..self.len()]
    }
}

fn blake2b() -> blake2b_simd::Params {
    let mut params = blake2b_simd::Params::new();
    params.hash_length(32);
    params
}

/// Digests of sectors, computed beside each other: twice as fast as one after the other.
fn quick_sha256(data: &[u8], sector: usize) -> Vec<u8> {
    let mut digests = vec![Digest32::default(); data.len().div_ceil(sector)];
    for (batch, digests) in data.chunks(BATCH * sector).zip(digests.chunks_mut(BATCH)) {
        let sectors: Vec<&[u8]> = batch.chunks(sector).collect();
        tape_sha256::hash_many(&sectors, digests);
    }
    digests.into_flattened()
}

/// CRC-32C register update from `seed`, without initial or final inversion. For sectors and tree blocks, which need no
/// seed, [`ChecksumKind::digest`] has an implementation that is two to four times as fast.
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

    const KINDS: [ChecksumKind; 4] =
        [ChecksumKind::Crc32c, ChecksumKind::Xxhash64, ChecksumKind::Sha256, ChecksumKind::Blake2b];

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn both_implementations_of_crc32c_agree() {
        let data = noise(20_000);
        let is_same = |data: &[u8]| ChecksumKind::Crc32c.digest(data)[..4] == (!crc32c_raw(!0, data)).to_le_bytes();
        for start in 0..4 {
            for len in (0..5000).chain([8192, 16384 - 32, 16384, 19_990]) {
                assert!(is_same(&data[start..][..len]), "{len} bytes from {start} on");
            }
        }
    }

    #[test]
    fn checksums_of_many_sectors_are_those_of_each() {
        let data = noise(70 * 4096 + 100);
        for kind in KINDS {
            for sector in [512, 4096] {
                // Every number of sectors in the last batch, with a whole and a cut sector at the end.
                for len in (0..70).flat_map(|sectors| [sectors * sector, sectors * sector + 100]) {
                    let data = &data[..len];
                    let each: Vec<u8> =
                        data.chunks(sector).flat_map(|data| kind.digest(data)[..kind.len()].to_vec()).collect();
                    assert_eq!(kind.digests(data, sector), each, "{kind:?} {len}");
                    assert_eq!(kind.differing(data, sector, &each), Vec::<usize>::new(), "{kind:?} {len}");
                    // Two implementations have to agree that it is right, or it would only be slow.
                    assert_eq!(quick_sha256(data, sector), ChecksumKind::Sha256.digests(data, sector), "{len}");
                }
            }
        }
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        for kind in KINDS {
            let sectors = 37;
            let mut data = noise(sectors * 512);
            let stored = kind.digests(&data, 512);
            for bit in (0..data.len() * 8).step_by(13) {
                data[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(kind.differing(&data, 512, &stored), [bit / 8 / 512], "{kind:?} {bit}");
                data[bit / 8] ^= 1 << (bit % 8);
            }
            let short = &stored[..stored.len() - 1];
            assert_eq!(kind.differing(&data, 512, short), Vec::<usize>::new(), "a cut digest is none");
        }
    }
}
