//! The pass `files`: file extents that overlap, show more than there is or nothing, come from the future, or leave
//! gaps; their lengths (`lengths`), marks (`packing`) and shown bytes (`shown_bytes`) come first.

use crate::action::Pass;
use crate::extent_items::Stored;
use crate::forest::Forest;
use crate::trouble::Result;
use crate::{checksums, extents, lengths, packing, shown_bytes};
use butterfs_ondisk::features::incompat;
use butterfs_ondisk::items::{FileExtent, FileExtentBody, FileExtentHead, InodeItem, compression, file_extent_type};
use butterfs_ondisk::packing::LARGEST;
use butterfs_ondisk::{Key, KeyType, TreeId};
use std::collections::BTreeSet;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const S_IFREG: u32 = 0o10;
/// Files that are asked for the length of one extent.
const MOST_FILES: usize = 16;

/// Makes the extents of a file legal; the inode's own item follows later.
pub(crate) fn settle(forest: &mut Forest, tree: TreeId, inode: u64) -> Result<()> {
    // What has entries is a directory that does not say so.
    if !forest.of_kind(tree, inode, KeyType::DIR_INDEX)?.is_empty() {
        return Ok(());
    }
    each(forest, tree, inode, &[lengths::settle, packing::settle, checksums::settle_unwritten, check_generation])?;
    // More than now is shown only where no extent is missing (`lost_extents`).
    shown_bytes::settle(forest, tree, inode, &|_| false)?;
    each(forest, tree, inode, &[check_bounds, remove_empty])?;
    part(forest, tree, inode)?;
    fill_gaps(forest, tree, inode)
}

type Step = fn(&mut Forest, TreeId, Key, &[u8]) -> Result<()>;

fn each(forest: &mut Forest, tree: TreeId, inode: u64, steps: &[Step]) -> Result<()> {
    for step in steps {
        for (key, data) in forest.of_kind(tree, inode, KeyType::EXTENT_DATA)? {
            step(forest, tree, key, &data)?;
        }
    }
    Ok(())
}

/// An item that shows nothing, and of which nothing says how much it showed, goes.
fn remove_empty(forest: &mut Forest, tree: TreeId, key: Key, data: &[u8]) -> Result<()> {
    let Ok(extent) = FileExtent::read_from_bytes(data) else { return Ok(()) };
    if extent.head.kind == file_extent_type::INLINE || extent.body.num_bytes.get() != 0 {
        return Ok(());
    }
    forest.remove(tree, key)?;
    let what =
        format!("removes the extent at {} of inode {} of tree {tree}, which shows nothing", key.offset, key.objectid);
    forest.did(Pass::Files, what);
    Ok(())
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

/// The unpacked length of a packed extent whose item says one that cannot be: other items of the extent say it, else
/// the extent has at least what this one shows. Nothing where the other items agree with it.
fn unpacked_length(forest: &Forest, tree: TreeId, key: Key, extent: &FileExtent) -> Result<Option<u64>> {
    let FileExtentBody { disk_bytenr, disk_num_bytes, offset, num_bytes } = extent.body;
    let (at, stored, said) = (disk_bytenr.get(), disk_num_bytes.get(), extent.head.ram_bytes.get());
    let end = offset.get().checked_add(num_bytes.get()).filter(|end| *end <= LARGEST && num_bytes.get() > 0);
    let recorded = extents::recorded_data(forest, at).filter(|recorded| recorded.length == stored);
    let Some(end) = end.filter(|_| stored <= LARGEST) else { return Ok(None) };
    let fits = || checksums::verified_sector(forest, at);
    if recorded.is_none() && (checksums::covered(forest, at, stored)? < stored || fits()?.is_none()) {
        return Ok(None);
    }
    let mut files = BTreeSet::from([(tree, key.objectid)]);
    for (source, _) in recorded.iter().flat_map(|recorded| &recorded.sources) {
        let file = (TreeId(source.from), source.inode);
        if source.kind == KeyType::EXTENT_DATA_REF.0 && files.len() < MOST_FILES && forest.ptr(file.0).is_ok() {
            files.insert(file);
        }
    }
    let mut others = Vec::new();
    for file in files {
        for (other, data) in forest.of_kind(file.0, file.1, KeyType::EXTENT_DATA).unwrap_or_default() {
            let Ok(item) = FileExtent::read_from_bytes(&data) else { continue };
            let is_same = item.body.disk_bytenr == disk_bytenr && item.head.compression == extent.head.compression;
            let (length, shown) = (item.head.ram_bytes.get(), item.body.num_bytes.get());
            let shown_end = item.body.offset.get().saturating_add(shown);
            let is_sound = item.head.kind == file_extent_type::REGULAR && shown_end <= length && length <= LARGEST;
            if is_same && is_sound && (file, other) != ((tree, key.objectid), key) {
                others.push(length);
            }
        }
    }
    if others.contains(&said) || others.iter().any(|length| *length < end) {
        return Ok(None);
    }
    Ok(Some(others.into_iter().fold(end, u64::max)))
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
    let place = start.checked_sub(offset);
    let recorded = extents::recorded_data(forest, extent.body.disk_bytenr.get());
    let is_placed = place.zip(recorded).is_some_and(|(place, recorded)| recorded.is_of_place(inode, place));
    let is_offset_wrong = shown == limit && !too_large && offset > 0 && !is_placed;
    if !plain
        && !is_offset_wrong
        && let Some(length) = unpacked_length(forest, tree, key, &extent)?
    {
        extent.head.ram_bytes = length.into();
        forest.put(tree, key, extent.as_bytes())?;
        let what = format!("gives the extent at {start} of inode {inode} of tree {tree} {length} bytes when unpacked");
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
