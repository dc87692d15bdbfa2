//! The keys of a leaf's items, where some of them have wrong bits.
//!
//! A key is known by more than its bytes: keys ascend, the items of an inode stand together behind its own item, and
//! many payloads say what their key is (the hash of a name, the offset of an inode's item). Of all ways to keep these
//! rules [`right_keys`] takes the one that changes the fewest bits.
//!
//! # Invariants
//! 1. A leaf that keeps all rules keeps all keys.
//! 2. A key is changed only where one way is the cheapest: where several are, it is not known.

use crate::checksum::{extref_hash, name_hash};
use crate::items::{DirItem, FileExtent, FileExtentHead, InodeExtref, InodeItem, file_extent_type};
use crate::key::{Key, KeyType, objectid};
use crate::tree_checker::{CheckContext, check_alone};
use crate::units::{Ino, TreeId};
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::FromBytes;

/// A leaf as it was found, and what is known about it from elsewhere.
pub struct LeafKeys<'a> {
    /// The tree that the leaf belongs to.
    pub tree: TreeId,
    /// The keys with the payloads, where these lie inside of the block.
    pub items: &'a [(Key, Option<&'a [u8]>)],
    /// The first key, as the parent has it.
    pub first: Option<Key>,
    /// No key is below it.
    pub from: Key,
    /// The first key behind the leaf.
    pub end: Option<Key>,
    /// The parameters of the rules for items.
    pub context: &'a CheckContext,
    /// Says whether an item stands under a key, by something outside of the leaf; `None` where nothing says so.
    pub witness: &'a dyn Fn(Key, &[u8]) -> Option<bool>,
}

/// Bits of a key that may be wrong.
const MOST_BITS: u32 = 4;
/// States that are followed at once.
const MOST_STATES: usize = 512;

/// The price of each sign that something is wrong. One wrong bit costs less than any rule that is broken.
mod price {
    /// Of a changed key, and of each of its changed bits.
    pub const BIT: u32 = 16;
    /// Of an item that does not go with its own key: the payload may be the damaged part.
    pub const UNFIT: u32 = 7 * BIT;
    /// Of an item whose key is not known.
    pub const DROPPED: u32 = 10 * BIT;
    /// Of an inode's part that stands behind another inode, and of file extents that overlap.
    pub const MISPLACED: u32 = 6 * BIT;
    /// Of an inode's item without any part.
    pub const ALONE: u32 = 3 * BIT;
    /// Of a key that a witness denies.
    pub const DENIED: u32 = 3 * BIT;
    /// Of a first key that the parent does not have.
    pub const OTHER_FIRST: u32 = 5 * BIT / 2;
    /// Of a gap at a file extent whose place is in doubt.
    pub const GAP: u32 = 3 * BIT / 4;
}

/// An item under one of the keys that it may have.
#[derive(Clone, Copy)]
struct Placed<'a> {
    key: Key,
    data: &'a [u8],
    /// The key is not the stored one, or is denied.
    is_doubtful: bool,
}

/// The decision about an item.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    Key(Key),
    Unknown,
}

/// One way through the items up to some slot.
#[derive(Clone)]
struct State<'a> {
    last: Option<Placed<'a>>,
    cost: u32,
    /// The choices since the last slot at which there was only one way.
    chosen: Vec<Choice>,
}

impl<'a> State<'a> {
    fn with(&self, last: Option<Placed<'a>>, cost: u32, choice: Choice) -> State<'a> {
        let chosen = self.chosen.iter().copied().chain([choice]).collect();
        State { last, cost: self.cost + cost, chosen }
    }
}

/// Adds a way; of two that end with the same key the cheaper one stays.
fn add<'a>(states: &mut BTreeMap<Option<Key>, State<'a>>, state: State<'a>) {
    let last = state.last.map(|last| last.key);
    let state = match states.remove(&last) {
        Some(other) => cheaper(other, state),
        None => state,
    };
    states.insert(last, state);
}

