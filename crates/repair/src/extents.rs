//! The pass `extents`: the extent tree and the block groups are made to say what the trees say.
//!
//! References are derived from all trees and compared with the extent tree; only what differs is changed. The changes
//! make and drop blocks themselves: these events are booked until none is left. Each block is copied at most once, so
//! that ends.

use crate::extent_items::{Extent, Stored};
use crate::forest::Forest;
use crate::free_space;
use crate::headers;
use crate::ranges::Ranges;
use crate::references::{self, References, Source};
use crate::store::Event;
use crate::trouble::{Result, Trouble};
use crate::walk;
use butterfs_ondisk::features::compat_ro;
use butterfs_ondisk::items::{BlockGroupItem, ExtentItem, extent_flags};
use butterfs_ondisk::{Generation, Key, KeyType, Logical, TreeId};
use butterfs_tree::NodePtr;
use rustc_hash::FxHashSet;
use std::ops::Range;
use zerocopy::{FromBytes, IntoBytes};

/// How often the booking of events may make new ones.
const MOST_ROUNDS: usize = 1000;

/// The result of the pass.
#[derive(Debug, Default)]
pub(crate) struct Booked {
    /// Extents whose items were changed.
    pub extents: u64,
    /// References in all trees, for the estimate of memory.
    pub references: u64,
    /// Bytes in use.
    pub bytes_used: u64,
}

/// Runs the pass. With `anew` nothing of the extent tree is believed.
pub(crate) fn run(forest: &mut Forest, anew: bool) -> Result<Booked> {
    let has_free_space_tree = forest.sb.compat_ro_flags.get() & compat_ro::FREE_SPACE_TREE != 0;
    let stored_full = if anew { FxHashSet::default() } else { full_blocks(forest) };
    let lacks = |forest: &Forest, id| !forest.trees.contains_key(&id);
    if anew || lacks(forest, TreeId::EXTENT) {
        forest.start_anew(TreeId::EXTENT)?;
    }
    if has_group_tree(forest) && (lacks(forest, TreeId::BLOCK_GROUP) || !is_readable(forest, TreeId::BLOCK_GROUP)) {
        forest.start_anew(TreeId::BLOCK_GROUP)?;
    }
    if has_free_space_tree && (lacks(forest, TreeId::FREE_SPACE) || !is_readable(forest, TreeId::FREE_SPACE)) {
        forest.start_anew(TreeId::FREE_SPACE)?;
    }
    forest.store_roots()?;
    forest.touch_root()?;
    let references = references::collect(forest, &stored_full);
    let mut booked = Booked { references: references.records.len() as u64, ..Booked::default() };
    let mut used = used_ranges(&references);
    let differences = compare(forest, &references)?;
    forest.store.record_events();
    forest.store.take_events();
    for difference in &differences {
        difference.keys.iter().try_for_each(|key| forest.remove(TreeId::EXTENT, *key).map(drop))?;
        difference.items.iter().try_for_each(|(key, data)| forest.put(TreeId::EXTENT, *key, data).map(drop))?;
    }
    booked.extents = differences.len() as u64;
    settle(forest, &mut used, has_free_space_tree)?;
    booked.bytes_used = used.bytes_within(0..u64::MAX);
    Ok(booked)
}

fn has_group_tree(forest: &Forest) -> bool {
    forest.sb.compat_ro_flags.get() & compat_ro::BLOCK_GROUP_TREE != 0
}

/// The tree that has the block groups.
fn group_tree(forest: &Forest) -> TreeId {
    if has_group_tree(forest) { TreeId::BLOCK_GROUP } else { TreeId::EXTENT }
}

/// Whether every block of a tree can be read.
pub(crate) fn is_readable(forest: &Forest, id: TreeId) -> bool {
    let mut is_odd = false;
    let is_whole = |ptr| {
        walk::walk(&forest.store, &ptr, None, &mut |node, _| {
            is_odd |= headers::is_odd(node);
            true
        })
    };
    forest.ptr(id).is_ok_and(is_whole) && !is_odd
}

/// Books events, block groups, free space and root items until nothing changes any more.
fn settle(forest: &mut Forest, used: &mut Ranges, has_free_space_tree: bool) -> Result<()> {
    for _ in 0..MOST_ROUNDS {
        book_events(forest, used)?;
        let mut changed = write_groups(forest, used)?;
        if has_free_space_tree {
            changed |= free_space::write(forest, used)?;
        }
        changed |= forest.store_roots()?;
        let events = forest.store.take_events();
        if events.is_empty() && !changed {
            return Ok(());
        }
        book(forest, used, events)?;
    }
    Err(Trouble::new("the extent tree does not come to an end of its own changes"))
}

fn book_events(forest: &mut Forest, used: &mut Ranges) -> Result<()> {
    loop {
        let events = forest.store.take_events();
        if events.is_empty() {
            return Ok(());
        }
        book(forest, used, events)?;
    }
}

