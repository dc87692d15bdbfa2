//! Replay of tree logs: of the kernel's, of hostile ones, and of replays that were interrupted.
//!
//! What a log must bring back is known in three ways: trees that were written down when the logs were made, the kernel's
//! own replay of a copy, and what the scenario that made the log promises.

mod corpus;
mod expected;
