//! Who may write the superblock when: commits, and logs on top of them.
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
//!
//! Not here: what is written, and that what a superblock leads to is durable before it.

use super::sync_primitives::{Condvar, Mutex, order};

struct State {
    /// The last durable commit.
    durable: u64,
    /// Somebody is writing superblocks.
    busy: bool,
    /// Generations of the logs that are being written.
    logs: Vec<u64>,
    /// The superblock on disk leads to a log.
    log_on_disk: bool,
    /// Nothing may be written any more.
    stopped: bool,
}

/// Somebody writes superblocks until this is dropped, also by a panic.
struct Busy<'a>(&'a SuperblockOrder);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.state.lock().busy = false;
        self.0.changed.notify_all();
    }
}

/// A log of this generation is being written until this is dropped, also by a panic.
struct Logging<'a>(&'a SuperblockOrder, u64);

impl Drop for Logging<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        if let Some(own) = state.logs.iter().position(|log| *log == self.1) {
            state.logs.remove(own);
        }
        drop(state);
        self.0.changed.notify_all();
    }
}

/// See the [module](self).
pub struct SuperblockOrder {
    state: Mutex<State, { order::SUPERBLOCK_ORDER }>,
    changed: Condvar,
}

/// What became of a log's wish to be led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The superblock was written.
    Written,
    /// The log's transaction has been committed instead.
    Committed,
    /// Writing has stopped.
    Stopped,
}

impl SuperblockOrder {
    /// With the commit that is on disk, and perhaps a log.
    pub fn new(durable: u64, log_on_disk: bool) -> SuperblockOrder {
        let state = State { durable, busy: false, logs: Vec::new(), log_on_disk, stopped: false };
        SuperblockOrder { state: Mutex::new(state), changed: Condvar::default() }
    }

    /// Lets `write` write the superblocks of commit `generation`; it is told whether those on disk lead to a log.
    pub fn commit<E>(&self, generation: u64, write: impl FnOnce(bool) -> Result<(), E>) -> Result<(), E> {
        let mut state = self.state.lock();
        while state.busy || state.logs.iter().any(|log| *log <= generation) {
            self.changed.wait(&mut state);
        }
        state.busy = true;
        let log_on_disk = state.log_on_disk;
        drop(state);
        let busy = Busy(self);
        let written = write(log_on_disk);
        if written.is_ok() {
            let mut state = self.state.lock();
            state.durable = generation;
            state.log_on_disk = false;
        }
        drop(busy);
        written
    }

    /// Lets `write_blocks` make the blocks of a log of `generation` durable, waits until the commit before it is durable,
    /// and lets `write_superblock` lead to the log.
    pub fn log<E>(
        &self,
        generation: u64,
        write_blocks: impl FnOnce() -> Result<(), E>,
        write_superblock: impl FnOnce() -> Result<(), E>,
    ) -> Result<Turn, E> {
        let mut state = self.state.lock();
        while state.busy && state.durable + 1 == generation {
            self.changed.wait(&mut state);
        }
        if state.durable >= generation {
            return Ok(Turn::Committed);
        }
        state.logs.push(generation);
        drop(state);
        let _logging = Logging(self, generation);
        write_blocks()?;
        self.lead(generation, write_superblock)
    }

    fn lead<E>(&self, generation: u64, write_superblock: impl FnOnce() -> Result<(), E>) -> Result<Turn, E> {
        let mut state = self.state.lock();
        // The commit of the log's own generation waits for the log.
        while state.busy || state.durable + 1 < generation {
            if state.stopped {
                return Ok(Turn::Stopped);
            }
            self.changed.wait(&mut state);
        }
        if state.stopped {
            return Ok(Turn::Stopped);
        }
        state.busy = true;
        // A write that fails half-way may have led there.
        state.log_on_disk = true;
        drop(state);
        let _busy = Busy(self);
        write_superblock().map(|()| Turn::Written)
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
