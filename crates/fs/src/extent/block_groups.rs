//! Block group items: how much of each group is used.

use crate::error::{Error, Result};
use crate::space::GroupInfo;
use crate::transaction::{Copied, Core, Handle, Tree};
use butterfs_ondisk::items::BlockGroupItem;
use butterfs_ondisk::{Key, KeyType};
use std::sync::Arc;
use zerocopy::FromBytes;

/// The tree that holds block group items.
pub(super) fn tree(core: &Core) -> &Arc<Tree> {
    let globals = core.globals();
    globals.block_group.as_ref().unwrap_or(&globals.extent)
}

/// Has the items of these groups in memory.
pub(super) fn preload(core: &Core, groups: &[GroupInfo], copied: &mut Copied) {
    tree(core).preload_copied(core, &groups.iter().map(key_of).collect::<Vec<_>>(), copied);
}

fn key_of(group: &GroupInfo) -> Key {
    Key::new(group.start.0, KeyType::BLOCK_GROUP_ITEM, group.length)
}

/// Writes the items of groups whose usage changed. True when there were any.
pub(crate) fn write_block_groups(handle: &Handle) -> Result<bool> {
    let core = handle.core();
    let dirty = core.space.take_dirty();
    let any = !dirty.is_empty();
    for group in dirty {
        let key = key_of(&group);
        let updated = tree(core).update(handle, key, |data| match BlockGroupItem::mut_from_bytes(data) {
            Ok(item) => {
                item.used = group.used.into();
                true
            }
            Err(_) => false,
        })?;
        if updated != Some(true) {
            return Err(Error::corrupt(format!("block group {key} has no item of the right size")));
        }
    }
    Ok(any)
}
