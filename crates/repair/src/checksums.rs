//! The pass `checksums`: checksums of nothing go, overlapping ones are told apart by the data, and missing ones are
//! computed only where the user has accepted what the devices hold.

use crate::action::Pass;
use crate::extents::recorded_data;
use crate::forest::Forest;
use crate::ranges::Ranges;
use crate::trouble::{Result, Trouble};
use crate::walk;
use butterfs_ondisk::header::max_item_size;
use butterfs_ondisk::items::{
    FileExtent, FileExtentBody, InodeItem, block_group_flags, compression, file_extent_type, inode_flags,
};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Key, KeyType, Logical, TreeId};
use rustc_hash::FxHashSet;
use std::ops::Range;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of data that are read at once.
const PIECE: u64 = 1 << 20;

fn key_at(at: u64) -> Key {
    Key::new(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM, at)
}

/// A checksum item: where it begins, and its digests.
type Item = (u64, Vec<u8>);

fn end_of(forest: &Forest, item: &Item) -> u64 {
    let sectors = (item.1.len() / forest.store.identity.checksum.len()) as u64;
    item.0.saturating_add(sectors * forest.store.sectorsize())
}

/// The items that have checksums of a range.
fn overlapping(forest: &Forest, range: &Range<u64>) -> Result<Vec<Item>> {
    let before = forest.before(TreeId::CSUM, key_at(range.start).successor())?;
    let first = before.filter(|key| key.kind == KeyType::EXTENT_CSUM).unwrap_or(key_at(range.start));
    let items = forest.range(TreeId::CSUM, first, key_at(range.end.saturating_sub(1)))?;
    let items = items.into_iter().map(|(key, data)| (key.offset, data));
    Ok(items.filter(|item| end_of(forest, item) > range.start).collect())
}

/// How many bytes of a range have checksums.
pub(crate) fn covered(forest: &Forest, at: u64, length: u64) -> Result<u64> {
    let range = at..at.saturating_add(length);
    Ok(range.end - range.start - gaps(forest, &range)?.iter().map(|gap| gap.end - gap.start).sum::<u64>())
}

/// The parts of an extent that have checksums, within it.
pub(crate) fn parts(forest: &Forest, at: u64, length: u64) -> Result<Vec<Range<u64>>> {
    let range = at..at.saturating_add(length);
    let mut missing = Ranges::default();
    gaps(forest, &range)?.into_iter().for_each(|gap| missing.insert(gap));
    Ok(missing.gaps(range).into_iter().map(|part| part.start - at..part.end - at).collect())
}

fn gaps(forest: &Forest, range: &Range<u64>) -> Result<Vec<Range<u64>>> {
    let mut set = Ranges::default();
    for item in overlapping(forest, range)? {
        set.insert(item.0..end_of(forest, &item));
    }
    Ok(set.gaps(range.clone()))
}

/// Removes the checksums of a range.
pub(crate) fn remove(forest: &mut Forest, range: Range<u64>) -> Result<()> {
    let (sector, len) = (forest.store.sectorsize(), forest.store.identity.checksum.len());
    for (start, digests) in overlapping(forest, &range)? {
        let end = end_of(forest, &(start, digests.clone()));
        forest.remove(TreeId::CSUM, key_at(start))?;
        if start < range.start {
            let kept = ((range.start - start) / sector) as usize * len;
            forest.put(TreeId::CSUM, key_at(start), &digests[..kept])?;
        }
        if end > range.end {
            let skipped = ((range.end - start) / sector) as usize * len;
            forest.put(TreeId::CSUM, key_at(range.end), &digests[skipped..])?;
        }
    }
    Ok(())
}

/// Removes checksums of what is no data. Where other data `lacks` some, they may have been those.
pub(crate) fn remove_stray(forest: &mut Forest, range: Range<u64>, lacks: bool) -> Result<()> {
    let what = format!("removes the checksums of {} bytes at {}", range.end - range.start, range.start);
    match lacks {
        true => forest.lose(Pass::Checksums, what, "checksums that fit no data, while some data has none"),
        false => forest.did(Pass::Checksums, what),
    }
    remove(forest, range)
}

