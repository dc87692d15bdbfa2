//! File extent items as values.
//!
//! # Invariants
//! 1. A [`FileExtent`] that was parsed lies inside its disk extent, and its numbers add up without overflow.
//! 2. Everything but an inline extent's payload is a multiple of the sector.

use crate::error::{Error, Result};
use crate::transaction::DataRef;
use butterfs_ondisk::items::{FileExtentBody, FileExtentHead, compression, file_extent_type};
use butterfs_ondisk::{Key, KeyType, Logical, TreeId};
use std::ops::Range;
use zerocopy::{FromBytes, IntoBytes};

/// The kind of extent that an item describes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentKind {
    /// The data is in the item.
    Inline,
    /// The data is in an extent; a hole when the extent's address is 0.
    Regular,
    /// Allocated, reads as zeros.
    Prealloc,
}

/// A file extent item (`btrfs_file_extent_item`) and its place in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileExtent {
    /// Position in the file.
    pub start: u64,
    /// Bytes of the file that it covers; a whole sector for an inline extent.
    pub len: u64,
    /// The kind.
    pub kind: ExtentKind,
    /// The transaction that wrote the data.
    pub generation: u64,
    /// Uncompressed length of the whole extent, or of the inline data.
    pub ram_bytes: u64,
    /// See [`compression`].
    pub compression: u8,
    /// Address of the extent; 0 for a hole and for inline data.
    pub at: Logical,
    /// Bytes of the whole extent on disk.
    pub disk_len: u64,
    /// The position at which the used part starts, in uncompressed bytes of the extent.
    pub offset: u64,
}

pub use butterfs_codec::MAX_UNCOMPRESSED;

/// Bytes of an item before inline data.
pub const INLINE_HEAD: usize = FileExtentHead::LEN;

/// The key of the extent item at `start`.
pub const fn key_at(ino: u64, start: u64) -> Key {
    Key::new(ino, KeyType::EXTENT_DATA, start)
}

impl FileExtent {
    /// A new, uncompressed extent in whole.
    pub const fn new(kind: ExtentKind, start: u64, at: Logical, len: u64, generation: u64) -> FileExtent {
        FileExtent { start, len, kind, generation, ram_bytes: len, compression: 0, at, disk_len: len, offset: 0 }
    }

    /// An explicit hole.
    pub const fn hole(range: &Range<u64>, generation: u64) -> FileExtent {
        let len = range.end - range.start;
        FileExtent { disk_len: 0, ..FileExtent::new(ExtentKind::Regular, range.start, Logical(0), len, generation) }
    }

    /// Reads an item.
    pub fn parse(key: Key, payload: &[u8], sectorsize: u64) -> Result<FileExtent> {
        let bad = |what: &str| Error::corrupt(format!("file extent {key}: {what}"));
        let (head, rest) = FileExtentHead::read_from_prefix(payload).map_err(|_| bad("the item is too short"))?;
        if head.encryption != 0 {
            return Err(bad("the data is encrypted"));
        }
        let mut extent = FileExtent {
            start: key.offset,
            len: sectorsize,
            kind: ExtentKind::Inline,
            generation: head.generation.get(),
            ram_bytes: head.ram_bytes.get(),
            compression: head.compression,
            at: Logical(0),
            disk_len: 0,
            offset: 0,
        };
        if head.kind == file_extent_type::INLINE {
            return match key.offset {
                0 => Ok(extent),
                _ => Err(bad("inline data that is not at the start of the file")),
            };
        }
        extent.kind = match head.kind {
            file_extent_type::REGULAR => ExtentKind::Regular,
            file_extent_type::PREALLOC => ExtentKind::Prealloc,
            _ => return Err(bad("unknown type")),
        };
        let (body, _) = FileExtentBody::read_from_prefix(rest).map_err(|_| bad("the item is too short"))?;
        extent.at = Logical(body.disk_bytenr.get());
        extent.disk_len = body.disk_num_bytes.get();
        extent.offset = body.offset.get();
        extent.len = body.num_bytes.get();
        extent.check(sectorsize).map_err(bad)?;
        Ok(extent)
    }

