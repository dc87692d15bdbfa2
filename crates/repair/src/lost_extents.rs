//! Extents of files whose items are lost or name another place: the extent tree says which file had them and where,
//! and the inode how many bytes of extents it had.
//!
//! Invariant: items are made only where all extents that a file has lost make up exactly the bytes that are missing,
//! touch none of its other extents, and all have checksums: then they were neither compressed nor only allocated.

use crate::action::Pass;
use crate::checksums;
use crate::extent_items::{Extent, Stored};
use crate::forest::Forest;
use crate::trouble::Result;
use crate::walk;
use butterfs_check::Finding;
use butterfs_ondisk::items::{FileExtent, InodeItem, compression, file_extent_type};
use butterfs_ondisk::{Key, KeyType, TreeId};
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Where a file had an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Lost {
    /// The position in the file.
    start: u64,
    at: u64,
    length: u64,
    generation: u64,
}

/// Puts lost items back for the files that have fewer bytes than their inodes say.
/// `more` are files of which items were left out.
pub(crate) fn restore(forest: &mut Forest, findings: &[Finding], more: &[(TreeId, u64)]) -> Result<()> {
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
    for (tree, inode) in suspects {
        // A leaf that snapshots share refers by the subvolume that wrote it.
        let relatives = referenced.iter().filter(|((_, other), _)| *other == inode);
        let mut files: Vec<_> = relatives.collect();
        files.sort_by_key(|((other, _), _)| *other != tree);
        for ((other, _), lost) in files {
            if is_same(forest, (*other, tree), inode)? && restore_file(forest, tree, inode, lost.clone())? {
                break;
            }
        }
    }
    Ok(())
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
fn each_extent(forest: &Forest, take: &mut dyn FnMut(&Extent)) {
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

/// Corrects items with a wrong address: the extent tree has no extent of that length there, and has one for just this
/// place of the file, which the file does not use.
pub(crate) fn correct(forest: &mut Forest, findings: &[Finding]) -> Result<()> {
    let lacking = |finding: &Finding| match finding {
        Finding::ExtentUnused { at, .. } | Finding::ReferenceExtra { at, .. } => Some(at.0),
        _ => None,
    };
    let lacking: BTreeSet<u64> = findings.iter().filter_map(lacking).collect();
    if lacking.is_empty() {
        return Ok(());
    }
    let mut right: Vec<(u64, Lost)> = Vec::new();
    each_extent(forest, &mut |extent| {
        let Extent { at, length, generation, .. } = *extent;
        let sources = extent.sources.iter().filter(|(source, _)| source.kind == KeyType::EXTENT_DATA_REF.0);
        let files = sources.filter(|_| lacking.contains(&at));
        right.extend(files.map(|(source, _)| (source.inode, Lost { start: source.offset, at, length, generation })));
    });
    // Snapshots may share the leaf with the subvolume that the reference names.
    for tree in forest.whole_subvolumes() {
        for (inode, lost) in &right {
            correct_file(forest, tree, *inode, lost)?;
        }
    }
    Ok(())
}

fn correct_file(forest: &mut Forest, tree: TreeId, inode: u64, right: &Lost) -> Result<()> {
    for (key, data) in forest.of_kind(tree, inode, KeyType::EXTENT_DATA).unwrap_or_default() {
        let Ok(mut extent) = FileExtent::read_from_bytes(&data) else { continue };
        let FileExtent { head, body } = extent;
        let (at, length, offset) = (body.disk_bytenr.get(), body.disk_num_bytes.get(), body.offset.get());
        let is_here = key.offset.checked_sub(offset) == Some(right.start) && head.kind != file_extent_type::INLINE;
        let is_elsewhere = at != 0 && at != right.at && length == right.length;
        let within = if head.compression == compression::NONE { right.length } else { head.ram_bytes.get() };
        let has_room = offset.checked_add(body.num_bytes.get()).is_some_and(|end| end <= within);
        let own = Key::new(at, KeyType::EXTENT_ITEM, length);
        if !is_here || !is_elsewhere || !has_room || forest.get(TreeId::EXTENT, own)?.is_some() {
            continue;
        }
        extent.body.disk_bytenr = right.at.into();
        forest.put(tree, key, extent.as_bytes())?;
        let (start, at) = (key.offset, right.at);
        let what = format!("gives the extent at {start} of inode {inode} of tree {tree} its address {at}");
        forest.did(Pass::Files, what);
    }
    Ok(())
}

/// Puts these extents into a file, if they are certainly its own; says whether they are.
fn restore_file(forest: &mut Forest, tree: TreeId, inode: u64, mut lost: Vec<Lost>) -> Result<bool> {
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
    let end = |lost: &Lost| lost.start.saturating_add(lost.length);
    let sum: u64 = lost.iter().fold(0, |sum, lost| sum.saturating_add(lost.length));
    let is_apart = lost.windows(2).all(|pair| end(&pair[0]) <= pair[1].start)
        && lost.iter().all(|lost| ranges.iter().all(|range| end(lost) <= range.start || range.end <= lost.start));
    let mut is_certain = !lost.is_empty() && is_apart && bytes.checked_add(sum) == Some(item.nbytes.get());
    for lost in &lost {
        is_certain = is_certain && checksums::covered(forest, lost.at, lost.length)? == lost.length;
    }
    for Lost { start, at, length, generation } in lost.into_iter().filter(|_| is_certain) {
        let mut extent = FileExtent::new_zeroed();
        extent.head.generation = generation.into();
        extent.head.ram_bytes = length.into();
        extent.head.kind = file_extent_type::REGULAR;
        (extent.body.disk_bytenr, extent.body.disk_num_bytes) = (at.into(), length.into());
        extent.body.num_bytes = length.into();
        // A hole may have an item of its own there.
        forest.put(tree, Key::new(inode, KeyType::EXTENT_DATA, start), extent.as_bytes())?;
        let what = format!("puts the extent at {start} back into inode {inode} of tree {tree}: the extent tree has it");
        forest.did(Pass::Files, what);
    }
    Ok(is_certain)
}
