//! A small generator for faults that a seed chooses; the same seed gives the same sequence for ever.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

/// SplitMix64 of the crate `rand_xoshiro`, as in the tests.
#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Random {
        Random(SplitMix64::from_seed(seed.to_le_bytes()))
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True `per_million` times in a million.
    pub fn happens(&mut self, per_million: u32) -> bool {
        per_million != 0 && self.below(1_000_000) < u64::from(per_million)
    }
}