    fn check(&self, sectorsize: u64) -> Result<(), &'static str> {
        let aligned = [self.start, self.len, self.at.0].iter().all(|n| n.is_multiple_of(sectorsize));
        if !aligned || self.start.checked_add(self.len).is_none() {
            return Err("it is not made of whole sectors");
        }
        if self.is_hole() {
            return Ok(());
        }
        let within = if self.compression == compression::NONE { self.disk_len } else { self.ram_bytes };
        let inside = self.offset.checked_add(self.len).is_some_and(|end| end <= within);
        let on_disk = self.disk_len.is_multiple_of(sectorsize)
            && self.offset.is_multiple_of(sectorsize)
            && self.at.0.checked_add(self.disk_len).is_some();
        if inside && on_disk { Ok(()) } else { Err("it reaches beyond its extent") }
    }

    /// The item of a regular or preallocated extent, or a hole.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.kind != ExtentKind::Inline, "inline data is encoded with its data");
        let body = FileExtentBody {
            disk_bytenr: self.at.0.into(),
            disk_num_bytes: self.disk_len.into(),
            offset: self.offset.into(),
            num_bytes: self.len.into(),
        };
        [self.head().as_bytes(), body.as_bytes()].concat()
    }

    fn head(&self) -> FileExtentHead {
        FileExtentHead {
            generation: self.generation.into(),
            ram_bytes: self.ram_bytes.into(),
            compression: self.compression,
            kind: match self.kind {
                ExtentKind::Inline => file_extent_type::INLINE,
                ExtentKind::Regular => file_extent_type::REGULAR,
                ExtentKind::Prealloc => file_extent_type::PREALLOC,
            },
            ..FileExtentHead::default()
        }
    }

    /// The item of inline data that is stored as `stored` and `ram_bytes` long.
    pub fn encode_inline(generation: u64, ram_bytes: u64, compression: u8, stored: &[u8]) -> Vec<u8> {
        let head = FileExtentHead {
            generation: generation.into(),
            ram_bytes: ram_bytes.into(),
            compression,
            kind: file_extent_type::INLINE,
            ..FileExtentHead::default()
        };
        [head.as_bytes(), stored].concat()
    }

    /// The position at which it ends in the file.
    pub const fn end(&self) -> u64 {
        self.start + self.len
    }

    /// The bytes of the file that it covers.
    pub const fn range(&self) -> Range<u64> {
        self.start..self.end()
    }

    /// Whether it is an explicit hole.
    pub fn is_hole(&self) -> bool {
        self.kind != ExtentKind::Inline && self.at.0 == 0
    }

    /// Whether it has an extent on disk.
    pub fn is_on_disk(&self) -> bool {
        self.kind != ExtentKind::Inline && self.at.0 != 0
    }

    /// Its share of the inode's `nbytes`.
    pub fn nbytes(&self) -> u64 {
        match self.kind {
            // A sector holds all that inline data can be, whatever the item says.
            ExtentKind::Inline => self.ram_bytes.min(self.len),
            _ if self.is_hole() => 0,
            _ => self.len,
        }
    }

    /// The reference that it holds, if it has an extent.
    pub fn data_ref(&self, tree: TreeId, ino: u64) -> Option<DataRef> {
        self.is_on_disk().then(|| DataRef {
            at: self.at,
            len: self.disk_len,
            tree,
            ino,
            offset: self.start.wrapping_sub(self.offset),
        })
    }

    /// The part of it that covers `range`, which lies inside.
    pub fn part(&self, range: &Range<u64>) -> FileExtent {
        assert!(self.start <= range.start && range.end <= self.end() && range.start <= range.end);
        // A hole has no inside; offsets in old items count for nothing.
        let offset = if self.is_hole() { 0 } else { self.offset + (range.start - self.start) };
        FileExtent { start: range.start, len: range.end - range.start, offset, ..*self }
    }

    /// Whether `next` continues this one in the file and in the same extent, so that one item can describe both.
    pub fn continues_in(&self, next: &FileExtent) -> bool {
        self.kind == next.kind
            && self.kind != ExtentKind::Inline
            && (self.at, self.disk_len, self.compression) == (next.at, next.disk_len, next.compression)
            && self.end() == next.start
            && (self.is_hole() || self.offset + self.len == next.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTOR: u64 = 4096;

    fn sample() -> FileExtent {
        FileExtent {
            start: 8192,
            len: 16384,
            kind: ExtentKind::Regular,
            generation: 9,
            ram_bytes: 65536,
            compression: 0,
            at: Logical(1 << 20),
            disk_len: 65536,
            offset: 4096,
        }
    }

    #[test]
    fn an_item_survives_the_round_trip() {
        let prealloc = FileExtent { kind: ExtentKind::Prealloc, ..sample() };
        let packed = FileExtent { compression: 3, disk_len: 8192, ram_bytes: 131072, ..sample() };
        for extent in [sample(), prealloc, packed, FileExtent::hole(&(4096..12288), 3)] {
            let payload = extent.encode();
            assert_eq!(payload.len(), 53);
            assert_eq!(FileExtent::parse(key_at(257, extent.start), &payload, SECTOR).unwrap(), extent);
        }
    }

    #[test]
    fn inline_data_covers_a_sector() {
        let payload = FileExtent::encode_inline(7, 5, 0, b"hello");
        let extent = FileExtent::parse(key_at(257, 0), &payload, SECTOR).unwrap();
        assert_eq!((extent.range(), extent.ram_bytes, extent.nbytes()), (0..SECTOR, 5, 5));
        assert_eq!(&payload[INLINE_HEAD..], b"hello");
        assert!(extent.data_ref(TreeId::FS, 257).is_none());
        assert!(FileExtent::parse(key_at(257, 4096), &payload, SECTOR).is_err());
    }

    #[test]
    fn numbers_that_do_not_add_up_are_corrupt() {
        let bad = [
            FileExtent { len: 65536, ..sample() },
            FileExtent { offset: u64::MAX - 4095, ..sample() },
            FileExtent { start: u64::MAX - 8191, ..sample() },
            FileExtent { at: Logical(u64::MAX - 4095), ..sample() },
            FileExtent { len: 100, ..sample() },
            FileExtent { offset: 100, ..sample() },
            FileExtent { compression: 1, disk_len: 4096, ram_bytes: 8192, ..sample() },
        ];
        for extent in bad {
            assert!(FileExtent::parse(key_at(257, extent.start), &extent.encode(), SECTOR).is_err(), "{extent:?}");
        }
        let payload = sample().encode();
        for len in 0..53 {
            assert!(FileExtent::parse(key_at(257, 8192), &payload[..len], SECTOR).is_err());
        }
    }

    #[test]
    fn references_may_lie_before_the_files_start() {
        let extent = FileExtent { start: 0, offset: 16384, ..sample() };
        let reference = extent.data_ref(TreeId::FS, 257).unwrap();
        assert_eq!(reference.offset, 18446744073709535232);
    }
}
