//! Block groups and device extents, checked against the chunks.

use crate::error::{Error, Result};
use crate::space::{Class, GroupInfo};
use crate::transaction::Core;
use butterfs_ondisk::chunk::Chunk;
use butterfs_ondisk::items::{BlockGroupItem, DevExtent, block_group_flags as bits};
use butterfs_ondisk::{Key, KeyType, Logical};
use std::ops::ControlFlow;
use zerocopy::FromBytes;

/// Reads all block groups.
pub(super) fn load(core: &Core) -> Result<()> {
    let map = core.volume.chunk_map();
    for chunk in map.iter() {
        let group = match group_of(core, chunk) {
            // An older commit, or no tree that says.
            Ok(None) | Err(_) if core.options().rescue.is_any() => super::rescue::group_of_chunk(chunk),
            Ok(None) => return Err(Error::corrupt(format!("chunk {} has no block group item", chunk.start))),
            found => found?.expect("it is there"),
        };
        core.space.add_group_in_rows(group, &map.superblock_exclusions(chunk), false, chunk.parity_columns());
        if core.volume.is_on_seed(chunk) {
            core.space.close_for_good(chunk.start);
        }
    }
    if core.options().rescue.is_any() { Ok(()) } else { check_device_extents(core) }
}

fn group_of(core: &Core, chunk: &Chunk) -> Result<Option<GroupInfo>> {
    let tree = core.globals().block_group.as_ref().unwrap_or(&core.globals().extent);
    let key = Key::new(chunk.start.0, KeyType::BLOCK_GROUP_ITEM, chunk.length);
    let Some(item) = tree.get(core, key)? else { return Ok(None) };
    let item = BlockGroupItem::read_from_bytes(&item)
        .map_err(|_| Error::corrupt(format!("block group item {key} has {} bytes", item.len())))?;
    let (flags, used) = (item.flags.get(), item.used.get());
    if flags & bits::TYPE_MASK != chunk.kind & bits::TYPE_MASK || Class::of(flags).is_none() {
        return Err(Error::corrupt(format!("block group {key} has flags {flags:#x}, its chunk {:#x}", chunk.kind)));
    }
    if used > chunk.length {
        return Err(Error::corrupt(format!("block group {key} has {used} bytes used")));
    }
    Ok(Some(GroupInfo { start: chunk.start, length: chunk.length, flags, used }))
}

/// Every device extent is a stripe of a chunk, and every stripe has its extent.
fn check_device_extents(core: &Core) -> Result<()> {
    let map = core.volume.chunk_map();
    let mut extents = 0;
    core.globals().dev.scan(core, Key::MIN, Key::MAX, &mut |key, data| {
        if key.kind != KeyType::DEV_EXTENT {
            return Ok(ControlFlow::Continue(()));
        }
        let bad = |rule: &str| Error::corrupt(format!("device extent {key}: {rule}"));
        let item = DevExtent::read_from_bytes(data).map_err(|_| bad("wrong size"))?;
        let start = Logical(item.chunk_offset.get());
        let chunk = map.get(start).filter(|chunk| chunk.start == start).ok_or_else(|| bad("belongs to no chunk"))?;
        let stripe = |stripe: &butterfs_ondisk::chunk::ChunkStripe| {
            stripe.device.0 == key.objectid && stripe.physical.0 == key.offset
        };
        if !chunk.stripes.iter().any(stripe) {
            return Err(bad("is no stripe of its chunk"));
        }
        if item.length.get() != chunk.stripe_length() {
            return Err(bad("is not as long as its chunk's stripes"));
        }
        extents += 1;
        Ok(ControlFlow::Continue(()))
    })?;
    let stripes: usize = map.iter().map(|chunk| chunk.stripes.len()).sum();
    if stripes != extents {
        return Err(Error::corrupt(format!(
            "the chunks have {stripes} stripes, the device tree has {extents} extents"
        )));
    }
    Ok(())
}
