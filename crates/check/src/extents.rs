//! The extent tree: what it says is in use, and whether its references are those that the trees make.

use crate::finding::{Finding, Tree};
use crate::ledger::Sums;
use crate::references::{Reference, References, Source};
use crate::roots::{Root, Roots};
use crate::session::{Seen, Session};
use crate::walk::items;
use butterfs_ondisk::items::{
    BlockGroupItem, ExtentDataRef, ExtentItem, TreeBlockInfo, block_group_flags as bits, extent_flags,
};
use butterfs_ondisk::{Key, KeyType, Logical, TreeId};
use butterfs_tree::NodePtr;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;
use zerocopy::FromBytes;
use zerocopy::little_endian::{U32, U64};

/// A block group item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub length: u64,
    pub used: u64,
    pub flags: u64,
}

/// Ranges in use, ascending; those that touch are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs(pub Vec<Range<u64>>);

impl Runs {
    /// Adds a range that begins behind the ones before.
    pub fn push(&mut self, range: Range<u64>) {
        match self.0.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => self.0.push(range),
        }
    }

    /// The parts within `range`.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.0.partition_point(|run| run.end <= range.start);
        let (start, end) = (range.start, range.end);
        let hit = self.0[first..].iter().take_while(move |run| run.start < end);
        hit.map(move |run| run.start.max(start)..run.end.min(end))
    }

    /// The number of bytes of `range` that are in.
    pub fn bytes_within(&self, range: Range<u64>) -> u64 {
        self.within(range).map(|run| run.end - run.start).sum()
    }

    /// The part of `range` that is not in.
    pub fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let (mut gaps, mut at) = (Vec::new(), range.start);
        for run in self.within(range.clone()) {
            if at < run.start {
                gaps.push(at..run.start);
            }
            at = run.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }
}

/// The result of the first reading of the extent tree: 16 bytes for each fragment of used space, and 8 bytes for each
/// tree block that is shared or has full back references.
#[derive(Default)]
pub(crate) struct ExtentScan {
    /// Tree blocks with full back references, ascending.
    full: Vec<u64>,
    /// Tree blocks with several references, ascending.
    pub shared: Vec<u64>,
    pub used: Runs,
    pub data: Runs,
    pub groups: BTreeMap<u64, Group>,
    /// Tree blocks in all.
    pub blocks: u64,
    /// All references.
    pub sums: Sums,
    /// Something about the references is wrong by itself.
    pub doubtful: bool,
    pub complete: bool,
}

impl ExtentScan {
    /// Whether the block has full back references.
    pub fn is_full(&self, at: u64) -> bool {
        self.full.binary_search(&at).is_ok()
    }

    pub fn add_group(&mut self, key: Key, data: &[u8]) {
        if let Ok(item) = BlockGroupItem::read_from_bytes(data) {
            let group = Group { length: key.offset, used: item.used.get(), flags: item.flags.get() };
            self.groups.insert(key.objectid, group);
        }
    }
}

/// An item of the extent tree, taken apart.
struct Extent {
    at: u64,
    length: u64,
    refs: u64,
    generation: u64,
    flags: u64,
    /// Of a tree block.
    level: u64,
    sources: Vec<(Source, u64)>,
}

impl Extent {
    /// The tree checker has seen the item; what it would refuse comes out as nothing.
    fn parse(key: Key, data: &[u8], nodesize: u64) -> Option<Extent> {
        let (item, mut rest) = ExtentItem::read_from_prefix(data).ok()?;
        let flags = item.flags.get();
        let (mut length, mut level) = (key.offset, 0);
        if key.kind == KeyType::METADATA_ITEM {
            (length, level) = (nodesize, key.offset);
        } else if flags & extent_flags::TREE_BLOCK != 0 {
            let (info, after) = TreeBlockInfo::read_from_prefix(rest).ok()?;
            (level, rest) = (info.level.into(), after);
        }
        let mut sources = Vec::new();
        while let Some((&kind, body)) = rest.split_first() {
            rest = inline_source(kind, body, &mut sources)?;
        }
        let (refs, generation) = (item.refs.get(), item.generation.get());
        Some(Extent { at: key.objectid, length, refs, generation, flags, level, sources })
    }

