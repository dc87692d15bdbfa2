//! Leaves whose checksum is right and whose items are not: written so by somebody with bad memory, or with bad intent.
//! The items that keep the rules are saved one by one.

use crate::forest::Forest;
use crate::keys;
use crate::shown_bytes::{self, Part};
use crate::store::Store;
use butterfs_ondisk::header::{HEADER_LEN, ITEM_LEN};
use butterfs_ondisk::items::{FileExtent, FileExtentHead, InodeItem, compression, file_extent_type, inode_flags};
use butterfs_ondisk::key::DiskKey;
use butterfs_ondisk::packing::LARGEST;
use butterfs_ondisk::{Generation, Key, KeyType, Level, Logical, TreeId};
use butterfs_tree::{Node, NodePtr};
use std::collections::BTreeMap;
use std::fmt;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Keys that are shown.
const SHOWN: usize = 8;

/// A leaf of the items that could be saved.
pub(crate) struct Salvaged {
    pub node: Node,
    /// The keys of the others, in words.
    pub left_out: String,
    /// The keys that were put right, in words.
    pub put_right: String,
    /// Inodes that got a [`stand_in`] for their lost items, without which no other item of them may stand in a leaf.
    pub without_item: Vec<u64>,
    /// Inodes of which extents were left out.
    pub without_extents: Vec<u64>,
}

/// The item of an inode until its own one is made anew from what else it has.
pub(crate) fn stand_in(generation: Generation) -> InodeItem {
    let mut item = InodeItem::new_zeroed();
    item.generation = generation.get().into();
    item.transid = item.generation;
    item.mode = 0o100_000.into();
    item.sequence = u64::from_le_bytes(*b"stand-in").into();
    item
}

/// The bytes of a leaf that is what `ptr` promises, with a good checksum, whatever its items are.
pub(crate) fn intact_leaf(store: &Store, ptr: &NodePtr) -> Option<Vec<u8>> {
    let mut bytes = vec![0; store.identity.nodesize as usize];
    store.volume.preferred_copies(ptr.at, bytes.len()).into_iter().find_map(|copy| {
        store.volume.read_copy(ptr.at, copy, &mut bytes).ok()?;
        let header = store.sealed_header(ptr.at, &bytes)?;
        let is_it = header.level == 0 && header.generation.get() == ptr.generation.get();
        is_it.then(|| bytes.clone())
    })
}

