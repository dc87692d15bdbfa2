//! Reservations: space is reserved before an operation changes anything, so that `ENOSPC` happens there or nowhere.
//!
//! Space that must stay free beside all reservations: space that the commit itself will need for the queue of
//! references and the dirty inodes ([`Core::commit_cost`]), and a global reserve that only operations which free space
//! may use.
//!
//! Here a reservation is made or not; what is done when there is too little is the business of `commit`.

use super::Core;
use crate::error::{Errno, Error, Result};
use crate::options::Canary;
use crate::space::{Class, ClassTotals, Found, Sharing, Stream};
use butterfs_ondisk::Logical;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The space that an operation may need.
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

    /// Whether the operation frees space in the end.
    pub(crate) const fn frees(&self) -> bool {
        self.frees
    }
}

/// With so much unallocated, another chunk of trees is not missed.
const SPARE_BYTES: u64 = 4 << 30;

/// More dirty inodes than this are compared with the leaves that there are.
const MANY_INODES: u64 = 256;

/// Tree space that is reserved for somebody; given back when dropped.
pub(crate) struct MetadataReservation {
    core: Arc<Core>,
    bytes: u64,
}

impl Drop for MetadataReservation {
    fn drop(&mut self) {
        self.core.space.unreserve(Class::Metadata, self.bytes);
    }
}

impl Core {
    /// Bytes of tree blocks that committing now might allocate.
    pub(crate) fn commit_cost(&self) -> u64 {
        self.commit_cost_beside(&self.space.totals(Class::Metadata))
    }

    /// The same, where the totals of the trees' class are known already.
    fn commit_cost_beside(&self, totals: &ClassTotals) -> u64 {
        let nodesize = u64::from(self.nodesize());
        let running = self.gate.running();
        let (heads, weight) = (running.refs.len() as u64, running.refs.weight() as u64);
        let globals = self.globals();
        let books =
            [Some(&globals.extent), Some(&globals.csum), globals.free_space.as_ref(), globals.block_group.as_ref()];
        let present: u64 = books.into_iter().flatten().map(|tree| tree.bytes_used(self.nodesize()) / nodesize).sum();
        // A head changes a leaf of the extent tree and one of the free space tree, each further change of it one of the
        // extent tree; a leaf is copied once. New items of up to 100 bytes, or 53, fill new leaves, half full. The
        // tail is the paths of the small trees.
        let new_leaves = (heads * 256 + weight.saturating_sub(heads) * 128) / nodesize;
        let nodes = (heads + weight).min(present) + new_leaves + self.inode_leaves(totals) + 64;
        nodes * nodesize
    }

    /// Leaves that writing the dirty inodes may copy or add. Many inodes share a leaf; where a snapshot shares it too,
    /// its references take as much again. There are no more leaves than what is in use holds; where that includes data,
    /// the open trees are counted.
    fn inode_leaves(&self, totals: &ClassTotals) -> u64 {
        let dirty = self.dirty_inodes.len() as u64;
        if dirty <= MANY_INODES {
            return dirty;
        }
        let bytes = if totals.is_mixed { self.trees.bytes_used(self.nodesize()) } else { totals.used };
        dirty.min(2 * bytes / u64::from(self.nodesize()) + dirty / 8)
    }

    /// Bytes that only the commit, and operations that free space, may use.
    pub(crate) fn global_reserve(&self) -> u64 {
        self.global_reserve_beside(&self.space.totals(Class::Metadata))
    }

    fn global_reserve_beside(&self, totals: &ClassTotals) -> u64 {
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
        let least = 16 * nodesize * (trees + if globals.free_space.is_some() { 18 } else { 12 });
        // Leaves that deletion has left half empty are no reason to refuse new names for ever.
        let most = (totals.length / 4).max(least);
        bytes.max(least).min(most).min(512 << 20)
    }

    /// Reserves space for what `reserve` says; `None` where there is not so much to be reserved now.
    pub(crate) fn reserve_items(self: &Arc<Self>, reserve: Reserve) -> Option<MetadataReservation> {
        let bytes = reserve.items * NODES_PER_ITEM * u64::from(self.nodesize());
        self.reserve_metadata(bytes, reserve.frees).then(|| MetadataReservation { core: Arc::clone(self), bytes })
    }

