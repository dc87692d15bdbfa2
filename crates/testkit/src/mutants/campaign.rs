//! Many mutants, one after the other, and what came of them.

use super::{Outcome, run};
use crate::memory;
use crate::rng::Rng;
use crate::watchdog::Watchdog;
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// One image may take so long, on a machine that does other things too.
const PATIENCE_SECS: u64 = 120;
/// The number of failures that are collected.
const MOST_FAILURES: usize = 20;
/// One image may make the process so much larger.
pub const MOST_MEMORY_KIB: u64 = 96 << 10;

/// The result of many runs.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Runs.
    pub images: u64,
    /// Images that the checker found clean.
    pub clean: u64,
    /// Images that were opened for writing.
    pub opened: u64,
    /// Images in which something spoke of damage.
    pub noticed: u64,
    /// Calls of each operation.
    pub operations: BTreeMap<&'static str, u64>,
    /// Changes in each tree and structure.
    pub structures: BTreeMap<String, u64>,
    /// The most calls of the devices in a run.
    pub calls: u64,
    /// The most bytes written in a run.
    pub written: u64,
    /// The most memory that a run took, in KiB.
    pub memory_kib: u64,
    /// The longest run, and its seed.
    pub longest: (Duration, u64),
    /// The failures: seed, changes, sentence.
    pub failures: Vec<String>,
}

impl Tally {
    fn add(&mut self, outcome: &Outcome) {
        self.images += 1;
        self.clean += u64::from(outcome.is_clean);
        self.opened += u64::from(outcome.is_opened);
        self.noticed += u64::from(!outcome.noticed.is_empty());
        outcome.operations.iter().for_each(|name| *self.operations.entry(name).or_default() += 1);
        for change in &outcome.changes {
            let tree = change.tree.map_or("-".to_owned(), |tree| tree.0.min(256).to_string());
            *self.structures.entry(format!("{tree} {}", change.structure)).or_default() += 1;
        }
        (self.calls, self.written) = (self.calls.max(outcome.calls), self.written.max(outcome.written));
    }

    /// The figures in a few lines.
    pub fn summary(&self) -> String {
        format!(
            "{} images: {} clean in spite of their changes, {} opened for writing, damage noticed in {}; {} calls of \
             {} operations; changes in {} kinds of places; at most {} device calls, {} KiB written, {} KiB of memory, \
             {:?} (seed {})",
            self.images,
            self.clean,
            self.opened,
            self.noticed,
            self.operations.values().sum::<u64>(),
            self.operations.len(),
            self.structures.len(),
            self.calls,
            self.written >> 10,
            self.memory_kib,
            self.longest.0,
            self.longest.1
        )
    }
}

/// Runs these seeds until the time is over, and collects what goes wrong; `tell` hears of it at once.
pub fn campaign(seeds: Range<u64>, limit: Option<Duration>, tell: &mut dyn FnMut(&str)) -> Tally {
    let (begun, mut tally) = (Instant::now(), Tally::default());
    // Not part of any run.
    super::shapes();
    for seed in seeds {
        if limit.is_some_and(|limit| begun.elapsed() > limit) || tally.failures.len() >= MOST_FAILURES {
            break;
        }
        if let Some(failure) = one(seed, &mut tally) {
            tell(&failure);
            tally.failures.push(failure);
        }
    }
    tally
}

fn one(seed: u64, tally: &mut Tally) -> Option<String> {
    let watchdog = Watchdog::new("mutants", PATIENCE_SECS);
    watchdog.note(&format!("seed {seed}"));
    let (began, measured) = (Instant::now(), memory::start_measuring());
    let mut outcome = Outcome::default();
    let ran = catch_unwind(AssertUnwindSafe(|| run(&mut Rng::new(seed), &mut outcome)));
    let taken = measured.taken_kib();
    tally.add(&outcome);
    tally.longest = tally.longest.max((began.elapsed(), seed));
    tally.memory_kib = tally.memory_kib.max(taken);
    let sentence = match ran {
        Err(_) => Some("a panic".to_owned()),
        Ok(Err(sentence)) => Some(sentence),
        Ok(Ok(())) if taken > MOST_MEMORY_KIB => Some(format!("{taken} KiB of memory")),
        Ok(Ok(())) => None,
    };
    sentence.map(|sentence| described(seed, &outcome, &sentence))
}

/// With everything that is needed to understand it.
fn described(seed: u64, outcome: &Outcome, sentence: &str) -> String {
    let changes: Vec<String> = outcome
        .changes
        .iter()
        .map(|change| {
            format!("    tree {}: {}", change.tree.map_or("-".to_owned(), |tree| tree.0.to_string()), change.text)
        })
        .collect();
    let operations = outcome.operations.join(" ");
    format!("seed {seed}, {}:\n{}\n    {operations}\n    {sentence}", outcome.shape, changes.join("\n"))
}