fn book(forest: &mut Forest, used: &mut Ranges, events: Vec<Event>) -> Result<()> {
    let (nodesize, generation) = (forest.store.nodesize(), forest.store.generation.get());
    for event in events {
        match event {
            Event::Made { at, level, owner } => {
                let (at, level) = (at.get(), level.get());
                let extent = Extent::of_block(at, nodesize, level, generation, Source::tree(owner));
                used.insert(at..at + nodesize);
                for (key, data) in extent.encode(forest.store.identity.incompat, nodesize, Key::MIN) {
                    forest.put(TreeId::EXTENT, key, &data)?;
                }
            }
            Event::Gone { at } => {
                used.remove(at.get()..at.get() + nodesize);
                for (key, _) in extent_items_at(forest, at.get())? {
                    forest.remove(TreeId::EXTENT, key)?;
                }
            }
        }
    }
    Ok(())
}

/// The items of an extent, but for the block group that may begin there.
fn extent_items_at(forest: &Forest, at: u64) -> Result<Vec<(Key, Vec<u8>)>> {
    let last = KeyType(KeyType::BLOCK_GROUP_ITEM.0 - 1);
    forest.range(TreeId::EXTENT, Key::new(at, KeyType(0), 0), Key::new(at, last, u64::MAX))
}

/// The data extent at `at` with its references, as the extent tree has it, if it has just one there.
pub(crate) fn recorded_data(forest: &Forest, at: u64) -> Option<Extent> {
    forest.ptr(TreeId::EXTENT).ok()?;
    let mut items = extent_items_at(forest, at).ok()?.into_iter();
    let (key, data) = items.next().filter(|(key, _)| key.kind == KeyType::EXTENT_ITEM)?;
    let mut stored = Stored::parse(key, &data, forest.store.nodesize());
    for (key, data) in items {
        match key.kind {
            KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM => return None,
            _ => stored.add_keyed(key, &data),
        }
    }
    stored.extent.filter(|extent| extent.is_data)
}

/// The generation of a tree block as the extent tree has it, if it has one of this level there.
pub(crate) fn recorded_generation(forest: &Forest, ptr: &NodePtr) -> Option<Generation> {
    forest.ptr(TreeId::EXTENT).ok()?;
    let items = extent_items_at(forest, ptr.at.get()).ok()?;
    let is_item = |key: &Key| matches!(key.kind, KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM);
    let (key, data) = items.into_iter().find(|(key, _)| is_item(key))?;
    let extent = Stored::parse(key, &data, forest.store.nodesize()).extent?;
    (!extent.is_data && extent.level == ptr.level.get()).then_some(Generation(extent.generation))
}

/// Tree blocks to which the extent tree gives full back references, and that may have some: their owners may have been
/// shared since they were written, or a balance made them.
pub(crate) fn full_blocks(forest: &Forest) -> FxHashSet<u64> {
    let mut full = FxHashSet::default();
    let Ok(ptr) = forest.ptr(TreeId::EXTENT) else { return full };
    walk::items(&forest.store, &ptr, &mut |key, data| {
        let is_extent = matches!(key.kind, KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM);
        let flags = ExtentItem::read_from_prefix(data).map_or(0, |(item, _)| item.flags.get());
        if is_extent && flags & extent_flags::FULL_BACKREF != 0 {
            full.insert(key.objectid);
        }
    });
    if full.is_empty() {
        return full;
    }
    let mut seen = FxHashSet::default();
    for (ptr, from) in forest.all() {
        walk::walk(&forest.store, &ptr, from, &mut |node, _| {
            let shared = forest.trees.get(&node.owner()).map(|root| root.item.last_snapshot.get());
            if !node.is_reloc() && shared.is_some_and(|last| last < node.generation().get()) {
                full.remove(&node.at().get());
            }
            seen.insert(node.at().get())
        });
    }
    full
}

fn used_ranges(references: &References) -> Ranges {
    let mut used = Ranges::default();
    for record in &references.records {
        used.insert(record.at..record.at.saturating_add(record.length));
    }
    used
}

/// The items of one extent that go, and those that come.
struct Difference {
    keys: Vec<Key>,
    items: Vec<(Key, Vec<u8>)>,
}

/// Compares the extent tree with the references.
fn compare(forest: &Forest, references: &References) -> Result<Vec<Difference>> {
    let ptr = forest.ptr(TreeId::EXTENT)?;
    let mut comparison = Comparison { forest, references, next: 0, current: None, found: Vec::new(), trouble: None };
    let complete = walk::items(&forest.store, &ptr, &mut |key, data| comparison.item(key, data));
    if !complete {
        return Err(Trouble::new("the extent tree cannot be read whole"));
    }
    comparison.finish_extent();
    comparison.missing_before(u64::MAX);
    comparison.trouble.map_or(Ok(comparison.found), Err)
}