    fn is_data(&self) -> bool {
        self.flags & extent_flags::DATA != 0
    }
}

fn inline_source<'a>(kind: u8, body: &'a [u8], sources: &mut Vec<(Source, u64)>) -> Option<&'a [u8]> {
    if KeyType(kind) == KeyType::EXTENT_DATA_REF {
        let (item, after) = ExtentDataRef::read_from_prefix(body).ok()?;
        sources.push(data_source(&item));
        return Some(after);
    }
    let (from, after) = U64::read_from_prefix(body).ok()?;
    let source = Source { kind, from: from.get(), inode: 0, offset: 0 };
    match KeyType(kind) {
        KeyType::SHARED_DATA_REF => {
            let (count, after) = U32::read_from_prefix(after).ok()?;
            sources.push((source, count.get().into()));
            Some(after)
        }
        KeyType::EXTENT_OWNER_REF => Some(after),
        _ => {
            sources.push((source, 1));
            Some(after)
        }
    }
}

fn data_source(item: &ExtentDataRef) -> (Source, u64) {
    let (from, inode, offset) = (item.root.get(), item.objectid.get(), item.offset.get());
    (Source { kind: KeyType::EXTENT_DATA_REF.0, from, inode, offset }, item.count.get().into())
}

fn keyed_sources(key: Key, data: &[u8]) -> Vec<(Source, u64)> {
    let source = Source { kind: key.kind.0, from: key.offset, inode: 0, offset: 0 };
    match key.kind {
        KeyType::TREE_BLOCK_REF | KeyType::SHARED_BLOCK_REF => vec![(source, 1)],
        KeyType::SHARED_DATA_REF => match U32::read_from_bytes(data) {
            Ok(count) => vec![(source, count.get().into())],
            Err(_) => Vec::new(),
        },
        KeyType::EXTENT_DATA_REF => <[ExtentDataRef]>::ref_from_bytes(data)
            .map_or_else(|_| Vec::new(), |all| all.iter().map(data_source).collect()),
        _ => Vec::new(),
    }
}

fn is_reference(kind: KeyType) -> bool {
    (KeyType::TREE_BLOCK_REF.0..=KeyType::SHARED_DATA_REF.0).contains(&kind.0)
}

/// Reads the extent tree for the first time.
pub(crate) fn scan(session: &Session<'_>, root: NodePtr) -> ExtentScan {
    let (mut scan, mut end, mut current) = (ExtentScan::default(), 0, None);
    let complete = items(session, root, &mut |key, data| match key.kind {
        KeyType::BLOCK_GROUP_ITEM => scan.add_group(key, data),
        KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM => {
            let Some(extent) = Extent::parse(key, data, session.nodesize()) else { return };
            check_place(session, &extent, end);
            end = end.max(extent.at.saturating_add(extent.length));
            if let Some(last) = current.replace(extent) {
                note_extent(session, &mut scan, &last);
            }
        }
        kind if is_reference(kind) => match current.as_mut().filter(|extent| extent.at == key.objectid) {
            Some(extent) => extent.sources.extend(keyed_sources(key, data)),
            None => scan.doubtful = true,
        },
        _ => {}
    });
    if let Some(last) = current {
        note_extent(session, &mut scan, &last);
    }
    scan.full.sort_unstable();
    scan.shared.sort_unstable();
    scan.complete = complete;
    scan
}