/// Writes the digests of a range that has none.
fn insert(forest: &mut Forest, start: u64, digests: &[u8]) -> Result<()> {
    let (sector, len) = (forest.store.sectorsize(), forest.store.identity.checksum.len());
    let most = (max_item_size(forest.store.identity.nodesize) / len / 2).min(1024) * len;
    for (index, part) in digests.chunks(most).enumerate() {
        let at = start + (index * most / len) as u64 * sector;
        forest.put(TreeId::CSUM, key_at(at), part)?;
    }
    Ok(())
}

/// Tells overlapping items apart: of two digests of one sector the one stays that the data has.
pub(crate) fn settle_overlaps(forest: &mut Forest) -> Result<()> {
    let (mut before, mut pairs): (Option<Item>, _) = (None, Vec::new());
    walk::items(&forest.store, &forest.ptr(TreeId::CSUM)?, &mut |key, data| {
        if key.kind != KeyType::EXTENT_CSUM {
            return;
        }
        let item = (key.offset, data.to_vec());
        if let Some(before) = before.take().filter(|before| end_of(forest, before) > item.0) {
            pairs.push((before, item.clone()));
        }
        before = Some(item);
    });
    for ((first, _), (second, _)) in pairs {
        // Earlier pairs may have changed these items.
        let Some(one) = forest.get(TreeId::CSUM, key_at(first))? else { continue };
        let Some(two) = forest.get(TreeId::CSUM, key_at(second))? else { continue };
        part(forest, (first, one), (second, two))?;
    }
    Ok(())
}

fn part(forest: &mut Forest, one: Item, two: Item) -> Result<()> {
    let (sector, len) = (forest.store.sectorsize(), forest.store.identity.checksum.len());
    let (end_one, end_two) = (end_of(forest, &one), end_of(forest, &two));
    let kept = ((two.0 - one.0) / sector) as usize * len;
    let mut joined = Vec::new();
    let (mut at, mut differ) = (two.0, 0);
    while at < end_one.max(end_two) {
        let of = |item: &Item, end: u64| {
            let from = ((at.checked_sub(item.0)?) / sector) as usize * len;
            (at < end).then(|| item.1[from..from + len].to_vec())
        };
        let digest = match (of(&one, end_one), of(&two, end_two)) {
            (Some(a), Some(b)) if a == b => a,
            (Some(a), Some(b)) => {
                differ += 1;
                if has_digest(forest, at, &a) { a } else { b }
            }
            (a, b) => a.or(b).unwrap_or_else(|| vec![0; len]),
        };
        joined.extend(digest);
        at += sector;
    }
    forest.remove(TreeId::CSUM, key_at(one.0))?;
    forest.remove(TreeId::CSUM, key_at(two.0))?;
    if kept > 0 {
        forest.put(TreeId::CSUM, key_at(one.0), &one.1[..kept])?;
    }
    // Neighbours of the second one may overlap what was behind it.
    let rest = gaps(forest, &(two.0..two.0 + (joined.len() / len) as u64 * sector))?;
    for gap in rest {
        let from = ((gap.start - two.0) / sector) as usize * len;
        let to = ((gap.end - two.0) / sector) as usize * len;
        insert(forest, gap.start, &joined[from..to])?;
    }
    let what = format!("joins overlapping checksum items at {}, {differ} sectors of which differed", two.0);
    forest.did(Pass::Checksums, what);
    Ok(())
}

fn has_digest(forest: &Forest, at: u64, digest: &[u8]) -> bool {
    let mut data = vec![0; forest.store.sectorsize() as usize];
    let copies = forest.store.volume.copies(Logical(at));
    (0..copies).any(|copy| {
        forest.store.volume.read_copy(Logical(at), copy, &mut data).is_ok()
            && forest.store.identity.checksum.matches(&data, digest)
    })
}

