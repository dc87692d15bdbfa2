//! Rules for block groups, chunks, devices, device extents, the free space tree and the RAID stripe tree.

use super::{CheckContext, Item};
use crate::chunk::{self, ChunkLimits};
use crate::features::incompat;
use crate::items::{BlockGroupItem, DevExtent, DevItem, FreeSpaceInfo, block_group_flags as bits};
use crate::key::{KeyType, objectid};
use crate::profile::Profile;
use crate::units::{Logical, TreeId};
use zerocopy::FromBytes;

pub(super) fn check_block_group(item: &Item, ctx: &CheckContext) -> Result<(), String> {
    let length = item.key.offset;
    ensure!(length != 0, "invalid block group size 0");
    let Ok(group) = BlockGroupItem::ref_from_bytes(item.data) else {
        return Err(format!("invalid item size, have {} expect {}", item.data.len(), BlockGroupItem::LEN));
    };
    // With extent tree version 2 the field is the id of a global root.
    let object = group.chunk_objectid.get();
    let legal = object == objectid::FIRST_CHUNK_TREE || ctx.has(incompat::EXTENT_TREE_V2);
    ensure!(legal, "invalid block group chunk objectid, have {object} expect 256");
    let used = group.used.get();
    ensure!(used <= length, "invalid block group used, have {used} expect [0, {length}]");
    let flags = group.flags.get();
    ensure!(Profile::of(flags).is_some(), "invalid profile flags, have {flags:#x} expect no more than 1 bit set");
    let legal = matches!(flags & bits::TYPE_MASK, bits::DATA | bits::METADATA | bits::SYSTEM)
        || flags & bits::TYPE_MASK == bits::DATA | bits::METADATA;
    ensure!(legal, "invalid block group type, have {flags:#x}");
    Ok(())
}

pub(super) fn check_chunk(item: &Item, ctx: &CheckContext) -> Result<(), String> {
    let limits = ChunkLimits { sectorsize: ctx.sectorsize, incompat: ctx.incompat };
    chunk::check(Logical(item.key.offset), item.data, &limits).map(|_| ())
}

pub(super) fn check_dev_item(item: &Item) -> Result<(), String> {
    let key = item.key;
    ensure!(
        key.objectid == objectid::DEV_ITEMS,
        "invalid objectid: has {} expect {}",
        key.objectid,
        objectid::DEV_ITEMS
    );
    let Ok(device) = DevItem::ref_from_bytes(item.data) else {
        return Err(format!("invalid item size: has {} expect {}", item.data.len(), DevItem::LEN));
    };
    ensure!(device.devid.get() == key.offset, "devid mismatch: key has {} item has {}", key.offset, device.devid);
    let (used, total) = (device.bytes_used.get(), device.total_bytes.get());
    ensure!(used <= total, "invalid bytes used: have {used} expect [0, {total}]");
    Ok(())
}

pub(super) fn check_dev_extent(item: &Item, ctx: &CheckContext) -> Result<(), String> {
    let extent = read_dev_extent(item.data)?;
    ensure!(
        extent.chunk_tree.get() == TreeId::CHUNK.0,
        "invalid dev extent chunk tree, have {} expect 3",
        extent.chunk_tree
    );
    let object = extent.chunk_objectid.get();
    ensure!(object == objectid::FIRST_CHUNK_TREE, "invalid dev extent chunk objectid, have {object} expect 256");
    for (name, value) in [
        ("physical offset", item.key.offset),
        ("chunk offset", extent.chunk_offset.get()),
        ("length", extent.length.get()),
    ] {
        ensure!(ctx.aligned(value), "invalid dev extent {name}, have {value} is not aligned to {}", ctx.sectorsize);
    }
    let end = item.key.offset.checked_add(extent.length.get());
    ensure!(end.is_some(), "invalid dev extent length, {} overflows", extent.length);
    let same_device = |key: crate::Key| key.objectid == item.key.objectid && key.kind == KeyType::DEV_EXTENT;
    if let Some((prev, data)) = item.prev.filter(|(key, _)| same_device(*key)) {
        let end = prev.offset.saturating_add(read_dev_extent(data)?.length.get());
        ensure!(
            end <= item.key.offset,
            "dev extent overlap, previous ends at {end} current starts at {}",
            item.key.offset
        );
    }
    Ok(())
}

fn read_dev_extent(data: &[u8]) -> Result<&DevExtent, String> {
    DevExtent::ref_from_bytes(data)
        .map_err(|_| format!("invalid item size: has {} expect {}", data.len(), DevExtent::LEN))
}

/// The range that the key of a free space item names.
fn check_free_range(item: &Item, ctx: &CheckContext) -> Result<(), String> {
    let (start, length) = (item.key.objectid, item.key.offset);
    ensure!(ctx.aligned(start) && ctx.aligned(length), "unaligned free space range, start {start} length {length}");
    ensure!(length != 0, "invalid free space length 0");
    ensure!(start.checked_add(length).is_some(), "free space range overflows, start {start} length {length}");
    Ok(())
}

pub(super) fn check_free_space_info(item: &Item, ctx: &CheckContext) -> Result<(), String> {
    check_free_range(item, ctx)?;
    let Ok(info) = FreeSpaceInfo::ref_from_bytes(item.data) else {
        return Err(format!("invalid item size, have {} expect {}", item.data.len(), FreeSpaceInfo::LEN));
    };
    let flags = info.flags.get();
    ensure!(flags & !FreeSpaceInfo::USING_BITMAPS == 0, "invalid free space info flags, have {flags:#x}");
    let limit = item.key.offset / u64::from(ctx.sectorsize);
    ensure!(
        u64::from(info.extent_count.get()) <= limit,
        "invalid free space extent count, have {} expect [0, {limit}]",
        info.extent_count
    );
    Ok(())
}

pub(super) fn check_free_space_extent(item: &Item, ctx: &CheckContext) -> Result<(), String> {
    check_free_range(item, ctx)?;
    ensure!(item.data.is_empty(), "invalid item size, have {} expect 0", item.data.len());
    Ok(())
}

pub(super) fn check_free_space_bitmap(item: &Item, ctx: &CheckContext) -> Result<(), String> {
    check_free_range(item, ctx)?;
    let expected = (item.key.offset / u64::from(ctx.sectorsize)).div_ceil(8);
    ensure!(item.data.len() as u64 == expected, "invalid item size, have {} expect {expected}", item.data.len());
    Ok(())
}

pub(super) fn check_raid_stripe(item: &Item, ctx: &CheckContext) -> Result<(), String> {
    ensure!(ctx.has(incompat::RAID_STRIPE_TREE), "RAID_STRIPE item without the RAID_STRIPE_TREE feature");
    ensure!(ctx.aligned(item.key.objectid), "invalid key objectid for raid stripe, have {}", item.key.objectid);
    Ok(())
}
