//! Reading one copy: straight from a mirror, or computed from the other stripes of a row with parity.

use crate::error::{CopyFailure, FailureReason};
use crate::layout::{Layout, Piece, StripeAddress};
use crate::member::{Caching, Member};
use crate::parity;
use crate::row::State;
use crate::staleness::Bug;
use crate::volume::Volume;
use butterfs_ondisk::Logical;
use std::sync::Arc;

/// Whether somebody checks what is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trust {
    /// By a checksum or a generation.
    Verified,
    /// Nobody does, so only devices that have missed nothing are read.
    Blind,
}

/// The source from which a copy of a parity profile is computed, besides the other data columns.
enum Source {
    /// P.
    P,
    /// Q.
    Q,
    /// P and Q, as if this data column could not be read either.
    Both { also_without: usize },
}

impl Volume {
    /// Fills `buf` with copy `copy`, which exists. Nobody has verified the bytes. What of the copy lies on a device
    /// that is not there comes from another copy; with parity that is so for copy 0, and for stale devices, too: copy 1
    /// is then what such a device holds.
    pub(crate) fn fetch(
        &self,
        layout: &Layout<'_>,
        at: Logical,
        copy: usize,
        (trust, caching): (Trust, Caching),
        buf: &mut [u8],
    ) -> Result<(), CopyFailure> {
        let fetch = |address, part: &mut [u8]| self.fetch_stripe(layout, copy, address, (trust, caching), part);
        layout.pieces(at, buf.len()).try_for_each(|piece| {
            let part = &mut buf[piece.range.clone()];
            match source(layout, &piece, copy) {
                None if layout.parity() > 0 => self.fetch_or_compute(layout, &piece, (trust, caching), part),
                // What a stale device holds is the next one to ask, where copy 0 was not that.
                Some(Source::P) if self.is_stale_piece(layout, &piece) && self.can_be_computed(layout, &piece) => {
                    fetch(layout.stripe_address(&piece, 0), part)
                }
                None => fetch(self.mirror_address(layout, &piece, copy, trust), part),
                Some(source) => self.compute(layout, &piece, copy, source, (trust, caching), part),
            }
        })
    }

    /// The place of mirror `copy` of a piece. Where that device cannot be used: the next one on a device that can, one
    /// that has missed nothing before one that has.
    fn mirror_address(&self, layout: &Layout<'_>, piece: &Piece, copy: usize, trust: Trust) -> StripeAddress {
        let mirrors = layout.mirrors();
        let addresses = (0..mirrors).map(|turn| layout.stripe_address(piece, (copy + turn) % mirrors));
        let usable = |address: &StripeAddress| self.is_readable(layout, *address, trust);
        let own = addresses.clone().next().filter(usable);
        let whole = |address: &StripeAddress| usable(address) && !self.lacks_something(layout, *address);
        let found = own.or_else(|| addresses.clone().find(whole)).or_else(|| addresses.clone().find(usable));
        found.unwrap_or_else(|| layout.stripe_address(piece, copy % mirrors))
    }

    fn is_readable(&self, layout: &Layout<'_>, address: StripeAddress, trust: Trust) -> bool {
        self.readable(layout, address, trust).is_ok()
    }

