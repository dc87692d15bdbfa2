//! Starting an operation where space or memory is short: the remedies, in order, before it is refused.
//!
//! The caller may hold locks that come before a commit in the order of locks, but no handle. Far more is reserved for
//! buffered data than it takes. A caller that can have it written back passes a function that does so, and waits its
//! turn for the last of the reserve. Write-back passes none, and waits for no turn.

use super::Engine;
use crate::error::{Errno, Error, Result};
use crate::space::Class;
use crate::transaction::{DataReservation, Handle, MetadataReservation, Reserve};
use std::sync::atomic::Ordering;

/// Changed tree blocks in memory after which a commit is due.
const DIRTY_NODES_BYTES: usize = 160 << 20;

/// Writes back what is buffered, as far as nobody works on it. False when there is none.
pub(crate) type WriteBack<'a> = &'a dyn Fn() -> bool;

/// A remedy for a failed reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Remedy {
    /// Another chunk of trees, where the devices have room for many.
    SpareChunk,
    /// Another chunk of trees.
    Chunk,
    /// Writing data back: what was reserved for recording it is far more than it takes.
    WriteBack,
    /// A commit: it frees what is pinned, and books what is only estimated.
    Commit,
    /// A commit that gives back what data does not need any more.
    UnusedGroups,
}

impl Remedy {
    fn repeats(self) -> bool {
        matches!(self, Remedy::SpareChunk | Remedy::Chunk)
    }
}

/// In this order. A chunk of trees is lost for data, so on a small filesystem estimates are booked first.
const REMEDIES: &[Remedy] = &[
    Remedy::SpareChunk,
    Remedy::WriteBack,
    Remedy::Commit,
    Remedy::Chunk,
    Remedy::WriteBack,
    Remedy::Commit,
    Remedy::Chunk,
    Remedy::UnusedGroups,
    Remedy::Chunk,
    Remedy::UnusedGroups,
];

impl Engine {
    /// Joins the running transaction, with space for what `reserve` says. `ENOSPC` happens here or not at all; `EROFS`
    /// when nothing may be written.
    pub(crate) fn start(&self, reserve: Reserve) -> Result<Handle> {
        self.start_with(reserve, None)
    }

    /// The same, by who can have data written back.
    pub(crate) fn start_with(&self, reserve: Reserve, write_back: Option<WriteBack<'_>>) -> Result<Handle> {
        self.separate_together()?;
        self.relieve_memory()?;
        self.book_one_slice()?;
        if write_back.is_some() {
            self.await_turn();
        }
        let mut started = self.try_start(reserve)?;
        for remedy in REMEDIES {
            while started.is_none() && self.apply(*remedy, write_back)? {
                started = self.try_start(reserve)?;
                if !remedy.repeats() {
                    break;
                }
            }
        }
        if started.is_none() {
            // What is being discarded is free soon.
            let _pause = self.discards.pause();
            started = self.try_start(reserve)?;
        }
        if !reserve.frees() {
            self.note_trees_full(started.is_none());
        } else if started.is_none()
            && let Some(reservation) = self.reserve_in_turn(reserve, write_back)?
        {
            started = Some(self.join_with(reservation)?);
        }
        started.ok_or_else(|| Error::refused(Errno::ENOSPC, "no space left for metadata"))
    }

    /// Reserves `bytes` of data space. No handle may be held.
    pub(crate) fn reserve_data(&self, bytes: u64, write_back: Option<WriteBack<'_>>) -> Result<DataReservation> {
        if write_back.is_some() {
            self.await_turn();
        }
        if let Some(reserved) = self.try_reserve_data(bytes, false)? {
            return Ok(reserved);
        }
        for remedy in REMEDIES.iter().filter(|remedy| !remedy.repeats()) {
            if self.apply(*remedy, write_back)?
                && let Some(reserved) = self.try_reserve_data(bytes, *remedy != Remedy::WriteBack)?
            {
                return Ok(reserved);
            }
        }
        // What is being discarded is free soon.
        let _pause = self.discards.pause();
        let reserved = self.try_reserve_data(bytes, true)?;
        reserved.ok_or_else(|| Error::refused(Errno::ENOSPC, "no space left for data"))
    }

    /// Requests a background commit at the dirty limit; commits on the calling thread at twice the limit.
    fn relieve_memory(&self) -> Result<()> {
        self.must_not_be_too_much()?;
        let limit = DIRTY_NODES_BYTES / self.nodesize() as usize;
        let dirty = self.nodes.dirty_count();
        if dirty > 2 * limit || (dirty > limit && !self.env().background()) {
            return self.commit();
        }
        if dirty > limit {
            self.background_requests.request_commit();
        }
        Ok(())
    }

    /// Reserves from the reserve what others hold only for the moment: one at a time, when their handles have ended,
    /// and while nobody else reserves anything.
    fn reserve_in_turn(
        &self,
        reserve: Reserve,
        write_back: Option<WriteBack<'_>>,
    ) -> Result<Option<MetadataReservation>> {
        self.in_turn.fetch_add(1, Ordering::Relaxed);
        // Write-back may work for the caller that has the turn, so it does not wait for it. In the order of locks, this
        // one comes first.
        let _shortage = write_back.map(|_| self.shortage.lock());
        let turn = if write_back.is_some() { Some(self.scarcity.lock()) } else { self.scarcity.try_lock() };
        let reservation = turn.map_or(Ok(None), |_turn| self.reserve_alone(reserve, write_back));
        self.in_turn.fetch_sub(1, Ordering::Relaxed);
        reservation
    }

    fn reserve_alone(
        &self,
        reserve: Reserve,
        write_back: Option<WriteBack<'_>>,
    ) -> Result<Option<MetadataReservation>> {
        const TRIES: usize = 4;
        let mut reservation = self.reserve_items(reserve);
        for _ in 0..TRIES {
            if reservation.is_some() {
                break;
            }
            // More space is reserved for buffered data than it takes.
            write_back.map(|write_back| write_back());
            if self.is_together() {
                break;
            }
            self.commit()?;
            reservation = self.reserve_items(reserve);
        }
        Ok(reservation)
    }

    /// Waits while somebody reserves what is left of the reserve. No handle may be held.
    pub(crate) fn await_turn(&self) {
        if self.in_turn.load(Ordering::Relaxed) > 0 {
            drop(self.scarcity.lock());
        }
    }

    /// Does what may let a reservation succeed. False when there is nothing of that kind to do.
    fn apply(&self, remedy: Remedy, write_back: Option<WriteBack<'_>>) -> Result<bool> {
        match remedy {
            Remedy::SpareChunk => Ok(self.has_spare_chunks() && self.allocate_chunk(Class::Metadata).is_ok()),
            Remedy::Chunk => Ok(self.allocate_chunk(Class::Metadata).is_ok()),
            Remedy::WriteBack => Ok(self.write_back_for_space(write_back)),
            Remedy::Commit | Remedy::UnusedGroups if self.is_together() => Ok(false),
            Remedy::Commit => self.commit_for_space().map(|()| true),
            Remedy::UnusedGroups if self.has_unused_groups() => self.commit_for_space().map(|()| true),
            Remedy::UnusedGroups => Ok(false),
        }
    }

    /// Has data written back, so that its reservations come back. False when there is none. No handle and no lock but a
    /// mapping lock may be held.
    fn write_back_for_space(&self, write_back: Option<WriteBack<'_>>) -> bool {
        let Some(write_back) = write_back else { return false };
        // Others wait and find what it brought, instead of doing the same beside it.
        let _turn = self.shortage.lock();
        write_back()
    }
}
