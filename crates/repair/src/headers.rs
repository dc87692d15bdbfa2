//! Tree blocks of which one field of the header is wrong, under a checksum that is right.
//!
//! Everything in a header is known from elsewhere: the place, the generation, the level and the first key from the
//! parent, the number of items from how they are packed. A block that says otherwise in one field alone, in a few bits,
//! is the block that the parent means.
//!
//! Invariant: an older version of the block, which stays where a write is lost, is never taken for the block: only a
//! generation that its own content, the extent tree or the data denies counts as wrong.

use crate::checksums;
use crate::extents;
use crate::forest::Forest;
use crate::store::Store;
use crate::walk;
use butterfs_ondisk::header::{Header, ITEM_LEN, KEY_POINTER_LEN};
use butterfs_ondisk::items::{DirItem, FileExtentHead, InodeItem};
use butterfs_ondisk::{Generation, Key, KeyType, TreeId};
use butterfs_tree::{BlockIdentity, Node, NodePtr, check_block};
use zerocopy::{FromBytes, IntoBytes};

/// Bits of a field that may be wrong.
const MOST_BITS: u32 = 8;

/// The top byte of the flags: the revision of back references.
const REVISION_SHIFT: u32 = 56;

/// Whether a block that keeps all other rules says that its back references are of another revision.
pub(crate) fn is_odd(node: &Node) -> bool {
    node.flags() >> REVISION_SHIFT != Header::BACKREF_REV >> REVISION_SHIFT
}

/// A block that keeps all other rules with its header put right, and the field that was wrong.
pub(crate) fn of_sound(
    forest: &Forest,
    ptr: &NodePtr,
    node: &Node,
    upper: Option<Key>,
) -> Option<(Node, &'static str)> {
    if is_odd(node) {
        return Some((node.clone(), "flags"));
    }
    let found = node.header();
    let headers = if is_last(node) { Vec::new() } else { counts(&found) };
    let mut fitting =
        headers.into_iter().filter(|(header, _)| header.nritems > found.nritems).filter_map(|(header, field)| {
            let whole = with_header(node.bytes(), &header, ptr, &forest.store.identity)?;
            let is_within = whole.last_key().zip(upper).is_none_or(|(last, upper)| last < upper);
            (is_within && is_last(&whole)).then_some((whole, field))
        });
    fitting.next().filter(|_| fitting.next().is_none())
}

/// Whether blocks of a tree may have more items than their headers say.
pub(crate) fn may_hide_items(forest: &Forest, tree: TreeId) -> bool {
    let mut found = false;
    if let Ok(ptr) = forest.ptr(tree) {
        walk::walk(&forest.store, &ptr, forest.drop_point(tree), &mut |node, _| {
            found |= !is_last(node);
            !found
        });
    }
    found
}

/// The block that `ptr` means with its header put right, and the field that was wrong. No key is `upper` or behind it.
pub(crate) fn put_right(forest: &Forest, ptr: &NodePtr, upper: Option<Key>) -> Option<(Node, &'static str)> {
    let (store, mut bytes) = (&forest.store, vec![0; forest.store.identity.nodesize as usize]);
    store.volume.preferred_copies(ptr.at, bytes.len()).into_iter().find_map(|copy| {
        store.volume.read_copy(ptr.at, copy, &mut bytes).ok()?;
        let (found, _) = Header::read_from_prefix(&bytes).ok()?;
        let is_sealed = store.identity.checksum.matches(&bytes[found.csum.len()..], &found.csum);
        let headers = if is_sealed { candidates(&found, ptr, &store.identity) } else { Vec::new() };
        let mut fitting = headers.into_iter().filter_map(|(header, field)| {
            let node = with_header(&bytes, &header, ptr, &store.identity)?;
            let is_within = node.last_key().zip(upper).is_none_or(|(last, upper)| last < upper);
            (is_within && is_proven(forest, ptr, &node, &found)).then_some((node, field))
        });
        fitting.next().filter(|_| fitting.next().is_none())
    })
}

/// The headers that differ in one field from the one that was found.
fn candidates(found: &Header, ptr: &NodePtr, identity: &BlockIdentity) -> Vec<(Header, &'static str)> {
    let mut headers = vec![
        (Header { fsid: identity.fsid, ..*found }, "filesystem"),
        (Header { bytenr: ptr.at.get().into(), ..*found }, "address"),
        (Header { flags: (found.flags.get() | Header::WRITTEN).into(), ..*found }, "flags"),
        (Header { generation: ptr.generation.get().into(), ..*found }, "generation"),
        (Header { owner: ptr.tree.get().into(), ..*found }, "owner"),
        (Header { level: ptr.level.get(), ..*found }, "level"),
    ];
    headers.extend(counts(found));
    headers.retain(|(header, _)| (1..=MOST_BITS).contains(&distance(header, found)));
    headers
}