    /// The device of an address, or why it is not read.
    fn readable(&self, layout: &Layout<'_>, address: StripeAddress, trust: Trust) -> Result<Arc<Member>, &'static str> {
        match self.member(layout.chunk().stripes[address.stripe].device).filter(|member| member.is_in_use()) {
            None => Err("the device is missing"),
            Some(member) if member.is_foreign() => Err("the device was written without the others"),
            Some(_)
                if trust == Trust::Blind
                    && self.lacks_something(layout, address)
                    && !self.has_bug(Bug::MirrorsTakeTurns)
                    && !self.has_bug(Bug::RepairsFromStale) =>
            {
                Err("the device has missed writes, and no checksum says whether this is one of them")
            }
            Some(member) => Ok(member),
        }
    }

    /// A piece of a parity profile: where it lies, if that device has missed nothing, else computed from devices that
    /// have missed nothing. A block on a stale device can be one of a commit that a crash cut off, which passes every
    /// check. Where too few devices are left, what the device holds counts as far as `trust` allows.
    fn fetch_or_compute(
        &self,
        layout: &Layout<'_>,
        piece: &Piece,
        how: (Trust, Caching),
        buf: &mut [u8],
    ) -> Result<(), CopyFailure> {
        let address = layout.stripe_address(piece, 0);
        if self.is_believed(layout, piece) || !self.can_be_computed(layout, piece) {
            return self.fetch_stripe(layout, 0, address, how, buf);
        }
        let _row = self.rows.read(layout.chunk(), piece.row);
        let depths = piece.depth..piece.depth + buf.len() as u64;
        let mut row = self.read_row(layout, piece.row, &depths, &|element| element != piece.column);
        if row.complete() != State::Lost {
            buf.copy_from_slice(row.element(piece.column));
            return Ok(());
        }
        self.fetch_stripe(layout, 0, address, how, buf)
    }

    /// Whether enough of the row lies on devices that have missed nothing.
    fn can_be_computed(&self, layout: &Layout<'_>, piece: &Piece) -> bool {
        let others = (0..layout.columns() + layout.parity()).filter(|&element| element != piece.column);
        let is_whole = |element: &usize| {
            self.is_readable(layout, layout.element_address(piece.row, *element, piece.depth), Trust::Blind)
        };
        others.filter(is_whole).count() >= layout.columns()
    }

    fn is_stale_piece(&self, layout: &Layout<'_>, piece: &Piece) -> bool {
        !self.is_believed(layout, piece) && self.is_readable(layout, layout.stripe_address(piece, 0), Trust::Verified)
    }

    /// Whether a piece of a parity profile is read where it lies, and not computed first.
    fn is_believed(&self, layout: &Layout<'_>, piece: &Piece) -> bool {
        self.is_readable(layout, layout.stripe_address(piece, 0), Trust::Blind)
    }

    /// The bytes at a place of a device, as they are.
    pub(crate) fn fetch_stripe(
        &self,
        layout: &Layout<'_>,
        copy: usize,
        address: StripeAddress,
        (trust, caching): (Trust, Caching),
        buf: &mut [u8],
    ) -> Result<(), CopyFailure> {
        let read = match self.readable(layout, address, trust) {
            Ok(member) => member.read(address.physical, buf, caching).map_err(|error| error.to_string()),
            Err(why) => Err(why.to_owned()),
        };
        read.map_err(|error| self.failure_at(layout, copy, address, FailureReason::Unreadable(error)))
    }

    /// Computes a piece from the rest of its row.
    fn compute(
        &self,
        layout: &Layout<'_>,
        piece: &Piece,
        copy: usize,
        source: Source,
        how: (Trust, Caching),
        buf: &mut [u8],
    ) -> Result<(), CopyFailure> {
        let also_without = match source {
            Source::Both { also_without } => Some(also_without),
            Source::P | Source::Q => None,
        };
        // A writer changes the row in several steps.
        let _row = self.rows.read(layout.chunk(), piece.row);
        let (mut p, mut q) = (vec![0; buf.len()], vec![0; buf.len()]);
        if !matches!(source, Source::Q) {
            self.fetch_stripe(layout, copy, layout.parity_address(piece, 0), how, &mut p)?;
        }
        if !matches!(source, Source::P) {
            self.fetch_stripe(layout, copy, layout.parity_address(piece, 1), how, &mut q)?;
        }
        let mut other = vec![0; buf.len()];
        let present = |column: &usize| *column != piece.column && Some(*column) != also_without;
        for column in (0..layout.columns()).filter(present) {
            self.fetch_stripe(layout, copy, layout.column_address(piece, column), how, &mut other)?;
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
