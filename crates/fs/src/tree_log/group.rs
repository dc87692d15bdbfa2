//! One writes for many: who wants what was logged up to a point to be durable either finds that it is, waits for whoever
//! is writing just now, or becomes the one who writes, for all who have come until then.
//!
//! ```text
//! one alone:   blocks, flush, superblock, flush
//! with others: blocks, flush, superblock, │ blocks of the next, flush │ superblock of the next, …
//! ```
//! A superblock that was written becomes durable with any flush that begins afterwards. So who finds others waiting leaves
//! that flush to the next one, who flushes its blocks anyway.
//!
//! Points are numbers that only grow, also from one transaction to the next.
//!
//! # Invariants
//! 1. One at a time leads.
//! 2. Who returns without an error: a leader that began after its point was logged has written it, and a flush that began
//!    after that has succeeded.
//! 3. A leader that fails fails for itself; who waited tries again.

use super::sync_primitives::{Condvar, Mutex, order};

#[derive(Default)]
struct State {
    /// Everything logged up to here is durable.
    durable: u64,
    /// Everything logged up to here is what the superblock leads to, durable or not.
    written: u64,
    leading: bool,
    /// The points of all who wait.
    waiting: Vec<u64>,
}

impl State {
    /// Whether somebody waits for more than `written`, who will lead if nobody else does.
    fn others_wait(&self, written: u64) -> bool {
        self.waiting.iter().any(|point| *point > written)
    }
}

/// How far a leader came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// Everything up to here is durable.
    Durable(u64),
    /// Everything up to here is so when somebody flushes.
    Written(u64),
}

/// The leader has panicked when this is dropped: the next one who waits tries then.
struct Leading<'a>(&'a Group);

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        self.0.state.lock().leading = false;
        self.0.changed.notify_all();
    }
}

/// See the [module](self).
#[derive(Default)]
pub struct Group {
    state: Mutex<State, { order::LOG_GROUP }>,
    changed: Condvar,
}

impl Group {
    /// Returns when everything up to `point` is durable. `lead` writes what is logged when it is called, which is up to
    /// `point` or more; it leaves the last flush out only where [`others_wait`](Self::others_wait).
    pub fn sync<E>(&self, point: u64, lead: impl Fn() -> Result<Reached, E>) -> Result<(), E> {
        let mut state = self.state.lock();
        loop {
            if state.durable >= point {
                return Ok(());
            }
            if state.leading || state.written >= point && state.others_wait(state.written) {
                state.waiting.push(point);
                self.changed.wait(&mut state);
                let own = state.waiting.iter().position(|waiting| *waiting == point).expect("it was added");
                state.waiting.swap_remove(own);
                continue;
            }
            state.leading = true;
            drop(state);
            let leading = Leading(self);
            let led = lead();
            std::mem::forget(leading);
            state = self.state.lock();
            state.leading = false;
            let Ok(Reached::Durable(reached) | Reached::Written(reached)) = &led else {
                drop(state);
                self.changed.notify_all();
                return led.map(drop);
            };
            assert!(*reached >= point, "up to {reached} was written, {point} was asked for");
            state.written = state.written.max(*reached);
            if let Ok(Reached::Durable(_)) = led {
                state.durable = state.durable.max(*reached);
            }
            self.changed.notify_all();
        }
    }

    /// Whether somebody waits for more than `reached`, who will lead next, and so flush.
    pub fn others_wait(&self, reached: u64) -> bool {
        self.state.lock().others_wait(reached)
    }

    /// Flushes, and lets those go who waited for that.
    pub fn flush<E>(&self, flush: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let written = self.state.lock().written;
        flush()?;
        let mut state = self.state.lock();
        if written > state.durable {
            state.durable = written;
            self.changed.notify_all();
        }
        Ok(())
    }

    /// The point up to which everything is durable.
    pub fn durable(&self) -> u64 {
        self.state.lock().durable
    }
}
