//! Operations inside each other: a scheduler runs threads in turns, from one lock, condition or device request to the
//! next, and what comes of it is compared with what some order of the operations allows.
//!
//! # What is asked of a run
//! 1. It ends: no deadlock, no panic.
//! 2. Some order of the operations that keeps what was over before something else began gives the same answers and
//!    shows the same names, attributes and contents. Each operation on its own is the model's.
//! 3. Cleaned and closed, the disk is clean for the checker.
//! 4. So is each state that a crash leaves at any moment, and it shows what that order promised and allows.
//!
//! # Invariants
//! 1. The same programs and the same decisions are the same run.

pub mod attempt;
pub mod bounded;
pub mod device;
pub mod operations;
pub mod orders;
pub mod scene;
pub mod turns;
pub mod weaving;
