//! Reading one copy: straight from a mirror, or computed from the other stripes of a row with parity.

use crate::error::{CopyFailure, FailureReason};
use crate::layout::{Layout, Piece, Place};
use crate::parity;
use crate::volume::Volume;
use butterfs_ondisk::Logical;

/// What a copy of a parity profile is computed from, besides the other data columns.
enum Source {
    /// P.
    P,
    /// Q.
    Q,
    /// P and Q, as if this data column could not be read either.
    Both { also_without: usize },
}

impl Volume {
    /// Fills `buf` with copy `copy`, which exists. Nobody has verified the bytes.
    pub(crate) fn fetch(
        &self,
        layout: &Layout<'_>,
        at: Logical,
        copy: usize,
        buf: &mut [u8],
    ) -> Result<(), CopyFailure> {
        layout.pieces(at, buf.len()).try_for_each(|piece| {
            let part = &mut buf[piece.range.clone()];
            match source(layout, &piece, copy) {
                None => self.fetch_place(layout, copy, layout.place(&piece, copy % layout.mirrors()), part),
                Some(source) => self.compute(layout, &piece, copy, source, part),
            }
        })
    }

    /// Fills `buf` with a piece of a parity profile, computed if it cannot be read.
    pub(crate) fn fetch_piece(&self, layout: &Layout<'_>, piece: &Piece, buf: &mut [u8]) -> Result<(), CopyFailure> {
        let direct = self.fetch_place(layout, 0, layout.place(piece, 0), buf);
        direct.or_else(|failure| self.compute(layout, piece, 1, Source::P, buf).map_err(|_| failure))
    }

    fn fetch_place(&self, layout: &Layout<'_>, copy: usize, place: Place, buf: &mut [u8]) -> Result<(), CopyFailure> {
        let read = match self.member(layout.chunk().stripes[place.stripe].device) {
            Some(member) => member.read(place.physical, buf).map_err(|error| error.to_string()),
            None => Err("the device is missing".to_owned()),
        };
        read.map_err(|error| self.failure_at(layout, copy, place, FailureReason::Unreadable(error)))
    }

    /// Computes a piece from the rest of its row.
    fn compute(
        &self,
        layout: &Layout<'_>,
        piece: &Piece,
        copy: usize,
        source: Source,
        buf: &mut [u8],
    ) -> Result<(), CopyFailure> {
        let also_without = match source {
            Source::Both { also_without } => Some(also_without),
            Source::P | Source::Q => None,
        };
        let (mut p, mut q) = (vec![0; buf.len()], vec![0; buf.len()]);
        if !matches!(source, Source::Q) {
            self.fetch_place(layout, copy, layout.parity_place(piece, 0), &mut p)?;
        }
        if !matches!(source, Source::P) {
            self.fetch_place(layout, copy, layout.parity_place(piece, 1), &mut q)?;
        }
        let mut other = vec![0; buf.len()];
        let present = |column: &usize| *column != piece.column && Some(*column) != also_without;
        for column in (0..layout.columns()).filter(present) {
            self.fetch_place(layout, copy, layout.column_place(piece, column), &mut other)?;
            parity::add(&mut p, &other);
            parity::add_scaled(&mut q, &other, column);
        }
        match source {
            Source::P => buf.copy_from_slice(&p),
            Source::Q => parity::from_q(&q, piece.column, buf),
            Source::Both { also_without } => parity::from_both(&p, &q, piece.column, also_without, buf),
        }
        Ok(())
    }
}

/// How to compute a copy; `None` for copies that are stored.
fn source(layout: &Layout<'_>, piece: &Piece, copy: usize) -> Option<Source> {
    match copy {
        _ if layout.parity() == 0 => None,
        0 => None,
        1 => Some(Source::P),
        2 => Some(Source::Q),
        // The remaining copies number the other columns.
        more => {
            let other = more - 3;
            Some(Source::Both { also_without: if other < piece.column { other } else { other + 1 } })
        }
    }
}
