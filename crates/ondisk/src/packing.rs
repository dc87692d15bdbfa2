//! How packed data begins, and what follows from that for an extent that is marked otherwise.
//!
//! Invariant: an extent that any writer has packed is never taken for something else. The first bytes of each
//! compression follow rules without which nothing unpacks it.

use crate::items::compression;

/// The most bytes that a packed extent has, packed or not.
pub const LARGEST: u64 = 128 << 10;

/// The longest packed form of a sector of 4,096 bytes that LZO makes.
const LZO_SEGMENT_MAX: u32 = 4096 + 4096 / 16 + 64 + 3;

const PACKED: [u8; 3] = [compression::ZSTD, compression::LZO, compression::ZLIB];

/// An extent as its file's item describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// The compression by which it is marked as packed.
    pub mark: u8,
    /// Bytes as they are stored.
    pub stored: u64,
    /// Bytes that it unpacks to.
    pub unpacked: u64,
    /// Bytes to which the stored ones are rounded up: the sector, or 1 within an item.
    pub unit: u64,
}

impl Packing {
    /// Whether the lengths are such that only the data can say whether the mark is right.
    pub fn is_doubtful(&self) -> bool {
        self.mark != compression::NONE || (self.unpacked > self.stored && self.unpacked <= LARGEST)
    }

    /// The right mark, if data that begins with `start` cannot have the present one. Nobody keeps what packing does not
    /// make shorter.
    pub fn right_mark(&self, start: &[u8]) -> Option<u8> {
        if !self.is_doubtful() || (self.mark != compression::NONE && self.begins_as(self.mark, start)) {
            return None;
        }
        let packed = || PACKED.into_iter().find(|kind| self.begins_as(*kind, start));
        let right = if self.stored < self.unpacked { packed() } else { None }.unwrap_or(compression::NONE);
        (right != self.mark).then_some(right)
    }

    fn begins_as(&self, kind: u8, start: &[u8]) -> bool {
        let Some(first) = number(start, 0) else { return true };
        match kind {
            compression::ZSTD => first == 0xfd2f_b528,
            compression::LZO => {
                let fits = u64::from(first).next_multiple_of(self.unit) == self.stored;
                fits && number(start, 4).is_some_and(|second| (1..=LZO_SEGMENT_MAX).contains(&second))
            }
            compression::ZLIB => {
                // The window has at most 32 KiB, there is no dictionary, and both bytes together are a multiple of 31.
                let (method, flags) = (start[0], start[1]);
                let both = u16::from(method) << 8 | u16::from(flags);
                method & 15 == 8 && method >> 4 <= 7 && flags & 32 == 0 && both.is_multiple_of(31)
            }
            _ => false,
        }
    }
}

/// A compression in words.
pub fn name(kind: u8) -> &'static str {
    match kind {
        compression::NONE => "not packed",
        compression::ZLIB => "packed by zlib",
        compression::LZO => "packed by LZO",
        compression::ZSTD => "packed by Zstandard",
        _ => "packed by an unknown compression",
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
    const ZLIB: &[u8] = &[0x78, 0x5e];
    const LZO: &[u8] = &[0xf0, 0x0f, 0, 0, 0x10, 0, 0, 0];

    fn right(mark: u8, (stored, unpacked): (u64, u64), head: &[u8]) -> Option<u8> {
        Packing { mark, stored, unpacked, unit: 4096 }.right_mark(&[head, &[7; 16]].concat())
    }

    #[test]
    fn data_says_how_it_is_packed() {
        let shorter = (4096, 128 << 10);
        let cases: [(&[u8], u8); 8] = [
            (ZSTD, compression::ZSTD),
            (ZLIB, compression::ZLIB),
            (&[0x78, 0x01], compression::ZLIB),
            (&[0x78, 0x02], compression::NONE),
            (LZO, compression::LZO),
            // Too long for the extent, and a segment longer than any.
            (&[0xf0, 0x1f, 0, 0, 0x10, 0, 0, 0], compression::NONE),
            (&[0xf0, 0x0f, 0, 0, 0x10, 0x20, 0, 0], compression::NONE),
            (b"plain text", compression::NONE),
        ];
        for (head, found) in cases {
            for mark in [compression::NONE, compression::ZLIB, compression::LZO, compression::ZSTD] {
                assert_eq!(right(mark, shorter, head), (found != mark).then_some(found), "{mark}: {head:02x?}");
            }
        }
    }

    #[test]
    fn lengths_say_what_is_possible() {
        let same = (8192, 8192);
        assert_eq!(right(compression::ZLIB, same, b"plain text"), Some(compression::NONE));
        // A file of Zstandard's own format, and one that a marked extent may have all the same.
        assert_eq!(right(compression::NONE, same, ZSTD), None);
        assert_eq!(right(compression::LZO, same, ZSTD), Some(compression::NONE));
        assert_eq!(right(compression::ZSTD, same, ZSTD), None);
        assert_eq!(right(compression::NONE, (4096, LARGEST + 4096), ZSTD), None, "no packed extent is so large");
        let tiny = Packing { mark: compression::ZLIB, stored: 3, unpacked: 9, unit: 1 };
        assert_eq!(tiny.right_mark(&[1, 2, 3]), None, "too short to say anything");
    }
}