/// The right key of each item, as far as it is known.
pub fn right_keys(leaf: &LeafKeys<'_>) -> Vec<Option<Key>> {
    let objects = leaf.objects();
    let own: Vec<Option<Placed<'_>>> = leaf.items.iter().map(|(key, data)| leaf.own(*key, *data)).collect();
    let suspects = leaf.suspects(&own);
    let mut known = Vec::with_capacity(own.len());
    let mut states = vec![State { last: None, cost: 0, chosen: Vec::new() }];
    for (slot, own) in own.iter().enumerate() {
        let options: Vec<(Placed<'_>, u32)> = match own {
            Some(own) if suspects.contains(&slot) => leaf.options(*own, &objects),
            Some(own) => vec![(*own, 0)],
            None => Vec::new(),
        };
        let may_drop = suspects.contains(&slot) || own.is_none();
        states = leaf.step(&states, &options, slot == 0, may_drop);
        if let [only] = &mut states[..] {
            known.append(&mut only.chosen);
        }
    }
    let ended =
        states.iter().filter_map(|state| Some(State { cost: state.cost + leaf.end_cost(state)?, ..state.clone() }));
    let best = ended.reduce(cheaper).or_else(|| states.into_iter().reduce(cheaper));
    known.extend(best.into_iter().flat_map(|best| best.chosen));
    known.into_iter().map(|choice| if let Choice::Key(key) = choice { Some(key) } else { None }).collect()
}

/// The cheaper one of two ways; of equal ones what both have in common.
fn cheaper<'a>(one: State<'a>, other: State<'a>) -> State<'a> {
    if one.cost != other.cost {
        return if one.cost < other.cost { one } else { other };
    }
    let common = |(a, b): (&Choice, &Choice)| if a == b { *a } else { Choice::Unknown };
    let chosen = one.chosen.iter().zip(&other.chosen).map(common).collect();
    State { chosen, ..one }
}

impl<'a> LeafKeys<'a> {
    fn is_subvolume(&self) -> bool {
        self.tree.is_subvolume()
    }

    /// The objects that the leaf and its neighbours have.
    fn objects(&self) -> BTreeSet<u64> {
        let around = self.first.into_iter().chain(self.end).map(|key| key.objectid);
        let mut objects: BTreeSet<u64> = around.collect();
        objects.extend(self.items.iter().map(|(key, _)| key.objectid));
        objects
    }

