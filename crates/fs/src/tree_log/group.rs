//! One writes for many: who wants what was logged up to a point to be durable either finds that it is, waits for
//! whoever is writing just now, or becomes the one who writes, for all who have come until then.
//!
//! ```text
//! one alone:   blocks, flush, superblock, flush
//! with others: blocks, flush, superblock, │ blocks of the next, flush │ superblock of the next, …
//! ```
//! A superblock that was written becomes durable with any flush that begins afterwards. So who finds others waiting
//! leaves that flush to the next one, who flushes its blocks anyway.
//!
//! Points are numbers that only grow, also from one transaction to the next.
//!
//! Each waiter is woken by name: with sixty writers, waking all at each step costs more than the
//! writes.
//!
//! # Invariants
//! 1. One at a time leads, and somebody does while anybody waits: who ends hands over.
//! 2. Who returns without an error: a leader that began after its point was logged has written it, and a flush that
//!    began after that has succeeded.
//! 3. A leader that fails fails for itself; who waited tries again.

use super::sync_primitives::{Condvar, Mutex, order};
use std::sync::Arc;

#[derive(Default)]
struct GroupState {
    /// Everything logged up to here is durable.
    durable: u64,
    /// Everything logged up to here is what the superblock leads to, durable or not.
    written: u64,
    leading: bool,
    /// All who wait, in the order in which they came.
    waiting: Vec<Arc<Waiter>>,
}

impl GroupState {
    /// Whether somebody waits for more than `written`, who will lead if nobody else does.
    fn others_wait(&self, written: u64) -> bool {
        self.waiting.iter().any(|waiter| waiter.point > written)
    }

    /// Takes out who waits for nothing more.
    fn take_durable(&mut self) -> Vec<Arc<Waiter>> {
        let durable = self.durable;
        self.waiting.extract_if(.., |waiter| waiter.point <= durable).collect()
    }

    /// The next leader: the first waiter whose point is not written yet; it flushes for those whose points are.
    fn take_next_leader(&mut self) -> Option<Arc<Waiter>> {
        let unwritten = self.waiting.iter().position(|waiter| waiter.point > self.written);
        let next = unwritten.unwrap_or(0);
        (next < self.waiting.len()).then(|| self.waiting.remove(next))
    }
}

/// Somebody who waits for its point to be durable.
struct Waiter {
    point: u64,
    told: Mutex<Option<Told>, { order::LOG_WAITER }>,
    changed: Condvar,
}

/// The reason why a wait ends.
#[derive(Clone, Copy)]
enum Told {
    Durable,
    Leads,
}

impl Waiter {
    fn new(point: u64) -> Arc<Waiter> {
        Arc::new(Waiter { point, told: Mutex::default(), changed: Condvar::default() })
    }

    fn tell(&self, told: Told) {
        *self.told.lock() = Some(told);
        self.changed.notify_one();
    }

    fn wait(&self) -> Told {
        let mut told = self.told.lock();
        loop {
            match *told {
                Some(told) => return told,
                None => self.changed.wait(&mut told),
            }
        }
    }
}

/// The progress of a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// Everything up to here is durable.
    Durable(u64),
    /// Everything up to here is so when somebody flushes.
    Written(u64),
}

/// The right, and the duty, to write for all who wait. Dropped without [`end`](Self::end), by an error or a panic, it
/// goes to the next one who waits.
#[must_use]
pub struct Leader<'a> {
    group: &'a Group,
    point: u64,
}

/// The state that a thread finds when it joins.
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
        let mut state = self.group.state.lock();
        let done = state.take_durable();
        let next = state.take_next_leader();
        state.leading = next.is_some();
        drop(state);
        next.inspect(|next| next.tell(Told::Leads));
        done.iter().for_each(|waiter| waiter.tell(Told::Durable));
    }
}

/// See the [module](self).
#[derive(Default)]
pub struct Group {
    state: Mutex<GroupState, { order::LOG_GROUP }>,
}

impl Group {
    /// Waits until everything up to `point` is durable, or nobody else writes it. Who then leads writes what is logged
    /// by then, and joins again.
    pub fn join(&self, point: u64) -> Joined<'_> {
        let mut state = self.state.lock();
        if state.durable >= point {
            return Joined::Durable;
        }
        if !state.leading {
            state.leading = true;
            return Joined::Leads(Leader { group: self, point });
        }
        let waiter = Waiter::new(point);
        state.waiting.push(Arc::clone(&waiter));
        drop(state);
        match waiter.wait() {
            Told::Durable => Joined::Durable,
            Told::Leads => Joined::Leads(Leader { group: self, point }),
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
        state.durable = state.durable.max(written);
        let done = state.take_durable();
        drop(state);
        done.iter().for_each(|waiter| waiter.tell(Told::Durable));
    }

    /// The point up to which everything is durable.
    pub fn durable(&self) -> u64 {
        self.state.lock().durable
    }
}
