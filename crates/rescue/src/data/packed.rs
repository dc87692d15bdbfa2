//! Whether the bytes of an extent are packed, where no item of a file says so.
//!
//! Invariant: bytes count as packed only if they begin as a stream, unpack to more than they are, and end where the
//! stream ends. A file may itself be such a stream: the features of the filesystem, a checksum that no filesystem puts
//! into its streams, and the heads of Git's objects tell some of them apart.

use butterfs_fs::file::codec;
use butterfs_fs::options::Algorithm;
use butterfs_ondisk::features::incompat;
use butterfs_ondisk::items::compression;
use butterfs_ondisk::packing::{LARGEST, Packing};

/// The place of a Zstandard frame's descriptor, and the bit in it that says that a checksum follows the data.
const ZSTD_DESCRIPTOR: usize = 4;
const ZSTD_HAS_CHECKSUM: u8 = 1 << 2;
/// Bytes after a zlib stream: its checksum, which is not needed for unpacking.
const ZLIB_TRAILER: usize = 4;

/// The compression by which an extent of `len` bytes that begins with these may be packed, in a filesystem with these
/// features.
pub(super) fn begins_as(head: &[u8], len: u64, sector: u64, features: u64) -> Option<u8> {
    // Nobody keeps what packing does not make shorter.
    if len >= LARGEST {
        return None;
    }
    let kind = Packing { mark: compression::NONE, stored: len, unpacked: LARGEST, unit: sector }.right_mark(head)?;
    let is_possible = match kind {
        compression::LZO => features & incompat::COMPRESS_LZO != 0,
        compression::ZSTD => {
            let descriptor = head.get(ZSTD_DESCRIPTOR).copied().unwrap_or(ZSTD_HAS_CHECKSUM);
            features & incompat::COMPRESS_ZSTD != 0 && descriptor & ZSTD_HAS_CHECKSUM == 0
        }
        _ => true,
    };
    is_possible.then_some(kind)
}

/// The bytes that a whole extent unpacks to, if it is packed by this compression.
pub(super) fn unpacked_len(kind: u8, stored: &[u8], sector: u64) -> Option<u64> {
    let method = Algorithm::from_raw(kind)?;
    // One more than any packed extent has, so that a longer stream is seen.
    let mut bytes = vec![0; LARGEST as usize + 1];
    let len = codec::decompress(method, stored, &mut bytes, sector as u32).ok()?;
    let unpacked = (len as u64).next_multiple_of(sector);
    if unpacked <= stored.len() as u64 || unpacked > LARGEST || is_object_of_git(&bytes[..len]) {
        return None;
    }
    // Without its last byte the stream must not be whole: else more than one stream lies there.
    let used = stored.iter().rposition(|byte| *byte != 0)?;
    let cut = used.saturating_sub(if kind == compression::ZLIB { ZLIB_TRAILER } else { 0 });
    let is_whole = codec::decompress(method, &stored[..cut], &mut bytes, sector as u32).is_ok_and(|less| less == len);
    (!is_whole).then_some(unpacked)
}

/// Whether bytes are what Git keeps packed in a file: a kind, the length of the rest in decimal, and a zero.
fn is_object_of_git(bytes: &[u8]) -> bool {
    let Some(end) = bytes.iter().take(32).position(|byte| *byte == 0) else { return false };
    let head = str::from_utf8(&bytes[..end]).ok().and_then(|head| head.split_once(' '));
    let rest = bytes.len() - end - 1;
    head.is_some_and(|(kind, len)| {
        ["blob", "tree", "commit", "tag"].contains(&kind) && len.parse::<usize>().is_ok_and(|len| len == rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_fs::options::Method;

    const SECTOR: u64 = 4096;
    const ALL: u64 = incompat::COMPRESS_LZO | incompat::COMPRESS_ZSTD;

    fn packed(algorithm: Algorithm, bytes: &[u8]) -> Vec<u8> {
        let mut stored = codec::Encoder::default().compress(Method::new(algorithm, 3), bytes, SECTOR as u32).unwrap();
        stored.resize(stored.len().next_multiple_of(SECTOR as usize), 0);
        stored
    }

    fn len_of(stored: &[u8], features: u64) -> Option<u64> {
        let kind = begins_as(stored, stored.len() as u64, SECTOR, features)?;
        unpacked_len(kind, stored, SECTOR)
    }

    fn text(len: usize) -> Vec<u8> {
        (0u32..).flat_map(|number| number.wrapping_mul(number).to_string().into_bytes()).take(len).collect()
    }

    #[test]
    fn whole_streams_are_packed() {
        for algorithm in [Algorithm::Zlib, Algorithm::Lzo, Algorithm::Zstd] {
            for len in [9000, 40_960, 131_072] {
                let stored = packed(algorithm, &text(len));
                let right = (len as u64).next_multiple_of(SECTOR);
                assert_eq!(len_of(&stored, ALL), Some(right), "{algorithm:?} {len}");
                // Another byte behind the stream, another sector, and a stream that is cut.
                let mut longer = stored.clone();
                let end = longer.iter().rposition(|byte| *byte != 0).unwrap();
                longer.resize(longer.len().max(end + 9).next_multiple_of(SECTOR as usize), 0);
                longer[end + 8] = 1;
                assert_eq!(len_of(&longer, ALL), None, "{algorithm:?} {len}");
                let twice = [&stored[..], &stored[..]].concat();
                assert_eq!(len_of(&twice, ALL), None, "{algorithm:?} {len}");
                assert!(stored.len() == 4096 || len_of(&stored[..stored.len() - 4096], ALL).is_none());
            }
        }
        assert_eq!(len_of(&text(8192), ALL), None);
    }

    #[test]
    fn files_that_are_streams_themselves_are_not() {
        // Features that the filesystem has not.
        assert_eq!(len_of(&packed(Algorithm::Zstd, &text(40_960)), 0), None);
        assert_eq!(len_of(&packed(Algorithm::Lzo, &text(40_960)), 0), None);
        // A checksum, as programs that pack files add it.
        let mut with_checksum = packed(Algorithm::Zstd, &text(40_960));
        with_checksum[ZSTD_DESCRIPTOR] |= ZSTD_HAS_CHECKSUM;
        assert_eq!(len_of(&with_checksum, ALL), None);
        let object = [&b"blob 20000\0"[..], &text(20_000)].concat();
        assert_eq!(len_of(&packed(Algorithm::Zlib, &object), ALL), None);
        let no_object = [&b"blob 20001\0"[..], &text(20_000)].concat();
        assert_eq!(len_of(&packed(Algorithm::Zlib, &no_object), ALL), Some(20_480));
    }
}