/// A leaf at `at` with the items of `bytes` that keep the rules. `range` has its first key and the one behind it, as
/// its parent says.
pub(crate) fn leaf(
    forest: &Forest,
    bytes: &[u8],
    at: Logical,
    tree: TreeId,
    range: (Option<Key>, Option<Key>),
) -> Salvaged {
    let (store, upper) = (&forest.store, range.1);
    let mut node = Node::new_empty(&store.identity, at, Level(0), store.generation, tree);
    let (mut without_item, mut without_extents) = (Vec::new(), Vec::new());
    let (mut left_out, mut put_right) = (Shown::default(), Shown::default());
    let mut sealed = vec![0; bytes.len()];
    let mut keeps = |node: &mut Node, key: Key, data: &[u8]| {
        let slot = node.nritems();
        if node.free_space() < ITEM_LEN + data.len() {
            return false;
        }
        node.insert_item(slot, key, data);
        let is_good = node.seal_into(&mut sealed, &store.identity).is_ok();
        if !is_good {
            node.remove_items(slot..slot + 1);
        }
        is_good
    };
    let mut all: Vec<(Key, Option<&[u8]>)> = items(bytes).collect();
    for (place, right) in right_keys(forest, tree, &all, range).into_iter().enumerate() {
        let (key, data) = &mut all[place];
        match right {
            Some(right) if right != *key => put_right.add(format!("{key} to {right}")),
            Some(_) => {}
            None => *data = None,
        }
        *key = right.unwrap_or(*key);
    }
    let corrected = corrected_extents(&all, u64::from(store.identity.sectorsize));
    for (key, data) in all {
        let data = data.map(|data| corrected.get(&key).map_or(data, Vec::as_slice));
        let is_next = node.last_key().is_none_or(|last| last < key) && upper.is_none_or(|upper| key < upper);
        let Some(data) = data.filter(|_| is_next) else {
            without_extents.extend((key.kind == KeyType::EXTENT_DATA).then_some(key.objectid));
            left_out.add(key);
            continue;
        };
        let mut is_kept = keeps(&mut node, key, data);
        if !is_kept
            && key.kind == KeyType::INODE_ITEM
            && let Some(corrected) = corrected_inode(data, store.generation)
        {
            is_kept = keeps(&mut node, key, &corrected);
        }
        let is_new = node.last_key().is_none_or(|last| last.objectid != key.objectid);
        if !is_kept && is_new && tree.is_subvolume() && is_of_inode(key) {
            let own = Key::new(key.objectid, KeyType::INODE_ITEM, 0);
            if keeps(&mut node, own, stand_in(store.generation).as_bytes()) {
                is_kept = keeps(&mut node, key, data);
                if is_kept {
                    without_item.push(key.objectid);
                } else {
                    node.remove_items(node.nritems() - 1..node.nritems());
                }
            }
        }
        if !is_kept {
            without_extents.extend((key.kind == KeyType::EXTENT_DATA).then_some(key.objectid));
            left_out.add(key);
        }
    }
    let (left_out, put_right) = (left_out.to_string(), put_right.to_string());
    Salvaged { node, left_out, put_right, without_item, without_extents }
}

/// The keys of the items of a leaf; `None` where a key is not known and does not keep the order.
fn right_keys(
    forest: &Forest,
    tree: TreeId,
    all: &[(Key, Option<&[u8]>)],
    range: (Option<Key>, Option<Key>),
) -> Vec<Option<Key>> {
    // A wrong number in a payload is no sign of a wrong key.
    let corrected = corrected_extents(all, u64::from(forest.store.identity.sectorsize));
    let data_of = |(key, data): &(Key, Option<&[u8]>)| data.and_then(|_| corrected.get(key)).map(Vec::as_slice);
    let items: Vec<(Key, Option<&[u8]>)> = all.iter().map(|item| (item.0, data_of(item).or(item.1))).collect();
    let mut right = keys::of_leaf(forest, tree, &items, range);
    for place in 0..right.len() {
        let before = right[..place].iter().rev().flatten().next();
        let next = right[place + 1..].iter().flatten().next().copied().or(range.1);
        let own = items[place].0;
        if before.is_none_or(|before| *before < own) && next.is_none_or(|next| own < next) {
            right[place].get_or_insert(own);
        }
    }
    right
}

/// The first of many things, in words.
#[derive(Default)]
struct Shown {
    first: Vec<String>,
    count: usize,
}

impl Shown {
    fn add(&mut self, one: impl fmt::Display) {
        self.count += 1;
        self.first.extend((self.count <= SHOWN).then(|| one.to_string()));
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count.saturating_sub(SHOWN) {
            0 if self.count == 0 => out.write_str("none"),
            0 => out.write_str(&self.first.join(", ")),
            more => write!(out, "{} and {more} more", self.first.join(", ")),
        }
    }
}

