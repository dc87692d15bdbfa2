//! Hashes that are added up: two sides that say the same in any order have the same sum.
//!
//! Sums are not proof against somebody who knows the seed and chooses the content; the seed comes from the caller, who
//! has a source of randomness.

/// Multiplies to 128 bits and folds them: every bit of either operand reaches every bit of the result.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

const FIRST: u64 = 0xa076_1d64_78bd_642f;
const SECOND: u64 = 0xe703_7ed1_a0b4_28db;

/// A hash of numbers.
pub(crate) fn numbers(seed: u64, numbers: &[u64]) -> u64 {
    let mixed =
        numbers.iter().fold(seed ^ FIRST, |state, number| fold(state ^ *number, SECOND ^ state.rotate_left(32)));
    fold(mixed ^ FIRST, mixed.rotate_left(29) ^ SECOND)
}

/// A hash of bytes, with a hash of what goes before them.
pub(crate) fn bytes(seed: u64, bytes: &[u8]) -> u64 {
    let mut state = seed ^ FIRST ^ (bytes.len() as u64).wrapping_mul(SECOND);
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        state = fold(state ^ u64::from_le_bytes(word), SECOND ^ state.rotate_left(32));
    }
    fold(state ^ FIRST, state.rotate_left(29) ^ SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn neighbours_and_orders_are_told_apart() {
        let mut seen = HashSet::new();
        for a in 0..40u64 {
            for b in 0..40u64 {
                assert!(seen.insert(numbers(1, &[a, b])) && seen.insert(numbers(2, &[a, b])));
                assert!(seen.insert(bytes(a, &b.to_le_bytes())), "{a} {b}");
            }
        }
        assert_ne!(bytes(0, b"a"), bytes(0, b"a\0"));
        assert_ne!(numbers(0, &[1]), numbers(0, &[1, 0]));
    }
}
