//! Extents of files whose items are lost or name another place: the extent tree says which file had them and where,
//! and the inode how many bytes of extents it had.
//!
//! Invariants: (1) items are made only where all extents that a file has lost make up exactly the bytes that are
//! missing, and touch none of its other extents; what has no checksums was only allocated (`laid`). (2) An extent
//! is taken for a packed one only if data that fits its checksum begins so. (3) An item gets another address only where
//! the extent tree has an extent of the same length that lacks just this item, and where it does not know that the
//! item has the present one; the same goes for the offset within the extent.

use crate::action::Pass;
use crate::extent_items::{Extent, Stored};
use crate::extents::recorded_data;
use crate::forest::Forest;
use crate::laid::{Kinds, Together, together};
use crate::prune::{LostKeys, Pruned};
use crate::ranges::Ranges;
use crate::trouble::Result;
use crate::{checksums, inodes, shown_bytes, walk};
use butterfs_check::Finding;
use butterfs_ondisk::items::{FileExtent, InodeItem, compression, file_extent_type, inode_flags};
use butterfs_ondisk::packing::{LARGEST, Packing};
use butterfs_ondisk::{Key, KeyType, TreeId};
use butterfs_tree as tree;
use rustc_hash::FxHashSet;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Where a file had an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lost {
    /// The position in the file.
    pub start: u64,
    pub at: u64,
    pub length: u64,
    pub generation: u64,
}

/// Puts lost items back for the files that have fewer bytes than their inodes say.
/// Files of which items were taken out count, too.
pub(crate) fn restore(forest: &mut Forest, findings: &[Finding], pruned: &Pruned) -> Result<()> {
    let more = &pruned.without_extents;
    let mut suspects: BTreeSet<(TreeId, u64)> = findings
        .iter()
        .filter_map(|finding| match finding {
            Finding::InodeBytes { tree, inode, stored, found } if stored > found => Some((tree.0, inode.get())),
            _ => None,
        })
        .collect();
    suspects.extend(more);
    if suspects.is_empty() {
        return Ok(());
    }
    let referenced = referenced(forest, &suspects);
    let lacking = lacking_users(findings);
    // Which files are the same is asked before the first one is changed.
    let mut candidates = Vec::new();
    for (tree, inode) in suspects {
        // A leaf that snapshots share refers by the subvolume that wrote it.
        let relatives = referenced.iter().filter(|((_, other), _)| *other == inode);
        let mut files: Vec<_> = relatives.collect();
        files.sort_by_key(|((other, _), _)| *other != tree);
        let mut same = Vec::new();
        for ((other, _), lost) in files {
            if is_same(forest, (*other, tree), inode)? {
                same.push(lost);
            }
        }
        candidates.push((tree, inode, same));
    }
    for (tree, inode, same) in candidates {
        for lost in same {
            if restore_file(forest, tree, inode, lost.clone(), &pruned.lost_keys)? {
                break;
            }
        }
        if !more.contains(&(tree, inode)) {
            let lost = lost_places(forest, &lacking, inode);
            let is_free =
                |range: Range<u64>| lost.iter().all(|lost| range.end <= lost.start || lost.end <= range.start);
            shown_bytes::settle(forest, tree, inode, &is_free)?;
        }
    }
    Ok(())
}

/// Extents that have more references than users.
fn lacking_users(findings: &[Finding]) -> BTreeSet<u64> {
    let lacking = |finding: &Finding| match finding {
        Finding::ExtentUnused { at, .. } | Finding::ReferenceExtra { at, .. } => Some(at.0),
        Finding::ReferenceCount { at, stored, found, .. } if stored > found => Some(at.0),
        _ => None,
    };
    findings.iter().filter_map(lacking).collect()
}

/// Extents that have more users than references.
fn lacking_references(findings: &[Finding]) -> BTreeSet<u64> {
    let lacking = |finding: &Finding| match finding {
        Finding::ExtentMissing { at, .. } | Finding::ReferenceMissing { at, .. } => Some(at.0),
        Finding::ReferenceCount { at, stored, found, .. } if stored < found => Some(at.0),
        _ => None,
    };
    findings.iter().filter_map(lacking).collect()
}