/// The extents of files that break a rule, with the number put right that breaks it, where other items say what it was.
fn corrected_extents(all: &[(Key, Option<&[u8]>)], sector: u64) -> BTreeMap<Key, Vec<u8>> {
    let all: Vec<(Key, &[u8])> = all.iter().filter_map(|(key, data)| Some((*key, (*data)?))).collect();
    let mut corrected = BTreeMap::new();
    let groups: Vec<&[(Key, &[u8])]> = all.chunk_by(|one, next| one.0.objectid == next.0.objectid).collect();
    for (place, group) in groups.iter().enumerate() {
        let item = group.iter().find(|(key, _)| key.kind == KeyType::INODE_ITEM);
        let item = item.and_then(|(_, data)| InodeItem::read_from_bytes(data).ok());
        let mut extents: Vec<(Key, Vec<u8>)> = Vec::new();
        for (key, data) in group.iter().filter(|(key, _)| key.kind == KeyType::EXTENT_DATA) {
            let right = corrected_length(*key, data, item.as_ref(), sector);
            corrected.extend(right.clone().map(|right| (*key, right)));
            extents.push((*key, right.unwrap_or_else(|| data.to_vec())));
        }
        // The last inode may go on in the next leaf: then its sum says nothing.
        let whole = item.filter(|_| place + 1 < groups.len());
        if let Some((key, right)) = corrected_shown(&extents, whole.as_ref(), sector) {
            corrected.insert(key, right);
        }
    }
    corrected
}

/// An extent with the unpacked length that its item or its other fields say it has, if it has an impossible one.
fn corrected_length(key: Key, data: &[u8], inode: Option<&InodeItem>, sector: u64) -> Option<Vec<u8>> {
    let (mut head, rest) = FileExtentHead::read_from_prefix(data).ok()?;
    let ram = head.ram_bytes.get();
    let right = if head.kind == file_extent_type::INLINE {
        let have = rest.len() as u64;
        // An item of the length of another kind may be one of that kind.
        let is_inline = data.len() != FileExtent::LEN || inode.is_some_and(|inode| inode.size.get() == have);
        let is_wrong = head.compression == compression::NONE && ram != have;
        (is_wrong && is_inline && key.offset == 0 && (1..=sector).contains(&have)).then_some(have)
    } else {
        let body = FileExtent::read_from_bytes(data).ok()?.body;
        let right = match (body.disk_bytenr.get(), head.compression) {
            (0, _) => body.num_bytes.get(),
            (_, compression::NONE) => body.disk_num_bytes.get(),
            _ => body.offset.get().checked_add(body.num_bytes.get()).filter(|end| *end <= LARGEST)?,
        };
        (!ram.is_multiple_of(sector)).then_some(right)
    }?;
    head.ram_bytes = right.into();
    Some([head.as_bytes(), rest].concat())
}

/// The extent of a file that shows what it cannot, with the number of bytes that its neighbours and the inode say; or,
/// where the inode's sum is not known, as many as lie before the next one.
fn corrected_shown(extents: &[(Key, Vec<u8>)], inode: Option<&InodeItem>, sector: u64) -> Option<(Key, Vec<u8>)> {
    let parts: Vec<Part> = extents.iter().map_while(|(key, data)| Part::of(*key, data, sector)).collect();
    if parts.len() != extents.len() {
        return None;
    }
    let of_sum = inode.and_then(|inode| {
        let end = inode.size.get().checked_next_multiple_of(sector)?;
        shown_bytes::right(&parts, (inode.nbytes.get(), end), sector)
    });
    let (place, shown) = of_sum.or_else(|| {
        let too_long = |pair: &[Part]| {
            let (part, room) = (pair[0], pair[1].start.saturating_sub(pair[0].start));
            part.end() > pair[1].start && part.shown > part.most && (1..=part.most).contains(&room)
        };
        let place = parts.windows(2).position(too_long)?;
        Some((place, parts[place + 1].start - parts[place].start))
    })?;
    let (key, data) = extents.get(place).filter(|_| parts[place].is_odd(parts.get(place + 1), sector))?;
    let mut extent = FileExtent::read_from_bytes(data).ok()?;
    extent.body.num_bytes = shown.into();
    Some((*key, extent.as_bytes().to_vec()))
}

