//! Writing rows with parity.
//!
//! Whole rows are written from memory, neighbouring ones in one write per device, and nothing is read. Of other rows
//! everything is read at the depths that are written, and compared with the parity, so that new parity never hides that
//! something is wrong. Then the new data and the parity of what the row will hold are written.
//!
//! # Invariants
//! 1. Parity is written at the depths of the new data and nowhere else.
//! 2. What cannot be read, or lies on a device that has missed writes, is computed before the first byte is written.
//! 3. One thread writes into a row at a time.
//!
//! Between the first and the last device a power cut leaves data and parity that do not fit each other, at the depths
//! that were written. What the row holds there beside the new data is lost if another device is lost before the row is
//! written or repaired. So callers put new data where nothing else is at the same depths.

use crate::error::{CopyFailure, VolumeError};
use crate::layout::{Layout, Piece, StripeAddress};
use crate::member::Caching;
use crate::parity;
use crate::row::{Row, State};
use crate::row_locks::RowLocks;
use crate::staleness::Bug;
use crate::stripe_read::Trust;
use crate::volume::Volume;
use butterfs_ondisk::Logical;
use butterfs_ondisk::chunk::STRIPE_LEN;
use std::ops::Range;

/// A writer's knowledge of the old content of rows.
#[derive(Clone, Copy)]
pub(crate) enum Old<'a> {
    /// It must fit its parity, except in the rows that begin here.
    Checked { except: &'a [Logical] },
    /// Nobody needs it.
    Unused,
}

/// A write into rows with parity.
struct Write<'a> {
    layout: &'a Layout<'a>,
    at: Logical,
    data: &'a [u8],
    caching: Caching,
    old: Old<'a>,
}

/// Depths of a row, and the new data of the columns that are written there whole.
struct Segment<'a> {
    row: u64,
    depths: Range<u64>,
    new: Vec<(usize, &'a [u8])>,
}

/// New parity: the depths, then P and Q.
type Parity = (Range<u64>, Vec<Vec<u8>>);

impl Volume {
    pub(crate) fn store_with_parity(
        &self,
        layout: &Layout<'_>,
        at: Logical,
        data: &[u8],
        caching: Caching,
        old: Old<'_>,
    ) -> Result<(), VolumeError> {
        let write = Write { layout, at, data, caching, old };
        let pieces: Vec<Piece> = layout.pieces(at, data.len()).collect();
        let lock_of = |piece: &Piece| RowLocks::end_of_lock(piece.row);
        pieces.chunk_by(|a, b| lock_of(a) == lock_of(b)).try_for_each(|pieces| {
            let _rows = self.rows.write(layout.chunk(), pieces[0].row);
            let rows: Vec<&[Piece]> = pieces.chunk_by(|a, b| a.row == b.row).collect();
            rows.chunk_by(|a, b| is_whole(layout, a) && is_whole(layout, b)).try_for_each(|rows| {
                if is_whole(layout, rows[0]) { self.store_rows(&write, rows) } else { self.store_part(&write, rows[0]) }
            })
        })
    }

    /// Writes whole rows, one behind the other: one write per device.
    fn store_rows(&self, write: &Write<'_>, rows: &[&[Piece]]) -> Result<(), VolumeError> {
        let (layout, first) = (write.layout, rows[0][0].row);
        let mut stripes = vec![vec![0; rows.len() * STRIPE_LEN as usize]; layout.chunk().stripes.len()];
        for (index, pieces) in rows.iter().enumerate() {
            let inside = index * STRIPE_LEN as usize..(index + 1) * STRIPE_LEN as usize;
            let columns: Vec<&[u8]> = pieces.iter().map(|piece| &write.data[piece.range.clone()]).collect();
            for (column, data) in columns.iter().enumerate() {
                let stripe = layout.element_address(pieces[0].row, column, 0).stripe;
                stripes[stripe][inside.clone()].copy_from_slice(data);
            }
            let stripe_of = |which| layout.element_address(pieces[0].row, columns.len() + which, 0).stripe;
            let mut parities: Vec<Vec<u8>> =
                (0..layout.parity()).map(|which| std::mem::take(&mut stripes[stripe_of(which)])).collect();
            let (p, q) = parities.split_first_mut().expect("the profile has parity");
            let q = q.first_mut().map(|q| &mut q[inside.clone()]);
            parity::compute(&columns, &mut p[inside.clone()], q);
            parities.into_iter().enumerate().for_each(|(which, bytes)| stripes[stripe_of(which)] = bytes);
        }
        let outcomes = stripes.iter().enumerate().map(|(stripe, bytes)| {
            let physical = layout.chunk().stripes[stripe].physical.plus(first * STRIPE_LEN);
            let address = StripeAddress { stripe, physical };
            (address, self.store_stripe(layout, write.at, address, bytes, write.caching))
        });
        self.tolerate(layout, outcomes)
    }

    /// Writes a part of a row.
    fn store_part(&self, write: &Write<'_>, pieces: &[Piece]) -> Result<(), VolumeError> {
        let layout = write.layout;
        let mut parities: Vec<Parity> = Vec::new();
        for segment in segments(write, pieces) {
            let new = self.future_parity(write, &segment)?;
            match parities.last_mut() {
                Some((depths, bytes)) if depths.end == segment.depths.start => {
                    depths.end = segment.depths.end;
                    bytes.iter_mut().zip(new).for_each(|(bytes, new)| bytes.extend(new));
                }
                _ => parities.push((segment.depths, new)),
            }
        }
        if self.has_bug(Bug::ParityNotUpdated) {
            parities.clear();
        }
        let row = pieces[0].row;
        let data = pieces.iter().map(|piece| {
            let (part, address) = (&write.data[piece.range.clone()], layout.stripe_address(piece, 0));
            let at = write.at.plus(piece.range.start as u64);
            (address, self.store_stripe(layout, at, address, part, write.caching))
        });
        let parities = (0..layout.parity()).map(|which| {
            let element = layout.columns() + which;
            let store = |(depths, bytes): &Parity| {
                let address = layout.element_address(row, element, depths.start);
                self.store_stripe(layout, write.at, address, &bytes[which], write.caching)
            };
            let stored = parities.iter().map(store).fold(Ok(()), Result::and);
            (layout.element_address(row, element, row * STRIPE_LEN), stored)
        });
        self.tolerate(layout, data.chain(parities))
    }