struct Comparison<'a> {
    forest: &'a Forest,
    references: &'a References,
    next: usize,
    current: Option<(u64, Stored)>,
    found: Vec<Difference>,
    trouble: Option<Trouble>,
}

impl Comparison<'_> {
    fn item(&mut self, key: Key, data: &[u8]) {
        let is_reference = (KeyType::TREE_BLOCK_REF.0..=KeyType::SHARED_DATA_REF.0).contains(&key.kind.0);
        match key.kind {
            KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM => {
                let stored = Stored::parse(key, data, self.forest.store.nodesize());
                match &mut self.current {
                    // Two extents at one address: neither is believed.
                    Some((at, other)) if *at == key.objectid => {
                        other.keys.push(key);
                        other.extent = None;
                    }
                    _ => {
                        self.finish_extent();
                        self.current = Some((key.objectid, stored));
                    }
                }
            }
            _ if is_reference => match &mut self.current {
                Some((at, stored)) if *at == key.objectid => stored.add_keyed(key, data),
                _ => {
                    self.finish_extent();
                    self.current = Some((key.objectid, Stored { keys: vec![key], extent: None, refs: 0 }));
                }
            },
            _ => {}
        }
    }

    fn missing_before(&mut self, at: u64) {
        while let Some(record) = self.references.records.get(self.next).filter(|record| record.at < at) {
            let (address, range) = (record.at, self.records_of(record.at));
            self.next = range.end;
            self.replace(address, range, None);
        }
    }

    fn records_of(&self, at: u64) -> Range<usize> {
        let count = self.references.records[self.next..].partition_point(|record| record.at == at);
        self.next..self.next + count
    }

    fn finish_extent(&mut self) {
        let Some((at, stored)) = self.current.take() else { return };
        self.missing_before(at);
        let range = self.records_of(at);
        self.next = range.end;
        self.replace(at, range, Some(stored));
    }

    /// Notes what has to be done for the extent at `at`.
    fn replace(&mut self, at: u64, range: Range<usize>, stored: Option<Stored>) {
        let records = &self.references.records[range];
        let keys = stored.as_ref().map_or_else(Vec::new, |stored| stored.keys.clone());
        if records.is_empty() {
            // As long as a block is missing, this may be the last trace of what it had.
            if self.references.complete {
                self.found.push(Difference { keys, items: Vec::new() });
            }
            return;
        }
        let block = self.references.blocks.get(&at);
        let is_tree_ref = |record: &references::Reference| {
            matches!(KeyType(record.source.kind), KeyType::TREE_BLOCK_REF | KeyType::SHARED_BLOCK_REF)
        };
        let of_blocks = records.iter().filter(|record| is_tree_ref(record)).count();
        if of_blocks != 0 && of_blocks != records.len() || (of_blocks != 0) != block.is_some() {
            let sentence = format!("{at} is used as a tree block and as data, or is a tree block that cannot be read");
            self.trouble.get_or_insert(Trouble::new(sentence));
            return;
        }
        if self.forest.store.volume.chunk_map().get(Logical(at)).is_none() {
            self.trouble.get_or_insert(Trouble::new(format!("the extent {at} that is in use lies in no chunk")));
            return;
        }
        let wanted = Extent::of(records, block, stored.as_ref().and_then(|stored| stored.extent.as_ref()));
        if stored.is_some_and(|stored| stored.is(&wanted)) {
            return;
        }
        let first = block.map_or(Key::MIN, |block| block.first);
        let items = wanted.encode(self.forest.store.identity.incompat, self.forest.store.nodesize(), first);
        self.found.push(Difference { keys, items });
    }
}

/// Makes the block groups those of the chunks, with what is used; true when anything was changed.
fn write_groups(forest: &mut Forest, used: &Ranges) -> Result<bool> {
    let (tree, map) = (group_tree(forest), forest.store.volume.chunk_map());
    let mut changed = false;
    let ptr = forest.ptr(tree)?;
    let mut stored = Vec::new();
    walk::items(&forest.store, &ptr, &mut |key, data| {
        if key.kind == KeyType::BLOCK_GROUP_ITEM {
            stored.push((key, data.to_vec()));
        }
    });
    for (key, _) in &stored {
        let chunk = map.get(Logical(key.objectid));
        if !chunk.is_some_and(|chunk| chunk.start.get() == key.objectid && chunk.length == key.offset) {
            changed |= forest.remove(tree, *key)?;
        }
    }
    for chunk in map.iter() {
        let key = Key::new(chunk.start.get(), KeyType::BLOCK_GROUP_ITEM, chunk.length);
        let bytes = used.bytes_within(chunk.start.get()..chunk.end().get());
        let item = BlockGroupItem { used: bytes.into(), chunk_objectid: 256.into(), flags: chunk.kind.into() };
        let same = stored.iter().any(|(other, data)| *other == key && data == item.as_bytes());
        if !same {
            changed |= forest.put(tree, key, item.as_bytes())?;
        }
    }
    Ok(changed)
}
