//! A tree in memory: a strict store, a `BTreeMap` that goes through the same operations, and a validator.

pub mod model;
pub mod random;
pub mod store;
pub mod validator;
