//! Overwriting bad copies with good ones, so that the storage, not a cache, is known to hold them.
//!
//! Invariant: [`Volume::rewrite`] writes only bytes that another copy holds at that moment, while no write is on its
//! way.

use crate::error::{CopyFailure, VolumeError};
use crate::layout::Layout;
use crate::member::Caching;
use crate::scrub::CopyPlace;
use crate::staleness::Bug;
use crate::stripe_read::Trust;
use crate::volume::Volume;
use butterfs_ondisk::Logical;
use std::sync::atomic::Ordering;

/// The outcome of [`Volume::rewrite`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rewritten {
    /// The storage holds the good bytes, which came from this copy.
    From(CopyPlace),
    /// The storage held them already.
    WasGood,
    /// The copy is computed, or no other copy that may be believed holds them now: the address may have been freed and
    /// written anew.
    NoSource,
    /// They cannot be written there, or the storage gives other bytes back, or an error.
    NotKept(String),
}

impl Volume {
    /// Overwrites copy `copy` of the bytes at `at` with `good`, which the caller has read from another copy and
    /// verified, and reads it back from the storage. Nothing is written when no other copy holds `good` any more, when
    /// only stale devices hold it and this one is not, or when the storage holds it already.
    pub fn rewrite(&self, at: Logical, copy: usize, good: &[u8]) -> Result<Rewritten, VolumeError> {
        self.check_writable()?;
        // The place belongs to the chunk until this ends, also where the chunk moves meanwhile.
        let _request = self.requests.read();
        self.located(at, good.len(), |layout| self.rewrite_in(&layout, at, copy, good))
    }

    /// Repairs what a read found bad. The read has succeeded, so whatever happens here is only told.
    pub(crate) fn repair_all(
        &self,
        layout: &Layout<'_>,
        at: Logical,
        trust: Trust,
        failures: &[CopyFailure],
        good: &[u8],
    ) {
        for failure in failures.iter().filter(|_| !self.repairs_held.load(Ordering::Acquire)) {
            let outcome = match self.check_writable() {
                // Two copies that differ, and nothing says which is right.
                Ok(()) if trust == Trust::Blind && !self.has_bug(Bug::RepairsFromStale) => Ok(Rewritten::NoSource),
                Ok(()) => self.rewrite_in(layout, at, failure.copy, good),
                Err(error) => Err(error),
            };
            let outcome = match outcome {
                Ok(Rewritten::From(_)) => "repaired from another copy".to_owned(),
                Ok(Rewritten::WasGood) => "its storage holds the right bytes".to_owned(),
                Ok(Rewritten::NoSource) => {
                    "not repaired: it is computed, was written anew, or no device that has missed nothing holds it"
                        .to_owned()
                }
                Ok(Rewritten::NotKept(why)) => format!("not repaired: {why}"),
                Err(error) => format!("not repaired: {error}"),
            };
            self.report(Some(at), format!("logical {at}: {failure}; {outcome}"));
        }
    }

    fn rewrite_in(&self, layout: &Layout<'_>, at: Logical, copy: usize, good: &[u8]) -> Result<Rewritten, VolumeError> {
        if copy >= layout.mirrors() {
            return Ok(Rewritten::NoSource);
        }
        if self.is_on_seed(layout.chunk()) {
            return Ok(Rewritten::NotKept("a seed device is only read".to_owned()));
        }
        let _gate = self.gate.write();
        if self.storage_holds(layout, at, copy, good).is_ok() {
            return Ok(Rewritten::WasGood);
        }
        let Some(source) = self.source_of(layout, at, copy, good) else { return Ok(Rewritten::NoSource) };
        for piece in layout.pieces(at, good.len()) {
            let address = layout.stripe_address(&piece, copy);
            let part = &good[piece.range.clone()];
            let stored = self.store_stripe(layout, at.plus(piece.range.start as u64), address, part, Caching::Kept);
            if let Err(error) = stored {
                // It may hold a part of it now.
                if let Some(member) = self.member(layout.chunk().stripes[address.stripe].device) {
                    self.miss(&[member]);
                }
                return Err(error);
            }
        }
        Ok(match self.storage_holds(layout, at, copy, good) {
            Ok(()) => Rewritten::From(source),
            Err(why) => Rewritten::NotKept(why),
        })
    }

    /// Another copy that holds these bytes and may be believed: what lacks nothing is never written from what may.
    fn source_of(&self, layout: &Layout<'_>, at: Logical, copy: usize, good: &[u8]) -> Option<CopyPlace> {
        let mut found = vec![0; good.len()];
        let is_stale = |copy| self.touches_stale(layout, at, good.len(), copy);
        let believed = self.has_bug(Bug::RepairsFromStale);
        let is_source = |other: &usize| *other != copy && (is_stale(copy) || !is_stale(*other) || believed);
        let source = (0..layout.copies()).filter(is_source).find(|other| {
            self.fetch(layout, at, *other, (Trust::Verified, Caching::Kept), &mut found).is_ok() && found == good
        })?;
        Some(self.place_in(layout, at, source))
    }

    fn storage_holds(&self, layout: &Layout<'_>, at: Logical, copy: usize, good: &[u8]) -> Result<(), String> {
        let mut found = vec![0; good.len()];
        for piece in layout.pieces(at, good.len()) {
            let address = layout.stripe_address(&piece, copy);
            let member = self.member(layout.chunk().stripes[address.stripe].device).filter(|member| member.is_in_use());
            let member = member.ok_or("the device is missing")?;
            let part = &mut found[piece.range.clone()];
            member.device.read_uncached(address.physical.0, part).map_err(|error| error.to_string())?;
        }
        if found == good { Ok(()) } else { Err("the device does not keep what is written to it".to_owned()) }
    }
}
