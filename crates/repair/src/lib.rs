//! Internal to butterfs: this crate promises no stability. Depend on the crate `butterfs` instead.
//!
//! Repairs a filesystem that nobody uses, in three steps: [`plan()`] runs the whole repair on an overlay and writes
//! nothing, [`apply`] writes what the plan has, after what it overwrites has been saved in an undo file, and [`undo`]
//! brings the damaged image back bit for bit.
//!
//! It uses neither the engine nor what the damaged filesystem says about references and free space: those are derived
//! from all trees again. Which repair belongs to which finding is one table ([`REPAIRS`]).
//!
//! # Invariants
//! 1. Nothing that a root of the last commit, a backup root or a log reaches is overwritten; but for bad copies, by
//!    good ones, and superblocks.
//! 2. All passes of a round are one commit. Whatever a power cut leaves is the filesystem before or after the repair.
//! 3. What is overwritten is durable in the undo file before it is overwritten.
//!
//! # Not here
//! Filesystems of which devices are missing, and those with simple quotas.

#![forbid(unsafe_code)]

mod action;
mod assembled;
mod busy;
mod checksums;
mod chunks;
mod commit;
mod entries;
mod extent_items;
mod extents;
mod files;
mod forest;
mod free_space;
mod headers;
mod ino_cache;
mod inodes;
mod journal;
mod keys;
mod laid;
mod lengths;
mod levels;
mod lost_extents;
mod lost_files;
mod lost_roots;
mod misnamed;
mod misplaced_sums;
mod names;
mod orphans;
mod overlay;
mod packing;
mod plan;
mod prune;
mod quotas;
mod ranges;
mod references;
mod room;
mod roots;
mod round;
mod rows;
mod salvage;
mod shared;
mod shown_bytes;
mod space;
mod start;
mod store;
mod subvolumes;
mod symlinks;
mod table;
mod trouble;
mod uuids;
mod walk;

pub use action::{Action, Pass};
pub use journal::{Applied, apply, resume, save, undo};
pub use plan::{Estimate, Options, Plan, entered, plan};
pub use quotas::{QuotaGroup, QuotaReport, quota_report};
pub use start::Start;
pub use table::{Means, REPAIRS, Repair, repair_of};
pub use trouble::Trouble;
