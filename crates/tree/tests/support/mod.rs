//! Support that the tests of trees share.

#![allow(dead_code, unused_imports)] // each test program uses a part

pub mod shape;

pub use butterfs_testkit::tree_model::{model, random, store, validator};
