//! The engine: an open filesystem below inodes, with its commits.

use super::background_requests::BackgroundRequests;
use super::booking;
use super::states::Published;
use crate::error::Result;
use crate::extent;
use crate::transaction::Core;
use butterfs_ondisk::{Generation, Logical};
use butterfs_sync::{Mutex, order};
use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, OnceLock};

/// See the [module](self).
pub struct Engine {
    core: Arc<Core>,
    /// Held by whoever commits.
    turn: Mutex<(), { order::COMMIT }>,
    /// Held by whoever books references ahead of the commit.
    pub(super) booking_turn: Mutex<(), { order::BOOKING_TURN }>,
    /// Held by whoever waits for the last of the reserve.
    pub(super) scarcity: Mutex<(), { order::SCARCITY }>,
    /// How many do.
    pub(super) in_turn: AtomicUsize,
    /// Held by whoever has data written back because space is short.
    pub(super) shortage: Mutex<(), { order::SHORTAGE }>,
    /// Groups with a version 1 cache, once somebody has asked.
    pub(super) cached_groups: OnceLock<BTreeSet<Logical>>,
    /// They have been deleted since.
    pub(super) caches_are_gone: AtomicBool,
    pub(crate) background_requests: BackgroundRequests,
    /// One user has the running transaction for itself.
    pub(super) is_together: AtomicBool,
}

impl Deref for Engine {
    type Target = Arc<Core>;

    fn deref(&self) -> &Arc<Core> {
        &self.core
    }
}

impl Engine {
    /// The engine of a filesystem whose trees are open.
    pub fn new(core: Arc<Core>) -> Engine {
        Engine {
            core,
            turn: Mutex::new(()),
            booking_turn: Mutex::new(()),
            scarcity: Mutex::new(()),
            in_turn: AtomicUsize::new(0),
            shortage: Mutex::new(()),
            cached_groups: OnceLock::new(),
            caches_are_gone: AtomicBool::new(false),
            background_requests: BackgroundRequests::default(),
            is_together: AtomicBool::new(false),
        }
    }

    /// The core that it commits.
    pub fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Makes everything durable that was recorded before the call. Waits for a commit that is under way; callers
    /// that arrive meanwhile share the next one. No handle may be held.
    pub fn commit(&self) -> Result<()> {
        self.commit_through(self.generation())
    }

    /// Makes everything durable up to a transaction. No handle may be held.
    pub(crate) fn commit_through(&self, wanted: Generation) -> Result<()> {
        if let Some(aborted) = self.aborted() {
            return Err(aborted);
        }
        self.must_not_be_together()?;
        let _turn = self.turn.lock();
        if self.gate.durable() >= wanted {
            return Ok(());
        }
        if let Some(aborted) = self.aborted() {
            return Err(aborted);
        }
        let _alarm = self.alarm();
        self.commit_in_turn().inspect_err(|error| self.abort(error))?;
        if extent::stale_devices_changed(self) {
            // A device has missed something of this commit, which must be on disk before anybody relies on the commit.
            self.commit_in_turn().inspect_err(|error| self.abort(error))?;
        }
        Ok(())
    }

    /// Ends as many transactions as it takes until a superblock leads to the last of them: each time one more device
    /// has failed.
    fn commit_in_turn(&self) -> Result<()> {
        while self.end_transaction()? {}
        Ok(())
    }

    /// Ends the running transaction, if it has changed anything. True when it has no superblock, and the next one has
    /// all of it.
    fn end_transaction(&self) -> Result<bool> {
        self.book_before_commit()?;
        let stopped = self.stop_handles()?;
        // An error aborts before handles go on.
        let booked = booking::book_all(self, stopped.handle()).inspect_err(|error| self.abort(error))?;
        if !booked {
            return Ok(false);
        }
        match self.freeze(stopped).write(self)?.publish(self)? {
            Published::Durable(durable) => durable.release(self),
            Published::LeftToNext => return Ok(true),
        }
        extent::remember_state(self);
        if !self.volume.stale_devices().is_empty() {
            self.background_requests.request_cleaning();
        }
        Ok(false)
    }

    /// Makes an operation durable that promises so by itself; within a transaction of several, with that.
    pub(crate) fn commit_operation(&self, wanted: Generation) -> Result<()> {
        if self.is_together() { Ok(()) } else { self.commit_through(wanted) }
    }

    /// A commit even if no tree has changed. No handle may be held.
    pub(crate) fn commit_anyway(&self) -> Result<()> {
        let ((), generation) = self.gate.with_books(|books| books.must_happen = true);
        self.commit_through(generation)
    }
}