    /// Reserves room for `nodes` tree blocks, for an operation that frees space in the end.
    pub(crate) fn reserve_nodes(self: &Arc<Self>, nodes: u64) -> Option<MetadataReservation> {
        let bytes = nodes * u64::from(self.nodesize());
        self.reserve_metadata(bytes, true).then(|| MetadataReservation { core: Arc::clone(self), bytes })
    }

    /// Reserves room for `blocks` more log blocks, if there is any to spare.
    pub(crate) fn reserve_log(self: &Arc<Self>, blocks: u64) -> Option<MetadataReservation> {
        let bytes = blocks * u64::from(self.nodesize());
        self.reserve_metadata(bytes, false).then(|| MetadataReservation { core: Arc::clone(self), bytes })
    }

    /// Whether the devices have room for so many chunks that one more of trees is not missed where data should be.
    pub(crate) fn has_spare_chunks(&self) -> bool {
        let devices = self.devices.space.lock();
        devices.unallocated_bytes() >= SPARE_BYTES.max(devices.total_bytes() / 10)
    }

    /// Whether the last operation that needed tree space found none.
    pub(crate) fn are_trees_full(&self) -> bool {
        self.trees_full.load(Ordering::Relaxed)
    }

    pub(crate) fn note_trees_full(&self, full: bool) {
        if self.are_trees_full() != full {
            self.trees_full.store(full, Ordering::Relaxed);
        }
    }

    /// Whether another chunk is worth it where what is free shares parity with what is in use: no more than an eighth
    /// of the devices is left unused for that by each class, and a tenth of them stays for other chunks.
    fn may_spread(&self, class: Class) -> bool {
        let unused = self.space.totals(class).free.saturating_sub(self.space.fresh(class));
        let devices = self.devices.space.lock();
        let total = devices.total_bytes();
        unused <= total / 8 && devices.unallocated_bytes() >= total / 10
    }

    /// Half of the global reserve is the commit's alone: what an operation does adds to the commit's cost.
    fn reserve_metadata(&self, bytes: u64, frees: bool) -> bool {
        let totals = self.space.totals(Class::Metadata);
        let reserve = self.global_reserve_beside(&totals);
        let floor = self.commit_cost_beside(&totals) + if frees { reserve / 2 } else { reserve };
        if totals.has_rows && self.space.fresh(Class::Metadata) < bytes + floor && self.may_spread(Class::Metadata) {
            // Without one, blocks share parity with what is in use.
            let _ = self.allocate_chunk(Class::Metadata);
        }
        self.space.reserve(Class::Metadata, bytes, floor)
    }

    /// Reserves what recording the data will take, with another chunk where that is allowed.
    fn reserve_recording(&self, bytes: u64, any_chunk: bool) -> bool {
        while !self.reserve_metadata(bytes, false) {
            let allowed = any_chunk || self.has_spare_chunks();
            if !allowed || self.allocate_chunk(Class::Metadata).is_err() {
                return false;
            }
        }
        true
    }

    /// Reserves `bytes` of data space, and the tree space to record the data in, with another chunk of trees where
    /// there is room for many of them, or where `any_chunk` allows it; `None` where that is not enough.
    pub(crate) fn try_reserve_data(self: &Arc<Self>, bytes: u64, any_chunk: bool) -> Result<Option<DataReservation>> {
        self.must_not_be_read_only()?;
        if let Some(aborted) = self.aborted() {
            return Err(aborted);
        }
        Ok(self.reserve_data_space(bytes.next_multiple_of(u64::from(self.sectorsize())), any_chunk))
    }

    /// Refuses changes where nothing may be written.
    pub(crate) fn must_not_be_read_only(&self) -> Result<()> {
        match self.is_read_only() {
            true => Err(Error::refused(Errno::EROFS, "the filesystem is mounted read-only")),
            false => Ok(()),
        }
    }

