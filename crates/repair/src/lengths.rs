//! Extents that a file's item takes for longer or shorter than the extent tree has them.
//!
//! One of both is wrong. Evidence decides, in this order: another extent or the end of the chunk in the part that only
//! the longer one has, checksums of that part, and the item itself, which has the length of unpacked data twice. Where
//! the extent tree is right, the item is corrected here; where the item is, the pass `extents` corrects the extent
//! tree.

use crate::action::Pass;
use crate::checksums;
use crate::forest::Forest;
use crate::inodes;
use crate::trouble::Result;
use crate::walk;
use butterfs_check::Finding;
use butterfs_ondisk::items::{ExtentItem, FileExtent, compression, extent_flags, file_extent_type};
use butterfs_ondisk::{Key, KeyType, Logical, TreeId};
use rustc_hash::FxHashSet;
use std::collections::BTreeSet;
use std::ops::Range;
use zerocopy::{FromBytes, IntoBytes};

/// The files with items about extents of which a finding doubts the length.
pub(crate) fn files(forest: &Forest, findings: &[Finding]) -> BTreeSet<(TreeId, u64)> {
    let doubted = |finding: &Finding| match finding {
        Finding::ExtentLength { at, .. } => Some(at.get()),
        _ => None,
    };
    let doubted: FxHashSet<u64> = findings.iter().filter_map(doubted).collect();
    let (mut found, mut others) = (BTreeSet::new(), FxHashSet::default());
    if doubted.is_empty() {
        return found;
    }
    for tree in forest.whole_subvolumes() {
        let Ok(ptr) = forest.ptr(tree) else { continue };
        walk::walk(&forest.store, &ptr, None, &mut |node, _| {
            if !node.is_leaf() || others.contains(&node.at()) {
                return !node.is_leaf();
            }
            let count = found.len();
            let items = node.items().filter(|(key, _)| key.kind == KeyType::EXTENT_DATA);
            let named = items.filter(|(_, data)| of_item(data).is_some_and(|extent| doubted.contains(&start(&extent))));
            found.extend(named.map(|(key, _)| (tree, key.objectid)));
            // Subvolumes share leaves.
            if found.len() == count {
                others.insert(node.at());
            }
            true
        });
    }
    found
}

/// Gives an item the length that the extent tree has, if that is certainly the right one.
pub(crate) fn settle(forest: &mut Forest, tree: TreeId, key: Key, data: &[u8]) -> Result<()> {
    let Some(mut extent) = of_item(data) else { return Ok(()) };
    let (at, said) = (start(&extent), extent.body.disk_num_bytes.get());
    let Some(stored) = recorded(forest, at) else { return Ok(()) };
    if stored == said || !is_stored_right(forest, (tree, key.objectid), &extent, stored)? {
        return Ok(());
    }
    extent.body.disk_num_bytes = stored.into();
    if extent.head.compression == compression::NONE {
        extent.head.ram_bytes = stored.into();
    }
    forest.put(tree, key, extent.as_bytes())?;
    let (place, inode) = (key.offset, key.objectid);
    let what = format!("gives the extent at {place} of inode {inode} of tree {tree} its length of {stored} bytes");
    forest.did(Pass::Files, what);
    Ok(())
}

/// The item of an extent with space of its own.
fn of_item(data: &[u8]) -> Option<FileExtent> {
    let extent = FileExtent::read_from_bytes(data).ok()?;
    (extent.head.kind != file_extent_type::INLINE && start(&extent) != 0).then_some(extent)
}

fn start(extent: &FileExtent) -> u64 {
    extent.body.disk_bytenr.get()
}

/// Data extents of the extent tree that begin within a range.
fn extents_in(forest: &Forest, range: Range<u64>) -> Vec<Key> {
    let (from, to) =
        (Key::new(range.start, KeyType(0), 0), Key::new(range.end.saturating_sub(1), KeyType(255), u64::MAX));
    let items = forest.range(TreeId::EXTENT, from, to).unwrap_or_default();
    let is_data = |data: &[u8]| {
        ExtentItem::read_from_prefix(data).is_ok_and(|(item, _)| item.flags.get() & extent_flags::DATA != 0)
    };
    let items = items.into_iter().filter(|(key, data)| key.kind == KeyType::EXTENT_ITEM && is_data(data));
    items.map(|(key, _)| key).collect()
}

/// The length of the data extent at `at`, if the extent tree has just one.
fn recorded(forest: &Forest, at: u64) -> Option<u64> {
    match extents_in(forest, at..at.saturating_add(1))[..] {
        [key] => Some(key.offset),
        _ => None,
    }
}

fn is_stored_right(forest: &Forest, file: (TreeId, u64), extent: &FileExtent, stored: u64) -> Result<bool> {
    let (at, said) = (start(extent), extent.body.disk_num_bytes.get());
    let (short, long) = (stored.min(said), stored.max(said));
    let is_short = stored == short;
    let end = at.checked_add(long).filter(|_| short > 0 && long.is_multiple_of(forest.store.sectorsize()));
    let Some(end) = end else { return Ok(is_short == (short > 0)) };
    let tail = at + short..end;
    let is_in_chunk = forest.store.volume.chunk_map().get_range(Logical(at), long).is_some();
    if !is_in_chunk || !extents_in(forest, tail.clone()).is_empty() {
        return Ok(is_short);
    }
    if extent.head.kind == file_extent_type::REGULAR && inodes::has_checksums(forest, file)? {
        let covered = checksums::covered(forest, tail.start, tail.end - tail.start)?;
        if covered == tail.end - tail.start {
            return Ok(!is_short);
        }
        if covered == 0 && checksums::covered(forest, at, short)? == short {
            return Ok(is_short);
        }
    }
    Ok(extent.head.compression == compression::NONE && extent.head.ram_bytes.get() == stored)
}
