//! A scheduler: threads of which one runs at a time, from one access to something shared to the next.
//!
//! # Invariants
//! 1. What runs when follows from the decisions alone; every access is in the trace, in the order in which they
//!    happened.
//! 2. A run ends: when all threads have, when none can go on, or after too many accesses. Threads of a run that did not
//!    end well stay where they are for good, because nothing could undo what they hold.

use butterfs_sync::{Access, Object, Scheduler, under};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// More accesses than any good run has.
const ACCESSES_MAX: usize = 200_000;

/// Something in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// An access; another thread could have had the turn instead where a decision was made.
    Access(Access),
    /// Something was released or notified. Nobody could take the turn here.
    Changed(Object),
    /// An object was waited for, and is tried again.
    Again(Object),
}

/// One entry of a trace.
#[derive(Clone, Copy, Debug)]
pub struct TraceEntry {
    /// The thread.
    pub thread: usize,
    /// The event.
    pub what: What,
    /// The threads that could have had this turn instead, one bit each, when that was decided just here.
    pub others: u64,
}

/// Why a run is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All threads came to their end.
    Well,
    /// Nobody can go on: who waits for what, at which entry of the trace.
    Deadlock(String),
    /// It does not end.
    TooLong,
    /// A thread panicked.
    Panic(usize, String),
}

/// The result of a run.
#[derive(Debug)]
pub struct Run {
    /// Why it is over.
    pub ended: Ended,
    /// The events.
    pub trace: Vec<TraceEntry>,
}

/// Decides who has the next turn.
pub trait Decide: Send {
    /// Somebody of `ready`, a bit for each thread. `current` had the last turn and can go on; none when it cannot. `at`
    /// is the entry of the trace that is decided.
    fn next(&mut self, at: usize, current: Option<usize>, ready: u64) -> usize;
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    Ready,
    Waiting { object: Object, may_time_out: bool },
    Over,
}

struct SchedulerState {
    running: usize,
    status: Vec<Status>,
    timed_out: Vec<bool>,
    /// Threads that have come to their first access.
    begun: Vec<bool>,
    trace: Vec<TraceEntry>,
    decide: Box<dyn Decide>,
    ended: Option<Ended>,
}

struct Shared {
    state: Mutex<SchedulerState>,
    wake: Vec<Condvar>,
    over: Condvar,
}

/// One thread's way to the scheduler.
struct Seat {
    shared: Arc<Shared>,
    thread: usize,
}

/// A thread's work.
pub type Work = Box<dyn FnOnce() + Send>;

/// Runs threads until all have come to their end, or nothing goes on.
pub fn run(works: Vec<Work>, decide: Box<dyn Decide>) -> Run {
    let count = works.len();
    let state = SchedulerState {
        running: usize::MAX,
        status: vec![Status::Ready; count],
        timed_out: vec![false; count],
        begun: vec![false; count],
        trace: Vec::new(),
        decide,
        ended: None,
    };
    let wake = (0..count).map(|_| Condvar::new()).collect();
    let shared = Arc::new(Shared { state: Mutex::new(state), wake, over: Condvar::new() });
    for (thread, work) in works.into_iter().enumerate() {
        let seat = Arc::new(Seat { shared: Arc::clone(&shared), thread });
        std::thread::spawn(move || seat.live(work));
    }
    let mut state = shared.state.lock();
    state.pass_on(&shared, None);
    while state.ended.is_none() {
        shared.over.wait(&mut state);
    }
    Run { ended: state.ended.clone().expect("it has ended"), trace: std::mem::take(&mut state.trace) }
}

impl Seat {
    fn live(self: Arc<Seat>, work: Work) {
        drop(self.await_turn(self.shared.state.lock()));
        let scheduler: Arc<dyn Scheduler> = Arc::<Seat>::clone(&self);
        let result = catch_unwind(AssertUnwindSafe(|| under(scheduler, work)));
        let mut state = self.shared.state.lock();
        state.status[self.thread] = Status::Over;
        if let Err(panic) = result {
            state.end(&self.shared, Ended::Panic(self.thread, crate::run::words(&*panic)));
        } else if state.status.iter().all(|status| *status == Status::Over) {
            state.end(&self.shared, Ended::Well);
        } else {
            state.pass_on(&self.shared, None);
        }
    }

    /// Returns when this thread has the turn.
    fn await_turn<'a>(&self, mut state: MutexGuard<'a, SchedulerState>) -> MutexGuard<'a, SchedulerState> {
        while state.running != self.thread || state.ended.is_some() {
            self.shared.wake[self.thread].wait(&mut state);
        }
        state
    }
}

impl SchedulerState {
    fn ready(&self) -> u64 {
        let bits = self.status.iter().enumerate().filter(|(_, status)| **status == Status::Ready);
        bits.fold(0, |bits, (thread, _)| bits | 1 << thread)
    }

    fn end(&mut self, shared: &Shared, why: Ended) {
        self.ended.get_or_insert(why);
        shared.over.notify_all();
    }

