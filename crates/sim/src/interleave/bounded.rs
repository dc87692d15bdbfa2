//! All schedules of two threads with at most so many interruptions.
//!
//! An interruption gives the turn to the other thread although the first could go on. Where the accesses of the first
//! until the next possible moment have nothing to do with what the second does in its turn, interrupting it then is the
//! same as now, and is left out. (Two accesses have nothing to do with each other when they are of different objects or
//! both shared. Atomics are not seen: see `butterfs_sync`.)

use super::turns::{Decide, TraceEntry, What};
use butterfs_sync::{Access, Object};
use std::collections::BTreeMap;

/// A schedule: who begins, and at which entries of the trace the turn goes to the other thread.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Schedule {
    /// The thread that begins.
    pub first: usize,
    /// Ascending.
    pub interruptions: Vec<usize>,
}

impl Decide for Schedule {
    fn next(&mut self, at: usize, current: Option<usize>, ready: u64) -> usize {
        let Some(current) = current else {
            let first_can = at == 0 && ready & 1 << self.first != 0;
            return if first_can { self.first } else { ready.trailing_zeros() as usize };
        };
        let others = ready & !(1 << current);
        if self.interruptions.contains(&at) && others != 0 { others.trailing_zeros() as usize } else { current }
    }
}

/// Runs every schedule with at most `most` interruptions; `run` returns its trace, or none to end the search.
pub fn explore(most: usize, run: &mut dyn FnMut(&Schedule) -> Option<Vec<TraceEntry>>) {
    for first in 0..2 {
        if go_on(&Schedule { first, interruptions: Vec::new() }, 0, most, run).is_none() {
            return;
        }
    }
}

/// Runs a schedule, and those that interrupt it at `from` or later. Returns the schedule's trace.
fn go_on(
    schedule: &Schedule,
    from: usize,
    more: usize,
    run: &mut dyn FnMut(&Schedule) -> Option<Vec<TraceEntry>>,
) -> Option<Vec<TraceEntry>> {
    let trace = run(schedule)?;
    if more == 0 {
        return Some(trace);
    }
    let mut next = from;
    while let Some(at) = (next..trace.len()).find(|at| trace[*at].others != 0) {
        let interrupted = Schedule {
            first: schedule.first,
            interruptions: schedule.interruptions.iter().copied().chain([at]).collect(),
        };
        let with = go_on(&interrupted, at + 1, more - 1, run)?;
        next = at + independent(&with, at, trace[at].thread) + 1;
        // The first accesses of the next stretch are another matter.
        let end = (at..trace.len()).find(|other| trace[*other].thread != trace[at].thread).unwrap_or(trace.len());
        next = next.min(end.max(at + 1));
    }
    Some(trace)
}

/// The number of entries that `thread` continues with, after the turn of the other one that begins at `at`, that have
/// nothing to do with that turn.
fn independent(trace: &[TraceEntry], at: usize, thread: usize) -> usize {
    let turn = || trace[at..].iter().take_while(|entry| entry.thread != thread);
    // For each object of the turn: whether it was only shared.
    let mut used: BTreeMap<Object, bool> = BTreeMap::new();
    for entry in turn() {
        let (object, shared) = match entry.what {
            What::Access(Access { object, shared }) => (object, shared),
            What::Changed(object) | What::Again(object) => (object, false),
        };
        *used.entry(object).or_insert(true) &= shared;
    }
    // A lock that is only shared is also released, which changes nothing for those who share it.
    for entry in turn() {
        if let What::Access(Access { object, shared: true }) = entry.what {
            let exclusive = turn()
                .any(|other| matches!(other.what, What::Access(access) if access.object == object && !access.shared));
            used.insert(object, !exclusive);
        }
    }
    let own = trace[at + turn().count()..].iter().take_while(|entry| entry.thread == thread);
    own.take_while(|entry| match entry.what {
        What::Access(Access { object, shared }) => used.get(&object).is_none_or(|only_shared| *only_shared && shared),
        What::Changed(object) | What::Again(object) => !used.contains_key(&object) || used[&object],
    })
    .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interleave::turns::{Ended, Work, run};
    use std::sync::Arc;

    /// Two threads that add to one number, each with other locks around it.
    fn works(number: &Arc<butterfs_sync::Mutex<u32>>) -> Vec<Work> {
        let work = |number: &Arc<butterfs_sync::Mutex<u32>>| -> Work {
            let (number, own) = (Arc::clone(number), butterfs_sync::Mutex::<_>::new(()));
            Box::new(move || {
                (0..10).for_each(|_| drop(own.lock()));
                let read = *number.lock();
                (0..10).for_each(|_| drop(own.lock()));
                *number.lock() = read + 1;
            })
        };
        vec![work(number), work(number)]
    }

    #[test]
    fn a_lost_update_is_found_and_what_is_the_same_is_left_out() {
        let (mut runs, mut lost) = (0, 0);
        explore(1, &mut |schedule| {
            let number = Arc::new(butterfs_sync::Mutex::<_>::new(0));
            let ran = run(works(&number), Box::new(schedule.clone()));
            assert_eq!(ran.ended, Ended::Well);
            runs += 1;
            lost += usize::from(*number.lock() == 1);
            Some(ran.trace)
        });
        assert!(lost >= 2 && runs <= 12, "{runs} runs, {lost} lose an update");
    }

    #[test]
    fn more_interruptions_find_more() {
        let runs = |most| {
            let mut runs = 0;
            explore(most, &mut |schedule| {
                runs += 1;
                Some(run(works(&Arc::default()), Box::new(schedule.clone())).trace)
            });
            runs
        };
        assert_eq!((runs(0), runs(1) < runs(2)), (2, true));
    }
}