fn note_extent(session: &Session<'_>, scan: &mut ExtentScan, extent: &Extent) {
    let range = extent.at..extent.at.saturating_add(extent.length);
    if extent.is_data() {
        scan.data.push(range.clone());
    } else {
        scan.blocks += 1;
        scan.sums.add_block(session.options.seed, extent.at, extent.level, extent.generation);
        if extent.flags & extent_flags::FULL_BACKREF != 0 {
            scan.full.push(extent.at);
        }
        if extent.refs > 1 {
            scan.shared.push(extent.at);
        }
    }
    scan.used.push(range);
    let mut total = 0u64;
    for (source, count) in &extent.sources {
        total = total.saturating_add(*count);
        scan.sums.add_source(session.options.seed, extent.at, source, *count);
    }
    scan.sums.add_length(session.options.seed, extent.at, extent.length, total);
    scan.doubtful |= total != extent.refs || total == 0;
}

/// The ends of the windows for comparing, each with at most as many references as the budget has.
pub(crate) fn windows(session: &Session<'_>, root: NodePtr) -> Vec<u64> {
    let (mut windows, mut in_window) = (Vec::new(), 0usize);
    items(session, root, &mut |key, data| {
        if !matches!(key.kind, KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM) {
            return;
        }
        let refs = ExtentItem::read_from_prefix(data).map_or(0, |(item, _)| item.refs.get());
        in_window += 2 + refs.min(1 << 32) as usize;
        if in_window > session.options.reference_budget {
            windows.push(key.objectid);
            in_window = 0;
        }
    });
    windows.push(u64::MAX);
    windows
}

fn check_place(session: &Session<'_>, extent: &Extent, end: u64) {
    let at = Logical(extent.at);
    if extent.at < end {
        session.report(Finding::ExtentOverlap { at });
    }
    let map = session.volume.chunk_map();
    let Some(chunk) = map.get_range(at, extent.length) else {
        return session.report(Finding::ExtentOutside { at, length: extent.length });
    };
    let wanted = if extent.is_data() { bits::DATA } else { bits::METADATA | bits::SYSTEM };
    if chunk.kind & wanted == 0 {
        session.report(Finding::ExtentPlace { at });
    }
}

/// Compares one window of the extent tree with the references that the trees make.
pub(crate) fn compare(session: &Session<'_>, root: NodePtr, roots: &Roots, references: References) {
    let window = references.window.clone();
    let (records, seen) = references.finish();
    let mut comparison = Comparison { session, roots, records, seen, next: 0, current: None };
    items(session, root, &mut |key, data| {
        if window.contains(&key.objectid) {
            comparison.item(key, data);
        }
    });
    comparison.finish_extent();
    comparison.missing_before(u64::MAX);
}

struct Comparison<'s, 'a> {
    session: &'s Session<'a>,
    roots: &'s Roots,
    records: Vec<Reference>,
    seen: FxHashMap<u64, Seen>,
    next: usize,
    current: Option<Extent>,
}

impl Comparison<'_, '_> {
    fn item(&mut self, key: Key, data: &[u8]) {
        if matches!(key.kind, KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM) {
            self.finish_extent();
            self.current = Extent::parse(key, data, self.session.nodesize());
        } else if is_reference(key.kind) {
            match self.current.as_mut().filter(|extent| extent.at == key.objectid) {
                Some(extent) => extent.sources.extend(keyed_sources(key, data)),
                None => self.session.report(Finding::ReferenceStray { at: Logical(key.objectid), key }),
            }
        }
    }

    /// Reports what is used below `at` and has no extent item.
    fn missing_before(&mut self, at: u64) {
        let mut last = None;
        while let Some(record) = self.records.get(self.next).filter(|record| record.at < at) {
            self.next += 1;
            if last.replace(record.at) != Some(record.at) {
                let (at, reference) = (Logical(record.at), record.source.to_string());
                self.session.report(Finding::ExtentMissing { at, reference });
            }
        }
    }