/// Sectors that are read to compare data with the digests of an item.
const SAMPLES: usize = 8;

/// Whether the data at an address has these digests, by some of its sectors.
pub(crate) fn fit(forest: &Forest, at: u64, digests: &[u8]) -> bool {
    let (sector, len) = (forest.store.sectorsize(), forest.store.identity.checksum.len());
    let count = digests.len() / len;
    let end = at.checked_add(count as u64 * sector).map(|end| end - 1);
    let is_data = |at: u64| {
        let map = forest.store.volume.chunk_map();
        map.get(Logical(at)).is_some_and(|chunk| chunk.kind & block_group_flags::DATA != 0)
    };
    let Some(_) = end.filter(|end| count > 0 && at.is_multiple_of(sector) && is_data(at) && is_data(*end)) else {
        return false;
    };
    let mut samples = (0..SAMPLES.min(count)).map(|sample| sample * (count - 1) / (SAMPLES.min(count) - 1).max(1));
    samples.all(|index| has_digest(forest, at + index as u64 * sector, &digests[index * len..(index + 1) * len]))
}

/// A sector of data that fits its checksum; nothing where it has none, or no copy fits.
pub(crate) fn verified_sector(forest: &Forest, at: u64) -> Result<Option<Vec<u8>>> {
    let (sector, len) = (forest.store.sectorsize(), forest.store.identity.checksum.len());
    let items = overlapping(forest, &(at..at.saturating_add(sector)))?;
    let digest = items.iter().find_map(|(start, digests)| {
        let skipped = usize::try_from(at.checked_sub(*start)? / sector).ok()?.checked_mul(len)?;
        digests.get(skipped..skipped + len)
    });
    let Some(digest) = digest else { return Ok(None) };
    let mut data = vec![0; sector as usize];
    let (volume, kind) = (&forest.store.volume, forest.store.identity.checksum);
    let is_good = (0..volume.copies(Logical(at)))
        .any(|copy| volume.read_copy(Logical(at), copy, &mut data).is_ok() && kind.matches(&data, digest));
    Ok(is_good.then_some(data))
}

/// The ranges of data that a file shows, as its checksums have them.
fn shown(data: &[u8]) -> Option<Range<u64>> {
    let extent = FileExtent::read_from_bytes(data).ok()?;
    let body = &extent.body;
    if extent.head.kind != file_extent_type::REGULAR || body.disk_bytenr.get() == 0 {
        return None;
    }
    let (mut start, mut length) = (body.disk_bytenr.get(), body.disk_num_bytes.get());
    if extent.head.compression == compression::NONE {
        (start, length) = (start.saturating_add(body.offset.get()), body.num_bytes.get());
    }
    Some(start..start.saturating_add(length))
}

/// An inode that is not to have checksums, and has some: its flag goes where all of its data has them, else they do.
pub(crate) fn settle_odd(forest: &mut Forest, tree: TreeId, inode: u64) -> Result<()> {
    let key = Key::new(inode, KeyType::INODE_ITEM, 0);
    let Some(data) = forest.get(tree, key)? else { return Ok(()) };
    let Ok(mut item) = InodeItem::read_from_bytes(&data) else { return Ok(()) };
    let ranges: Vec<Range<u64>> =
        forest.of_kind(tree, inode, KeyType::EXTENT_DATA)?.iter().filter_map(|(_, data)| shown(data)).collect();
    let mut all = true;
    for range in &ranges {
        all &= gaps(forest, range)?.is_empty();
    }
    if all && item.flags.get() & inode_flags::NODATACOW == 0 {
        item.flags = (item.flags.get() & !inode_flags::NODATASUM).into();
        forest.put(tree, key, item.as_bytes())?;
        let what = format!("has the data of inode {inode} of tree {tree} verified by the checksums that it has");
        forest.did(Pass::Checksums, what);
        return Ok(());
    }
    for range in ranges {
        remove(forest, range)?;
    }
    let what = format!("removes the checksums of inode {inode} of tree {tree}, which is not to have any");
    forest.lose(Pass::Checksums, what, "checksums that may no longer fit");
    Ok(())
}