/// The ranges in which inodes of this number may have lost an extent: all of a file where only a leaf's address refers
/// to the extent, because such a reference names no position.
fn lost_places(forest: &Forest, lacking: &BTreeSet<u64>, inode: u64) -> Vec<Range<u64>> {
    let mut places = Vec::new();
    for extent in lacking.iter().filter_map(|at| recorded_data(forest, *at)) {
        places.extend(extent.blocks().next().map(|_| 0..u64::MAX));
        for (source, _) in &extent.sources {
            let is_here = source.kind == KeyType::EXTENT_DATA_REF.0 && source.inode == inode;
            let end = source.offset.saturating_add(extent.length.max(LARGEST));
            places.extend(is_here.then_some(source.offset..end));
        }
    }
    places
}

/// Whether an inode of one subvolume is that of another one, as a snapshot has it.
fn is_same(forest: &Forest, (one, other): (TreeId, TreeId), inode: u64) -> Result<bool> {
    if one == other {
        return Ok(true);
    }
    if forest.ptr(one).is_err() || forest.drop_point(one).is_some() {
        return Ok(false);
    }
    let key = Key::new(inode, KeyType::INODE_ITEM, 0);
    let parsed = |data: Option<Vec<u8>>| data.and_then(|data| InodeItem::read_from_bytes(&data).ok());
    let (one, other) = (parsed(forest.get(one, key)?), parsed(forest.get(other, key)?));
    let said = |item: InodeItem| (item.generation.get(), item.nbytes.get(), item.mode.get());
    Ok(one.is_some() && one.map(said) == other.map(said))
}

/// The extents of files with these numbers, in any subvolume, as the extent tree has them.
fn referenced(forest: &Forest, suspects: &BTreeSet<(TreeId, u64)>) -> BTreeMap<(TreeId, u64), Vec<Lost>> {
    let mut found: BTreeMap<(TreeId, u64), Vec<Lost>> = BTreeMap::new();
    let inodes: BTreeSet<u64> = suspects.iter().map(|(_, inode)| *inode).collect();
    let mut add = |extent: &Extent| {
        for (source, _) in extent.sources.iter().filter(|(source, _)| source.kind == KeyType::EXTENT_DATA_REF.0) {
            let file = (TreeId(source.from), source.inode);
            if inodes.contains(&file.1) {
                let Extent { at, length, generation, .. } = *extent;
                found.entry(file).or_default().push(Lost { start: source.offset, at, length, generation });
            }
        }
    };
    each_extent(forest, &mut add);
    found
}

/// All extents of the extent tree with their references by file.
pub(crate) fn each_extent(forest: &Forest, take: &mut dyn FnMut(&Extent)) {
    let Ok(ptr) = forest.ptr(TreeId::EXTENT) else { return };
    let mut current: Option<Stored> = None;
    walk::items(&forest.store, &ptr, &mut |key, data| match key.kind {
        KeyType::EXTENT_ITEM => {
            let next = Stored::parse(key, data, forest.store.nodesize());
            current.replace(next).and_then(|stored| stored.extent).iter().for_each(&mut *take);
        }
        KeyType::EXTENT_DATA_REF => {
            let own = current.as_mut().filter(|stored| stored.keys[0].objectid == key.objectid);
            own.into_iter().for_each(|stored| stored.add_keyed(key, data));
        }
        _ => {}
    });
    current.and_then(|stored| stored.extent).iter().for_each(take);
}

/// Corrects items with a wrong address: the extent tree has an extent of the same length for just this place of the
/// file, which the file does not use, and does not know that the file uses the one that the item names.
pub(crate) fn correct(forest: &mut Forest, findings: &[Finding]) -> Result<()> {
    let lacking = lacking_users(findings);
    if lacking.is_empty() {
        return Ok(());
    }
    let unknown = lacking_references(findings);
    let (mut right, mut blocks) = (Vec::new(), BTreeSet::new());
    for Extent { at, length, generation, sources, .. } in lacking.iter().filter_map(|at| recorded_data(forest, *at)) {
        for (source, _) in sources {
            match KeyType(source.kind) {
                KeyType::SHARED_DATA_REF => drop(blocks.insert(source.from)),
                _ => right.push((source.inode, Lost { start: source.offset, at, length, generation })),
            }
        }
    }
    let subvolumes = forest.whole_subvolumes();
    for moved in moved_in_blocks(forest, &blocks, &lacking) {
        // Subvolumes share the leaf.
        for &tree in &subvolumes {
            let is_here = forest.ptr(tree).is_ok_and(|ptr| {
                let place = tree::search(&forest.store.editor(tree), &ptr, &moved.key);
                place.is_ok_and(|place| place.found && place.leaf.at().get() == moved.leaf)
            });
            if is_here {
                set_address(forest, tree, moved.key, moved.extent, moved.at)?;
            }
        }
    }
    // Snapshots may share the leaf with the subvolume that the reference names.
    for tree in subvolumes {
        for (inode, lost) in &right {
            correct_file(forest, tree, *inode, lost, &unknown)?;
        }
    }
    Ok(())
}

