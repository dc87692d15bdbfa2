//! The books of space: from the queue of reference changes to edits of the extent tree, the free space tree, the
//! checksum tree and the block group items.
//!
//! Runs only while a transaction freezes, except for [`checksums`] and [`rows`], which are used at any time.

mod apply;
mod block_groups;
pub mod checksums;
mod chunk_items;
mod device_items;
mod device_stats;
mod free_space_tree;
pub mod items;
mod keyed_refs;
pub mod rows;
mod stale_devices;
mod tree_items;

pub(crate) use apply::{run_refs, run_some_refs};
pub(crate) use block_groups::write_block_groups;
pub(crate) use chunk_items::{insert_chunk_items, move_chunk_items, remove_chunk_items};
pub(crate) use device_items::write_device_change;
pub(crate) use device_stats::{has_counted_errors, load_device_stats, write_device_stats};
pub(crate) use stale_devices::{load_stale_devices, remember_state, stale_devices_changed, write_stale_devices};
pub use tree_items::TreeItems;

use crate::transaction::{Copied, Core};
use butterfs_ondisk::{Key, KeyType, Logical};

/// Has in memory what says of extents at these addresses, which ascend, who uses them and how much of what is used;
/// adds what of the trees is going to be copied to `copied`.
pub(crate) fn preload(core: &Core, changed: &[Logical], copied: &mut Copied) {
    let keys: Vec<Key> = changed.iter().map(|at| Key::new(at.0, KeyType::METADATA_ITEM, u64::MAX)).collect();
    core.globals().extent.preload_copied(core, &keys, copied);
    let (mut groups, mut end) = (Vec::new(), Logical(0));
    for at in changed.iter().copied() {
        if at >= end
            && let Some(group) = core.space.group_of(at)
        {
            end = group.start.plus(group.length);
            groups.push(group);
        }
    }
    free_space_tree::preload(core, &groups, changed, copied);
    block_groups::preload(core, &groups, copied);
}
