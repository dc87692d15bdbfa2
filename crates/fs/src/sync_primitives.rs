//! Mutex and condition variable of the protocols that `tests/log_order.rs` also runs on other ones.

pub use butterfs_sync::{Condvar, Mutex, order};