    fn finish_extent(&mut self) {
        let Some(mut extent) = self.current.take() else { return };
        self.missing_before(extent.at);
        let start = self.next;
        while self.records.get(self.next).is_some_and(|record| record.at == extent.at) {
            self.next += 1;
        }
        extent.sources.sort_unstable();
        let found = &self.records[start..self.next];
        self.check_extent(&extent, found);
    }

    fn check_extent(&self, extent: &Extent, found: &[Reference]) {
        let (session, at) = (self.session, Logical(extent.at));
        let total = extent.sources.iter().fold(0u64, |sum, (_, count)| sum.saturating_add(*count));
        if total != extent.refs {
            session.report(Finding::ExtentRefs { at, stored: extent.refs, found: total });
        }
        if found.is_empty() {
            return session.report(Finding::ExtentUnused { at, length: extent.length });
        }
        if let Some(other) = found.iter().find(|found| found.length != extent.length) {
            session.report(Finding::ExtentLength { at, stored: extent.length, found: other.length });
        }
        self.check_sources(extent, found);
        if !extent.is_data() {
            self.check_block(extent);
        }
    }

    fn check_sources(&self, extent: &Extent, found: &[Reference]) {
        let at = Logical(extent.at);
        let mut both: BTreeMap<Source, (u64, u64)> = BTreeMap::new();
        for (source, count) in &extent.sources {
            let stored = &mut both.entry(*source).or_default().0;
            *stored = stored.saturating_add(*count);
        }
        for record in found {
            both.entry(record.source).or_default().1 += record.count;
        }
        for (source, (stored, found)) in both.into_iter().filter(|(_, (stored, found))| stored != found) {
            let reference = source.to_string();
            self.session.report(match (stored, found) {
                (0, found) => Finding::ReferenceMissing { at, reference, found },
                (stored, 0) => Finding::ReferenceExtra { at, reference, stored },
                (stored, found) => Finding::ReferenceCount { at, reference, stored, found },
            });
        }
    }

    /// The record of a tree block against the block itself.
    fn check_block(&self, extent: &Extent) {
        let (session, at) = (self.session, Logical(extent.at));
        let Some(seen) = self.seen.get(&extent.at) else { return };
        if u64::from(seen.level) != extent.level {
            session.report(Finding::ExtentLevel { at, stored: extent.level, found: seen.level.into() });
        }
        if seen.generation != extent.generation {
            session.report(Finding::ExtentGeneration { at, stored: extent.generation, found: seen.generation });
        }
        let owned = extent.sources.iter().any(|(source, _)| *source == Source::tree(seen.owner));
        // While a deleted tree is dropped, its shared blocks are given full references one after the other, from the
        // top down: below one that has them, the others name their owner and are not referred to by it any more.
        let dying = self.roots.get(TreeId(seen.owner)).is_some_and(Root::is_dead);
        if extent.flags & extent_flags::FULL_BACKREF == 0 && !owned && !dying && !self.is_below_reloc(extent) {
            session.report(Finding::FullBackrefMissing { at, owner: Tree(TreeId(seen.owner)) });
        }
        let is_shareable = |root: &Root| seen.generation <= root.item.last_snapshot.get();
        let may_be_full = seen.is_reloc || self.roots.get(TreeId(seen.owner)).is_none_or(is_shareable);
        if extent.flags & extent_flags::FULL_BACKREF != 0 && !may_be_full {
            session.report(Finding::FullBackrefExtra { at, owner: Tree(TreeId(seen.owner)) });
        }
    }

    /// Whether a block that a balance made refers to it. Such a block has full back references, and a balance does not
    /// give them to children that stay where they are.
    fn is_below_reloc(&self, extent: &Extent) -> bool {
        let made_by_balance = |source: &Source| {
            source.kind == KeyType::SHARED_BLOCK_REF.0
                && self.seen.get(&source.from).is_some_and(|parent| parent.is_reloc)
        };
        extent.sources.iter().any(|(source, _)| made_by_balance(source))
    }
}
