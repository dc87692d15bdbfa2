//! Bringing a stale device up to date: what it holds of a range is compared with what a whole device holds, and
//! overwritten where it differs.
//!
//! The bytes of a range do not change meanwhile, because writes wait. What was written since the device was back is on
//! it. Where a checksum or a block's header confirms what the stale device holds and not what the whole one holds, it
//! stays: it is the only good copy. Superblock copies lie in chunks, too, where nothing else is stored: they are left
//! alone.

use crate::error::VolumeError;
use crate::layout::{Layout, Piece, StripeAddress};
use crate::member::Caching;
use crate::member::touched_superblock;
use crate::stripe_read::Trust;
use crate::volume::Volume;
use butterfs_ondisk::{DeviceId, Logical};

/// The verdict about the bytes of a unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Confirmed {
    /// They are wrong.
    No,
    /// Nothing says whether they are right.
    Unknown,
    /// They are right, of two that are the ones of the higher generation.
    Yes(u64),
    /// They are right, and no other copy is better.
    Best,
}

/// The outcome of a range.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Resynced {
    /// Bytes that were overwritten.
    pub written: u64,
    /// Bytes that nothing confirms and that no whole device could be read for.
    pub unreadable: u64,
}

impl Volume {
    /// Whether a device holds a part of the chunk at `at` that other devices hold too, or make up for.
    pub fn can_be_resynced(&self, id: DeviceId, at: Logical) -> bool {
        let on_it = |layout: Layout<'_>| {
            let chunk = layout.chunk();
            let is_redundant = chunk.profile().tolerated_failures > 0;
            Ok(is_redundant && chunk.stripes.iter().any(|stripe| stripe.device == id))
        };
        self.located(at, 1, on_it).unwrap_or(false)
    }

    /// Makes what device `id` holds of `len` bytes at `at`, which lie in one chunk, equal to what whole devices hold,
    /// in units of `unit` bytes. `confirm` is asked about the bytes of a unit, by its address.
    pub fn resync(
        &self,
        id: DeviceId,
        at: Logical,
        len: usize,
        unit: usize,
        confirm: &dyn Fn(Logical, &[u8]) -> Confirmed,
    ) -> Result<Resynced, VolumeError> {
        self.check_writable()?;
        let _request = self.requests.read();
        self.located(at, len, |layout| {
            let _gate = self.gate.write();
            if layout.parity() > 0 {
                return self.resync_rows(&layout, (id, at, len), (unit, confirm));
            }
            let mut done = Resynced::default();
            for piece in layout.pieces(at, len) {
                let addresses: Vec<StripeAddress> =
                    (0..layout.mirrors()).map(|mirror| layout.stripe_address(&piece, mirror)).collect();
                let is_own = |address: &&StripeAddress| layout.chunk().stripes[address.stripe].device == id;
                if let Some(own) = addresses.iter().find(is_own) {
                    let others: Vec<StripeAddress> =
                        addresses.iter().filter(|address| !is_own(address)).copied().collect();
                    self.resync_piece(&layout, (at, &piece), (*own, &others), (unit, confirm), &mut done)?;
                }
            }
            Ok(done)
        })
    }

    fn resync_piece(
        &self,
        layout: &Layout<'_>,
        (at, piece): (Logical, &Piece),
        (own, others): (StripeAddress, &[StripeAddress]),
        (unit, confirm): (usize, &dyn Fn(Logical, &[u8]) -> Confirmed),
        done: &mut Resynced,
    ) -> Result<(), VolumeError> {
        let mut held = vec![0; piece.range.len()];
        let mut good = held.clone();
        let is_read = self.fetch_stripe(layout, 0, own, (Trust::Verified, Caching::Kept), &mut held).is_ok();
        let first = others
            .iter()
            .any(|address| self.fetch_stripe(layout, 0, *address, (Trust::Blind, Caching::Kept), &mut good).is_ok());
        if is_read && first && held == good {
            return Ok(());
        }
        let start = at.plus(piece.range.start as u64);
        for (index, part) in held.chunks(unit).enumerate() {
            let ahead = (index * unit) as u64;
            let at = start.plus(ahead);
            let own = StripeAddress { physical: own.physical.plus(ahead), ..own };
            if touched_superblock(own.physical, part.len() as u64).is_some() {
                continue;
            }
            let own_rank = if is_read
                || self.fetch_stripe(layout, 0, own, (Trust::Verified, Caching::Kept), &mut good[..part.len()]).is_ok()
            {
                confirm(at, if is_read { part } else { &good[..part.len()] })
            } else {
                Confirmed::No
            };
            let mut best: Option<(Confirmed, Vec<u8>)> = None;
            for other in others {
                let mut bytes = vec![0; part.len()];
                let address = StripeAddress { physical: other.physical.plus(ahead), ..*other };
                if self.fetch_stripe(layout, 0, address, (Trust::Blind, Caching::Kept), &mut bytes).is_ok() {
                    let rank = confirm(at, &bytes);
                    if best.as_ref().is_none_or(|(best, _)| rank > *best) {
                        best = Some((rank, bytes));
                    }
                }
            }
            match best {
                // Both are wrong, which every reader finds.
                Some((Confirmed::No, _)) if !self.is_foreign(layout.chunk().stripes[own.stripe].device) => {}
                Some((rank, bytes)) if rank >= own_rank || own_rank == Confirmed::Unknown => {
                    if !is_read || bytes != part {
                        self.store_resynced(layout, at, own, &bytes)?;
                        done.written += bytes.len() as u64;
                    }
                }
                Some(_) => {}
                None if own_rank > Confirmed::Unknown => {}
                None => done.unreadable += part.len() as u64,
            }
        }
        Ok(())
    }

    pub(crate) fn store_resynced(
        &self,
        layout: &Layout<'_>,
        at: Logical,
        own: StripeAddress,
        bytes: &[u8],
    ) -> Result<(), VolumeError> {
        self.store_stripe(layout, at, own, bytes, Caching::Kept).inspect_err(|_| {
            if let Some(member) = self.member(layout.chunk().stripes[own.stripe].device) {
                self.miss(&[member]);
            }
        })
    }
}
