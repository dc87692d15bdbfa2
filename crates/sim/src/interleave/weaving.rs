//! Which programs are run, with which decisions: all pairs of operations with a bound of interruptions, and random
//! triples.

use super::attempt::{Judged, Programs, attempt};
use super::bounded::{Schedule, explore};
use super::operations::{Operations, SEQUENCES};
use super::scene::Base;
use super::turns::Decide;
use butterfs_fs::options::Canary;
use butterfs_testkit::rng::Rng;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The configuration of a run.
#[derive(Clone, Debug)]
pub struct Weaving {
    /// All pairs with at most so many interruptions; none for random triples.
    pub pairs: Option<usize>,
    /// This part of so many.
    pub shard: (u64, u64),
    /// The first pair, or seed.
    pub from: u64,
    /// The largest number of pairs or seeds.
    pub most: u64,
    /// None is begun after this moment.
    pub until: Option<Instant>,
    /// Pairs or seeds at one time.
    pub threads: usize,
    /// A bug on purpose.
    pub canary: Option<Canary>,
}

/// The number of the pair of these programs, each the names of its operations.
pub fn pair_of(first: &[&str], second: &[&str]) -> u64 {
    let operations = Operations::new(&Base::new(None));
    let programs = programs(&operations);
    let number_of = |names: &[&str]| {
        let program: Vec<usize> = names.iter().map(|name| operations.number(name)).collect();
        programs.iter().position(|known| *known == program).expect("one of the programs")
    };
    let (first, second) = (number_of(first).min(number_of(second)), number_of(first).max(number_of(second)));
    (0..).find(|unit| pair(*unit, programs.len()) == (first, second)).expect("a pair of programs")
}

/// The result.
#[derive(Clone, Debug, Default)]
pub struct Woven {
    /// Pairs that there are; 0 for triples.
    pub units: u64,
    /// Pairs or seeds that were run.
    pub done: u64,
    /// Schedules that were run.
    pub runs: u64,
    /// Crash states that were checked.
    pub states: u64,
    /// The failures, each with the command to repeat it.
    pub failures: Vec<String>,
}

/// The number of failures after which it stops.
const FAILURES_MAX: usize = 8;

/// A random walk: the turn goes to another thread with a chance that the seed chooses.
struct Walk {
    rng: Rng,
    one_in: u64,
}

impl Walk {
    fn new(seed: u64) -> Walk {
        let mut rng = Rng::new(seed ^ 0x7a1c_e000_0000_0000);
        let one_in = *rng.pick(&[2, 4, 8, 16, 32, 64]);
        Walk { rng, one_in }
    }

    fn any(&mut self, of: u64) -> usize {
        let number = self.rng.below(u64::from(of.count_ones()));
        (0..64).filter(|bit| of & 1 << bit != 0).nth(number as usize).expect("there are so many")
    }
}

impl Decide for Walk {
    fn next(&mut self, _at: usize, current: Option<usize>, ready: u64) -> usize {
        match current {
            Some(current) if ready == 1 << current || self.rng.below(self.one_in) != 0 => current,
            Some(current) => self.any(ready & !(1 << current)),
            None => self.any(ready),
        }
    }
}

/// The programs of a seed: three threads, each with one or two operations.
fn programs_of(seed: u64, operations: usize) -> Programs {
    let mut rng = Rng::new(seed ^ 0x0b7a_1000_0000_0000);
    (0..3).map(|_| (0..1 + rng.index(2)).map(|_| rng.index(operations)).collect()).collect()
}

/// The programs of which all pairs are run: each operation alone, and some sequences.
fn programs(operations: &Operations) -> Programs {
    let sequence = |names: &&[&str]| names.iter().map(|name| operations.number(name)).collect();
    (0..operations.list.len()).map(|number| vec![number]).chain(SEQUENCES.iter().map(sequence)).collect()
}

/// The pair with this number.
fn pair(unit: u64, operations: usize) -> (usize, usize) {
    let mut unit = unit as usize;
    for first in 0..operations {
        let with = operations - first;
        if unit < with {
            return (first, first + unit);
        }
        unit -= with;
    }
    unreachable!("there are not so many pairs")
}

impl Weaving {
    /// Runs; `progress` is told after each pair, or seed.
    pub fn run(&self, progress: impl Fn(&Woven) + Sync) -> Woven {
        let base = Base::new(self.canary);
        let operations = Arc::new(Operations::new(&base));
        let programs = programs(&operations);
        let count = programs.len() as u64;
        let units = if self.pairs.is_some() { count * (count + 1) / 2 } else { u64::MAX };
        let end = self.from.saturating_add(self.most).min(units);
        let woven = Mutex::new(Woven { units: if self.pairs.is_some() { units } else { 0 }, ..Woven::default() });
        let (next, enough) = (AtomicU64::new(self.from), AtomicBool::new(false));
        let work = || {
            while !enough.load(Ordering::Relaxed) && self.until.is_none_or(|until| Instant::now() < until) {
                let unit = next.fetch_add(1, Ordering::Relaxed);
                if unit >= end {
                    return;
                }
                if unit % self.shard.1 != self.shard.0 {
                    continue;
                }
                let one = self.unit(&base, &operations, &programs, unit);
                let mut woven = woven.lock().unwrap_or_else(PoisonError::into_inner);
                woven.done += 1;
                woven.runs += one.runs;
                woven.states += one.states;
                woven.failures.extend(one.failures);
                enough.fetch_or(woven.failures.len() >= FAILURES_MAX, Ordering::Relaxed);
                progress(&woven);
            }
        };
        std::thread::scope(|scope| {
            (1..self.threads).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        woven.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn unit(&self, base: &Base, operations: &Arc<Operations>, single: &[Vec<usize>], unit: u64) -> Woven {
        let (mut one, mut judged) = (Woven::default(), Judged::new());
        let mut attempt = |programs: &Programs, how: &str, decide: Box<dyn Decide>| {
            let attempt = attempt(base, operations, programs, decide, &mut judged);
            one.runs += 1;
            one.states += attempt.states;
            if let Err(what) = attempt.verdict {
                let names = |program: &Vec<usize>| -> Vec<_> {
                    program.iter().map(|number| operations.list[*number].name).collect()
                };
                let programs: Vec<_> = programs.iter().map(names).collect();
                one.failures.push(format!("--from {unit}, {how}, {programs:?}: {what}"));
                return None;
            }
            Some(attempt.trace)
        };
        match self.pairs {
            Some(most) => {
                let (first, second) = pair(unit, single.len());
                let programs = vec![single[first].clone(), single[second].clone()];
                explore(most, &mut |schedule: &Schedule| {
                    attempt(&programs, &format!("{schedule:?}"), Box::new(schedule.clone()))
                });
            }
            None => drop(attempt(&programs_of(unit, operations.list.len()), "random", Box::new(Walk::new(unit)))),
        }
        one
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn pairs_are_all_pairs_once() {
        let all: BTreeSet<_> = (0..15).map(|unit| pair(unit, 5)).collect();
        assert!(all.len() == 15 && all.iter().all(|(first, second)| first <= second && *second < 5));
    }

    #[test]
    fn each_operation_alone_is_the_models() {
        let base = Base::new(None);
        let operations = Arc::new(Operations::new(&base));
        let mut wrong = Vec::new();
        for number in 0..operations.list.len() {
            let decide = Box::new(Schedule::default());
            let attempt = attempt(&base, &operations, &vec![vec![number]], decide, &mut Judged::new());
            wrong.extend(attempt.verdict.err());
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
