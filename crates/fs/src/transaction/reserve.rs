//! Reservations: space is promised before an operation changes anything, so that `ENOSPC` happens there or nowhere.
//!
//! What must stay free beside all promises: what the commit itself will need for the queue of references and the
//! dirty inodes ([`Core::commit_cost`]), and a global reserve that only operations which free space may use.

use super::Core;
use crate::error::{Errno, Error, Result};
use crate::space::{Class, Found};
use butterfs_ondisk::Logical;
use std::sync::Arc;

/// What an operation may need.
#[derive(Clone, Copy, Debug)]
pub struct Reserve {
    items: u64,
    frees: bool,
}

/// Nodes that changing one item may need: its path, and a split on two levels.
const NODES_PER_ITEM: u64 = 4;

impl Reserve {
    /// For `n` items inserted, changed or removed.
    pub const fn items(n: u64) -> Reserve {
        Reserve { items: n, frees: false }
    }

    /// For `n` items, by an operation that frees space in the end: it may use the global reserve.
    pub const fn removal(n: u64) -> Reserve {
        Reserve { items: n, frees: true }
    }
}

impl Core {
    /// Bytes of tree blocks that committing now might allocate.
    pub(crate) fn commit_cost(&self) -> u64 {
        let nodesize = u64::from(self.nodesize());
        let (heads, weight) = (self.refs.len() as u64, self.refs.weight() as u64);
        let globals = self.globals();
        let books =
            [Some(&globals.extent), Some(&globals.csum), globals.free_space.as_ref(), globals.block_group.as_ref()];
        let present: u64 = books.into_iter().flatten().map(|tree| tree.bytes_used(self.nodesize()) / nodesize).sum();
        // A head changes a leaf of the extent tree and one of the free space tree, each further change of it one of the
        // extent tree; a leaf is copied once. New items of up to 100 bytes, or 53, fill new leaves, half full. The
        // tail is the paths of the small trees.
        let new_leaves = (heads * 256 + weight.saturating_sub(heads) * 128) / nodesize;
        let nodes = (heads + weight).min(present) + new_leaves + self.dirty_inodes() as u64 + 64;
        nodes * nodesize
    }

    /// Bytes that only the commit, and operations that free space, may use.
    pub(crate) fn global_reserve(&self) -> u64 {
        let nodesize = u64::from(self.nodesize());
        let globals = self.globals();
        let books = [
            Some(&globals.root),
            Some(&globals.extent),
            Some(&globals.csum),
            globals.free_space.as_ref(),
            globals.block_group.as_ref(),
        ];
        let (mut bytes, mut trees) = (0, 0);
        for tree in books.into_iter().flatten() {
            bytes = tree.bytes_used(self.nodesize()).saturating_add(bytes);
            trees += 1;
        }
        // As the kernel's, to which `statfs` owes it.
        let least = trees + if globals.free_space.is_some() { 18 } else { 12 };
        bytes.max(16 * nodesize * least).min(512 << 20)
    }

    pub(super) fn reserve_metadata(self: &Arc<Self>, reserve: Reserve) -> Result<u64> {
        let bytes = reserve.items * NODES_PER_ITEM * u64::from(self.nodesize());
        if self.promise(bytes, reserve.frees) {
            return Ok(bytes);
        }
        // A chunk if the devices have room for one; else a commit, which frees what is pinned and settles what is
        // only estimated; then one that gives back what data does not need any more.
        for attempt in 0..4 {
            while self.grow(Class::Metadata).is_ok() {
                if self.promise(bytes, reserve.frees) {
                    return Ok(bytes);
                }
            }
            if attempt < 2 || self.can_retire() {
                self.commit_for_space()?;
            }
            if self.promise(bytes, reserve.frees) {
                return Ok(bytes);
            }
        }
        Err(Error::refused(Errno::ENOSPC, "no space left for metadata"))
    }

    /// Half of the global reserve is the commit's alone: what an operation does adds to the commit's cost.
    fn promise(&self, bytes: u64, frees: bool) -> bool {
        let reserve = self.global_reserve();
        let floor = self.commit_cost() + if frees { reserve / 2 } else { reserve };
        self.space.reserve(Class::Metadata, bytes, floor)
    }

    /// Promises what recording the data will take, with another chunk if need be.
    fn promise_recording(&self, bytes: u64) -> bool {
        while !self.promise(bytes, false) {
            if self.grow(Class::Metadata).is_err() {
                return false;
            }
        }
        true
    }