    /// Gives the turn to somebody. `current` has it and can go on.
    fn pass_on(&mut self, shared: &Shared, current: Option<usize>) {
        if self.ready() == 0 {
            // Time passes when everybody waits.
            let late = |status: &Status| matches!(status, Status::Waiting { may_time_out: true, .. });
            let Some(thread) = self.status.iter().position(late) else {
                let waits = format!("{:?} after {} accesses", self.status, self.trace.len());
                return self.end(shared, Ended::Deadlock(waits));
            };
            (self.status[thread], self.timed_out[thread]) = (Status::Ready, true);
        }
        let ready = self.ready();
        let next = self.decide.next(self.trace.len(), current, ready);
        assert!(ready & 1 << next != 0, "thread {next} cannot have the turn");
        self.running = next;
        if current != Some(next) {
            shared.wake[next].notify_all();
        }
    }

    fn note(&mut self, thread: usize, what: What, others: u64) {
        self.trace.push(TraceEntry { thread, what, others });
    }
}

impl Scheduler for Seat {
    fn reach(&self, access: Access) {
        let mut state = self.shared.state.lock();
        let at = state.trace.len();
        if at >= ACCESSES_MAX {
            state.end(&self.shared, Ended::TooLong);
        }
        let mut others = 0;
        // Who has just begun was given the turn for this access.
        if std::mem::replace(&mut state.begun[self.thread], true) {
            others = state.ready() & !(1 << self.thread);
            state.pass_on(&self.shared, Some(self.thread));
            state = self.await_turn(state);
            if state.trace.len() != at {
                others = 0;
            }
        }
        state.note(self.thread, What::Access(access), others);
    }

    fn wait(&self, object: Object, may_time_out: bool) -> bool {
        let mut state = self.shared.state.lock();
        state.status[self.thread] = Status::Waiting { object, may_time_out };
        state.timed_out[self.thread] = false;
        state.pass_on(&self.shared, None);
        let mut state = self.await_turn(state);
        state.note(self.thread, What::Again(object), 0);
        state.timed_out[self.thread]
    }

    fn changed(&self, object: Object) {
        let mut state = self.shared.state.lock();
        state.note(self.thread, What::Changed(object), 0);
        for status in &mut state.status {
            if matches!(status, Status::Waiting { object: awaited, .. } if *awaited == object) {
                *status = Status::Ready;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives the turn away at these entries of the trace, else to nobody who does not need it.
    struct At(Vec<usize>);

    impl Decide for At {
        fn next(&mut self, at: usize, current: Option<usize>, ready: u64) -> usize {
            let other = |without: u64| (ready & !without).trailing_zeros() as usize;
            match current {
                Some(current) if self.0.contains(&at) && ready & !(1 << current) != 0 => other(1 << current),
                Some(current) => current,
                None => other(0),
            }
        }
    }

    fn adding(number: &Arc<butterfs_sync::Mutex<u32>>) -> Work {
        let number = Arc::clone(number);
        Box::new(move || {
            let read = *number.lock();
            *number.lock() = read + 1;
        })
    }

    #[test]
    fn an_update_is_lost_only_when_it_is_interrupted() {
        for (at, sum) in [(vec![], 2), (vec![2], 1)] {
            let number = Arc::new(butterfs_sync::Mutex::<_>::new(0));
            let ran = run(vec![adding(&number), adding(&number)], Box::new(At(at)));
            assert_eq!(ran.ended, Ended::Well);
            assert_eq!(*number.lock(), sum, "{:?}", ran.trace);
        }
    }

    #[test]
    fn a_deadlock_ends_the_run() {
        let locks = Arc::new((butterfs_sync::Mutex::<_>::new(()), butterfs_sync::Mutex::<_>::new(())));
        let both = |turned: bool| -> Work {
            let locks = Arc::clone(&locks);
            Box::new(move || {
                let (first, second) = if turned { (&locks.1, &locks.0) } else { (&locks.0, &locks.1) };
                let _first = first.lock();
                let _second = second.lock();
            })
        };
        let ran = run(vec![both(false), both(true)], Box::new(At(vec![1])));
        assert!(matches!(ran.ended, Ended::Deadlock(_)), "{ran:?}");
        let locks = Arc::new((butterfs_sync::Mutex::<_>::new(()), butterfs_sync::Mutex::<_>::new(())));
        let in_turn = move || drop((locks.0.lock(), locks.1.lock()));
        let ran = run(vec![Box::new(in_turn.clone()), Box::new(in_turn)], Box::new(At(vec![1])));
        assert_eq!(ran.ended, Ended::Well);
    }

    #[test]
    fn time_passes_when_everybody_waits() {
        let (mutex, condvar) = (butterfs_sync::Mutex::<_>::new(()), butterfs_sync::Condvar::new());
        let waiting: Work = Box::new(move || {
            assert!(condvar.wait_for(&mut mutex.lock(), std::time::Duration::from_secs(3600)));
        });
        assert_eq!(run(vec![waiting], Box::new(At(vec![]))).ended, Ended::Well);
    }
}