    fn reserve_data_space(self: &Arc<Self>, bytes: u64, any_chunk: bool) -> Option<DataReservation> {
        let floor = self.data_floor();
        let mut pause = None;
        while !self.space.reserve(Class::Data, bytes, floor) {
            if self.allocate_chunk(Class::Data).is_err() {
                // What is being discarded is free soon.
                if pause.is_some() {
                    return None;
                }
                pause = Some(self.discards.pause());
            }
        }
        drop(pause);
        let recording = recording_cost(bytes);
        let reserved = self.reserve_recording(recording, any_chunk);
        self.note_trees_full(!reserved);
        if !reserved {
            self.space.unreserve(Class::Data, bytes);
        }
        reserved.then(|| DataReservation { core: Arc::clone(self), bytes, recording })
    }

    /// Bytes that must stay free beside all reservations of data.
    pub(crate) fn data_floor(&self) -> u64 {
        if self.space.is_mixed() { self.commit_cost() + self.global_reserve() } else { 0 }
    }

    /// Allocates up to `want` contiguous bytes of data space out of `reservation`, at least `min`; both multiples of
    /// the sector size. No handle and no lock may be held. For [`Stream::Data`] the caller ends the write with
    /// [`Space::end_write`](crate::space::Space::end_write).
    pub fn allocate_data(
        self: &Arc<Self>,
        (want, min): (u64, u64),
        stream: Stream,
        reservation: &mut DataReservation,
    ) -> Result<(Logical, u64)> {
        assert!(want <= reservation.bytes, "{want} bytes are allocated, {} are reserved", reservation.bytes);
        let mut pause = None;
        let mut sharing = if self.has_canary(Canary::RowsShared) { Sharing::Allowed } else { Sharing::Never };
        loop {
            self.env().passes("data is about to get its place");
            match self.space.allocate_extent(Class::Data, want, min, (stream, sharing)) {
                Found::Extent(at, len) => {
                    reservation.shrink(len);
                    return Ok((at, len));
                }
                Found::Load(group) => {
                    if let Some(group) = self.space.group_of(group) {
                        self.load_group_ahead(&group)?;
                    }
                }
                Found::Nothing if sharing == Sharing::Never && self.space.has_rows(Class::Data) => {
                    if !self.may_spread(Class::Data) || self.allocate_chunk(Class::Data).is_err() {
                        sharing = Sharing::Allowed;
                    }
                }
                Found::Nothing if self.allocate_chunk(Class::Data).is_ok() => {}
                Found::Nothing if pause.is_none() => pause = Some(self.discards.pause()),
                Found::Nothing => {
                    return Err(Error::refused(Errno::ENOSPC, "no contiguous space left for data"));
                }
            }
        }
    }

    /// Takes back an allocation that was not used, and reserves the space again.
    pub(crate) fn unallocate_data(&self, at: Logical, len: u64, reservation: &mut DataReservation) {
        self.space.give_back_reserved(at, len);
        reservation.bytes += len;
    }

    /// Takes back an allocation that the device did not take data for, and reserves as much space again, elsewhere
    /// where there is some: the place stays unused until the next commit.
    pub(crate) fn avoid_data(&self, at: Logical, len: u64, reservation: &mut DataReservation) {
        if self.space.reserve(Class::Data, len, self.data_floor()) {
            self.space.pin(at, len, self.generation());
            reservation.bytes += len;
        } else {
            self.unallocate_data(at, len, reservation);
        }
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

/// A reservation of data space, and of the tree space to record the data in; what is left is given back when dropped.
pub struct DataReservation {
    core: Arc<Core>,
    bytes: u64,
    recording: u64,
}

impl DataReservation {
    /// Bytes still reserved.
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

    /// Splits off a reservation of `bytes`.
    pub fn split(&mut self, bytes: u64) -> DataReservation {
        assert!(bytes <= self.bytes, "a reservation of {} is split at {bytes}", self.bytes);
        let recording = self.share(bytes);
        self.bytes -= bytes;
        self.recording -= recording;
        DataReservation { core: Arc::clone(&self.core), bytes, recording }
    }

    /// Takes another reservation in.
    pub fn merge(&mut self, mut other: DataReservation) {
        self.bytes += std::mem::take(&mut other.bytes);
        self.recording += std::mem::take(&mut other.recording);
    }

    /// Gives `bytes` back.
    pub fn shrink(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "a reservation of {} shrinks by {bytes}", self.bytes);
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