/// An item of a leaf that refers to its extents by the address of the leaf, and the right address of its extent.
struct Moved {
    leaf: u64,
    key: Key,
    extent: FileExtent,
    at: u64,
}

/// The items with a wrong address in these leaves: of each length one item of a leaf has an extent without a reference
/// by the leaf, and one extent that lacks users has such a reference and no item.
fn moved_in_blocks(forest: &Forest, blocks: &BTreeSet<u64>, lacking: &BTreeSet<u64>) -> Vec<Moved> {
    let (mut leaves, mut seen) = (BTreeMap::new(), FxHashSet::default());
    for tree in forest.whole_subvolumes().into_iter().filter(|_| !blocks.is_empty()) {
        let Ok(ptr) = forest.ptr(tree) else { continue };
        walk::walk(&forest.store, &ptr, None, &mut |node, _| {
            if node.is_leaf() && blocks.contains(&node.at().get()) {
                let items = node.items().filter(|(key, _)| key.kind == KeyType::EXTENT_DATA);
                let extents = items.filter_map(|(key, data)| Some((key, own_extent(data)?)));
                leaves.insert(node.at().get(), extents.collect::<Vec<_>>());
            }
            seen.insert(node.at().get())
        });
    }
    let mut found = Vec::new();
    for (leaf, items) in leaves {
        let used: BTreeSet<u64> = items.iter().map(|(_, extent)| extent.body.disk_bytenr.get()).collect();
        let is_by_leaf = |extent: &Extent| extent.blocks().any(|block| block == leaf);
        let unused: Vec<Extent> =
            lacking.difference(&used).filter_map(|at| recorded_data(forest, *at)).filter(is_by_leaf).collect();
        let is_stray = |extent: &FileExtent| {
            let recorded = recorded_data(forest, extent.body.disk_bytenr.get());
            !recorded.is_some_and(|own| own.length == extent.body.disk_num_bytes.get() && is_by_leaf(&own))
        };
        let stray: Vec<_> = items.into_iter().filter(|(_, extent)| is_stray(extent)).collect();
        for Extent { at, length, .. } in &unused {
            let mut alike = stray.iter().filter(|(_, extent)| extent.body.disk_num_bytes.get() == *length);
            let is_alone = unused.iter().filter(|other| other.length == *length).count() == 1;
            if let (Some((key, extent)), None, true) = (alike.next(), alike.next(), is_alone) {
                found.push(Moved { leaf, key: *key, extent: *extent, at: *at });
            }
        }
    }
    found
}

/// The item of an extent with space of its own.
fn own_extent(data: &[u8]) -> Option<FileExtent> {
    let extent = FileExtent::read_from_bytes(data).ok()?;
    (extent.head.kind != file_extent_type::INLINE && extent.body.disk_bytenr.get() != 0).then_some(extent)
}

fn correct_file(forest: &mut Forest, tree: TreeId, inode: u64, right: &Lost, unknown: &BTreeSet<u64>) -> Result<()> {
    let items = forest.of_kind(tree, inode, KeyType::EXTENT_DATA).unwrap_or_default();
    let items: Vec<_> = items.into_iter().filter_map(|(key, data)| Some((key, own_extent(&data)?))).collect();
    correct_offset(forest, tree, &items, right, unknown)?;
    for (key, extent) in items {
        let FileExtent { head, body } = extent;
        let (at, length, offset) = (body.disk_bytenr.get(), body.disk_num_bytes.get(), body.offset.get());
        let is_here = key.offset.checked_sub(offset) == Some(right.start);
        let is_elsewhere = at != right.at && length == right.length;
        let within = if head.compression == compression::NONE { right.length } else { head.ram_bytes.get() };
        let has_room = offset.checked_add(body.num_bytes.get()).is_some_and(|end| end <= within);
        let is_known = forest.get(TreeId::EXTENT, Key::new(at, KeyType::EXTENT_ITEM, length))?.is_some()
            && (!unknown.contains(&at)
                || recorded_data(forest, at).is_none_or(|own| own.is_of_place(inode, right.start)));
        if is_here && is_elsewhere && has_room && !is_known && has_sums(forest, (tree, inode), &extent, right)? {
            set_address(forest, tree, key, extent, right.at)?;
        }
    }
    Ok(())
}

