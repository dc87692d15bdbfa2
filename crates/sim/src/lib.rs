//! The simulator: a seed becomes a filesystem, a workload, faults and crashes; every state that a crash leaves is
//! opened and checked.
//!
//! # The fault model
//! 1. A write is durable once a flush of its device has completed that began after the write had completed. A crash
//!    keeps every durable write. Of all others it keeps any subset, in any order, each whole or torn at sectors of 512
//!    bytes.
//! 2. A crash happens before or after any write or flush: in commits, in write-back, in operations, while the next
//!    transaction already runs, and in the recovery from the crash before.
//! 3. The primary superblock is torn only where the device is large enough for a second copy (more than 64 MiB); below
//!    that its 4 KiB are written as a whole or not at all. For the kernel and btrfs-progs, which look at the primary
//!    only, it is never torn.
//! 4. In plans with faults reads, writes and flushes go wrong too, as [`faults`] says; in plans with members devices
//!    leave, return and fail, as [`members`] says; in plans with [`maintenance`] new devices fail and old ones are
//!    lost. In others nothing else goes wrong. Memory holds what was put there.
//!
//! # What must hold
//! After each crash the filesystem opens, the checker (`butterfs-check`, all data checksums included) finds it clean,
//! and it shows what [`testkit::promise`](butterfs_testkit::promise) allows. Of some states the kernel and `btrfs
//! check` say the same.
//!
//! # Invariants
//! 1. The same seed gives the same run, byte for byte: time and randomness come from it, work in the background is a
//!    step of the workload, and what other threads do while a commit writes is run inside the commit ([`meanwhile`]).
//! 2. A run changes nothing outside of its memory but the images that it exports.
//!
//! [`objects`] runs the same workloads on a volume in an object store, which several hosts take over from each other.
//! Its threads are real ones, so there invariant 1 holds for the steps only.
//!
//! [`interleave`] runs operations of several threads inside each other, and checks what comes of them alike.
//!
//! # Not here
//! Threads that the engine starts by itself.

#![forbid(unsafe_code)]

pub mod campaign;
pub mod choice;
pub mod cut;
pub mod explore;
pub mod faults;
pub mod interleave;
pub mod kernel;
mod left;
pub mod life;
pub mod maintenance;
pub mod meanwhile;
pub mod members;
pub mod objects;
pub mod parts;
pub mod plan;
pub mod run;
mod split;
pub mod state;
pub mod step;
pub mod subject;
