//! Files of which every item is lost with a leaf: the extent tree says which extents each had and where, and the
//! entries of directories what it is called.
//!
//! Invariants: (1) a file is put together only where a leaf is lost that may have had its items, and none of its items
//! says otherwise; (2) bytes without checksums may be what others have deleted, in space that was only allocated: they
//! are shown to root alone, and where other bytes of the file have checksums they are read as zeros.

use crate::action::Pass;
use crate::entries;
use crate::extent_items::Extent;
use crate::forest::Forest;
use crate::inodes;
use crate::laid::{Kinds, Seen, Together, together};
use crate::lost_extents::{Lost, each_extent};
use crate::prune::LostKeys;
use crate::ranges::Ranges;
use crate::trouble::Result;
use crate::{names, walk};
use butterfs_ondisk::items::{FileExtent, inode_flags};
use butterfs_ondisk::{Ino, Key, KeyType, TreeId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use zerocopy::{FromBytes, IntoBytes};

/// An extent of a lost file.
#[derive(Clone, Copy, Debug)]
struct Found {
    lost: Lost,
    /// A lost leaf refers to it, too.
    is_shared: bool,
}

/// The extents of lost files, by the tree and the inode that their references name.
type Files = BTreeMap<(TreeId, u64), Vec<Found>>;

/// Puts the files of these trees together whose items were lost; returns them.
pub(crate) fn restore(forest: &mut Forest, trees: &[TreeId], lost: &LostKeys) -> Result<Vec<(TreeId, u64)>> {
    if lost.is_empty() || trees.is_empty() {
        return Ok(Vec::new());
    }
    let files = referenced(forest, lost);
    let mut wanted = Vec::new();
    let mut seen = Seen::of_flags(forest.store.identity.incompat);
    for &tree in trees {
        let named = named(forest, tree, lost, &mut seen)?;
        let own = files.range((tree, 0)..=(tree, u64::MAX)).map(|((_, inode), _)| *inode);
        let candidates: BTreeSet<u64> = own.chain(named.keys().copied()).collect();
        for inode in candidates {
            if forest.get(tree, Key::new(inode, KeyType::INODE_ITEM, 0))?.is_none() {
                wanted.push((tree, inode, named.get(&inode).copied()));
            }
        }
    }
    // Which trees have lost an inode is asked before the first gets it back.
    let lacking: BTreeSet<(TreeId, u64)> = wanted.iter().map(|(tree, inode, _)| (*tree, *inode)).collect();
    let (mut restored, kinds) = (Vec::new(), Kinds::Seen(seen));
    for (tree, inode, directory) in wanted {
        let extents = extents_of(&files, &lacking, (tree, inode));
        let known = lost.known_places(inode);
        if !extents.is_empty() && restore_file(forest, (tree, inode), directory, (extents, known), &kinds)? {
            restored.push((tree, inode));
        }
    }
    Ok(restored)
}

/// The data extents of inodes that may have stood in lost leaves.
fn referenced(forest: &Forest, lost: &LostKeys) -> Files {
    let mut files = Files::new();
    each_extent(forest, &mut |extent: &Extent| {
        let is_shared = extent.blocks().any(|block| lost.has_block(block));
        for (source, _) in extent.sources.iter().filter(|(source, _)| source.kind == KeyType::EXTENT_DATA_REF.0) {
            if is_file(source.inode) && lost.may_have(source.inode) {
                let Extent { at, length, generation, .. } = *extent;
                let lost = Lost { start: source.offset, at, length, generation };
                files.entry((TreeId(source.from), source.inode)).or_default().push(Found { lost, is_shared });
            }
        }
    });
    files
}

/// Whether an inode of this number may be a file.
fn is_file(inode: u64) -> bool {
    names::is_inode(inode) && inode != Ino::ROOT_DIR.get()
}

/// The inodes that entries of a tree lead to and that may be lost, each with one of its directories. Compressions that
/// the tree has are noted in `seen`.
fn named(forest: &Forest, tree: TreeId, lost: &LostKeys, seen: &mut Seen) -> Result<BTreeMap<u64, u64>> {
    let mut named = BTreeMap::new();
    walk::items(&forest.store, &forest.ptr(tree)?, &mut |key, data| match key.kind {
        KeyType::DIR_ITEM | KeyType::DIR_INDEX => {
            for entry in entries::entries(data).iter().filter(|entry| !entry.is_subvolume()) {
                let inode = entry.location.objectid;
                if is_file(inode) && lost.may_have(inode) {
                    named.insert(inode, key.objectid);
                }
            }
        }
        KeyType::EXTENT_DATA => seen.see(data),
        _ => {}
    });
    Ok(named)
}

/// The extents of an inode of a tree. References by other trees count where they have lost the inode too, because the
/// leaf was shared; or where the extent was shared with a lost leaf.
fn extents_of(files: &Files, lacking: &BTreeSet<(TreeId, u64)>, (tree, inode): (TreeId, u64)) -> Vec<Lost> {
    if let Some(own) = files.get(&(tree, inode)) {
        return own.iter().map(|found| found.lost).collect();
    }
    let others = files.iter().filter(|((_, other), _)| *other == inode);
    let counting = others.flat_map(|(file, all)| {
        let is_lost = lacking.contains(file);
        all.iter().filter(move |found| is_lost || found.is_shared)
    });
    let all: BTreeSet<Lost> = counting.map(|found| found.lost).collect();
    all.into_iter().collect()
}

fn restore_file(
    forest: &mut Forest,
    (tree, inode): (TreeId, u64),
    directory: Option<u64>,
    (extents, known): (Vec<Lost>, Vec<Range<u64>>),
    kinds: &Kinds,
) -> Result<bool> {
    let (mut shown, mut size) = (Ranges::default(), 0);
    known.into_iter().for_each(|range| shown.insert(range));
    for (key, data) in forest.object(tree, inode)? {
        match key.kind {
            KeyType::EXTENT_DATA => {}
            KeyType::DIR_ITEM | KeyType::DIR_INDEX => return Ok(false),
            _ => continue,
        }
        let Ok(extent) = FileExtent::read_from_bytes(&data) else { return Ok(false) };
        let end = key.offset.saturating_add(extent.body.num_bytes.get());
        shown.insert(key.offset..end);
        size = end.max(size);
    }
    let Together { items, end, has_sums, is_disputed } = together(forest, shown, extents, kinds)?;
    if items.is_empty() {
        return Ok(false);
    }
    let owner = if has_sums { directory } else { None };
    let flags = if has_sums { 0 } else { inode_flags::NODATASUM };
    inodes::make_file(forest, tree, inode, owner, size.max(end), flags)?;
    let count = items.len();
    for (start, extent) in items {
        forest.put(tree, Key::new(inode, KeyType::EXTENT_DATA, start), extent.as_bytes())?;
    }
    let what = format!(
        "puts inode {inode} of tree {tree}, whose items are lost, together from {count} extents of the extent tree"
    );
    let mut lost = "its mode, owner and times, its size but for whole sectors, and where it had holes".to_owned();
    if is_disputed {
        lost += "; where extents of one transaction overlap, which one was newer";
    }
    if !has_sums {
        lost += "; nothing verifies its data, so that only root may read it";
    }
    forest.lose(Pass::Files, what, lost);
    Ok(true)
}
