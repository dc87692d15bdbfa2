//! Support that the tests share: a model filesystem, workloads, fingerprints, kernel mounts, images.
//!
//! It may use every other crate, and no other crate uses it except for tests.

#![forbid(unsafe_code)]

pub mod editor;
pub mod engine;
pub mod fingerprint;
pub mod fsx;
pub mod fsync_scenarios;
pub mod fuzz;
pub mod images;
pub mod judge;
pub mod kernel;
pub mod library;
pub mod memory;
pub mod model;
pub mod mounted;
pub mod mutants;
pub mod names;
pub mod object_server;
pub mod operation;
pub mod progress;
pub mod promise;
pub mod public_functions;
pub mod real_server;
pub mod requirement;
pub mod rng;
pub mod scratch;
pub mod script;
pub mod serve;
pub mod source_tree;
pub mod transport;
#[allow(missing_docs)]
pub mod tree_model;
pub mod watchdog;
pub mod workload;
mod xattrs;