/// Gives the item the offset within its extent that the extent tree says, if the file uses the extent by one item
/// alone, and the extent tree does not know it with the present offset.
fn correct_offset(
    forest: &mut Forest,
    tree: TreeId,
    items: &[(Key, FileExtent)],
    right: &Lost,
    unknown: &BTreeSet<u64>,
) -> Result<()> {
    let mut own = items.iter().filter(|(_, extent)| extent.body.disk_bytenr.get() == right.at);
    let (Some((key, extent)), None) = (own.next(), own.next()) else { return Ok(()) };
    let (mut extent, offset) = (*extent, extent.body.offset.get());
    let place = key.offset.wrapping_sub(offset);
    let is_known = recorded_data(forest, right.at).is_none_or(|own| own.is_of_place(key.objectid, place));
    let plain = extent.head.compression == compression::NONE;
    let within = if plain { right.length } else { extent.head.ram_bytes.get() };
    let found = key.offset.checked_sub(right.start).filter(|found| {
        let end = found.checked_add(extent.body.num_bytes.get());
        *found != offset && end.is_some_and(|end| end <= within)
    });
    let is_wrong = unknown.contains(&right.at) && !is_known && extent.body.disk_num_bytes.get() == right.length;
    if let Some(found) = found.filter(|_| is_wrong) {
        extent.body.offset = found.into();
        forest.put(tree, *key, extent.as_bytes())?;
        let (start, inode) = (key.offset, key.objectid);
        let what = format!("has the extent at {start} of inode {inode} of tree {tree} begin at its byte {found}");
        forest.did(Pass::Files, what);
    }
    Ok(())
}

/// Whether the extent has the checksums that the file's data is to have.
fn has_sums(forest: &Forest, file: (TreeId, u64), extent: &FileExtent, right: &Lost) -> Result<bool> {
    let is_plain = extent.head.compression == compression::NONE;
    let (skipped, length) = match is_plain {
        true => (extent.body.offset.get(), extent.body.num_bytes.get()),
        false => (0, right.length),
    };
    let needs_some = extent.head.kind == file_extent_type::REGULAR && inodes::has_checksums(forest, file)?;
    Ok(!needs_some || checksums::covered(forest, right.at.saturating_add(skipped), length)? == length)
}

fn set_address(forest: &mut Forest, tree: TreeId, key: Key, mut extent: FileExtent, at: u64) -> Result<()> {
    extent.body.disk_bytenr = at.into();
    forest.put(tree, key, extent.as_bytes())?;
    let (start, inode) = (key.offset, key.objectid);
    let what = format!("gives the extent at {start} of inode {inode} of tree {tree} its address {at}");
    forest.did(Pass::Files, what);
    Ok(())
}

/// Puts these extents into a file, if they are certainly its own; says whether they are.
fn restore_file(
    forest: &mut Forest,
    tree: TreeId,
    inode: u64,
    mut lost: Vec<Lost>,
    lost_keys: &LostKeys,
) -> Result<bool> {
    let all = lost.clone();
    let Some(data) = forest.get(tree, Key::new(inode, KeyType::INODE_ITEM, 0))? else { return Ok(false) };
    let Ok(item) = InodeItem::read_from_bytes(&data) else { return Ok(false) };
    let (mut bytes, mut ranges) = (0u64, Vec::new());
    for (key, data) in forest.of_kind(tree, inode, KeyType::EXTENT_DATA)? {
        let Ok(extent) = FileExtent::read_from_bytes(&data) else { return Ok(false) };
        let shown = extent.body.num_bytes.get();
        if extent.body.disk_bytenr.get() != 0 {
            bytes = bytes.saturating_add(shown);
            ranges.push(key.offset..key.offset.saturating_add(shown));
            let begins = key.offset.wrapping_sub(extent.body.offset.get());
            lost.retain(|lost| (lost.at, lost.start) != (extent.body.disk_bytenr.get(), begins));
        }
    }
    lost.sort_unstable();
    let missing = item.nbytes.get().checked_sub(bytes).filter(|missing| *missing > 0);
    let file_end = item.size.get().checked_next_multiple_of(forest.store.sectorsize()).unwrap_or(u64::MAX);
    let Some(missing) = missing else { return Ok(false) };
    let made = match whole(forest, &lost, &ranges, (missing, file_end))? {
        Some(made) => lost.iter().map(|lost| lost.start).zip(made).collect(),
        None => {
            let mut shown = Ranges::default();
            ranges.into_iter().chain(lost_keys.known_places(inode)).for_each(|range| shown.insert(range));
            let Some(made) = in_parts(forest, &all, &shown, missing)? else { return Ok(false) };
            if !made.has_sums {
                if item.flags.get() & inode_flags::NODATASUM == 0 {
                    return Ok(false);
                }
                inodes::give_to_root(forest, tree, inode)?;
            }
            made.items
        }
    };
    for (start, extent) in made {
        // A hole may have an item of its own there.
        forest.put(tree, Key::new(inode, KeyType::EXTENT_DATA, start), extent.as_bytes())?;
        let what = format!("puts the extent at {start} back into inode {inode} of tree {tree}: the extent tree has it");
        forest.did(Pass::Files, what);
    }
    Ok(true)
}

