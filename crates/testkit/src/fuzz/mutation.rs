//! Changes inputs at random: bits, bytes, numbers at the edges, pieces left out, doubled or taken from another input.

use crate::rng::Rng;

/// Numbers at which code has its edges.
const EDGES: &[u64] =
    &[0, 1, 2, 7, 8, 127, 128, 255, 256, 4095, 4096, 65535, 1 << 20, 1 << 31, 1 << 32, 1 << 48, 1 << 63];

/// The longest input that is made.
const LONGEST: usize = 80 << 10;

/// Makes new inputs from known ones.
#[derive(Debug)]
pub struct Mutator {
    rng: Rng,
    seeds: Vec<Vec<u8>>,
}

impl Mutator {
    /// From these inputs; there must be one.
    pub fn new(rng: Rng, seeds: Vec<Vec<u8>>) -> Mutator {
        assert!(!seeds.is_empty(), "a target has an input to start from");
        Mutator { rng, seeds }
    }

    /// The next input.
    pub fn next_input(&mut self) -> Vec<u8> {
        let mut input = self.rng.pick(&self.seeds).clone();
        for _ in 0..1 + self.rng.below(6) {
            self.change(&mut input);
        }
        input.truncate(LONGEST);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let rng = &mut self.rng;
        if input.is_empty() {
            input.push(rng.bits() as u8);
        }
        let at = rng.index(input.len());
        match rng.below(10) {
            0..=2 => input[at] ^= 1 << rng.below(8),
            3 | 4 => input[at] = rng.bits() as u8,
            5 | 6 => {
                let mut value = *rng.pick(EDGES);
                if rng.chance(30) {
                    value = value.wrapping_neg();
                }
                let len = (1 << rng.below(4)).min(input.len() - at);
                input[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
            }
            7 => {
                let end = (at + 1 + rng.index(16)).min(input.len());
                input.drain(at..end);
            }
            8 => {
                let end = (at + 1 + rng.index(64)).min(input.len());
                let piece = input[at..end].to_vec();
                let to = rng.index(input.len() + 1);
                input.splice(to..to, piece);
            }
            _ => {
                let other = rng.pick(&self.seeds).clone();
                if !other.is_empty() {
                    let from = rng.index(other.len());
                    let end = (from + 1 + rng.index(64)).min(other.len());
                    let to = (at + end - from).min(input.len());
                    input.splice(at..to, other[from..end].iter().copied());
                }
            }
        }
    }
}
