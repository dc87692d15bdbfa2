//! How the data of an extent is packed, told by the data itself.
//!
//! Invariant: only data that fits its checksum says anything. Packed data always has checksums.

use crate::checksums;
use crate::forest::Forest;
use crate::trouble::Result;
use butterfs_ondisk::items::{FileExtent, compression};

/// The longest packed form of a sector of 4,096 bytes that LZO makes.
const LZO_SEGMENT_MAX: u32 = 4096 + 4096 / 16 + 64 + 3;

/// The compression of an extent's data, if it begins as one of them does.
pub(crate) fn of_data(forest: &Forest, extent: &FileExtent) -> Result<Option<u8>> {
    let (at, length) = (extent.body.disk_bytenr.get(), extent.body.disk_num_bytes.get());
    let start = checksums::verified_sector(forest, at)?;
    Ok(start.and_then(|start| of_start(&start, length, forest.store.sectorsize())))
}

/// The compression of `length` bytes on the device that begin with `start`.
fn of_start(start: &[u8], length: u64, sector: u64) -> Option<u8> {
    let (first, second) = (number(start, 0)?, number(start, 4)?);
    let is_lzo = u64::from(first).next_multiple_of(sector) == length && (1..=LZO_SEGMENT_MAX).contains(&second);
    let (method, flags) = (start[0], start[1]);
    // The window has at most 32 KiB, there is no dictionary, and both bytes together are a multiple of 31.
    let is_zlib = method & 15 == 8
        && method >> 4 <= 7
        && flags & 32 == 0
        && (u16::from(method) << 8 | u16::from(flags)).is_multiple_of(31);
    match first {
        0xfd2f_b528 => Some(compression::ZSTD),
        _ if is_lzo => Some(compression::LZO),
        _ if is_zlib => Some(compression::ZLIB),
        _ => None,
    }
}

/// The compression in words.
pub(crate) fn name(kind: u8) -> &'static str {
    match kind {
        compression::ZLIB => "packed by zlib",
        compression::LZO => "packed by LZO",
        compression::ZSTD => "packed by Zstandard",
        _ => "not packed",
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_says_how_it_is_packed() {
        let start = |head: &[u8]| [head, &[7; 16]].concat();
        let cases: [(&[u8], Option<u8>); 8] = [
            (&[0x28, 0xb5, 0x2f, 0xfd], Some(compression::ZSTD)),
            (&[0x78, 0x5e], Some(compression::ZLIB)),
            (&[0x78, 0x01], Some(compression::ZLIB)),
            (&[0x78, 0x02], None),
            (&[0xf0, 0x0f, 0, 0, 0x10, 0, 0, 0], Some(compression::LZO)),
            // Too long for the extent, and a segment longer than any.
            (&[0xf0, 0x1f, 0, 0, 0x10, 0, 0, 0], None),
            (&[0xf0, 0x0f, 0, 0, 0x10, 0x20, 0, 0], None),
            (b"plain text", None),
        ];
        for (head, packing) in cases {
            assert_eq!(of_start(&start(head), 4096, 4096), packing, "{head:02x?}");
        }
        assert_eq!(of_start(&[0x78, 0x5e], 4096, 4096), None, "less than any packed data");
    }
}
