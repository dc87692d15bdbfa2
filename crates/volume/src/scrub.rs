//! Functions of the volume for scrub: the places of one device in order, and what their storage holds, whatever is in
//! caches.
//!
//! Only its caller counts errors: a large read that fails says nothing about its sectors.

use crate::error::VolumeError;
use crate::layout::{Layout, Piece};
use crate::member::Caching;
use crate::resync::Confirmed;
use crate::row_check::{CheckedRow, RowChecked, RowRepair};
use crate::stripe_read::Trust;
use crate::volume::Volume;
use butterfs_ondisk::chunk::{Chunk, STRIPE_LEN};
use butterfs_ondisk::superblock::{SUPERBLOCK_LEN, Superblock};
use butterfs_ondisk::{DeviceId, Logical, Physical};
use std::io;
use std::ops::Range;

/// A stripe of a chunk on a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DeviceExtent {
    /// The position at which it begins on the device.
    pub physical: Physical,
    /// Bytes on the device.
    pub len: u64,
    /// The chunk.
    pub chunk: Logical,
    /// Index of the stripe in the chunk.
    pub stripe: usize,
}

/// Bytes that lie on a device in one piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Their address.
    pub at: Logical,
    /// The number.
    pub len: u64,
    /// The address on the device.
    pub physical: Physical,
    /// Which copy they are.
    pub copy: usize,
}

/// Errors of a device to add to its counters.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct FoundErrors {
    /// Sectors that cannot be read.
    pub reads: u64,
    /// Sectors whose bytes are wrong.
    pub corruptions: u64,
    /// Tree blocks of another generation.
    pub generations: u64,
}

/// The place of a copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyPlace {
    /// Which copy.
    pub copy: usize,
    /// The device of its first byte.
    pub device: DeviceId,
    /// The name of the device.
    pub name: String,
    /// The address on it.
    pub physical: Physical,
    /// It is computed from the rest of its row.
    pub is_computed: bool,
}

impl Layout<'_> {
    /// The addresses of the chunk of which some may lie at these depths of a stripe. Depths of striped profiles are cut
    /// at elements.
    pub fn span_at(&self, depths: &Range<u64>) -> Range<Logical> {
        let start = self.chunk().start;
        let columns = self.columns() as u64;
        if columns == 1 && self.parity() == 0 {
            return start.plus(depths.start)..start.plus(depths.end);
        }
        let (first, last) = (depths.start / STRIPE_LEN, depths.end.div_ceil(STRIPE_LEN));
        let at = |row: u64| start.plus((row * columns * STRIPE_LEN).min(self.chunk().length));
        at(first)..at(last)
    }

    /// The parts of `len` bytes at `at` that `stripe` holds as they are.
    pub fn runs_on(&self, stripe: usize, at: Logical, len: u64) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for piece in self.pieces(at, len as usize) {
            for copy in 0..self.mirrors() {
                let address = self.stripe_address(&piece, copy);
                if address.stripe != stripe {
                    continue;
                }
                let (from, bytes) = (at.plus(piece.range.start as u64), piece.range.len() as u64);
                match runs.last_mut() {
                    Some(last)
                        if last.at.plus(last.len) == from && last.physical.plus(last.len) == address.physical =>
                    {
                        last.len += bytes;
                    }
                    _ => runs.push(Run { at: from, len: bytes, physical: address.physical, copy }),
                }
            }
        }
        runs
    }
}

impl Volume {
    /// The stripes of chunks on a device, as they lie on it.
    pub fn device_extents(&self, id: DeviceId) -> Vec<DeviceExtent> {
        let map = self.chunk_map();
        let stripes = map.iter().flat_map(|chunk: &Chunk| {
            let len = chunk.stripe_length();
            let own = chunk.stripes.iter().enumerate().filter(move |(_, stripe)| stripe.device == id);
            own.map(move |(stripe, of)| DeviceExtent { physical: of.physical, len, chunk: chunk.start, stripe })
        });
        let mut found: Vec<DeviceExtent> = stripes.collect();
        found.sort_unstable();
        found
    }

    /// Whether a device is there and is read.
    pub fn is_scrubbable(&self, id: DeviceId) -> bool {
        self.member(id).is_some_and(|member| member.is_in_use() && !member.is_foreign())
    }

    /// The name of a device.
    pub fn device_name(&self, id: DeviceId) -> String {
        self.member(id).map_or_else(|| "a missing device".to_owned(), |member| member.device.name())
    }

    /// Reads a device as it is, past the caches. Counts nothing.
    pub fn read_device(&self, id: DeviceId, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        butterfs_sync::order::check(butterfs_sync::order::DEVICE);
        match self.member(id).filter(|member| member.is_in_use()) {
            Some(member) => member.device.read_uncached(at.0, buf),
            None => Err(io::Error::new(io::ErrorKind::NotFound, "the device is missing")),
        }
    }

