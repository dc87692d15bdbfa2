//! A tree in memory for tests: a strict store, a model beside it, and a validator.

#![allow(dead_code)]

pub mod model;
pub mod random;
pub mod shape;
pub mod store;
pub mod validator;
