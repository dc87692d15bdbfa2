//! Scrub: reads every allocated byte of every device, verifies it, repairs it from another copy, and names the files.
//!
//! ```text
//! Lane (one for each device) ── Window (1 MiB of a device extent) ──► Plan: the parts that the last commit uses
//!      ▲                                                               │ hold, read, verify, repair
//!      └── WindowResult: counters and damage, merged in device order ◄─┘
//! ```
//!
//! # Invariants
//! 1. A window sees one commit: its extents are *held* before they are read, and the hold counts only while that commit
//!    is still the last one. So nothing that is read has been freed and used again, and nothing else is ever repaired.
//! 2. Repair goes through [`Volume::rewrite`](butterfs_volume::Volume::rewrite): it writes only bytes that verify and
//!    that another copy holds at that moment, and reads them back from the storage.
//! 3. The counters of a lane cover exactly the windows before its `last_physical`, whatever order workers finish in. A
//!    scrub that is interrupted and resumed there counts as if it had never been interrupted.
//! 4. Memory: two window buffers and a plan for each worker, [`MOST_DAMAGES`] descriptions of damage and
//!    [`MOST_NAMED`] names; what is beyond is counted only.
//! 5. No lock and no handle is held while a device reads or writes.
//!
//! # Not here
//! Threads that work on a mount, and who may ask: `filesystem`.

mod counters;
mod damage;
mod lane;
mod names;
mod parity;
mod plan;
mod run;
mod selection;
mod superblocks;
mod window;

pub use butterfs_device::priority::IoClass;
pub use counters::Counters;
pub use damage::{Cause, Content, Damage, FileRange, Finding, Outcome};
pub use lane::{End, LaneProgress};
pub use names::{MOST_NAMED, Namer};
pub use run::{MOST_DAMAGES, Priority, Progress, Resumed, Scrub, Settings};
pub use selection::Selection;

/// Bytes of a device that one worker reads before it takes the next ones: what several workers read stays in the
/// processor's caches until it is verified. 4 MiB are slower by a fifth.
pub(crate) const WINDOW: u64 = 1 << 20;
/// The unit in which extents are counted.
const UNIT: u64 = 64 << 10;
