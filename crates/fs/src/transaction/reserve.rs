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
        let heads = self.refs.len() as u64;
        let globals = self.globals();
        let books =
            [Some(&globals.extent), Some(&globals.csum), globals.free_space.as_ref(), globals.block_group.as_ref()];
        let present: u64 = books.into_iter().flatten().map(|tree| tree.bytes_used(self.nodesize()) / nodesize).sum();
        // A head changes a leaf of the extent tree and one of the free space tree; a leaf is copied once. New items
        // fill new leaves. The tail is the paths of the small trees and the root tree.
        let nodes = (heads * 2).min(present) + heads / 32 + self.dirty_inodes() as u64 + 24;
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
            bytes += tree.bytes_used(self.nodesize());
            trees += 1;
        }
        bytes.max(16 * nodesize * (trees + 18)).min(512 << 20)
    }

    pub(super) fn reserve_metadata(self: &Arc<Self>, reserve: Reserve) -> Result<u64> {
        let bytes = reserve.items * NODES_PER_ITEM * u64::from(self.nodesize());
        if self.promise(bytes, reserve.frees) {
            return Ok(bytes);
        }
        // A chunk if the devices have room for one; else a commit, which frees what is pinned and settles what is
        // only estimated; then once more both.
        for _ in 0..2 {
            while self.grow(Class::Metadata).is_ok() {
                if self.promise(bytes, reserve.frees) {
                    return Ok(bytes);
                }
            }
            self.commit()?;
            if self.promise(bytes, reserve.frees) {
                return Ok(bytes);
            }
        }
        Err(Error::refused(Errno::ENOSPC, "no space left for metadata"))
    }

    fn promise(&self, bytes: u64, frees: bool) -> bool {
        let floor = self.commit_cost() + if frees { 0 } else { self.global_reserve() };
        self.space.reserve(Class::Metadata, bytes, floor)
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
        for attempt in 0..3 {
            if self.space.reserve(Class::Data, bytes, floor) {
                return Ok(DataReservation { core: Arc::clone(self), bytes });
            }
            while self.grow(Class::Data).is_ok() {
                if self.space.reserve(Class::Data, bytes, floor) {
                    return Ok(DataReservation { core: Arc::clone(self), bytes });
                }
            }
            if attempt < 2 && self.space.pinned_bytes() + self.refs.len() as u64 > 0 {
                self.commit()?;
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

    /// Gives back data space that was allocated and is not going to be recorded.
    pub fn return_data(&self, at: Logical, len: u64) {
        self.space.give_back(at, len);
    }
}

/// A promise of data space; what is left is given back when dropped.
pub struct DataReservation {
    core: Arc<Core>,
    bytes: u64,
}

impl DataReservation {
    /// Bytes still promised.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Splits off a promise of `bytes`.
    pub fn split(&mut self, bytes: u64) -> DataReservation {
        assert!(bytes <= self.bytes, "a promise of {} is split at {bytes}", self.bytes);
        self.bytes -= bytes;
        DataReservation { core: Arc::clone(&self.core), bytes }
    }

    /// Takes another promise in.
    pub fn merge(&mut self, mut other: DataReservation) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Gives `bytes` back.
    pub fn shrink(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "a promise of {} shrinks by {bytes}", self.bytes);
        self.bytes -= bytes;
        self.core.space.unreserve(Class::Data, bytes);
    }
}

impl Drop for DataReservation {
    fn drop(&mut self) {
        let bytes = self.bytes;
        self.shrink(bytes);
    }
}
