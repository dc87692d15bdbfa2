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
struct GroupState {
    /// Everything logged up to here is durable.
    durable: u64,
    /// Everything logged up to here is what the superblock leads to, durable or not.
    written: u64,
    leading: bool,
    /// The points of all who wait.
    waiting: Vec<u64>,
}

impl GroupState {
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

/// The right, and the duty, to write for all who wait. Dropped without [`end`](Self::end), by an error or a panic, it goes to the
/// next one who waits.
#[must_use]
pub struct Leader<'a> {
    group: &'a Group,
    point: u64,
}

/// What one who wants something to be durable finds.
pub enum Joined<'a> {
    /// It is.
    Durable,
    /// Nobody else does it.
    Leads(Leader<'a>),
}

impl Leader<'_> {
    /// Everything up to there was written. The last flush may be left out only where [others wait](Group::others_wait).
    pub fn end(self, reached: Reached) {
        let mut state = self.group.state.lock();
        let (Reached::Durable(through) | Reached::Written(through)) = reached;
        assert!(through >= self.point, "up to {through} was written, {} was asked for", self.point);
        state.written = state.written.max(through);
        if matches!(reached, Reached::Durable(_)) {
            state.durable = state.durable.max(through);
        }
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.group.state.lock().leading = false;
        self.group.changed.notify_all();
    }
}

/// See the [module](self).
#[derive(Default)]
pub struct Group {
    state: Mutex<GroupState, { order::LOG_GROUP }>,
    changed: Condvar,
}

impl Group {
    /// Waits until everything up to `point` is durable, or nobody else writes it. Who then leads writes what is logged by
    /// then, and joins again.
    pub fn join(&self, point: u64) -> Joined<'_> {
        let mut state = self.state.lock();
        loop {
            if state.durable >= point {
                return Joined::Durable;
            }
            let flush_is_left_to_others = state.written >= point && state.others_wait(state.written);
            if !state.leading && !flush_is_left_to_others {
                state.leading = true;
                return Joined::Leads(Leader { group: self, point });
            }
            state.waiting.push(point);
            self.changed.wait(&mut state);
            let own = state.waiting.iter().position(|waiting| *waiting == point).expect("it was added");
            state.waiting.swap_remove(own);
        }
    }

    /// Whether somebody waits for more than `reached`, who will lead next, and so flush.
    pub fn others_wait(&self, reached: u64) -> bool {
        self.state.lock().others_wait(reached)
    }

    /// The point up to which a flush that begins now makes everything durable.
    pub fn written(&self) -> u64 {
        self.state.lock().written
    }

    /// A flush has ended that began when everything up to `written` was [written](Self::written).
    pub fn flushed(&self, written: u64) {
        let mut state = self.state.lock();
        if written > state.durable {
            state.durable = written;
            self.changed.notify_all();
        }
    }

    /// The point up to which everything is durable.
    pub fn durable(&self) -> u64 {
        self.state.lock().durable
    }
}
