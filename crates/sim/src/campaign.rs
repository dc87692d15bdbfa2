//! Many seeds, on several threads. What comes out does not depend on how many.

use crate::faults::Struck;
use crate::plan::Plan;
use crate::run::{Failure, Manner, Outcome, digest_of, run};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// The configuration of a run.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The seeds.
    pub seeds: Range<u64>,
    /// No seed is begun after this moment.
    pub until: Option<Instant>,
    /// How.
    pub manner: Manner,
    /// Threads.
    pub threads: usize,
}

/// The result.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Seeds that were run.
    pub runs: usize,
    /// Crash states that were checked.
    pub states: usize,
    /// Of them, by the kernel too.
    pub kernel_states: usize,
    /// Of them, with a log to be replayed.
    pub log_states: usize,
    /// Steps.
    pub steps: usize,
    /// Writes and flushes.
    pub events: usize,
    /// Faults that struck.
    pub struck: Struck,
    /// Of all events and outcomes, in order of seeds.
    pub digest: u64,
    /// The failure of the lowest seed that failed.
    pub failure: Option<Box<Failure>>,
}

impl Campaign {
    /// Runs each seed as `plan` makes it; ends after the first failures. `progress` is told after each run.
    pub fn run(&self, plan: impl Fn(u64) -> Plan + Sync, progress: impl Fn(&Totals) + Sync) -> Totals {
        let next = AtomicU64::new(self.seeds.start);
        let failed = AtomicBool::new(false);
        let done: Mutex<(Totals, Vec<(u64, u64)>)> = Mutex::default();
        let work = || {
            while !failed.load(Ordering::Relaxed) && self.until.is_none_or(|until| Instant::now() < until) {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= self.seeds.end {
                    return;
                }
                let outcome = run(&plan(seed), self.manner);
                failed.fetch_or(outcome.failure.is_some(), Ordering::Relaxed);
                let mut done = done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                done.1.push((seed, outcome.digest));
                done.0.add(outcome);
                progress(&done.0);
            }
        };
        std::thread::scope(|scope| {
            (1..self.threads).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        let (mut totals, mut digests) = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        digests.sort_unstable();
        totals.digest = digest_of(&digests.into_iter().map(|(_, digest)| digest).collect::<Vec<_>>());
        totals
    }
}

impl Totals {
    fn add(&mut self, outcome: Outcome) {
        self.runs += 1;
        self.states += outcome.states;
        self.kernel_states += outcome.kernel_states;
        self.log_states += outcome.log_states;
        self.steps += outcome.steps;
        self.events += outcome.events;
        self.struck.add(outcome.struck);
        let seed = |failure: &Option<Box<Failure>>| failure.as_ref().map_or(u64::MAX, |failure| failure.plan.seed);
        if seed(&outcome.failure) < seed(&self.failure) {
            self.failure = outcome.failure;
        }
    }
}