/// The items of lost extents that are shown in parts, if these make up exactly the bytes that are missing.
fn in_parts(forest: &Forest, lost: &[Lost], shown: &Ranges, missing: u64) -> Result<Option<Together>> {
    for kinds in [Kinds::Plain, Kinds::Any] {
        let made = together(forest, shown.clone(), lost.to_vec(), &kinds)?;
        if !made.is_disputed && made.bytes() == missing {
            return Ok(Some(made));
        }
    }
    Ok(None)
}

/// The items of lost extents, if these make up exactly the bytes that are missing; `ranges` are those that the file
/// has.
fn whole(
    forest: &Forest,
    lost: &[Lost],
    ranges: &[Range<u64>],
    (missing, file_end): (u64, u64),
) -> Result<Option<Vec<FileExtent>>> {
    for lost in lost {
        if checksums::covered(forest, lost.at, lost.length)? != lost.length {
            return Ok(None);
        }
    }
    let sum =
        |made: &[FileExtent]| made.iter().fold(0u64, |sum, extent| sum.saturating_add(extent.body.num_bytes.get()));
    let is_apart = |made: &[FileExtent]| {
        let mut all: Vec<Range<u64>> = ranges.to_vec();
        all.extend(
            lost.iter()
                .zip(made)
                .map(|(lost, extent)| lost.start..lost.start.saturating_add(extent.body.num_bytes.get())),
        );
        all.sort_unstable_by_key(|range| range.start);
        all.windows(2).all(|pair| pair[0].end <= pair[1].start)
    };
    let plain: Vec<FileExtent> = lost.iter().map(|lost| item_of(lost, compression::NONE, lost.length)).collect();
    if sum(&plain) == missing {
        return Ok(is_apart(&plain).then_some(plain));
    }
    // A packed extent ends at the next extent, at the end of the file, or after the 128 KiB that are packed at once.
    let mut made = Vec::new();
    for (place, one) in lost.iter().enumerate() {
        let starts = ranges.iter().map(|range| range.start).chain(lost[place + 1..].iter().map(|next| next.start));
        let next = starts.filter(|start| *start > one.start).chain([file_end]).min().unwrap_or(file_end);
        let unpacked = next.saturating_sub(one.start).min(LARGEST);
        let unit = forest.store.sectorsize();
        let packing = Packing { mark: compression::NONE, stored: one.length, unpacked, unit };
        let start = if packing.is_doubtful() { checksums::verified_sector(forest, one.at)? } else { None };
        made.push(match start.and_then(|start| packing.right_mark(&start)) {
            Some(mark) => item_of(one, mark, unpacked),
            None => item_of(one, compression::NONE, one.length),
        });
    }
    Ok((sum(&made) == missing && is_apart(&made)).then_some(made))
}

/// The item of an extent that the file shows whole.
pub(crate) fn item_of(lost: &Lost, mark: u8, unpacked: u64) -> FileExtent {
    let mut extent = FileExtent::new_zeroed();
    extent.head.generation = lost.generation.into();
    extent.head.ram_bytes = unpacked.into();
    (extent.head.compression, extent.head.kind) = (mark, file_extent_type::REGULAR);
    (extent.body.disk_bytenr, extent.body.disk_num_bytes) = (lost.at.into(), lost.length.into());
    extent.body.num_bytes = unpacked.into();
    extent
}