/// The headers with another number of items.
fn counts(found: &Header) -> Vec<(Header, &'static str)> {
    let counts = (0..u32::BITS).map(|bit| found.nritems.get() ^ 1 << bit);
    counts.map(|count| (Header { nritems: count.into(), ..*found }, "number of items")).collect()
}

fn distance(one: &Header, other: &Header) -> u32 {
    one.as_bytes().iter().zip(other.as_bytes()).map(|(one, other)| (one ^ other).count_ones()).sum()
}

/// The block with another header, if it keeps all rules then and is what its parent promises.
fn with_header(bytes: &[u8], header: &Header, ptr: &NodePtr, identity: &BlockIdentity) -> Option<Node> {
    let mut bytes = bytes.to_vec().into_boxed_slice();
    bytes[..size_of::<Header>()].copy_from_slice(header.as_bytes());
    // Its checksum is that of the bytes as they were.
    let identity = BlockIdentity { ignores_checksums: true, ..*identity };
    check_block(&bytes, ptr, &identity).ok()?;
    Some(Node::from_checked(bytes))
}

/// Whether the space behind the last item or pointer is zero, as the kernel leaves it.
fn is_last(node: &Node) -> bool {
    let stride = if node.is_leaf() { ITEM_LEN } else { KEY_POINTER_LEN };
    let start = size_of::<Header>() + node.nritems() * stride;
    let behind = &node.bytes()[start..];
    behind[..stride.min(node.free_space())].iter().all(|byte| *byte == 0)
}

/// Whether more than the header says that this is the block.
fn is_proven(forest: &Forest, ptr: &NodePtr, node: &Node, found: &Header) -> bool {
    let is_cut = found.nritems.get() as usize != node.nritems() && !is_last(node);
    if is_cut || found.level != ptr.level.get() && !has_child(&forest.store, ptr, node) {
        return false;
    }
    let generation = found.generation.get();
    if generation == ptr.generation.get() {
        return true;
    }
    let recorded = extents::recorded_generation(forest, ptr);
    if recorded.is_some_and(|recorded| recorded != ptr.generation) {
        return false;
    }
    let is_later = generation > ptr.generation.get();
    let is_impossible = is_later && (recorded.is_some() || generation > forest.sb.generation.get());
    is_impossible || has_newer(node, Generation(generation)) || are_sums(forest, ptr.tree, node)
}

/// Whether a child is there of the level below; leaves have none.
pub(crate) fn has_child(store: &Store, ptr: &NodePtr, node: &Node) -> bool {
    let mut children = (0..node.nritems()).map(|slot| node.child_ptr(slot, ptr.tree));
    node.is_leaf() || children.any(|child| store.read(&child).is_ok())
}

/// Whether a block has something that was made after `generation`.
fn has_newer(node: &Node, generation: Generation) -> bool {
    if !node.is_leaf() {
        return (0..node.nritems()).any(|slot| node.child(slot).1 > generation);
    }
    let made = |(key, data): (Key, &[u8])| match key.kind {
        KeyType::INODE_ITEM => InodeItem::ref_from_prefix(data).ok().map(|(item, _)| item.transid.get()),
        KeyType::DIR_ITEM | KeyType::DIR_INDEX => {
            DirItem::ref_from_prefix(data).ok().map(|(item, _)| item.transid.get())
        }
        KeyType::EXTENT_DATA => FileExtentHead::ref_from_prefix(data).ok().map(|(head, _)| head.generation.get()),
        _ => None,
    };
    node.items().filter_map(made).any(|made| made > generation.get())
}

/// Whether most checksums of a leaf fit the data: then it does not matter how old they are.
fn are_sums(forest: &Forest, tree: TreeId, node: &Node) -> bool {
    let is_sum =
        |(key, data): &(Key, &[u8])| key.kind == KeyType::EXTENT_CSUM && checksums::fit(forest, key.offset, data);
    tree == TreeId::CSUM && node.is_leaf() && node.items().filter(is_sum).count() * 2 > node.nritems()
}
