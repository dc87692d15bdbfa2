//! Random operations from a seed, run on a target and on the model side by side.
//!
//! Invariants: (1) the operations follow from the seed and the shape alone, never from the target's answers; (2) the
//! first operation on which target and model disagree ends the run, with the seed and the operations before it.

mod generator;
mod shrink;

pub use generator::{Generator, Shape};
pub use shrink::shrink;

use crate::model::ModelFs;
use crate::operation::{Op, OperationTarget, Outcome, agree};
use std::collections::VecDeque;
use std::fmt;

/// A disagreement between target and model.
pub struct Disagreement {
    /// The seed of the operations.
    pub seed: u64,
    /// The number of operations that agreed before.
    pub agreed: usize,
    /// The operation.
    pub op: Op,
    /// The model's outcome.
    pub expected: Outcome,
    /// The target's outcome.
    pub actual: Outcome,
    /// The operations just before, oldest first.
    pub before: Vec<Op>,
}

impl fmt::Debug for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, after {} operations:", self.seed, self.agreed)?;
        self.before.iter().try_for_each(|op| writeln!(f, "    {op:?}"))?;
        writeln!(f, "  > {:?}", self.op)?;
        writeln!(f, "    expected {:?}", self.expected)?;
        write!(f, "    actual   {:?}", self.actual)
    }
}

/// The number of operations that are shown before a disagreement.
const SHOWN: usize = 12;

/// Runs `count` operations on both sides.
pub fn run(
    generator: &mut Generator,
    count: usize,
    model: &mut ModelFs,
    target: &mut dyn OperationTarget,
) -> Result<(), Box<Disagreement>> {
    let mut before = VecDeque::new();
    for agreed in 0..count {
        let op = generator.next_op(model);
        step(&op, model, target).map_err(|(expected, actual)| {
            let before = before.iter().cloned().collect();
            Box::new(Disagreement { seed: generator.seed(), agreed, op: op.clone(), expected, actual, before })
        })?;
        if before.len() == SHOWN {
            before.pop_front();
        }
        before.push_back(op);
    }
    Ok(())
}

/// Runs one operation on both sides; the outcomes when they differ.
pub fn step(op: &Op, model: &mut ModelFs, target: &mut dyn OperationTarget) -> Result<(), (Outcome, Outcome)> {
    let expected = model.apply(op);
    let actual = target.apply(op);
    if agree(&expected, &actual) { Ok(()) } else { Err((expected, actual)) }
}

#[cfg(test)]
mod tests;
