//! Places on disk for buffered data, and writing it there.
//!
//! Data is placed in whole chunks of contiguous space, however scattered it is in the file: one allocation, few device
//! writes and one run of checksums serve many small extents.

use super::Files;
use super::item::{ExtentKind, FileExtent};
use crate::error::{Error, Result};
use crate::file_buffer::DirtyRuns;
use crate::inode::Inode;
use crate::transaction::DataReservation;
use butterfs_ondisk::Logical;
use butterfs_ondisk::items::inode_flags;
use std::ops::Range;

/// Pieces smaller than this are gathered before they are written to the device.
const GATHER_BELOW: usize = 256 << 10;
/// Buffers for gathering.
const GATHER_BYTES: usize = 1 << 20;

/// Data with a place on disk: a range of the file, and where it is.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub file: Range<u64>,
    pub at: Logical,
    /// It is preallocated space of the file itself.
    pub in_place: bool,
    /// How far it is recorded.
    pub recorded: u64,
}

impl Placed {
    pub fn new(file: Range<u64>, at: Logical, in_place: bool) -> Placed {
        Placed { recorded: file.start, file, at, in_place }
    }

    pub fn len(&self) -> u64 {
        self.file.end - self.file.start
    }

    /// The item for all of it.
    pub fn extent(&self, generation: u64) -> FileExtent {
        FileExtent::new(ExtentKind::Regular, self.file.start, self.at, self.len(), generation)
    }
}

/// Allocated space; what is not recorded goes back when dropped.
pub(super) struct Chunk<'a> {
    files: &'a Files,
    pub at: Logical,
    pub len: u64,
}

impl Chunk<'_> {
    /// The first `len` bytes have an owner.
    pub fn recorded(&mut self, len: u64) {
        self.at = self.at.plus(len);
        self.len -= len;
    }
}

impl Drop for Chunk<'_> {
    fn drop(&mut self) {
        if self.len > 0 {
            self.files.core.return_data(self.at, self.len);
        }
    }
}

impl Files {
    /// Contiguous space out of the reservation or, for data that had none, out of what is free.
    pub(super) fn allocate(&self, wanted: u64, reserved: &mut Option<DataReservation>) -> Result<Chunk<'_>> {
        if reserved.as_ref().is_none_or(|reserved| reserved.bytes() == 0) {
            *reserved = Some(self.core.reserve_data(wanted)?);
        }
        self.place(wanted, reserved.as_mut().expect("just made"))
    }

    /// Contiguous space out of a promise, `wanted` bytes or fewer.
    pub(super) fn place(&self, wanted: u64, promise: &mut DataReservation) -> Result<Chunk<'_>> {
        let (at, len) = self.core.allocate_data(wanted.min(promise.bytes()), self.sector(), promise)?;
        Ok(Chunk { files: self, at, len })
    }

    /// Writes data to its places, which lie one behind the other on disk. Returns the checksums, none for a file
    /// without.
    pub(super) fn write_data(&self, inode: &Inode, runs: &DirtyRuns, placed: &[Placed]) -> Result<Vec<u8>> {
        let (layout, summed) = (self.layout(), !inode.with(|state| state.has(inode_flags::NODATASUM)));
        let mut digests = Vec::new();
        let mut gathered: Vec<u8> = Vec::new();
        let mut next = placed[0].at;
        let write = |from: Logical, bytes: &[u8]| -> Result<Logical> {
            if !bytes.is_empty() {
                // A device that loses data cannot be trusted with the next commit either.
                let written = self.core.volume().write(from, bytes).map_err(Error::from);
                written.inspect_err(|error| self.core.abort(error))?;
            }
            Ok(from.plus(bytes.len() as u64))
        };
        for (_, piece) in placed.iter().flat_map(|piece| runs.pieces(piece.file.clone())) {
            if summed {
                digests.extend_from_slice(&layout.digests(piece));
            }
            let large = piece.len() >= GATHER_BELOW;
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
