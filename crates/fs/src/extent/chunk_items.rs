//! The items of a chunk that comes or goes: device items, chunk item, block group item, device extents, free space.

use super::block_groups;
use crate::error::{Error, Result};
use crate::transaction::Handle;
use butterfs_ondisk::chunk::{Chunk, ChunkStripe};
use butterfs_ondisk::items::{BlockGroupItem, DevExtent, DevItem, FreeSpaceInfo};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Key, KeyType};
use butterfs_volume::is_kept;
use zerocopy::{FromBytes, IntoBytes};

/// Inserts the items of `chunk`. The superblock's array of system chunks follows the chunk map.
pub(crate) fn insert_chunk_items(handle: &Handle, chunk: &Chunk) -> Result<()> {
    let core = handle.core();
    let globals = core.globals();
    let stripe_length = chunk.stripe_length();
    book_on_devices(handle, chunk, stripe_length as i64)?;
    fresh(globals.chunk.insert(handle, chunk.key(), &chunk.encode())?, "chunk", chunk)?;
    let group =
        BlockGroupItem { used: 0.into(), chunk_objectid: objectid::FIRST_CHUNK_TREE.into(), flags: chunk.kind.into() };
    let key = Key::new(chunk.start.0, KeyType::BLOCK_GROUP_ITEM, chunk.length);
    fresh(block_groups::tree(core).insert(handle, key, group.as_bytes())?, "block group", chunk)?;
    for stripe in &chunk.stripes {
        insert_device_extent(handle, chunk, stripe)?;
    }
    if let (Some(tree), true) = (&globals.free_space, core.maintains_free_space_tree()) {
        let info = FreeSpaceInfo { extent_count: 1.into(), flags: 0.into() };
        let key = Key::new(chunk.start.0, KeyType::FREE_SPACE_INFO, chunk.length);
        fresh(tree.insert(handle, key, info.as_bytes())?, "free space", chunk)?;
        let key = Key::new(chunk.start.0, KeyType::FREE_SPACE_EXTENT, chunk.length);
        fresh(tree.insert(handle, key, &[])?, "free space", chunk)?;
    }
    Ok(())
}

/// Removes the items of `chunk`, whose block group is empty.
pub(crate) fn remove_chunk_items(handle: &Handle, chunk: &Chunk) -> Result<()> {
    let core = handle.core();
    let globals = core.globals();
    book_on_devices(handle, chunk, -(chunk.stripe_length() as i64))?;
    gone(globals.chunk.remove(handle, chunk.key())?, "chunk", chunk)?;
    let key = Key::new(chunk.start.0, KeyType::BLOCK_GROUP_ITEM, chunk.length);
    gone(block_groups::tree(core).remove(handle, key)?, "block group", chunk)?;
    for stripe in &chunk.stripes {
        let key = Key::new(stripe.device.0, KeyType::DEV_EXTENT, stripe.physical.0);
        gone(globals.dev.remove(handle, key)?, "device extent", chunk)?;
    }
    if let (Some(tree), true) = (&globals.free_space, core.maintains_free_space_tree()) {
        let (from, to) = (Key::new(chunk.start.0, KeyType(0), 0), Key::new(chunk.end().0 - 1, KeyType(255), u64::MAX));
        let mut summaries = 0;
        let mut visit = |key: Key, _: &[u8]| {
            summaries += usize::from(key.kind == KeyType::FREE_SPACE_INFO);
            Ok(())
        };
        while tree.remove_range(handle, from, to, &mut visit)? {}
        gone(summaries == 1, "free space", chunk)?;
    }
    Ok(())
}

fn insert_device_extent(handle: &Handle, chunk: &Chunk, stripe: &ChunkStripe) -> Result<()> {
    let core = handle.core();
    let extent = DevExtent {
        chunk_tree: butterfs_ondisk::TreeId::CHUNK.0.into(),
        chunk_objectid: objectid::FIRST_CHUNK_TREE.into(),
        chunk_offset: chunk.start.0.into(),
        length: chunk.stripe_length().into(),
        chunk_tree_uuid: core.nodes.identity().chunk_tree_uuid,
    };
    let key = Key::new(stripe.device.0, KeyType::DEV_EXTENT, stripe.physical.0);
    fresh(core.globals().dev.insert(handle, key, extent.as_bytes())?, "device extent", chunk)
}

/// The chunk `from` has the stripes of `to` from now on.
pub(crate) fn move_chunk_items(handle: &Handle, from: &Chunk, to: &Chunk) -> Result<()> {
    let core = handle.core();
    let globals = core.globals();
    book_on_devices(handle, to, to.stripe_length() as i64)?;
    book_on_devices(handle, from, -(from.stripe_length() as i64))?;
    globals.chunk.put(handle, to.key(), &to.encode())?;
    if from.kind != to.kind {
        let key = Key::new(to.start.0, KeyType::BLOCK_GROUP_ITEM, to.length);
        let set =
            |data: &mut [u8]| BlockGroupItem::mut_from_bytes(data).map(|item| item.flags = to.kind.into()).is_ok();
        gone(block_groups::tree(core).update(handle, key, set)? == Some(true), "block group", to)?;
    }
    for stripe in
        from.stripes.iter().enumerate().filter(|(index, _)| !is_kept(to, from, *index)).map(|(_, stripe)| stripe)
    {
        let key = Key::new(stripe.device.0, KeyType::DEV_EXTENT, stripe.physical.0);
        gone(globals.dev.remove(handle, key)?, "device extent", from)?;
    }
    for stripe in
        to.stripes.iter().enumerate().filter(|(index, _)| !is_kept(from, to, *index)).map(|(_, stripe)| stripe)
    {
        insert_device_extent(handle, to, stripe)?;
    }
    Ok(())
}

/// Changes by `change` what is in use of each device, once for each stripe.
fn book_on_devices(handle: &Handle, chunk: &Chunk, change: i64) -> Result<()> {
    let core = handle.core();
    for stripe in &chunk.stripes {
        let key = Key::new(objectid::DEV_ITEMS, KeyType::DEV_ITEM, stripe.device.0);
        let book = |item: &mut DevItem| {
            let used = item.bytes_used.get().checked_add_signed(change);
            used.inspect(|&used| item.bytes_used = used.into()).is_some()
        };
        let updated = core.globals().chunk.update(handle, key, |data| DevItem::mut_from_bytes(data).is_ok_and(book))?;
        if updated != Some(true) {
            return Err(Error::corrupt(format!(
                "device {} has no item of the right size, or more in chunks than it says",
                stripe.device
            )));
        }
        if let Some(mut item) = core.volume.device_item(stripe.device) {
            item.bytes_used = item.bytes_used.get().saturating_add_signed(change).into();
            core.volume.set_device_item(item);
        }
    }
    Ok(())
}

fn gone(removed: bool, what: &str, chunk: &Chunk) -> Result<()> {
    if removed {
        return Ok(());
    }
    Err(Error::corrupt(format!("chunk {}: its {what} item is missing", chunk.start)))
}

fn fresh(inserted: bool, what: &str, chunk: &Chunk) -> Result<()> {
    if inserted {
        return Ok(());
    }
    Err(Error::corrupt(format!("new chunk {}: its {what} item exists already", chunk.start)))
}