    fn own(&self, key: Key, data: Option<&'a [u8]>) -> Option<Placed<'a>> {
        let data = data?;
        let is_doubtful = (self.witness)(key, data) == Some(false);
        Some(Placed { key, data, is_doubtful })
    }

    /// The slots whose keys may be wrong: both sides of whatever does not fit.
    fn suspects(&self, own: &[Option<Placed<'_>>]) -> BTreeSet<usize> {
        let mut suspects = BTreeSet::new();
        for (slot, placed) in own.iter().enumerate() {
            let Some(placed) = placed else {
                suspects.extend([slot.saturating_sub(1), slot, slot + 1]);
                continue;
            };
            let key = placed.key;
            let is_outside = key < self.from || self.end.is_some_and(|end| end <= key);
            let is_other = slot == 0 && self.first.is_some_and(|first| first != key);
            if is_outside || is_other || placed.is_doubtful || !self.fits(key, placed.data) {
                suspects.insert(slot);
            }
            match own.get(slot + 1) {
                Some(Some(next)) if self.pair_cost(placed, next) != Some(0) => suspects.extend([slot, slot + 1]),
                None if self.alone_cost(placed, self.end) != 0 => drop(suspects.insert(slot)),
                _ => {}
            }
        }
        suspects
    }

    /// The keys that an item may have, with the cost of each.
    fn options(&self, own: Placed<'a>, objects: &BTreeSet<u64>) -> Vec<(Placed<'a>, u32)> {
        let Placed { key, data, is_doubtful } = own;
        let unfit = if self.fits(key, data) { 0 } else { price::UNFIT };
        let mut found = vec![(own, unfit + if is_doubtful { price::DENIED } else { 0 })];
        let mut options = BTreeMap::new();
        let is_near = |object: &u64| (1..MOST_BITS).contains(&(object ^ key.objectid).count_ones());
        let single = (0..u64::BITS).map(|bit| key.objectid ^ 1 << bit).filter(|_| !self.is_subvolume());
        let objects = objects.iter().copied().chain([objectid::EXTENT_CSUM, objectid::ORPHAN]).filter(is_near);
        for object in [key.objectid].into_iter().chain(objects).chain(single) {
            for kind in [key.kind.0].into_iter().chain((0..u8::BITS).map(|bit| key.kind.0 ^ 1 << bit)) {
                let kind = KeyType(kind);
                let is_own = (object, kind) == (key.objectid, key.kind);
                let single = (0..u64::BITS).map(|bit| key.offset ^ 1 << bit).filter(|_| is_own);
                for offset in [key.offset].into_iter().chain(offset_of(kind, data)).chain(single) {
                    let other = Key::new(object, kind, offset);
                    let bits = distance(key, other);
                    if (1..=MOST_BITS).contains(&bits) {
                        options.insert(other, bits);
                    }
                }
            }
        }
        for (key, bits) in options {
            let is_guess = matches!(key.kind, KeyType::VERITY_DESC_ITEM | KeyType::VERITY_MERKLE_ITEM);
            let is_likely = !is_guess && self.fits(key, data) && is_whole(key, data);
            if is_likely && (self.witness)(key, data) != Some(false) {
                found.push((Placed { key, data, is_doubtful: true }, price::BIT * (1 + bits)));
            }
        }
        found
    }

    /// All ways by one more item.
    fn step(
        &self,
        states: &[State<'a>],
        options: &[(Placed<'a>, u32)],
        is_first: bool,
        may_drop: bool,
    ) -> Vec<State<'a>> {
        let mut next: BTreeMap<Option<Key>, State<'a>> = BTreeMap::new();
        for (placed, cost) in options.iter().filter(|(placed, _)| self.from <= placed.key) {
            let is_other = is_first && self.first.is_some_and(|first| first != placed.key);
            let cost = cost + if is_other { price::OTHER_FIRST } else { 0 };
            let steps = states.iter().filter_map(|state| {
                let pair = state.last.as_ref().map_or(Some(0), |last| self.pair_cost(last, placed))?;
                Some((state, pair))
            });
            // Ways that go on alike are compared before they are copied.
            let least = steps.clone().map(|(state, pair)| state.cost + pair).min();
            for (state, pair) in steps.filter(|(state, pair)| Some(state.cost + pair) == least) {
                add(&mut next, state.with(Some(*placed), cost + pair, Choice::Key(placed.key)));
            }
        }
        if may_drop || next.is_empty() {
            states.iter().for_each(|state| add(&mut next, state.with(state.last, price::DROPPED, Choice::Unknown)));
        }
        let mut next: Vec<State<'a>> = next.into_values().collect();
        next.sort_by_key(|state| state.cost);
        next.truncate(MOST_STATES);
        next
    }

    /// The cost of two neighbours; `None` where they cannot be.
    fn pair_cost(&self, one: &Placed<'_>, next: &Placed<'_>) -> Option<u32> {
        if next.key <= one.key {
            return None;
        }
        let mut cost = self.alone_cost(one, Some(next.key));
        let is_same = one.key.objectid == next.key.objectid;
        if self.is_subvolume() && !is_same && next.key.kind.is_part_of_inode() {
            cost += price::MISPLACED;
        }
        if one.key.kind == next.key.kind
            && is_same
            && let Some(end) = self.end_of(one)
        {
            cost += if end > next.key.offset { price::MISPLACED } else { 0 };
            let is_gap = end < next.key.offset && next.key.kind == KeyType::EXTENT_DATA;
            cost += if is_gap && (one.is_doubtful || next.is_doubtful) { price::GAP } else { 0 };
        }
        Some(cost)
    }

    /// The cost of an inode's item behind which there is no other item of the inode.
    fn alone_cost(&self, one: &Placed<'_>, next: Option<Key>) -> u32 {
        let is_item = self.is_subvolume() && one.key.kind == KeyType::INODE_ITEM;
        let is_alone = is_item && next.is_some_and(|next| next.objectid != one.key.objectid);
        let is_linked = |item: &InodeItem| item.nlink.get() != 0;
        let is_odd = is_alone && InodeItem::ref_from_bytes(one.data).is_ok_and(is_linked);
        if is_odd { price::ALONE } else { 0 }
    }

    fn end_cost(&self, state: &State<'_>) -> Option<u32> {
        let Some(last) = &state.last else { return Some(0) };
        self.end.is_none_or(|end| last.key < end).then(|| self.alone_cost(last, self.end))
    }

    /// The end of the range of a file or of the disk that an item covers.
    fn end_of(&self, one: &Placed<'_>) -> Option<u64> {
        let sector = u64::from(self.context.sectorsize);
        let length = match one.key.kind {
            KeyType::EXTENT_CSUM => (one.data.len() / self.context.csum_len.max(1)) as u64 * sector,
            KeyType::EXTENT_DATA => {
                let (head, inline) = FileExtentHead::ref_from_prefix(one.data).ok()?;
                match head.kind {
                    file_extent_type::INLINE => (inline.len() as u64).next_multiple_of(sector),
                    _ => FileExtent::ref_from_bytes(one.data).ok()?.body.num_bytes.get(),
                }
            }
            _ => return None,
        };
        Some(one.key.offset.saturating_add(length))
    }

    /// Whether an item can stand under a key.
    fn fits(&self, key: Key, data: &[u8]) -> bool {
        let is_known = match self.tree {
            TreeId::CSUM => key.kind == KeyType::EXTENT_CSUM,
            tree if tree.is_subvolume() => fits_subvolume(key, data),
            _ => key.kind.name().is_some(),
        };
        let is_inline = key.kind == KeyType::EXTENT_DATA && offset_of(key.kind, data).is_some();
        let is_hashed = key.kind != KeyType::INODE_EXTREF || offset_of(key.kind, data) == Some(key.offset);
        is_known
            && (!is_inline || key.offset == 0)
            && is_hashed
            && check_alone(self.tree, key, data, self.context).is_ok()
    }
}

/// Whether a subvolume can have an item under a key, as far as the object and the length say.
fn fits_subvolume(key: Key, data: &[u8]) -> bool {
    let is_inode = (Ino::FIRST_FREE.get()..=Ino::LAST_FREE.get()).contains(&key.objectid);
    match key.kind {
        KeyType::ORPHAN_ITEM => key.objectid == objectid::ORPHAN && data.is_empty(),
        KeyType::INODE_ITEM | KeyType::EXTENT_DATA => is_inode || key.objectid == objectid::FREE_INO,
        KeyType::DIR_INDEX => is_inode && key.offset >= 2 && !data.is_empty(),
        KeyType::VERITY_DESC_ITEM | KeyType::VERITY_MERKLE_ITEM => is_inode,
        kind => is_inode && kind.is_part_of_inode() && !data.is_empty(),
    }
}

/// Whether an extent of a file shows no more than it has: where it does, its place says nothing.
fn is_whole(key: Key, data: &[u8]) -> bool {
    let Some(extent) = FileExtent::ref_from_bytes(data).ok().filter(|_| key.kind == KeyType::EXTENT_DATA) else {
        return true;
    };
    let end = extent.body.offset.get().checked_add(extent.body.num_bytes.get());
    extent.head.kind == file_extent_type::INLINE || end.is_some_and(|end| end <= extent.head.ram_bytes.get())
}

/// The offset in the key of an item of this type, where the payload says it.
fn offset_of(kind: KeyType, data: &[u8]) -> Option<u64> {
    match kind {
        KeyType::INODE_ITEM => Some(0),
        KeyType::DIR_ITEM | KeyType::XATTR_ITEM => {
            let (head, rest) = DirItem::ref_from_prefix(data).ok()?;
            rest.get(..head.name_len.get().into()).map(name_hash)
        }
        KeyType::INODE_EXTREF => {
            let (head, rest) = InodeExtref::ref_from_prefix(data).ok()?;
            rest.get(..head.name_len.get().into()).map(|name| extref_hash(head.parent.get(), name))
        }
        KeyType::EXTENT_DATA => {
            let (head, _) = FileExtentHead::ref_from_prefix(data).ok()?;
            (head.kind == file_extent_type::INLINE).then_some(0)
        }
        _ => None,
    }
}

/// The bits in which two keys differ.
fn distance(one: Key, other: Key) -> u32 {
    let kinds = (one.kind.0 ^ other.kind.0).count_ones();
    (one.objectid ^ other.objectid).count_ones() + kinds + (one.offset ^ other.offset).count_ones()
}

impl KeyType {
    /// Whether items of this type stand behind the item of an inode.
    fn is_part_of_inode(self) -> bool {
        const PARTS: [KeyType; 6] = [
            KeyType::INODE_REF,
            KeyType::INODE_EXTREF,
            KeyType::XATTR_ITEM,
            KeyType::DIR_ITEM,
            KeyType::DIR_INDEX,
            KeyType::EXTENT_DATA,
        ];
        PARTS.contains(&self)
    }
}
