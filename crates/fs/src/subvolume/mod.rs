//! Subvolumes and snapshots: making, deleting and describing them, and the UUID tree.
//!
//! # Invariants
//! 1. A snapshot is made while a transaction freezes, after everything in memory is in the trees, and is committed
//!    at once: its blocks must not change in the generation that made it.
//! 2. A deleted subvolume is an orphan of the root tree until the last of its blocks is dropped; the
//!    cleaner goes on after a crash where it stopped.
//! 3. Entries of the UUID tree change in the transaction that changes what they describe.

mod cleaner;
mod create;
mod delete;
mod drop_tree;
pub mod extents;
mod info;
mod left_relocations;
mod old_caches;
pub mod paths;
mod preload;
mod quota_groups;
mod snapshots;
pub mod uuid_tree;
mod uuid_upkeep;

#[cfg(test)]
pub(crate) use drop_tree::{Stop as DropStop, step as drop_for_test};

pub use cleaner::{begin_dropping, clean_step, deleted, deleted_generation, first_deleted, is_dropping};
pub use create::{create, snapshot};
pub use delete::{Victim, delete};
pub use info::{SubvolumeInfo, default_id, finish_received, info, list, list_from, set_default, set_readonly};
pub use left_relocations::recover as recover_relocations;
pub use old_caches::drop_all as drop_old_caches;
pub use snapshots::Snapshots;
pub use uuid_upkeep::repair_uuid_tree;
