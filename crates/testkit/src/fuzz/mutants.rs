//! Mutants whose choices are the input: sound images of which fields lie, worked in. A failed demand is a panic.

use crate::mutants::{Outcome, run as run_mutant};
use crate::rng::Rng;

pub fn seeds() -> Vec<Vec<u8>> {
    let mut rng = Rng::new(1616);
    let one = |rng: &mut Rng| {
        let mut seed = vec![0; 300];
        rng.fill(&mut seed);
        seed
    };
    (0..60).map(|_| one(&mut rng)).collect()
}

pub fn run(input: &[u8]) {
    let mut outcome = Outcome::default();
    if let Err(sentence) = run_mutant(&mut Rng::from_bytes(input), &mut outcome) {
        panic!("{sentence}: {outcome:#?}");
    }
}