    /// The parity of what a row will hold at the depths of a segment.
    fn future_parity(&self, write: &Write<'_>, segment: &Segment<'_>) -> Result<Vec<Vec<u8>>, VolumeError> {
        let layout = write.layout;
        let mut row = self.old_content(write, segment)?;
        for (column, new) in &segment.new {
            row.fill(*column, |bytes| {
                bytes.copy_from_slice(new);
                true
            });
        }
        row.update_parity();
        Ok((0..layout.parity()).map(|which| row.element(layout.columns() + which).to_vec()).collect())
    }

    /// The content of a row at the depths of a segment, as far as it is needed there. The row is locked.
    fn old_content(&self, write: &Write<'_>, segment: &Segment<'_>) -> Result<Row, VolumeError> {
        let (layout, depths) = (write.layout, &segment.depths);
        let is_new = |column: usize| segment.new.iter().any(|(new, _)| *new == column);
        let len = (depths.end - depths.start) as usize;
        if (0..layout.columns()).all(is_new) {
            return Ok(Row::unknown(layout.columns(), layout.parity(), len));
        }
        if matches!(write.old, Old::Unused) {
            let row =
                self.read_row(layout, segment.row, depths, &|element| !is_new(element) && element < layout.columns());
            if (0..layout.columns()).all(|column| is_new(column) || row.is_known(column)) {
                return Ok(row);
            }
        }
        let mut row = self.read_row(layout, segment.row, depths, &|_| true);
        let start = layout.column_start(segment.row, 0, segment.row * STRIPE_LEN);
        let may_differ = match write.old {
            Old::Checked { except } => except.contains(&start),
            Old::Unused => true,
        };
        match row.complete() {
            State::Consistent => Ok(row),
            State::Inconsistent if may_differ => Ok(row),
            State::Inconsistent => Err(VolumeError::RowInconsistent { row: start }),
            State::Lost => {
                let failures = self.unreadable_elements(layout, segment, &row);
                Err(VolumeError::NoGoodCopy { at: start, len: layout.row_len(), failures })
            }
        }
    }

    /// Reads what `wanted` accepts of the elements of a row, from devices that have missed nothing. The row is locked,
    /// or nobody writes.
    pub(crate) fn read_row(
        &self,
        layout: &Layout<'_>,
        row: u64,
        depths: &Range<u64>,
        wanted: &dyn Fn(usize) -> bool,
    ) -> Row {
        self.read_row_as(layout, row, depths, (Trust::Blind, Caching::Kept), wanted)
    }

    /// The same from devices that are trusted so, past their caches or not.
    pub(crate) fn read_row_as(
        &self,
        layout: &Layout<'_>,
        row: u64,
        depths: &Range<u64>,
        how: (Trust, Caching),
        wanted: &dyn Fn(usize) -> bool,
    ) -> Row {
        let len = (depths.end - depths.start) as usize;
        let mut read = Row::unknown(layout.columns(), layout.parity(), len);
        for element in (0..layout.columns() + layout.parity()).filter(|&element| wanted(element)) {
            let address = layout.element_address(row, element, depths.start);
            read.fill(element, |bytes| self.fetch_stripe(layout, 0, address, how, bytes).is_ok());
        }
        read
    }

    fn unreadable_elements(&self, layout: &Layout<'_>, segment: &Segment<'_>, row: &Row) -> Vec<CopyFailure> {
        let elements = (0..layout.columns() + layout.parity()).filter(|&element| !row.is_known(element));
        elements
            .filter_map(|element| {
                let address = layout.element_address(segment.row, element, segment.depths.start);
                self.fetch_stripe(layout, 0, address, (Trust::Blind, Caching::Kept), &mut [0; 512]).err()
            })
            .collect()
    }
}

/// Whether pieces are a whole row.
fn is_whole(layout: &Layout<'_>, pieces: &[Piece]) -> bool {
    pieces.iter().map(|piece| piece.range.len() as u64).sum::<u64>() == layout.row_len()
}

/// Cuts the pieces of a row where one begins or ends, so that a column is new at all depths of a segment or at none.
fn segments<'a>(write: &Write<'a>, pieces: &[Piece]) -> Vec<Segment<'a>> {
    let depths = |piece: &Piece| piece.depth..piece.depth + piece.range.len() as u64;
    let mut cuts: Vec<u64> = pieces.iter().flat_map(|piece| [depths(piece).start, depths(piece).end]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let segment = |cut: &[u64]| {
        let covering = pieces.iter().filter(|piece| depths(piece).start <= cut[0] && cut[1] <= depths(piece).end);
        let new: Vec<_> = covering
            .map(|piece| {
                let from = piece.range.start + (cut[0] - piece.depth) as usize;
                (piece.column, &write.data[from..from + (cut[1] - cut[0]) as usize])
            })
            .collect();
        Segment { row: pieces[0].row, depths: cut[0]..cut[1], new }
    };
    cuts.windows(2).map(segment).filter(|segment| !segment.new.is_empty()).collect()
}

#[cfg(test)]
mod tests;
