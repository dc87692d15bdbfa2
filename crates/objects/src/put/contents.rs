//! Contents of files: writes are joined, cut at multiples of 128 KiB of the file, and become pieces.
//!
//! Bytes go straight into the segment that is being filled; a piece that turns out to be known is taken out again.

use super::{Open, failure, refused};
use crate::archive::Archive;
use crate::digest::Digest;
use crate::items::{self, EXTENT, Extent, key, parts};
use crate::manifest::Manifest;
use crate::piece::PieceRef;
use crate::segment::Filling;
use butterfs_fs::Errno;
use butterfs_send::apply::{Failure, Outcome};
use rustc_hash::FxHashMap;
use std::collections::HashSet;

/// Pieces end at multiples of this in their file.
const PIECE: u64 = 128 << 10;
/// Pieces that are known at most; those of older snapshots are forgotten first, and would be stored again.
const KNOWN: usize = 450_000;
/// The first bytes of a segment that has no name yet; a number follows. The offset is the number of the piece.
const MARK: [u8; 24] = [0xfe; 24];

/// Bytes that were written and are no piece yet: the last ones of the segment that is being filled.
pub struct Pending {
    ino: u64,
    offset: u64,
    len: u64,
}

impl Pending {
    /// Whether it belongs to this file.
    pub fn is_of(&self, ino: u64) -> bool {
        self.ino == ino
    }
}

/// The number of the segment that has no name yet.
pub fn unplaced(piece: &PieceRef) -> Option<usize> {
    let (mark, number) = piece.segment.0.split_at(MARK.len());
    (mark == MARK).then(|| u64::from_le_bytes(number.try_into().expect("8 bytes")) as usize)
}

/// Pieces that need not be stored again, by their digests. A piece takes 50 bytes of memory.
#[derive(Default)]
pub struct Known {
    /// Number of the segment, offset, stored and raw bytes.
    pieces: FxHashMap<Digest, [u32; 4]>,
    segments: Vec<Digest>,
    numbers: FxHashMap<Digest, u32>,
}

impl Known {
    /// Pieces of snapshots whose segments are there, those of the newest snapshots first.
    pub fn of(archive: &Archive, manifests: &[Manifest], existing: &HashSet<Digest>) -> butterfs_store::Result<Known> {
        let mut known = Known::default();
        for manifest in manifests.iter().rev() {
            for at in manifest.lists(archive.repository())? {
                if known.pieces.len() >= KNOWN {
                    return Ok(known);
                }
                if !existing.contains(&at.segment) {
                    continue;
                }
                let list = archive.piece(&at)?;
                let pieces = list.chunks(PieceRef::LEN).filter_map(PieceRef::from_bytes);
                pieces.filter(|piece| existing.contains(&piece.segment)).for_each(|piece| known.add(&piece));
            }
        }
        Ok(known)
    }

    fn get(&self, digest: &Digest) -> Option<PieceRef> {
        let [segment, offset, stored, raw] = *self.pieces.get(digest)?;
        Some(PieceRef { segment: self.segments[segment as usize], offset, stored, raw, digest: *digest })
    }

    /// Adds a piece, unless there is one with its digest or there are too many.
    fn add(&mut self, piece: &PieceRef) {
        if self.pieces.len() >= KNOWN || self.pieces.contains_key(&piece.digest) {
            return;
        }
        let number = *self.numbers.entry(piece.segment).or_insert_with(|| {
            self.segments.push(piece.segment);
            self.segments.len() as u32 - 1
        });
        self.pieces.insert(piece.digest, [number, piece.offset, piece.stored, piece.raw]);
    }
}

impl Open {
    /// Bytes of a file.
    pub(super) fn write(&mut self, ino: u64, offset: u64, data: &[u8]) -> Outcome {
        let too_far = || refused(Errno::EFBIG, "the file would be too long");
        offset.checked_add(data.len() as u64).filter(|end| *end <= i64::MAX as u64).ok_or_else(too_far)?;
        let follows = |pending: &Pending| pending.ino == ino && pending.offset + pending.len == offset;
        if !self.pending.as_ref().is_some_and(follows) {
            self.end_piece()?;
        }
        let (mut offset, mut data) = (offset, data);
        while !data.is_empty() {
            let room = (PIECE - offset % PIECE) as usize;
            let (now, later) = data.split_at(room.min(data.len()));
            if self.pending.is_none() {
                self.filling.begin();
            }
            self.filling.append(now);
            self.pending.get_or_insert(Pending { ino, offset, len: 0 }).len += now.len() as u64;
            if now.len() == room {
                self.end_piece()?;
            }
            (offset, data) = (offset + now.len() as u64, later);
        }
        Ok(())
    }

    /// Makes a piece of what was written.
    pub(super) fn end_piece(&mut self) -> Outcome {
        let Some(Pending { ino, offset, len }) = self.pending.take() else { return Ok(()) };
        let digest = self.index.nodes.archive.repository().digest(self.filling.last());
        let piece = match self.known.get(&digest) {
            Some(known) => {
                self.filling.take_back();
                known
            }
            None => self.new_piece(self.filling.pieces() as u32 - 1, len as u32, digest)?,
        };
        self.clear(ino, offset, offset + len)?;
        self.set_extent(ino, offset, Extent { len, data: Some((0, piece)) })?;
        self.grow(ino, offset + len)?;
        if self.filling.is_full() { self.send_segment() } else { Ok(()) }
    }