    /// Adds to the counters of a device.
    pub fn count_errors(&self, id: DeviceId, found: FoundErrors) {
        if let Some(member) = self.member(id) {
            member.count_found(found.reads, found.corruptions, found.generations);
        }
    }

    /// The place of copy `copy` of the bytes at `at`.
    pub fn place_of(&self, at: Logical, copy: usize) -> Option<CopyPlace> {
        self.located(at, 1, |layout| Ok(self.place_in(&layout, at, copy))).ok()
    }

    /// Whether the bytes at `at` still lie on this device there.
    pub fn still_lies(&self, id: DeviceId, run: &Run) -> bool {
        let is_place = |place: CopyPlace| place.device == id && place.physical == run.physical;
        self.place_of(run.at, run.copy).is_some_and(is_place)
    }

    pub(crate) fn place_in(&self, layout: &Layout<'_>, at: Logical, copy: usize) -> CopyPlace {
        let is_computed = copy >= layout.mirrors();
        let piece: Piece = layout.pieces(at, 1).next().expect("one byte has one piece");
        // A copy that is computed counts under the parity that it is computed from.
        let address = match copy {
            _ if is_computed => layout.parity_address(&piece, (copy - 1).min(layout.parity() - 1)),
            stored => layout.stripe_address(&piece, stored),
        };
        let device = layout.chunk().stripes[address.stripe].device;
        CopyPlace { copy, device, name: self.device_name(device), physical: address.physical, is_computed }
    }

    /// Whether all stored copies of the bytes at `at` are the same; copies that cannot be read do not count. No write
    /// is on its way meanwhile.
    pub fn copies_agree(&self, at: Logical, len: usize) -> Result<bool, VolumeError> {
        self.located(at, len, |layout| {
            let _gate = self.gate.write();
            let (mut first, mut other) = (vec![0; len], vec![0; len]);
            let mut readable = (0..layout.mirrors()).filter(|copy| !self.touches_stale(&layout, at, len, *copy));
            let Some(one) = readable.next() else { return Ok(true) };
            if self.fetch(&layout, at, one, (Trust::Verified, Caching::Avoided), &mut first).is_err() {
                return Ok(true);
            }
            let agrees = |copy: usize, other: &mut Vec<u8>| {
                self.fetch(&layout, at, copy, (Trust::Verified, Caching::Avoided), other).is_err() || *other == first
            };
            Ok(readable.all(|copy| agrees(copy, &mut other)))
        })
    }

    /// Checks the row with parity that begins at `start` at those depths, in units of `unit` bytes, that `is_wanted`
    /// wants, as [`check_row`](Self::check_row) does.
    pub fn check_parity(
        &self,
        start: Logical,
        unit: usize,
        repair: RowRepair,
        is_wanted: &dyn Fn(u64) -> bool,
        confirm: &dyn Fn(Logical, &[u8]) -> Confirmed,
    ) -> Result<RowChecked, VolumeError> {
        if repair == RowRepair::Write {
            self.check_writable()?;
        }
        let _request = self.requests.read();
        self.located(start, 1, |layout| {
            let mut checked = RowChecked::default();
            if layout.parity() == 0 {
                return Ok(checked);
            }
            let number = (start.0 - layout.chunk().start.0) / layout.row_len();
            let _gate = self.gate.read();
            let _row = self.rows.write(layout.chunk(), number);
            let row = CheckedRow {
                volume: self,
                layout: &layout,
                number,
                repair,
                confirm,
                how: (Trust::Blind, Caching::Avoided),
            };
            for inside in (0..STRIPE_LEN).step_by(unit).filter(|inside| is_wanted(*inside)) {
                let depth = number * STRIPE_LEN + inside;
                checked.add(row.check(&(depth..depth + unit as u64))?);
            }
            Ok(checked)
        })
    }

    /// The superblock copies that a device should have, each with its generation or the rule that it breaks.
    pub fn superblock_copies(&self, id: DeviceId) -> Vec<(Physical, Result<Superblock, String>)> {
        let Some(member) = self.member(id).filter(|member| member.is_in_use()) else { return Vec::new() };
        let copies = Superblock::copies_on(member.item().total_bytes.get());
        let read = |at: Physical| {
            let mut bytes = vec![0; SUPERBLOCK_LEN];
            member.device.read_uncached(at.0, &mut bytes).map_err(|error| format!("cannot be read: {error}"))?;
            Superblock::parse(&bytes, at).map_err(|error| error.to_string())
        };
        copies.map(|at| (at, read(at))).collect()
    }

    /// The superblock copies of a device that were not valid when it was opened, and were rewritten then. Each is told
    /// once.
    pub fn take_repaired_superblocks(&self, id: DeviceId) -> Vec<Physical> {
        self.member(id).map(|member| member.take_repaired_superblocks()).unwrap_or_default()
    }
}
