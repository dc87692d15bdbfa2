//! Chunks that get other stripes under the same logical address, and devices that another one takes over from.
//!
//! ```text
//! begin_move ─► copy_moving, piece by piece ─► (commit) ─► the map gets the new stripes ─► end_move
//!     └ from here on each write goes to the old and the new stripes; reads come from the old ones
//! ```
//!
//! # Invariants
//! 1. Between `begin_move` and `end_move` the old stripes have everything, so they count until a commit says otherwise.
//! 2. Every byte that is in use reaches the new stripes: from a write that began after `begin_move`, or from the
//!    copier. What the copier has read is not stored when a write to the same bytes has begun since ([`windows`]).
//! 3. After `end_move` and [`cancel_move`](Volume::cancel_move) no request to the places that are given up is on its
//!    way.
//! 4. A write that fails on new stripes fails for nobody but the move.
//!
//! [`windows`]: crate::windows

use crate::error::VolumeError;
use crate::layout::{Layout, Piece, StripeAddress};
use crate::member::Caching;
use crate::resync::Confirmed;
use crate::staleness::Bug;
use crate::stripe_read::Trust;
use crate::volume::Volume;
use crate::windows::Phase;
use butterfs_device::AlignedBuffer;
use butterfs_ondisk::chunk::{Chunk, STRIPE_LEN};
use butterfs_ondisk::{DeviceId, Logical};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The number of times that a piece is read again because somebody has written to it; then writes wait.
const TRIES: usize = 4;

/// The destination of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyTo {
    /// To the new stripes of the chunk, which is moving.
    Stripes,
    /// From what a chunk has on this device to the one that takes over from it.
    Twin(DeviceId, SourceReads),
}

/// Whether a device that another one takes over from is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceReads {
    /// As every other one.
    Allowed,
    /// Only what no other device has a good copy of.
    Avoided,
}

impl Volume {
    /// From now on writes to the chunk go to the stripes of `to` as well, which has the same logical range.
    pub fn begin_move(&self, to: Chunk) {
        self.windows.forget_failure();
        self.moves.lock().push(Arc::new(to));
        self.is_moving.store(true, Ordering::Release);
        self.drain();
    }

    /// The chunks that are moving, as they will be.
    pub fn moving(&self) -> Vec<Arc<Chunk>> {
        if self.is_moving.load(Ordering::Acquire) { self.moves.lock().clone() } else { Vec::new() }
    }

    /// Why the move that runs cannot be completed, if it cannot.
    pub fn move_failure(&self) -> Option<String> {
        self.windows.failure()
    }

    /// The chunk map has the new stripes since a moment ago. The caller gives the old places back when this returns.
    pub fn end_move(&self, start: Logical) {
        self.drain();
        self.forget_move(start);
    }

    /// The chunk stays where it is. The caller gives the new places back when this returns.
    pub fn cancel_move(&self, start: Logical) {
        self.forget_move(start);
        self.drain();
    }

    pub(crate) fn forget_move(&self, start: Logical) {
        let has_twins = self.members().twins().next().is_some();
        let mut moves = self.moves.lock();
        moves.retain(|chunk| chunk.start != start);
        let is_moving = !moves.is_empty() || has_twins;
        self.is_moving.store(is_moving, Ordering::Release);
    }

    /// Stores what was written to a chunk on the new stripes too, if it is moving.
    pub(crate) fn store_moved(&self, from: &Layout<'_>, at: Logical, data: &[u8], caching: Caching) {
        if !self.is_moving.load(Ordering::Acquire) {
            return;
        }
        let to = self.moves.lock().iter().find(|to| to.start == from.chunk().start).cloned();
        if let Some(to) = to.filter(|_| !self.has_bug(Bug::MoveNotFollowed)) {
            self.store_on_stripes(from.chunk(), &to, at, data, caching);
        }
    }

