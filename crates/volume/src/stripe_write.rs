//! Writing: to every mirror, or to a row with new parity.
//!
//! A row with parity is written from what it will hold: columns that the write does not cover are read first. Between
//! the first and the last device a power cut leaves data and parity that do not fit each other, as everywhere with
//! this format; no byte that was not written is lost as long as no device is.
//!
//! Invariant: a write is attempted everywhere, and is an error when it failed on more devices than the profile survives.
//! So a device that fails does not stop a mirror, and DUP, which survives no device, wants both of its copies, as in the
//! kernel. A device that has missed a write is stale from then on, and what is written to a stale device is not counted.

use crate::error::VolumeError;
use crate::layout::{Layout, Piece, StripeAddress};
use crate::member::WriteMode;
use crate::parity;
use crate::volume::Volume;
use butterfs_ondisk::Logical;
use butterfs_ondisk::profile::Profile;
use std::io;
use std::ops::Range;

impl Volume {
    pub(crate) fn store_mirrors(
        &self,
        layout: &Layout<'_>,
        at: Logical,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<(), VolumeError> {
        for piece in layout.pieces(at, data.len()) {
            let part = &data[piece.range.clone()];
            let written = (0..layout.mirrors()).map(|mirror| {
                let address = layout.stripe_address(&piece, mirror);
                (address, self.store_stripe(layout, at.plus(piece.range.start as u64), address, part, mode))
            });
            self.tolerate(layout, written)?;
        }
        Ok(())
    }

    /// The first error of a write, if it was not stored on as many devices as the profile demands, of which those on stale
    /// devices do not count. Else a device that failed is told, and is stale from now on.
    fn tolerate(
        &self,
        layout: &Layout<'_>,
        outcomes: impl Iterator<Item = (StripeAddress, Result<(), VolumeError>)>,
    ) -> Result<(), VolumeError> {
        let (mut errors, mut uncounted) = (Vec::new(), 0);
        for (address, outcome) in outcomes {
            match outcome {
                Ok(()) => uncounted += usize::from(self.lacks_something(layout, address)),
                Err(error) => errors.push((address, error)),
            }
        }
        if errors.is_empty() {
            return Ok(());
        }
        let survives = errors.len() + uncounted <= survivable(layout);
        // That a device is gone was told once.
        let device = |address: &StripeAddress| layout.chunk().stripes[address.stripe].device;
        let news: Vec<_> = errors.iter().filter(|(_, error)| !error.is_absence()).collect();
        let failed: Vec<_> = news.iter().filter_map(|(address, _)| self.member(device(address))).collect();
        if !survives || !self.miss(&failed) {
            return Err(errors.swap_remove(0).1);
        }
        news.iter().for_each(|(_, error)| self.tell(format!("{error}; the other devices go on")));
        Ok(())
    }

    pub(crate) fn store_stripe(
        &self,
        layout: &Layout<'_>,
        at: Logical,
        address: StripeAddress,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<(), VolumeError> {
        let id = layout.chunk().stripes[address.stripe].device;
        self.store_on_twin(id, address.physical, data, mode);
        let (device, written) = match self.member(id) {
            Some(member) if member.is_in_use() => (member.device.name(), member.write(address.physical, data, mode)),
            Some(member) => (member.device.name(), Err(absent())),
            None => (format!("device {id}"), Err(absent())),
        };
        written.map_err(|error| VolumeError::Write { at: Some(at), device, physical: address.physical, error })
    }

    pub(crate) fn store_with_parity(
        &self,
        layout: &Layout<'_>,
        at: Logical,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<(), VolumeError> {
        let pieces: Vec<Piece> = layout.pieces(at, data.len()).collect();
        pieces.chunk_by(|a, b| a.row == b.row).try_for_each(|pieces| {
            let depths = touched_depths(pieces);
            let whole =
                Piece { range: 0..(depths.end - depths.start) as usize, depth: depths.start, ..pieces[0].clone() };
            self.store_row(&RowWrite { layout: *layout, at, data, pieces, whole, mode })
        })
    }

    fn store_row(&self, row: &RowWrite<'_>) -> Result<(), VolumeError> {
        let RowWrite { layout, at, .. } = row;
        let parities = self.future_parity(row)?;
        let data = row.pieces.iter().map(|piece| {
            let (part, address) = (&row.data[piece.range.clone()], layout.stripe_address(piece, 0));
            (address, self.store_stripe(layout, at.plus(piece.range.start as u64), address, part, row.mode))
        });
        let parities = parities.iter().enumerate().map(|(which, bytes)| {
            let address = layout.parity_address(&row.whole, which);
            (address, self.store_stripe(layout, *at, address, bytes, row.mode))
        });
        self.tolerate(layout, data.chain(parities))
    }

    /// P, and Q if there is one, of what the row will hold.
    fn future_parity(&self, row: &RowWrite<'_>) -> Result<Vec<Vec<u8>>, VolumeError> {
        let len = row.whole.range.len();
        let mut parities = vec![vec![0; len]; row.layout.parity()];
        let mut content = vec![0; len];
        for column in 0..row.layout.columns() {
            self.future_content(row, column, &mut content)?;
            parity::add(&mut parities[0], &content);
            if let Some(q) = parities.get_mut(1) {
                parity::add_scaled(q, &content, column);
            }
        }
        Ok(parities)
    }

    /// What a column of the row will hold: the new bytes over what is on disk.
    fn future_content(&self, row: &RowWrite<'_>, column: usize, content: &mut [u8]) -> Result<(), VolumeError> {
        let new = row.pieces.iter().find(|piece| piece.column == column);
        if new.is_none_or(|new| new.range.len() < content.len()) {
            let old = Piece { column, ..row.whole.clone() };
            let len = content.len() as u64;
            let read = self.fetch_piece(&row.layout, &old, content);
            read.map_err(|failure| VolumeError::NoGoodCopy { at: row.at, len, failures: vec![failure] })?;
        }
        if let Some(new) = new {
            let from = (new.depth - row.whole.depth) as usize;
            content[from..from + new.range.len()].copy_from_slice(&row.data[new.range.clone()]);
        }
        Ok(())
    }
}

fn absent() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the device is missing")
}

/// How many devices of a chunk may fail.
fn survivable(layout: &Layout<'_>) -> usize {
    Profile::of(layout.chunk().kind).map_or(0, |profile| profile.tolerated_failures)
}

/// The part of a write that lies in one row of a parity profile.
struct RowWrite<'a> {
    layout: Layout<'a>,
    /// The whole write.
    at: Logical,
    data: &'a [u8],
    /// The parts of the write that lie in this row.
    pieces: &'a [Piece],
    /// The depths that the pieces cover together, in the first one's column.
    whole: Piece,
    mode: WriteMode,
}

/// The depths that the pieces of a row cover together.
fn touched_depths(row: &[Piece]) -> Range<u64> {
    let start = row.iter().map(|piece| piece.depth).min().unwrap_or(0);
    let end = row.iter().map(|piece| piece.depth + piece.range.len() as u64).max().unwrap_or(0);
    start..end
}
