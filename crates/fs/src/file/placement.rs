//! Places on disk for buffered data, and writing it there.
//!
//! Data is placed in whole chunks of contiguous space, however scattered it is in the file: one allocation, few device
//! writes and one run of checksums serve many small extents.

use super::Files;
use super::compression::{Piece, Stored};
use crate::error::Result;
use crate::extent::rows;
use crate::file_buffer::DirtyRuns;
use crate::file_extent::{ExtentKind, FileExtent};
use crate::inode::Inode;
use crate::space::Stream;
use crate::transaction::DataReservation;
use butterfs_ondisk::Logical;
use butterfs_ondisk::items::inode_flags;
use butterfs_volume::Caching;
use std::collections::VecDeque;
use std::ops::Range;

/// Pieces smaller than this are gathered before they are written to the device.
const GATHER_BELOW: usize = 256 << 10;
/// Pieces that are this long on average go past the device's cache, which has no use for them: who wrote them has them
/// in a cache of its own. Short ones are gathered to few writes there, and small files are often read again soon.
const UNCACHED_FROM: u64 = 64 << 10;
/// Cached writes of at least this many bytes go to the device at once, so that the next flush has less to wait for.
const BEGIN_WRITE_OUT_BYTES: usize = 64 << 10;
/// Buffers for gathering.
const GATHER_BYTES: usize = 1 << 20;

/// Data with a place on disk: a range of the file, and where it is.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub file: Range<u64>,
    pub at: Logical,
    /// It is preallocated space of the file itself.
    pub in_place: bool,
    /// The progress recorded.
    pub recorded: u64,
    /// The bytes on disk, when they are others than the file's.
    pub stored: Option<Stored>,
}

impl Placed {
    pub fn new(file: Range<u64>, at: Logical, in_place: bool) -> Placed {
        Placed { recorded: file.start, file, at, in_place, stored: None }
    }

    pub fn is_unrecorded(&self) -> bool {
        self.recorded == self.file.start
    }

    pub fn len(&self) -> u64 {
        self.file.end - self.file.start
    }

    /// Bytes that it takes on disk.
    pub fn disk_len(&self) -> u64 {
        self.stored.as_ref().map_or(self.len(), |stored| stored.bytes.len() as u64)
    }

    /// The item for all of it.
    pub fn extent(&self, generation: u64) -> FileExtent {
        let plain = FileExtent::new(ExtentKind::Regular, self.file.start, self.at, self.len(), generation);
        match &self.stored {
            None => plain,
            Some(stored) => FileExtent { compression: stored.algorithm.raw(), disk_len: self.disk_len(), ..plain },
        }
    }
}

/// Allocated space; what is not recorded goes back when dropped.
pub(super) struct Chunk<'a> {
    files: &'a Files,
    pub at: Logical,
    pub len: u64,
    /// The position at which it began, while its data is not written.
    unwritten: Option<Logical>,
}

impl Chunk<'_> {
    /// The first `len` bytes have an owner.
    pub fn recorded(&mut self, len: u64) {
        self.at = self.at.plus(len);
        self.len -= len;
    }

    /// Its data is on the devices, as far as there is any. Whoever waits for a commit has said so before.
    pub fn written(&mut self) {
        if let Some(start) = self.unwritten.take() {
            self.files.engine.space.end_write(start);
        }
    }

    /// Everything behind the first `len` bytes goes back into the reservation that it came from.
    pub fn trim(&mut self, len: u64, reservation: &mut DataReservation) {
        if len < self.len {
            self.files.engine.unallocate_data(self.at.plus(len), self.len - len, reservation);
            self.len = len;
        }
    }
}

impl Chunk<'_> {
    /// The device did not take the data: next time it goes elsewhere, if there is another place.
    pub fn avoid(&mut self, reservation: &mut DataReservation) {
        self.written();
        self.files.engine.avoid_data(self.at, self.len, reservation);
        self.len = 0;
    }
}

impl Drop for Chunk<'_> {
    fn drop(&mut self) {
        self.written();
        if self.len > 0 {
            self.files.engine.return_data(self.at, self.len);
        }
    }
}