    fn store_on_stripes(&self, from: &Chunk, to: &Chunk, at: Logical, data: &[u8], caching: Caching) {
        let Ok(layout) = Layout::of(to) else { return };
        for piece in layout.pieces(at, data.len()) {
            for mirror in 0..layout.mirrors() {
                let address = layout.stripe_address(&piece, mirror);
                if !is_kept(from, to, address.stripe) {
                    let at = at.plus(piece.range.start as u64);
                    let stored = self.store_stripe(&layout, at, address, &data[piece.range.clone()], caching);
                    stored.unwrap_or_else(|error| self.fail_move(&error));
                }
            }
        }
    }

    /// Where copies are given up, those that stay must be as good as the one that was copied.
    fn correct_kept(&self, from: &Chunk, to: &Chunk, at: Logical, data: &[u8]) {
        let kept = (0..to.stripes.len()).filter(|stripe| is_kept(from, to, *stripe)).count();
        if kept == 0 || kept == from.stripes.len() {
            return;
        }
        let Ok(layout) = Layout::of(to) else { return };
        for piece in layout.pieces(at, data.len()) {
            let part = &data[piece.range.clone()];
            let addresses = (0..layout.mirrors()).map(|mirror| layout.stripe_address(&piece, mirror));
            for address in addresses.filter(|address| is_kept(from, to, address.stripe)) {
                let mut found = vec![0; part.len()];
                let read = self.fetch_stripe(&layout, 0, address, (Trust::Verified, Caching::Kept), &mut found);
                if read.is_err() || found != part {
                    let at = at.plus(piece.range.start as u64);
                    let stored = self.store_stripe(&layout, at, address, part, Caching::Kept);
                    stored.unwrap_or_else(|error| self.fail_move(&error));
                }
            }
        }
    }

    pub(crate) fn fail_move(&self, error: &VolumeError) {
        self.windows.fail(error.to_string());
    }

    /// Copies `len` bytes at `at`, which lie in one chunk, to where `to` says: of all copies the one that `rank` likes
    /// best. With `unconfirmed` also one that it knows nothing about, and then only from a device that has missed
    /// nothing. Returns what is known of the copy; of one that is wrong, nothing was copied.
    pub fn copy_moving(
        &self,
        to: CopyTo,
        (at, len): (Logical, usize),
        trust_unconfirmed: bool,
        rank: &mut dyn FnMut(&[u8]) -> Confirmed,
    ) -> Result<Confirmed, VolumeError> {
        self.check_writable()?;
        let _request = self.requests.read();
        self.located(at, len, |layout| {
            for attempt in 1.. {
                let phase = if attempt < TRIES { Phase::Reading } else { Phase::Storing };
                let window = self.windows.open(at, len, phase);
                // Every write that has begun ends before this goes on; the others see the window.
                drop(self.gate.write());
                let (found, best) = self.best_copy(to, &layout, (at, len), trust_unconfirmed, rank);
                if !window.begin_to_store() {
                    continue;
                }
                if found >= if trust_unconfirmed { Confirmed::Unknown } else { Confirmed::Yes(0) } {
                    self.store_copy(to, &layout, at, &best);
                }
                return Ok(found);
            }
            unreachable!("the last attempt returns")
        })
    }

    /// The best copy, and what is known of it.
    fn best_copy(
        &self,
        to: CopyTo,
        layout: &Layout<'_>,
        (at, len): (Logical, usize),
        is_blind: bool,
        rank: &mut dyn FnMut(&[u8]) -> Confirmed,
    ) -> (Confirmed, AlignedBuffer) {
        let trust = if is_blind { Trust::Blind } else { Trust::Verified };
        let (mut found, mut best) = (Confirmed::No, AlignedBuffer::default());
        let mut buf = AlignedBuffer::new(len);
        for copy in self.copying_order(to, layout, at, len, trust) {
            if self.fetch(layout, at, copy, (trust, Caching::Avoided), &mut buf).is_err() {
                continue;
            }
            let confirmed = rank(&buf);
            if confirmed > found {
                found = confirmed;
                best = std::mem::replace(&mut buf, best);
            }
            if is_blind && found >= Confirmed::Unknown || matches!(found, Confirmed::Yes(0) | Confirmed::Best) {
                break;
            }
            if buf.len() != len {
                buf = AlignedBuffer::new(len);
            }
        }
        (found, best)
    }

