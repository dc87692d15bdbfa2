//! Rules for the roots of trees.

use super::{CheckContext, Item};
use crate::items::{RootItem, RootRef};
use crate::units::{MAX_LEVELS, TreeId};
use zerocopy::FromBytes;

pub(super) fn check_root_item(item: &Item, ctx: &CheckContext) -> Result<(), String> {
    let key = item.key;
    ensure!(key.objectid != 0, "invalid root id 0");
    let reloc_of_subvolume = key.objectid != TreeId::TREE_RELOC.0 || TreeId(key.offset).is_subvolume();
    ensure!(reloc_of_subvolume, "invalid reloc tree for root {}, root id is not a subvolume tree", key.offset);
    let root = read(item.data)?;
    ctx.check_generation("root", root.generation.get())?;
    ctx.check_generation("root v2", root.generation_v2.get())?;
    ctx.check_generation("root last_snapshot", root.last_snapshot.get())?;
    ensure!(
        ctx.aligned(root.bytenr.get()),
        "invalid root bytenr, have {} expect to be aligned to {}",
        root.bytenr,
        ctx.sectorsize
    );
    let (level, drop_level) = (root.level, root.drop_level);
    ensure!(usize::from(level) < MAX_LEVELS, "invalid root level, have {level} expect [0, 7]");
    ensure!(usize::from(drop_level) < MAX_LEVELS, "invalid root drop_level, have {drop_level} expect [0, 7]");
    let drop = root.drop_progress.objectid.get();
    ensure!(drop == 0 || drop_level >= 1, "invalid root drop_level, have 0 with drop_progress of object {drop}");
    let unknown = root.flags.get() & !(RootItem::RDONLY | RootItem::DEAD);
    ensure!(unknown == 0, "invalid root flags, have unknown bits {unknown:#x}");
    Ok(())
}

/// A reference between subvolumes has one name, and nothing behind it.
pub(super) fn check_root_ref(item: &Item) -> Result<(), String> {
    let (head, name) = RootRef::read_from_prefix(item.data).map_err(|_| {
        format!("invalid root ref item size, have {} expect more than {}", item.data.len(), size_of::<RootRef>())
    })?;
    let (len, expected) = (name.len(), usize::from(head.name_len.get()));
    ensure!(len == expected && len > 0, "invalid root ref item size, its name has {len} bytes, expect {expected}");
    Ok(())
}

/// The item with its own `generation_v2`, unlike [`RootItem::parse`].
fn read(payload: &[u8]) -> Result<RootItem, String> {
    let mut bytes = [0; RootItem::LEN];
    match payload.len() {
        len @ (RootItem::LEN | RootItem::LEGACY_LEN) => bytes[..len].copy_from_slice(payload),
        len => {
            return Err(format!(
                "invalid root item size, have {len} expect {} or {}",
                RootItem::LEN,
                RootItem::LEGACY_LEN
            ));
        }
    }
    RootItem::read_from_bytes(&bytes).map_err(|_| "invalid root item size".to_owned())
}
