//! The books of space: from the queue of reference changes to edits of the extent tree, the free space tree, the
//! checksum tree and the block group items.
//!
//! Runs only while a transaction freezes, except for [`checksums`], which file data uses at any time.

mod apply;
mod block_groups;
pub mod checksums;
mod chunk_items;
mod device_stats;
mod free_space_tree;
pub mod items;
mod keyed_refs;
mod stale_devices;
mod tree_items;

pub(crate) use apply::{run_refs, run_some_refs};
pub(crate) use block_groups::write_block_groups;
pub(crate) use chunk_items::{insert_chunk_items, remove_chunk_items};
pub(crate) use device_stats::{load_device_stats, write_device_stats};
pub(crate) use stale_devices::{load_stale_devices, remember_state, stale_devices_changed, write_stale_devices};
pub use tree_items::TreeItems;
