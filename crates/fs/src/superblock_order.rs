//! The order of superblock writers: commits, and logs on top of them.
//!
//! ```text
//! commit N durable ──► logs of N+1 may lead the superblock to themselves, one after the other ──► commit N+1
//! ```
//! # Invariants
//! 1. One at a time writes superblocks.
//! 2. A superblock that leads to a log of generation G is written only on top of that of commit G−1: never before it is
//!    durable, never after commit G is.
//! 3. Commit G becomes durable, and so gives the blocks of its logs away, only when nobody writes such blocks any more.
//! 4. Whoever waits is woken when writing stops for good.
//! 5. Where a device fails in a commit whose trees cannot name it any more, that commit gets no superblock: the next
//!    one does, whose trees name it. No log lies between the two.
//!
//! Not here: what is written, and that what a superblock leads to is durable before it.

use super::sync_primitives::{Condvar, Mutex, order};

struct OrderState {
    /// The last durable commit.
    durable: u64,
    /// Somebody is writing superblocks.
    busy: bool,
    /// Generations of the logs that are being written.
    logs: Vec<u64>,
    /// The secondary superblocks may be older than the primary ones: those lead to a log, or nobody knows yet.
    copies_behind: bool,
    /// The last commit that got no superblock, 0 for none.
    left_to_next: u64,
    /// Nothing may be written any more.
    stopped: bool,
}

impl OrderState {
    /// The last commit that ended, with a superblock or without.
    fn ended(&self) -> u64 {
        self.durable.max(self.left_to_next)
    }

    /// Whether a generation has ended without a superblock, and the commit that has all of it is still to come.
    fn waits_for_next(&self, generation: u64) -> bool {
        self.durable < generation && generation <= self.left_to_next && !self.stopped
    }
}

/// Somebody writes superblocks until this is dropped, also by a panic.
struct Busy<'a>(&'a SuperblockOrder);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.state.lock().busy = false;
        self.0.changed.notify_all();
    }
}

/// The superblocks of a commit are being written until this is dropped.
#[must_use]
pub struct Committing<'a> {
    generation: u64,
    copies_behind: bool,
    busy: Busy<'a>,
}

/// A log is being written until this is dropped, also by a panic.
#[must_use]
pub struct Logging<'a> {
    order: &'a SuperblockOrder,
    generation: u64,
}

/// A superblock that leads to a log is being written until this is dropped.
#[must_use]
pub struct Leading<'a> {
    _busy: Busy<'a>,
    _logging: Logging<'a>,
}

impl Drop for Logging<'_> {
    fn drop(&mut self) {
        let mut state = self.order.state.lock();
        if let Some(own) = state.logs.iter().position(|log| *log == self.generation) {
            state.logs.remove(own);
        }
        drop(state);
        self.order.changed.notify_all();
    }
}

/// See the [module](self).
pub struct SuperblockOrder {
    state: Mutex<OrderState, { order::SUPERBLOCK_ORDER }>,
    changed: Condvar,
}

/// Whether the superblock may lead to a log now.
pub enum Turn<'a> {
    /// It may.
    Leading(Leading<'a>),
    /// The commit before the log's transaction got no superblock that a log could lie on.
    LeftToNext,
    /// Writing has stopped.
    Stopped,
}

impl Committing<'_> {
    /// Whether the secondary superblocks may be older than the primary ones.
    pub fn copies_behind(&self) -> bool {
        self.copies_behind
    }

    /// The primary ones are durable, and the secondary ones are written.
    pub fn end(self) {
        let mut state = self.busy.0.state.lock();
        state.durable = self.generation;
        state.copies_behind = false;
    }
}

impl<'a> Logging<'a> {
    /// The log's blocks are durable: waits until the commit before it is, and until nobody else writes superblocks.
    pub fn lead(self) -> Turn<'a> {
        let (order, generation) = (self.order, self.generation);
        let mut state = order.state.lock();
        // The commit of the log's own generation waits for the log.
        while state.busy || state.durable + 1 < generation {
            if state.stopped {
                return Turn::Stopped;
            }
            if state.durable + 1 < generation && state.ended() + 1 >= generation {
                return Turn::LeftToNext;
            }
            order.changed.wait(&mut state);
        }
        if state.stopped {
            return Turn::Stopped;
        }
        state.busy = true;
        // A write that fails half-way may have led there.
        state.copies_behind = true;
        drop(state);
        Turn::Leading(Leading { _busy: Busy(order), _logging: self })
    }
}

impl SuperblockOrder {
    /// With the commit that is on disk.
    pub fn new(durable: u64) -> SuperblockOrder {
        let (busy, logs, left_to_next, stopped) = Default::default();
        let state = OrderState { durable, busy, logs, copies_behind: true, left_to_next, stopped };
        SuperblockOrder { state: Mutex::new(state), changed: Condvar::default() }
    }

    /// Waits until the superblocks of commit `generation` may be written. No log of it changes them any more.
    pub fn commit(&self, generation: u64) -> Committing<'_> {
        let mut state = self.state.lock();
        while state.busy || state.logs.iter().any(|log| *log <= generation) {
            self.changed.wait(&mut state);
        }
        state.busy = true;
        Committing { generation, copies_behind: state.copies_behind, busy: Busy(self) }
    }

    /// Commit `generation` gets no superblock: the next one has all that is in it.
    pub fn leave_to_next(&self, generation: u64) {
        self.state.lock().left_to_next = generation;
        self.changed.notify_all();
    }

    /// The blocks of a log of `generation` are about to be written. `None` where the generation has been committed
    /// instead.
    pub fn log(&self, generation: u64) -> Option<Logging<'_>> {
        let mut state = self.state.lock();
        // The commit of the log's own generation may be writing; or that generation got no superblock, and the next
        // commit, which has all of it, follows at once.
        while state.busy && state.ended() + 1 == generation || state.waits_for_next(generation) {
            self.changed.wait(&mut state);
        }
        if state.durable >= generation {
            return None;
        }
        state.logs.push(generation);
        Some(Logging { order: self, generation })
    }

    /// Waits until commit `generation` is durable; false when it never will be.
    pub fn wait_durable(&self, generation: u64) -> bool {
        let mut state = self.state.lock();
        while state.durable < generation && !state.stopped {
            self.changed.wait(&mut state);
        }
        state.durable >= generation
    }

    /// Nothing is written any more.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }
}