/// An allocated extent of which the shown part has checksums: it is marked as written, if data fits them; else they go,
/// if no written extent needs them.
pub(crate) fn settle_unwritten(forest: &mut Forest, tree: TreeId, key: Key, data: &[u8]) -> Result<()> {
    let Some(mut extent) = FileExtent::read_from_bytes(data).ok().filter(is_unwritten) else { return Ok(()) };
    let FileExtentBody { disk_bytenr, disk_num_bytes, offset, num_bytes } = extent.body;
    let (at, bytes, place) = (disk_bytenr.get(), num_bytes.get(), key.offset.wrapping_sub(offset.get()));
    let recorded = recorded_data(forest, at).filter(|own| own.length == disk_num_bytes.get());
    let Some(own) = recorded.filter(|own| at.checked_add(own.length).is_some()) else { return Ok(()) };
    let shown = at + offset.get()..at + offset.get() + bytes;
    // An item that names the place of another file's data says nothing about that data.
    let is_own = own.is_of_place(key.objectid, place) || own.blocks().next().is_some();
    let summed = if is_own { covered(forest, shown.start, bytes)? } else { 0 };
    if summed == 0 {
        return Ok(());
    }
    let whose = format!("the extent at {} of inode {} of tree {tree}", key.offset, key.objectid);
    let mut sectors = shown.clone().step_by(forest.store.sectorsize() as usize);
    let any = |found, at| Ok::<bool, Trouble>(found || verified_sector(forest, at)?.is_some());
    if summed == bytes && sectors.try_fold(false, any)? {
        extent.head.kind = file_extent_type::REGULAR;
        forest.put(tree, key, extent.as_bytes())?;
        forest.did(Pass::Files, format!("marks {whose} as written: its data fits its checksums"));
    } else if own.sources.len() == 1 && !is_written(forest, (tree, key.objectid), &shown)? {
        remove(forest, shown)?;
        let what = format!("removes the checksums of {whose}, where nothing was written");
        forest.lose(Pass::Files, what, "checksums of bytes that are read as zeros");
    }
    Ok(())
}

/// Whether an extent is only allocated, and the item shows a part of it.
fn is_unwritten(extent: &FileExtent) -> bool {
    let body = &extent.body;
    let end = body.offset.get().checked_add(body.num_bytes.get());
    let is_within = end.is_some_and(|end| end <= body.disk_num_bytes.get());
    extent.head.kind == file_extent_type::PREALLOC && body.disk_bytenr.get() != 0 && is_within
}

/// Whether a file shows written data of a range.
fn is_written(forest: &Forest, (tree, inode): (TreeId, u64), range: &Range<u64>) -> Result<bool> {
    let items = forest.of_kind(tree, inode, KeyType::EXTENT_DATA)?;
    let overlaps = |other: Range<u64>| other.start < range.end && range.start < other.end;
    Ok(items.iter().filter_map(|(_, data)| shown(data)).any(overlaps))
}

/// Computes the checksums that a file lacks, from what the devices hold.
pub(crate) fn compute_missing(forest: &mut Forest, tree: TreeId, inode: u64) -> Result<()> {
    let items = forest.of_kind(tree, inode, KeyType::EXTENT_DATA)?;
    let mut bytes = 0;
    for range in items.iter().filter_map(|(_, data)| shown(data)) {
        for gap in gaps(forest, &range)? {
            bytes += gap.end - gap.start;
            compute(forest, gap)?;
        }
    }
    if bytes > 0 {
        let what =
            format!("computes checksums of {bytes} bytes of inode {inode} of tree {tree} from what the devices hold");
        forest.lose(Pass::Checksums, what, "the knowledge whether these bytes are right");
    }
    Ok(())
}