    /// Promises `bytes` of data space.
    pub fn reserve_data(self: &Arc<Self>, bytes: u64) -> Result<DataReservation> {
        if self.is_read_only() {
            return Err(Error::refused(Errno::EROFS, "the filesystem is mounted read-only"));
        }
        if let Some(aborted) = self.aborted() {
            return Err(aborted);
        }
        let bytes = bytes.next_multiple_of(u64::from(self.sectorsize()));
        let floor = if self.space.is_mixed() { self.commit_cost() + self.global_reserve() } else { 0 };
        for attempt in 0..4 {
            let mut promised = self.space.reserve(Class::Data, bytes, floor);
            while !promised && self.grow(Class::Data).is_ok() {
                promised = self.space.reserve(Class::Data, bytes, floor);
            }
            if promised {
                let recording = recording_cost(bytes);
                if self.promise_recording(recording) {
                    return Ok(DataReservation { core: Arc::clone(self), bytes, recording });
                }
                self.space.unreserve(Class::Data, bytes);
            }
            if attempt < 3 && (self.space.pinned_bytes() + self.refs.len() as u64 > 0 || self.can_retire()) {
                self.commit_for_space()?;
            }
        }
        Err(Error::refused(Errno::ENOSPC, "no space left for data"))
    }

    /// Allocates up to `want` contiguous bytes of data space out of `reservation`, at least `min`; both multiples of
    /// the sector size. No handle and no lock may be held.
    pub fn allocate_data(
        self: &Arc<Self>,
        want: u64,
        min: u64,
        reservation: &mut DataReservation,
    ) -> Result<(Logical, u64)> {
        assert!(want <= reservation.bytes, "{want} bytes are allocated, {} are reserved", reservation.bytes);
        loop {
            self.env().passes("data is about to get its place");
            match self.space.allocate_extent(Class::Data, want, min) {
                Found::Extent(at, len) => {
                    reservation.shrink(len);
                    return Ok((at, len));
                }
                Found::Load(group) => {
                    // Nothing settles while a handle is held.
                    let _handle = self.join(0)?;
                    self.load_group(group)?;
                }
                Found::Nothing => self
                    .grow(Class::Data)
                    .map_err(|_| Error::refused(Errno::ENOSPC, "no contiguous space left for data"))?,
            }
        }
    }

    /// Takes back an allocation that was not used, and promises the space again.
    pub(crate) fn unallocate_data(&self, at: Logical, len: u64, reservation: &mut DataReservation) {
        self.space.give_back_promised(at, len);
        reservation.bytes += len;
    }

    /// Gives back data space that was allocated and is not going to be recorded.
    pub fn return_data(&self, at: Logical, len: u64) {
        self.space.give_back(at, len);
    }
}

/// Tree space that recording `bytes` of data may take: small writes become many small extents, or inline ones.
fn recording_cost(bytes: u64) -> u64 {
    if bytes < SMALL_WRITE { bytes / 2 } else { bytes / 64 }
}

/// Writes of fewer bytes may each become an extent of their own.
const SMALL_WRITE: u64 = 64 << 10;

/// A promise of data space, and of the tree space to record the data in; what is left is given back when dropped.
pub struct DataReservation {
    core: Arc<Core>,
    bytes: u64,
    recording: u64,
}

impl DataReservation {
    /// Bytes still promised.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The share of the tree space that goes with `bytes`.
    fn share(&self, bytes: u64) -> u64 {
        if bytes == self.bytes {
            self.recording
        } else {
            (u128::from(self.recording) * u128::from(bytes) / u128::from(self.bytes.max(1))) as u64
        }
    }

    /// Splits off a promise of `bytes`.
    pub fn split(&mut self, bytes: u64) -> DataReservation {
        assert!(bytes <= self.bytes, "a promise of {} is split at {bytes}", self.bytes);
        let recording = self.share(bytes);
        self.bytes -= bytes;
        self.recording -= recording;
        DataReservation { core: Arc::clone(&self.core), bytes, recording }
    }

    /// Takes another promise in.
    pub fn merge(&mut self, mut other: DataReservation) {
        self.bytes += std::mem::take(&mut other.bytes);
        self.recording += std::mem::take(&mut other.recording);
    }

    /// Gives `bytes` back.
    pub fn shrink(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "a promise of {} shrinks by {bytes}", self.bytes);
        let recording = self.share(bytes);
        self.bytes -= bytes;
        self.recording -= recording;
        self.core.space.unreserve(Class::Data, bytes);
        self.core.space.unreserve(Class::Metadata, recording);
    }
}

impl Drop for DataReservation {
    fn drop(&mut self) {
        let bytes = self.bytes;
        self.shrink(bytes);
    }
}
