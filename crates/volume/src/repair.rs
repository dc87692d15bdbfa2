//! Overwriting bad copies with good ones.

use crate::error::{CopyFailure, VolumeError};
use crate::layout::Layout;
use crate::member::Caching;
use crate::staleness::Bug;
use crate::stripe_read::Trust;
use crate::volume::Volume;
use butterfs_ondisk::Logical;
use std::sync::atomic::Ordering;

impl Volume {
    /// Overwrites copy `copy` of the bytes at `at` with `good`, which the caller has read from another copy and
    /// verified. Nothing is written when no other copy holds `good` any more, because then the address has been freed
    /// and written anew, when only stale devices hold it and this one is not, or when the copy holds it already. Says
    /// whether the copy is good now.
    pub fn repair(&self, at: Logical, copy: usize, good: &[u8]) -> Result<bool, VolumeError> {
        self.check_writable()?;
        let _request = self.requests.read();
        self.located(at, good.len(), |layout| self.repair_copy(&layout, at, copy, good))
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
                Ok(()) if trust == Trust::Blind && !self.has_bug(Bug::RepairsFromStale) => Ok(false),
                Ok(()) => self.repair_copy(layout, at, failure.copy, good),
                Err(error) => Err(error),
            };
            let outcome = match outcome {
                Ok(true) => "repaired from another copy".to_owned(),
                Ok(false) => {
                    "not repaired: it is computed, was written anew, or no device that has missed nothing holds it"
                        .to_owned()
                }
                Err(error) => format!("not repaired: {error}"),
            };
            self.report(Some(at), format!("logical {at}: {failure}; {outcome}"));
        }
    }

    fn repair_copy(&self, layout: &Layout<'_>, at: Logical, copy: usize, good: &[u8]) -> Result<bool, VolumeError> {
        let is_stored = copy < layout.mirrors();
        if !is_stored || self.is_on_seed(layout.chunk()) {
            return Ok(false);
        }
        let _gate = self.gate.write();
        let mut found = vec![0; good.len()];
        let mut holds_good =
            |copy| self.fetch(layout, at, copy, (Trust::Verified, Caching::Kept), &mut found).is_ok() && found == good;
        if holds_good(copy) {
            return Ok(true);
        }
        // What lacks nothing is never written from what may.
        let is_stale = |copy| self.touches_stale(layout, at, good.len(), copy);
        let believed = self.has_bug(Bug::RepairsFromStale);
        let is_source = |other: usize| other != copy && (is_stale(copy) || !is_stale(other) || believed);
        if !(0..layout.copies()).any(|other| is_source(other) && holds_good(other)) {
            return Ok(false);
        }
        for piece in layout.pieces(at, good.len()) {
            let address = layout.stripe_address(&piece, copy);
            let stored = self.store_stripe(
                layout,
                at.plus(piece.range.start as u64),
                address,
                &good[piece.range.clone()],
                Caching::Kept,
            );
            if let Err(error) = stored {
                // It may hold a part of it now.
                if let Some(member) = self.member(layout.chunk().stripes[address.stripe].device) {
                    self.miss(&[member]);
                }
                return Err(error);
            }
        }
        Ok(true)
    }
}