    /// Makes the file at least this long.
    pub(super) fn grow(&mut self, ino: u64, size: u64) -> Outcome {
        let mut inode = self.inode(ino)?;
        if inode.size < size {
            self.bytes += size - inode.size;
            inode.size = size;
            self.set_inode(ino, &inode)?;
        }
        Ok(())
    }

    /// A new piece with this number in the segment that is being filled.
    fn new_piece(&mut self, number: u32, raw: u32, digest: Digest) -> Result<PieceRef, Failure> {
        let mut segment = [0xfe; 32];
        segment[MARK.len()..].copy_from_slice(&(self.uploads.begun() as u64).to_le_bytes());
        let piece = PieceRef { segment: Digest(segment), offset: number, stored: 1, raw, digest };
        self.new.push(&piece.to_bytes()).map_err(failure)?;
        self.known.add(&piece);
        Ok(piece)
    }

    /// Hands the segment that is being filled to the workers.
    pub(super) fn send_segment(&mut self) -> Outcome {
        if self.filling.pieces() == 0 {
            return Ok(());
        }
        self.uploads.begin(std::mem::take(&mut self.filling)).map_err(failure)?;
        self.filling = Filling::new(self.index.nodes.archive.repository().keys(), self.uploads.spare());
        Ok(())
    }

    pub(super) fn set_extent(&mut self, ino: u64, offset: u64, extent: Extent) -> Outcome {
        let key = key(ino, EXTENT, &offset.to_be_bytes());
        self.index.set(key, Some(extent.to_bytes())).map_err(failure)
    }

    /// The extents of a file that have bytes in a range, with their offsets.
    pub(super) fn extents(&mut self, ino: u64, from: u64, until: u64) -> Result<Vec<(u64, Extent)>, Failure> {
        let mut found = Vec::new();
        let first = key(ino, EXTENT, &from.to_be_bytes());
        if let Some((offset, extent)) = self.extent_of(ino, self.index.before(&first).map_err(failure)?)?
            && offset.saturating_add(extent.len) > from
        {
            found.push((offset, extent));
        }
        let mut next = first;
        while let Some((offset, extent)) = self.extent_of(ino, self.index.at_or_after(&next).map_err(failure)?)? {
            if offset >= until {
                break;
            }
            found.push((offset, extent));
            next = key(ino, EXTENT, &(offset + 1).to_be_bytes());
        }
        Ok(found)
    }

    /// The extent of an entry, if it is one of this file.
    fn extent_of(&self, ino: u64, entry: Option<(Vec<u8>, Vec<u8>)>) -> Result<Option<(u64, Extent)>, Failure> {
        let Some((key, value)) = entry else { return Ok(None) };
        let wrong = || refused(Errno(117), "the index in the store has an extent that is none");
        match parts(&key).ok_or_else(wrong)? {
            (other, EXTENT, rest) if other == ino => {
                let offset = rest.try_into().map(u64::from_be_bytes).map_err(|_| wrong())?;
                Ok(Some((offset, Extent::from_bytes(&value).ok_or_else(wrong)?)))
            }
            _ => Ok(None),
        }
    }

    /// Makes a hole of a range.
    pub(super) fn clear(&mut self, ino: u64, from: u64, until: u64) -> Outcome {
        for (offset, extent) in self.extents(ino, from, until)? {
            let end = offset + extent.len;
            if offset < from {
                self.set_extent(ino, offset, extent.part(0, from - offset))?;
            } else {
                self.index.set(key(ino, EXTENT, &offset.to_be_bytes()), None).map_err(failure)?;
            }
            if end > until {
                self.set_extent(ino, until, extent.part(until - offset, end - until))?;
            }
        }
        Ok(())
    }

    /// Sets the size.
    pub(super) fn truncate(&mut self, ino: u64, size: u64) -> Outcome {
        let mut inode = self.inode(ino)?;
        if !inode.is(items::REGULAR) || size > i64::MAX as u64 {
            return Err(refused(Errno::EINVAL, "it is not a regular file, or the size is none"));
        }
        if size < inode.size {
            self.clear(ino, size, u64::MAX)?;
        }
        self.bytes = (self.bytes + size).saturating_sub(inode.size);
        inode.size = size;
        self.set_inode(ino, &inode)
    }

    /// Shares bytes of a file of this snapshot, as it is now.
    pub(super) fn share(&mut self, from: (u64, u64), to: (u64, u64), len: u64) -> Outcome {
        let until = from.1.checked_add(len).filter(|_| to.1.checked_add(len).is_some());
        let until = until.ok_or_else(|| refused(Errno::EINVAL, "the range to clone has no end"))?;
        let extents = self.extents(from.0, from.1, until)?;
        self.clear(to.0, to.1, to.1 + len)?;
        for (offset, extent) in extents {
            let begin = offset.max(from.1);
            let end = (offset + extent.len).min(until);
            let part = extent.part(begin - offset, end - begin);
            self.set_extent(to.0, to.1 + (begin - from.1), part)?;
        }
        self.grow(to.0, to.1 + len)
    }
}
