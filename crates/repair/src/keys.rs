//! Items whose keys have wrong bits, in leaves that are sound and in others: the key follows from the neighbours, from
//! the payload, and from what refers to the same data.

use crate::action::Pass;
use crate::checksums;
use crate::entries::{Link, links_of};
use crate::extents::recorded_data;
use crate::forest::Forest;
use crate::trouble::Result;
use butterfs_ondisk::items::{DirItem, FileExtent, InodeRef, file_extent_type};
use butterfs_ondisk::leaf_keys::{self, LeafKeys};
use butterfs_ondisk::{Ino, Key, KeyType, TreeId};
use butterfs_tree::{self as tree, Node};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::FromBytes;

/// The right keys of the items of a leaf that breaks rules, as far as they are known. `range` has the first key and the
/// one behind the leaf, as the parent says.
pub(crate) fn of_leaf(
    forest: &Forest,
    tree: TreeId,
    items: &[(Key, Option<&[u8]>)],
    range: (Option<Key>, Option<Key>),
) -> Vec<Option<Key>> {
    right(forest, tree, items, range, &|key, data| match key.kind {
        KeyType::INODE_REF => is_linked(forest, tree, key, data),
        KeyType::DIR_INDEX => is_entry(forest, tree, key, data),
        _ => None,
    })
}

/// A witness for names.
type Witness<'a> = &'a dyn Fn(Key, &[u8]) -> Option<bool>;

fn right(
    forest: &Forest,
    tree: TreeId,
    items: &[(Key, Option<&[u8]>)],
    (first, end): (Option<Key>, Option<Key>),
    names: Witness<'_>,
) -> Vec<Option<Key>> {
    let context = &forest.store.identity.check_context();
    let witness = &|key: Key, data: &[u8]| match key.kind {
        KeyType::EXTENT_CSUM => Some(checksums::fit(forest, key.offset, data)),
        KeyType::EXTENT_DATA => is_place(forest, key, data),
        _ => names(key, data),
    };
    leaf_keys::right_keys(&LeafKeys { tree, items, first, from: Key::MIN, end, context, witness })
}

/// Whether the extent tree knows the extent of a file at this place; `None` where it does not say.
fn is_place(forest: &Forest, key: Key, data: &[u8]) -> Option<bool> {
    let extent = FileExtent::read_from_bytes(data).ok()?;
    let at = extent.body.disk_bytenr.get();
    let has_space = extent.head.kind != file_extent_type::INLINE && at != 0;
    let own = has_space.then(|| recorded_data(forest, at)).flatten()?;
    if own.length != extent.body.disk_num_bytes.get() {
        return None;
    }
    let is_it = own.is_of_place(key.objectid, key.offset.wrapping_sub(extent.body.offset.get()));
    // A leaf may refer to it, whatever the place.
    (is_it || own.blocks().next().is_none()).then_some(is_it)
}

/// Whether a link says that a directory is in itself: the root directory does so, without an entry, and no other one.
fn is_loop(key: Key) -> bool {
    key.offset == key.objectid && key.objectid != Ino::ROOT_DIR.get()
}

/// Whether the directory of a link has the inode at the link's index; `None` where that cannot be read.
fn is_linked(forest: &Forest, tree: TreeId, key: Key, data: &[u8]) -> Option<bool> {
    let (head, _) = InodeRef::ref_from_prefix(data).ok()?;
    if key.offset == key.objectid {
        return is_loop(key).then_some(false);
    }
    let entry = forest.get(tree, Key::new(key.offset, KeyType::DIR_INDEX, head.index.get())).ok()?;
    let location = entry.as_ref().and_then(|entry| DirItem::ref_from_prefix(entry).ok());
    Some(location.is_some_and(|(entry, _)| Key::from(entry.location).objectid == key.objectid))
}

/// Whether the inode of an entry has a link with the entry's index; `None` where that cannot be read, and of a
/// subvolume.
fn is_entry(forest: &Forest, tree: TreeId, key: Key, data: &[u8]) -> Option<bool> {
    let location = Key::from(DirItem::ref_from_prefix(data).ok()?.0.location);
    let links = (location.kind == KeyType::INODE_ITEM).then(|| links_of(forest, tree, location.objectid).ok());
    let is_it = |(_, link): &(Key, Link)| (link.directory, link.index) == (key.objectid, key.offset);
    Some(links.flatten()?.iter().any(is_it))
}

/// The changes of keys in one leaf.
type Changes = Vec<(Key, Key)>;

/// Puts keys right in leaves that keep all rules and have inodes in doubt; true where there were some, so that the
/// findings about the tree are out of date.
pub(crate) fn correct(forest: &mut Forest, tree: TreeId, inodes: &BTreeSet<u64>, known: &mut Known) -> Result<bool> {
    let (mut leaves, mut is_changed) = (BTreeMap::new(), false);
    for &inode in inodes {
        let mut from = Key::new(inode, KeyType(0), 0);
        while from.objectid == inode {
            let leaf = tree::search(&forest.store.editor(tree), &forest.ptr(tree)?, &from)?.leaf;
            let last = leaf.last_key().unwrap_or(Key::MAX);
            let end = if last < Key::MAX { forest.first_from(tree, from.max(last.successor()))? } else { None };
            leaves.insert(leaf.at().get(), (leaf, end));
            from = end.filter(|end| from < *end).unwrap_or(Key::MAX);
        }
    }
    for (at, (leaf, end)) in leaves {
        let changes = known.0.entry((at, end)).or_insert_with(|| changes(forest, tree, &leaf, end)).clone();
        for (old, new) in changes {
            let Some(data) = forest.get(tree, old)?.filter(|_| matches!(forest.get(tree, new), Ok(None))) else {
                continue;
            };
            forest.remove(tree, old)?;
            forest.put(tree, new, &data)?;
            forest.did(Pass::Blocks, format!("gives the item {old} of tree {} its key {new}", tree.get() as i64));
            is_changed = true;
        }
    }
    Ok(is_changed)
}

/// The changes by leaf, which subvolumes may share, and by the key behind it.
#[derive(Default)]
pub(crate) struct Known(FxHashMap<(u64, Option<Key>), Changes>);

fn changes(forest: &Forest, tree: TreeId, leaf: &Node, end: Option<Key>) -> Changes {
    let items: Vec<(Key, Option<&[u8]>)> = leaf.items().map(|(key, data)| (key, Some(data))).collect();
    // Names that break no rule have three witnesses, which others compare; but nothing is in itself.
    let has_loop = items.iter().any(|(key, _)| key.kind == KeyType::INODE_REF && is_loop(*key));
    let names = |key: Key, data: &[u8]| match key.kind {
        KeyType::INODE_REF if has_loop => is_linked(forest, tree, key, data),
        _ => None,
    };
    let right = right(forest, tree, &items, (leaf.first_key(), end), &names);
    let pairs = items.iter().zip(right).filter_map(|((old, _), new)| Some((*old, new?)));
    pairs.filter(|(old, new)| old != new).collect()
}
