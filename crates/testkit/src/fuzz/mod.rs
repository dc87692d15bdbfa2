//! Fuzz targets: functions of bytes that must never panic or hang, whatever the bytes are.
//!
//! The same functions are called by `cargo fuzz` (folder `fuzz/`), which looks for new paths through the code, and by
//! [`smoke`], which needs no tools: it changes known inputs at random, always in the same way for the same seed.
//!
//! Invariant: a target's run depends on its bytes alone.

mod filesystem;
mod image;
mod items;
mod mutants;
mod mutation;
mod nodes;
mod superblock;
mod trees;

pub use mutation::Mutator;

use crate::rng::Rng;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct FuzzTarget {
    /// As `cargo fuzz run` calls it.
    pub name: &'static str,
    /// The function that is called.
    pub run: fn(&[u8]),
    /// Inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Runs of the smoke test.
    pub smoke_runs: u32,
}

/// All targets.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "superblock", run: superblock::run, seeds: superblock::seeds, smoke_runs: 20_000 },
    FuzzTarget { name: "items", run: items::run, seeds: items::seeds, smoke_runs: 20_000 },
    FuzzTarget { name: "nodes", run: nodes::run, seeds: nodes::seeds, smoke_runs: 6_000 },
    FuzzTarget { name: "image", run: image::run, seeds: image::seeds, smoke_runs: 600 },
    FuzzTarget { name: "mutants", run: mutants::run, seeds: mutants::seeds, smoke_runs: 300 },
    FuzzTarget { name: "trees", run: trees::run, seeds: trees::seeds, smoke_runs: 1_500 },
    FuzzTarget { name: "filesystem", run: filesystem::run, seeds: filesystem::seeds, smoke_runs: 150 },
];

/// The target of this name.
pub fn target(name: &str) -> Option<&'static FuzzTarget> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Runs a target on its seeds and on changed ones. A failure says which input it was.
pub fn smoke(target: &FuzzTarget, seed: u64, runs: u32) {
    let seeds = (target.seeds)();
    let mut mutator = Mutator::new(Rng::new(seed), seeds.clone());
    for number in 0..runs as usize + seeds.len() {
        let input = seeds.get(number).cloned().unwrap_or_else(|| mutator.next_input());
        if catch_unwind(AssertUnwindSafe(|| (target.run)(&input))).is_err() {
            panic!("{}: seed {seed}, run {number}, input {}", target.name, hex(&input));
        }
    }
}

/// As text for a test that keeps an input.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of such a text.
pub fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Reads values from an input; what lies behind its end is zero.
#[derive(Clone, Debug)]
struct Tape<'a> {
    rest: &'a [u8],
}

impl<'a> Tape<'a> {
    fn new(input: &'a [u8]) -> Tape<'a> {
        Tape { rest: input }
    }

    fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    fn number<const LEN: usize>(&mut self) -> u64 {
        let mut bytes = [0; 8];
        let taken = self.take(LEN);
        bytes[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(bytes)
    }

    fn byte(&mut self) -> u8 {
        self.number::<1>() as u8
    }
}
