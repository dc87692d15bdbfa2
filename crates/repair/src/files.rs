//! The pass `files`: file extents that overlap, show more than there is, come from the future, or leave gaps; their
//! lengths (`lengths`) and marks (`packing`) come first.

use crate::action::Pass;
use crate::extent_items::Stored;
use crate::forest::Forest;
use crate::trouble::Result;
use crate::{lengths, packing};
use butterfs_ondisk::features::incompat;
use butterfs_ondisk::items::{FileExtent, FileExtentHead, InodeItem, compression, file_extent_type};
use butterfs_ondisk::packing::LARGEST;
use butterfs_ondisk::{Key, KeyType, TreeId};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const S_IFREG: u32 = 0o10;

/// Makes the extents of a file legal; the inode's own item follows later.
pub(crate) fn settle(forest: &mut Forest, tree: TreeId, inode: u64) -> Result<()> {
    // What has entries is a directory that does not say so.
    if !forest.of_kind(tree, inode, KeyType::DIR_INDEX)?.is_empty() {
        return Ok(());
    }
    for step in [lengths::settle, packing::settle, check_generation, check_bounds] {
        for (key, data) in forest.of_kind(tree, inode, KeyType::EXTENT_DATA)? {
            step(forest, tree, key, &data)?;
        }
    }
    part(forest, tree, inode)?;
    fill_gaps(forest, tree, inode)
}

/// A generation that is still to come becomes that of the extent.
fn check_generation(forest: &mut Forest, tree: TreeId, key: Key, data: &[u8]) -> Result<()> {
    let Ok((mut head, rest)) = FileExtentHead::read_from_prefix(data) else { return Ok(()) };
    let newest = forest.store.generation.get() - 1;
    if head.generation.get() <= newest + 1 {
        return Ok(());
    }
    let at = FileExtent::read_from_bytes(data).map_or(0, |extent| extent.body.disk_bytenr.get());
    let length = FileExtent::read_from_bytes(data).map_or(0, |extent| extent.body.disk_num_bytes.get());
    let extent_key = Key::new(at, KeyType::EXTENT_ITEM, length);
    let item = match head.kind {
        file_extent_type::INLINE => None,
        _ => forest.get(TreeId::EXTENT, extent_key).unwrap_or(None),
    };
    let known = item.and_then(|data| Stored::parse(extent_key, &data, forest.store.nodesize()).extent);
    let generation = known.map_or(newest, |extent| extent.generation.min(newest));
    head.generation = generation.into();
    forest.put(tree, key, &[head.as_bytes(), rest].concat())?;
    let what = format!(
        "gives the extent at {} of inode {} of tree {tree} the generation {generation}",
        key.offset, key.objectid
    );
    forest.did(Pass::Files, what);
    Ok(())
}

/// The part that an item shows beyond its extent becomes a hole.
fn check_bounds(forest: &mut Forest, tree: TreeId, key: Key, data: &[u8]) -> Result<()> {
    let Ok(mut extent) = FileExtent::read_from_bytes(data) else { return Ok(()) };
    if extent.head.kind == file_extent_type::INLINE || extent.body.disk_bytenr.get() == 0 {
        return Ok(());
    }
    let plain = extent.head.compression == compression::NONE;
    let (ram, disk) = (extent.head.ram_bytes.get(), extent.body.disk_num_bytes.get());
    let limit = if plain { disk.min(ram) } else { ram };
    let (offset, shown) = (extent.body.offset.get(), extent.body.num_bytes.get());
    let too_large = !plain && limit.max(disk) > LARGEST;
    if offset.saturating_add(shown) <= limit && !too_large {
        return Ok(());
    }
    let (inode, start) = (key.objectid, key.offset);
    let extent_key = Key::new(extent.body.disk_bytenr.get(), KeyType::EXTENT_ITEM, disk);
    let is_recorded = || forest.get(TreeId::EXTENT, extent_key).is_ok_and(|item| item.is_some());
    if plain && ram != disk && offset.saturating_add(shown) <= disk && is_recorded() {
        // What is not compressed has as many bytes as it takes on the device.
        extent.head.ram_bytes = disk.into();
        forest.put(tree, key, extent.as_bytes())?;
        let what = format!("gives the extent at {start} of inode {inode} of tree {tree} the length that it has");
        forest.did(Pass::Files, what);
        return Ok(());
    }
    if shown == limit && !too_large {
        // An item that shows as much as the extent has can only begin at its start.
        extent.body.offset = 0.into();
        forest.put(tree, key, extent.as_bytes())?;
        let what = format!("has the extent at {start} of inode {inode} of tree {tree} begin at its start");
        forest.did(Pass::Files, what);
        return Ok(());
    }
    let kept = if too_large {
        0
    } else {
        limit.saturating_sub(offset) / forest.store.sectorsize() * forest.store.sectorsize()
    };
    let what = format!("cuts the extent at {start} of inode {inode} of tree {tree} to {kept} bytes");
    let lost = format!("{} bytes at {} of inode {inode} of tree {tree}", shown - kept, start.saturating_add(kept));
    if kept > 0 {
        extent.body.num_bytes = kept.into();
        forest.put(tree, key, extent.as_bytes())?;
    } else if forest.store.identity.incompat & incompat::NO_HOLES != 0 {
        forest.remove(tree, key)?;
    } else {
        forest.put(tree, key, hole(forest, shown).as_bytes())?;
    }
    forest.lose(Pass::Files, what, lost);
    Ok(())
}