    /// As for every read. Where the device that is replaced is to be spared, copies that surely do without it come
    /// first; where nobody checks, only those of devices that have never counted an error.
    fn copying_order(&self, to: CopyTo, layout: &Layout<'_>, at: Logical, len: usize, trust: Trust) -> Vec<usize> {
        let mut order = self.reading_order(layout, at, len, trust);
        if let CopyTo::Twin(source, SourceReads::Avoided) = to {
            let spares = |&copy: &usize| {
                copy < layout.mirrors()
                    && !self.touches_stale(layout, at, len, copy)
                    && (trust == Trust::Verified || self.doubt(layout, at, copy) == 0)
                    && layout.pieces(at, len).all(|piece| self.is_elsewhere(layout, &piece, copy, source))
            };
            order.sort_by_key(|copy| !spares(copy));
        }
        order
    }

    /// Whether a mirror of a piece lies on a device that is there and is not `source`. What a missing device had would
    /// be read from another one.
    fn is_elsewhere(&self, layout: &Layout<'_>, piece: &Piece, copy: usize, source: DeviceId) -> bool {
        let device = layout.chunk().stripes[layout.stripe_address(piece, copy).stripe].device;
        device != source && self.member(device).is_some_and(|member| member.is_in_use() && !member.is_foreign())
    }

    fn store_copy(&self, to: CopyTo, layout: &Layout<'_>, at: Logical, data: &[u8]) {
        match to {
            CopyTo::Stripes => {
                let target = self.moves.lock().iter().find(|to| to.start == layout.chunk().start).cloned();
                if let Some(target) = target {
                    self.store_on_stripes(layout.chunk(), &target, at, data, Caching::Avoided);
                    self.correct_kept(layout.chunk(), &target, at, data);
                }
            }
            CopyTo::Twin(id, _) => {
                for piece in layout.pieces(at, data.len()) {
                    for StripeAddress { stripe, physical } in
                        (0..layout.mirrors()).map(|mirror| layout.stripe_address(&piece, mirror))
                    {
                        if layout.chunk().stripes[stripe].device == id {
                            self.store_on_twin(id, physical, &data[piece.range.clone()], Caching::Avoided);
                        }
                    }
                }
            }
        }
    }
}

/// Whether a stripe of `to` is where `from` has the same bytes already.
pub fn is_kept(from: &Chunk, to: &Chunk, stripe: usize) -> bool {
    let is_plain = |chunk: &Chunk| {
        let profile = chunk.profile();
        profile.max_devices.is_some() && chunk.stripe_length() == chunk.length
    };
    let same_place = |old: &butterfs_ondisk::chunk::ChunkStripe| {
        (old.device, old.physical) == (to.stripes[stripe].device, to.stripes[stripe].physical)
    };
    if is_plain(from) && is_plain(to) {
        return from.stripes.iter().any(same_place);
    }
    from.profile() == to.profile() && from.stripes.len() == to.stripes.len() && same_place(&from.stripes[stripe])
}

/// Whether a chunk can get the stripes of `to` without another layout of parity.
pub fn can_move(from: &Chunk, to: &Chunk) -> bool {
    let rows = |chunk: &Chunk| {
        chunk.length.is_multiple_of(chunk.profile().data_stripes(chunk.stripes.len()) as u64 * STRIPE_LEN)
    };
    from.profile().parity == 0 && to.profile().parity == 0 && (rows(to) || to.profile().max_devices.is_some())
}
