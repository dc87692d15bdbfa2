//! Internal to butterfs: this crate promises no stability. Depend on the crate `butterfs` instead.
//!
//! Mutexes, reader-writer locks and condition variables, and the seam at which a test decides which thread goes on.
//!
//! The types are those of `parking_lot`. A thread that runs `under` a [`Scheduler`] asks it before each access to one
//! of them, waits through it, and tells it what it has released. Every other thread looks at a thread-local flag. Only
//! the simulator builds this crate with the feature `scheduler`; without it the locks compile to those of
//! `parking_lot`.
//!
//! # Invariants
//! 1. Under a scheduler one thread runs at a time, from one access to the next, so the same decisions give the same
//!    run.
//! 2. A thread under a scheduler never waits for a lock in the operating system: it tries, and when the lock is taken
//!    it lets the scheduler run others until the lock has changed.
//! 3. A lock that threads under a scheduler use is used by no other thread meanwhile.
//!
//! # Not here
//! Atomics: a scheduler does not see them, so what only they order is not interleaved.

#![forbid(unsafe_code)]

mod condvar;
mod mutex;
pub mod order;
mod rwlock;
mod scheduler;

pub use condvar::Condvar;
pub use mutex::{Mutex, MutexGuard};
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(feature = "scheduler")]
pub use scheduler::under;
pub use scheduler::{Access, Object, Scheduler, access};
