//! A handle: the right to change trees in one transaction, with the space that the change may need.
//!
//! Starting one never commits: where space is short it says so, and the layer above commits and tries again.

use super::refs::{Changed, ExtentKind, RefBy};
use super::reserve::MetadataReservation;
use super::running::{Ended, Transaction};
use super::{Core, Reserve};
use crate::error::{Error, Result};
use crate::node_io::Work;
use crate::options::Canary;
use butterfs_ondisk::{Generation, Logical, TreeId};
use butterfs_sync::order::{self, Held};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A reference from file extent items to data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataRef {
    /// Start of the extent.
    pub at: Logical,
    /// Length of the whole extent on disk.
    pub len: u64,
    /// The tree that holds the file extent item.
    pub tree: TreeId,
    /// The inode.
    pub ino: u64,
    /// Position in the file minus offset in the extent, modulo 2^64.
    pub offset: u64,
}

/// See the [module](self). Ends when dropped.
pub struct Handle {
    core: Arc<Core>,
    transaction: Arc<Transaction>,
    reservation: Option<MetadataReservation>,
    counted: bool,
    edited: AtomicBool,
    /// A panic that drops it is its own.
    armed: bool,
    _held: Held,
}

impl Core {
    /// Joins the running transaction, with space reserved for what `reserve` says; `None` where there is not so much to
    /// be reserved now. `ENOSPC` happens here or not at all; `EROFS` when nothing may be written.
    pub(crate) fn try_start(self: &Arc<Self>, reserve: Reserve) -> Result<Option<Handle>> {
        self.must_not_be_read_only()?;
        match self.reserve_items(reserve) {
            Some(reservation) => self.join_with(reservation).map(Some),
            None => Ok(None),
        }
    }

    /// Joins with what was reserved; it is given back when the handle ends.
    pub(crate) fn join_with(self: &Arc<Self>, reservation: MetadataReservation) -> Result<Handle> {
        let held = Held::of(order::HANDLE);
        let transaction = self.gate.enter()?;
        Ok(self.handle(transaction, Some(reservation), held, true))
    }

    /// Joins without a reservation.
    pub(crate) fn join(self: &Arc<Self>) -> Result<Handle> {
        let held = Held::of(order::HANDLE);
        let transaction = self.gate.enter()?;
        Ok(self.handle(transaction, None, held, true))
    }

    fn handle(
        self: &Arc<Self>,
        transaction: Arc<Transaction>,
        reservation: Option<MetadataReservation>,
        held: Held,
        counted: bool,
    ) -> Handle {
        let (edited, armed) = (AtomicBool::new(!counted), !std::thread::panicking());
        Handle { core: Arc::clone(self), transaction, reservation, counted, edited, armed, _held: held }
    }

    /// Waits until every handle that is open now has ended; others begin only then. No handle may be held.
    pub(crate) fn let_handles_end(self: &Arc<Self>) -> Result<()> {
        self.stop_handles().map(drop)
    }

    /// Has new handles wait, and waits for the ones that are open. Not longer than until the filesystem is aborted.
    pub(crate) fn stop_handles(self: &Arc<Self>) -> Result<Stopped> {
        self.stop_handles_when(false)
    }

    /// The same, after all who wait to join have joined: for who does it again and again.
    pub(crate) fn stop_handles_in_turn(self: &Arc<Self>) -> Result<Stopped> {
        self.stop_handles_when(true)
    }

    fn stop_handles_when(self: &Arc<Self>, in_turn: bool) -> Result<Stopped> {
        let held = Held::of(order::HANDLE);
        let transaction = self.gate.close(in_turn)?;
        let handle = self.handle(transaction, None, Held::of(order::UNRANKED), false);
        Ok(Stopped { handle, before: self.nodes.work(), _held: held })
    }
}

/// No handle is open but this one, and new ones wait until this is dropped.
pub(crate) struct Stopped {
    handle: Handle,
    before: Work,
    _held: Held,
}

impl Stopped {
    /// The handle of whoever stopped the others.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Forgets what waits in the running transaction, which begins again.
    pub fn start_again(self) {
        self.handle.core().gate.start_again();
    }

    /// Ends the running transaction, in which everything is booked, and lets handles begin in the next one.
    pub fn end_transaction(self) -> Ended {
        let core = self.handle.core();
        let ended = core.gate.advance(&core.space, core.nodesize());
        let generation = core.generation();
        core.nodes.change_identity(|identity| identity.super_generation = Generation(generation.0 - 1));
        ended
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let core = self.handle.core();
        if self.handle.armed && std::thread::panicking() {
            core.abort_after_panic();
        }
        core.costs.count_stop(&core.nodes.work().since(&self.before));
        core.gate.open();
    }
}

impl Handle {
    /// The filesystem.
    pub fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The transaction's number.
    pub fn generation(&self) -> Generation {
        self.transaction.generation()
    }

    /// The transaction.
    pub(crate) fn transaction(&self) -> &Transaction {
        &self.transaction
    }

    /// The transaction, to hold on to: it may end when the handle does.
    pub(crate) fn shared_transaction(&self) -> &Arc<Transaction> {
        &self.transaction
    }

    /// Something was changed under this handle.
    pub(crate) fn edited(&self) {
        self.edited.store(true, Ordering::Relaxed);
    }

    /// An edit failed. If something was changed under this handle, the transaction cannot be completed.
    pub fn failed(&self, error: &Error) {
        if self.edited.load(Ordering::Relaxed) {
            self.core.abort(error);
        }
    }

    /// One more file extent item refers to data. `new`: the extent was just allocated and has no extent item.
    pub fn add_data_ref(&self, data: DataRef, new: bool) {
        self.change_data_ref(data, 1, new);
    }

    /// One file extent item less refers to data.
    pub fn drop_data_ref(&self, data: DataRef) {
        if self.core.has_canary(Canary::ReferenceMiscounted) && (data.at.0 / 4096).is_multiple_of(16) {
            return;
        }
        self.change_data_ref(data, -1, false);
    }

    fn change_data_ref(&self, data: DataRef, count: i64, new: bool) {
        let by = RefBy::File { tree: data.tree, ino: data.ino, offset: data.offset };
        let refs = &self.transaction.refs;
        if refs.change(data.at, data.len, ExtentKind::Data, by, count, new) == Changed::Conflict
            && let Some(conflict) = refs.conflict()
        {
            self.core.abort(&conflict);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Before anybody who waits for this handle can freeze what it left half-made.
        if self.armed && std::thread::panicking() {
            self.core.abort_after_panic();
        }
        drop(self.reservation.take());
        if self.counted {
            self.core.gate.leave();
        }
    }
}
