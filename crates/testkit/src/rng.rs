//! The random source of all tests: the same seed gives the same numbers on every machine, forever.
//!
//! SplitMix64 of the crate `rand_xoshiro`, whose sequence a test pins, because seeds are written down in tests and
//! documents. Good enough to choose operations and to fill files; not for keys.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};
use std::sync::Arc;

/// The step of the generator's state.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The state of the source.
#[derive(Clone, Debug)]
pub struct Rng {
    state: SplitMix64,
    /// Bytes that numbers follow from, in place of the state, and how many were used.
    tape: Option<(Arc<[u8]>, usize)>,
}

impl Rng {
    /// A source whose numbers follow from `seed` alone.
    pub fn new(seed: u64) -> Rng {
        Rng { state: SplitMix64::from_seed(seed.to_le_bytes()), tape: None }
    }

    /// A source whose numbers follow from two bytes each, and from their place behind the end: so a fuzzer that changes
    /// one byte changes one choice.
    pub fn from_bytes(bytes: &[u8]) -> Rng {
        Rng { tape: Some((bytes.into(), 0)), ..Rng::new(0) }
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        let own = self.state.next_u64();
        if let Some((tape, used)) = &mut self.tape
            && let Some(pair) = tape.get(*used..*used + 2)
        {
            *used += 2;
            // The first number of a source whose state is this many steps of the generator further.
            let steps = u64::from(u16::from_le_bytes([pair[0], pair[1]]));
            return SplitMix64::from_seed(steps.wrapping_mul(STEP).to_le_bytes()).next_u64();
        }
        own
    }

    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "nothing is below zero");
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// An index into a collection of `len` things, which is not empty.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True in `percent` of a hundred cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `choices`, which are not empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.index(choices.len())]
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.bits().to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_fixed() {
        let mut rng = Rng::new(1234567);
        let first: Vec<u64> = (0..3).map(|_| rng.bits()).collect();
        assert_eq!(first, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn below_stays_below() {
        let mut rng = Rng::new(7);
        assert!((1..2000u64).all(|end| rng.below(end) < end));
    }
}