fn hole(forest: &Forest, length: u64) -> FileExtent {
    let mut hole = FileExtent::new_zeroed();
    hole.head.generation = forest.store.generation.get().into();
    hole.head.ram_bytes = length.into();
    hole.head.kind = file_extent_type::REGULAR;
    hole.body.num_bytes = length.into();
    hole
}

/// How many bytes of the file an item covers.
fn covered(data: &[u8], sector: u64) -> u64 {
    match FileExtentHead::read_from_prefix(data) {
        Ok((head, _)) if head.kind == file_extent_type::INLINE => head.ram_bytes.get().next_multiple_of(sector),
        _ => FileExtent::read_from_bytes(data).map_or(0, |extent| extent.body.num_bytes.get()),
    }
}

fn generation(data: &[u8]) -> u64 {
    FileExtentHead::read_from_prefix(data).map_or(0, |(head, _)| head.generation.get())
}

/// Of extents that overlap the newer one is kept whole, and the other one is cut.
fn part(forest: &mut Forest, tree: TreeId, inode: u64) -> Result<()> {
    let sector = forest.store.sectorsize();
    loop {
        let items = forest.of_kind(tree, inode, KeyType::EXTENT_DATA)?;
        let end = |(key, data): &(Key, Vec<u8>)| key.offset.saturating_add(covered(data, sector));
        let Some(pair) = items.windows(2).find(|pair| end(&pair[0]) > pair[1].0.offset) else { return Ok(()) };
        let (first, second) = (&pair[0], &pair[1]);
        let first_wins = generation(&first.1) > generation(&second.1);
        let (start, stop) = (second.0.offset, end(first).min(end(second)));
        if first_wins {
            cut_front(forest, tree, second, end(first))?;
        } else {
            cut_end(forest, tree, first, second.0.offset)?;
        }
        let what = format!("cuts one of two extents of inode {inode} of tree {tree} that overlap at {start}");
        let lost =
            format!("the older of two versions of {} bytes at {start} of inode {inode} of tree {tree}", stop - start);
        forest.lose(Pass::Files, what, lost);
    }
}

fn cut_end(forest: &mut Forest, tree: TreeId, (key, data): &(Key, Vec<u8>), end: u64) -> Result<()> {
    match FileExtent::read_from_bytes(data) {
        Ok(mut extent) if end > key.offset => {
            extent.body.num_bytes = (end - key.offset).into();
            forest.put(tree, *key, extent.as_bytes())?;
        }
        _ => drop(forest.remove(tree, *key)?),
    }
    Ok(())
}

fn cut_front(forest: &mut Forest, tree: TreeId, (key, data): &(Key, Vec<u8>), start: u64) -> Result<()> {
    forest.remove(tree, *key)?;
    let Ok(mut extent) = FileExtent::read_from_bytes(data) else { return Ok(()) };
    let cut = start - key.offset;
    if extent.head.kind == file_extent_type::INLINE || cut >= extent.body.num_bytes.get() {
        return Ok(());
    }
    extent.body.num_bytes = (extent.body.num_bytes.get() - cut).into();
    if extent.body.disk_bytenr.get() != 0 {
        extent.body.offset = (extent.body.offset.get() + cut).into();
    }
    forest.put(tree, Key { offset: start, ..*key }, extent.as_bytes())?;
    Ok(())
}

/// Where holes have items, gaps get them.
fn fill_gaps(forest: &mut Forest, tree: TreeId, inode: u64) -> Result<()> {
    if forest.store.identity.incompat & incompat::NO_HOLES != 0 {
        return Ok(());
    }
    let item = forest.get(tree, Key::new(inode, KeyType::INODE_ITEM, 0))?;
    let Some(item) = item.and_then(|data| InodeItem::read_from_bytes(&data).ok()) else { return Ok(()) };
    if item.mode.get() >> 12 != S_IFREG {
        return Ok(());
    }
    let sector = forest.store.sectorsize();
    let (mut at, mut gaps) = (0, Vec::new());
    for (key, data) in forest.of_kind(tree, inode, KeyType::EXTENT_DATA)? {
        if key.offset > at {
            gaps.push(at..key.offset);
        }
        at = at.max(key.offset.saturating_add(covered(&data, sector)));
    }
    let size = item.size.get().checked_next_multiple_of(sector).unwrap_or(u64::MAX);
    if size > at {
        gaps.push(at..size);
    }
    for gap in gaps {
        let hole = hole(forest, gap.end - gap.start);
        forest.put(tree, Key::new(inode, KeyType::EXTENT_DATA, gap.start), hole.as_bytes())?;
        let what = format!("puts a hole at {} into inode {inode} of tree {tree}", gap.start);
        forest.lose(
            Pass::Files,
            what,
            format!("what {} bytes of the file held, if it was not a hole", gap.end - gap.start),
        );
    }
    Ok(())
}