impl Files {
    /// Contiguous space out of the reservation or, for data that had none, out of what is free: `wanted` bytes or
    /// fewer, at least `least`.
    pub(super) fn allocate(
        &self,
        (wanted, least): (u64, u64),
        stream: Stream,
        reserved: &mut Option<DataReservation>,
    ) -> Result<Chunk<'_>> {
        match reserved.as_mut().filter(|reserved| reserved.bytes() > 0) {
            None => *reserved = Some(self.engine.reserve_data(wanted, None)?),
            Some(reserved) if reserved.bytes() < least => {
                reserved.merge(self.engine.reserve_data(least - reserved.bytes(), None)?);
            }
            Some(_) => {}
        }
        self.place((wanted, least), stream, reserved.as_mut().expect("just made"))
    }

    /// Contiguous space out of a reservation, `wanted` bytes or fewer, at least `least`.
    pub(super) fn place(
        &self,
        (wanted, least): (u64, u64),
        stream: Stream,
        reservation: &mut DataReservation,
    ) -> Result<Chunk<'_>> {
        let (at, len) = self.engine.allocate_data((wanted.min(reservation.bytes()), least), stream, reservation)?;
        let unwritten = (stream == Stream::Data).then_some(at);
        Ok(Chunk { files: self, at, len, unwritten })
    }

    /// The stream in whose space a file's new data goes. Files without copy on write have their own, because their data
    /// is overwritten in place, again and again.
    pub(super) fn stream_of(inode: &Inode) -> Stream {
        let in_place = inode.with(|state| state.has(inode_flags::NODATACOW));
        if in_place { Stream::InPlace } else { Stream::Data }
    }

    /// Gives the first of `pieces` their places in a chunk, and takes them out.
    pub(super) fn fill(chunk: &Chunk<'_>, pieces: &mut VecDeque<Piece>) -> Vec<Placed> {
        let (mut placed, mut used) = (Vec::new(), 0);
        while used < chunk.len
            && let Some(piece) = pieces.front_mut()
        {
            let room = chunk.len - used;
            let at = chunk.at.plus(used);
            if piece.stored.is_some() && piece.disk_len() > room {
                break;
            }
            let len = match &piece.stored {
                Some(_) => piece.file.end - piece.file.start,
                None => (piece.file.end - piece.file.start).min(room),
            };
            let part = piece.file.start..piece.file.start + len;
            piece.file.start = part.end;
            placed.push(Placed { stored: piece.stored.take(), ..Placed::new(part, at, false) });
            used += placed[placed.len() - 1].disk_len();
            if piece.file.is_empty() {
                pieces.pop_front();
            }
        }
        placed
    }

    /// Writes data to its places, which lie one behind the other on disk. Returns the checksums, none for a file
    /// without.
    pub(super) fn write_data(&self, inode: &Inode, runs: &DirtyRuns, placed: &[Placed]) -> Result<Vec<u8>> {
        let (layout, summed) = (self.layout(), !inode.with(|state| state.has(inode_flags::NODATASUM)));
        let mut digests = Vec::new();
        let mut gathered: Vec<u8> = Vec::new();
        let mut next = placed[0].at;
        let bytes: u64 = placed.iter().map(Placed::disk_len).sum();
        let is_uncached = bytes / placed.len() as u64 >= UNCACHED_FROM;
        let write = |from: Logical, bytes: &[u8]| -> Result<Logical> {
            if is_uncached && !bytes.is_empty() {
                rows::write(&self.engine, from, bytes, Caching::Avoided)?;
            } else if !bytes.is_empty() {
                rows::write(&self.engine, from, bytes, Caching::Kept)?;
                if bytes.len() >= BEGIN_WRITE_OUT_BYTES {
                    self.engine.volume().begin_write_out(from, bytes.len());
                }
            }
            Ok(from.plus(bytes.len() as u64))
        };
        let mut pieces = placed.iter().flat_map(|piece| bytes_of(piece, runs)).peekable();
        while let Some(piece) = pieces.next() {
            if summed {
                digests.extend_from_slice(&layout.digests(piece));
            }
            let is_alone = gathered.is_empty() && pieces.peek().is_none();
            let large = piece.len() >= GATHER_BELOW || is_alone;
            if large || gathered.len() + piece.len() > GATHER_BYTES {
                next = write(next, &gathered)?;
                gathered.clear();
            }
            if large {
                next = write(next, piece)?;
            } else {
                gathered.extend_from_slice(piece);
            }
        }
        write(next, &gathered)?;
        Ok(digests)
    }
}

/// The bytes that go to a place, in pieces.
fn bytes_of<'a>(placed: &'a Placed, runs: &'a DirtyRuns) -> impl Iterator<Item = &'a [u8]> {
    let stored = placed.stored.as_ref().map(|stored| stored.bytes.as_slice());
    let plain = if stored.is_some() { placed.file.end..placed.file.end } else { placed.file.clone() };
    stored.into_iter().chain(runs.pieces(plain).map(|(_, piece)| piece))
}