/// An inode's item with the fields that break a rule made the likeliest ones that keep it; its type is compared with
/// its names later.
fn corrected_inode(data: &[u8], generation: Generation) -> Option<Vec<u8>> {
    let mut item = InodeItem::read_from_bytes(data).ok()?;
    let newest = generation.get() - 1;
    for field in [&mut item.generation, &mut item.transid] {
        *field = field.get().min(newest).into();
    }
    let (mode, kinds) = (item.mode.get(), [0o01, 0o02, 0o04, 0o06, 0o10, 0o12, 0o14]);
    let kind = match mode >> 12 & 0o17 {
        kind if kinds.contains(&kind) => kind,
        // One bit away from a directory, and from nothing that is more frequent.
        0o05 | 0o07 if item.nlink.get() == 1 => 0o04,
        _ => 0o10,
    };
    item.mode = (kind << 12 | mode & 0o7777).into();
    if kind == 0o04 {
        item.nlink = item.nlink.get().min(1).into();
    }
    item.flags = (item.flags.get() & (0xfff | inode_flags::ROOT_ITEM_INIT)).into();
    Some(item.as_bytes().to_vec())
}

pub(crate) fn is_of_inode(key: Key) -> bool {
    crate::names::is_inode(key.objectid) && (KeyType::INODE_REF..=KeyType::EXTENT_DATA).contains(&key.kind)
}

/// The items as their headers say, with a single wrong offset or length put right; without data where that would lie
/// outside.
pub(crate) fn items(bytes: &[u8]) -> impl Iterator<Item = (Key, Option<&[u8]>)> {
    let number = |at: usize| bytes.get(at..at + 4).map(|four| u32::from_le_bytes(four.try_into().expect("4 bytes")));
    let said = number(HEADER_LEN - 5).unwrap_or(0) as usize;
    let most = (bytes.len() - HEADER_LEN) / ITEM_LEN;
    let places: Vec<(usize, usize)> = (0..said.min(most))
        .map(|slot| HEADER_LEN + slot * ITEM_LEN)
        .map(|at| (number(at + 17).unwrap_or(0) as usize, number(at + 21).unwrap_or(0) as usize))
        .collect();
    let places = without_single_errors(places, bytes.len() - HEADER_LEN);
    places.into_iter().enumerate().filter_map(move |(slot, (offset, len))| {
        let (key, _) = DiskKey::read_from_prefix(&bytes[HEADER_LEN + slot * ITEM_LEN..]).ok()?;
        let start = HEADER_LEN.checked_add(offset)?;
        Some((key.into(), start.checked_add(len).and_then(|end| bytes.get(start..end))))
    })
}

/// Payloads lie without gaps from the end of the block on: each ends where the one before begins. So where one number
/// is wrong, its neighbours say what it was.
fn without_single_errors(mut places: Vec<(usize, usize)>, end: usize) -> Vec<(usize, usize)> {
    let mut expected = end;
    for slot in 0..places.len() {
        let (offset, len) = places[slot];
        let next = places.get(slot + 1).and_then(|(offset, len)| offset.checked_add(*len));
        if offset.checked_add(len) != Some(expected) {
            let by_len = expected.checked_sub(len);
            if offset <= expected && next == Some(offset) {
                places[slot] = (offset, expected - offset);
            } else if let Some(start) = by_len.filter(|start| next == Some(*start) || next.is_none()) {
                places[slot] = (start, len);
            }
        }
        expected = places[slot].0;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::without_single_errors;

    #[test]
    fn one_wrong_number_follows_from_its_neighbours() {
        let right = vec![(90, 10), (70, 20), (65, 5), (25, 40)];
        assert_eq!(without_single_errors(right.clone(), 100), right);
        for slot in 0..right.len() {
            for change in [1, 3] {
                let mut wrong = right.clone();
                wrong[slot].0 += change;
                assert_eq!(without_single_errors(wrong, 100), right, "offset of {slot}");
            }
        }
        for slot in 0..right.len() - 1 {
            let mut wrong = right.clone();
            wrong[slot].1 += 1;
            assert_eq!(without_single_errors(wrong, 100), right, "length of {slot}");
        }
    }
}