fn compute(forest: &mut Forest, range: Range<u64>) -> Result<()> {
    let (sector, kind) = (forest.store.sectorsize() as usize, forest.store.identity.checksum);
    let mut at = range.start;
    while at < range.end {
        let map = forest.store.volume.chunk_map();
        let chunk = map.get(Logical(at)).ok_or_else(|| Trouble::new(format!("data at {at} lies in no chunk")))?;
        let end = range.end.min(at + PIECE).min(chunk.end().get());
        let data = agreed(forest, at, (end - at) as usize)?;
        insert(forest, at, &kind.digests(&data, sector))?;
        at = end;
    }
    Ok(())
}

/// The bytes that all readable copies hold alike.
fn agreed(forest: &Forest, at: u64, length: usize) -> Result<Vec<u8>> {
    let volume = &forest.store.volume;
    let mut agreed: Option<Vec<u8>> = None;
    for copy in 0..volume.copies(Logical(at)) {
        let mut data = vec![0; length];
        if volume.read_copy(Logical(at), copy, &mut data).is_err() {
            continue;
        }
        match &agreed {
            Some(other) if *other != data => {
                return Err(Trouble::new(format!(
                    "the copies of data at {at} differ, and nothing says which is right"
                )));
            }
            _ => agreed = Some(data),
        }
    }
    agreed.ok_or_else(|| Trouble::new(format!("data at {at} cannot be read")))
}

/// Makes the checksum tree anew, from what the devices hold.
pub(crate) fn init(forest: &mut Forest) -> Result<()> {
    forest.start_anew(TreeId::CSUM)?;
    let (mut wanted, mut seen) = (Ranges::default(), FxHashSet::default());
    for tree in forest.subvolumes() {
        let mut sums = (0, true);
        walk::walk(&forest.store, &forest.ptr(tree)?, None, &mut |node, _| {
            if !node.is_leaf() {
                return true;
            }
            let is_new = seen.insert(node.at().get());
            for (key, data) in node.items() {
                if key.kind == KeyType::INODE_ITEM {
                    let flags = InodeItem::read_from_bytes(data).map_or(0, |item| item.flags.get());
                    sums = (key.objectid, flags & inode_flags::NODATASUM == 0);
                }
                let counts = is_new && key.kind == KeyType::EXTENT_DATA && sums == (key.objectid, true);
                if let Some(range) = counts.then(|| shown(data)).flatten() {
                    wanted.insert(range);
                }
            }
            true
        });
    }
    let ranges: Vec<Range<u64>> = wanted.within(0..u64::MAX).collect();
    let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    for range in ranges {
        compute(forest, range)?;
    }
    let what = format!("makes the checksum tree anew, of {bytes} bytes of data as the devices hold them");
    forest.lose(Pass::Checksums, what, "the knowledge which data is damaged");
    Ok(())
}

/// The checksum of the sector at `at`, if there is one.
pub(crate) fn digest_at(forest: &Forest, at: u64) -> Result<Option<Vec<u8>>> {
    let (sector, len) = (forest.store.sectorsize(), forest.store.identity.checksum.len());
    let Some(item) = overlapping(forest, &(at..at + sector))?.into_iter().next() else { return Ok(None) };
    let from = at.checked_sub(item.0).map(|inside| (inside / sector) as usize * len);
    Ok(from.and_then(|from| item.1.get(from..from + len)).map(<[u8]>::to_vec))
}

/// Writes what another copy holds over bad copies of data; true where one was good.
pub(crate) fn restore_copies(forest: &mut Forest, at: u64) -> Result<bool> {
    let Ok(Some(digest)) = digest_at(forest, at) else { return Ok(false) };
    let mut data = vec![0; forest.store.sectorsize() as usize];
    for copy in 0..forest.store.volume.copies(Logical(at)) {
        let read = forest.store.volume.read_copy(Logical(at), copy, &mut data);
        if read.is_ok() && forest.store.identity.checksum.matches(&data, &digest) {
            forest.store.volume.write(Logical(at), &data)?;
            forest.did(Pass::Copies, format!("writes the good copy of the data at {at} over the bad ones"));
            return Ok(true);
        }
    }
    Ok(false)
}
