//! The work of verifying one window of a device: the allocated parts, as one commit has them.

use super::{Selection, UNIT};
use crate::backref::View;
use crate::error::{Error, Result};
use crate::extent::checksums::{self, Checksums, Layout as ChecksumLayout};
use crate::extent::items::{Items, Visit};
use crate::options::Canary;
use crate::transaction::extent_item::ExtentRecord;
use crate::transaction::{Core, HeldData};
use butterfs_ondisk::items::{ExtentItem, extent_flags};
use butterfs_ondisk::{Key, KeyType, Level, Logical, Physical, TreeId};
use butterfs_tree::NodePtr;
use butterfs_volume::{ChunkMap, DeviceExtent, Layout, Run};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use zerocopy::FromBytes;

/// Some bytes of a device extent, whole elements but for its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Window {
    /// The stripe that they are of.
    pub extent: DeviceExtent,
    /// The range in it.
    pub depths: Range<u64>,
}

impl Window {
    /// The position at which it begins on the device.
    pub fn start(&self) -> Physical {
        self.extent.physical.plus(self.depths.start)
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        (self.depths.end - self.depths.start) as usize
    }
}

/// The content of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Holds {
    Data,
    Block { level: Level, generation: u64 },
}

/// A part of an extent that lies on the device in one piece.
pub(super) struct Part {
    pub run: Run,
    pub holds: Holds,
    /// Of data, one for each sector.
    pub sums: Option<Checksums>,
    /// The sums could not be read.
    pub sums_lost: Option<String>,
}

/// See the [module](self).
pub(super) struct Plan {
    /// In the order in which they lie on the device.
    pub parts: Vec<Part>,
    /// Units of 64 KiB and extents in them: of data, of tree blocks.
    pub units: (u64, u64),
    /// Rows whose P lies in the window.
    pub rows: Vec<ParityRow>,
    /// The number of mirrors the chunk has.
    pub mirrors: usize,
    /// The data that was read stays unchanged until this is dropped.
    _held: HeldData,
}

struct Allocated {
    start: Logical,
    len: u64,
    holds: Holds,
}

/// Plans a window and holds its extents. `None` when its chunk is gone.
pub(super) fn plan(core: &Arc<Core>, window: &Window, only: Option<&Selection>) -> Result<Option<Plan>> {
    loop {
        let map = core.volume().chunk_map();
        let Some(layout) = layout_of(&map, window) else { return Ok(None) };
        let span = layout.span_at(&window.depths);
        if only.is_some_and(|only| !only.touches(span.clone())) {
            return Ok(Some(empty(core)));
        }
        let (generation, mut extents, sums) = View::look(core, |view| {
            let extents = allocated(view, &span)?;
            Ok((view.generation, extents, view.root(TreeId::CSUM)?))
        })?;
        extents.retain(|extent| only.is_none_or(|only| only.touches(extent.start..extent.start.plus(extent.len))));
        let is_held = |_: &&Allocated| !core.has_canary(Canary::ScrubUnheld);
        let held = core.hold_data(extents.iter().filter(is_held).map(|extent| (extent.start, extent.len)).collect());
        let looked = View::look(core, |view| {
            if view.generation != generation {
                return Ok(None);
            }
            let sums = sums.map(|root| Committed { view, root });
            let parts = parts_of(core, &layout, window, &span, &extents, sums.as_ref());
            Ok(Some((parts, rows_of(core, &layout, window, &extents, sums.as_ref()))))
        })?;
        // What the last commit refers to, the next one releases only when it is the last: so the hold came in time.
        let Some((parts, rows)) = looked.filter(|_| core.superblock().generation() == generation) else { continue };
        let units = units_of(&layout, &parts);
        return Ok(Some(Plan { parts, units, rows, mirrors: layout.mirrors(), _held: held }));
    }
}

fn empty(core: &Arc<Core>) -> Plan {
    Plan { parts: Vec::new(), units: (0, 0), rows: Vec::new(), mirrors: 1, _held: core.hold_data(Vec::new()) }
}

/// The layout of the window's chunk, if its stripe is still where the window is.
fn layout_of<'a>(map: &'a ChunkMap, window: &Window) -> Option<Layout<'a>> {
    let chunk = map.get(window.extent.chunk).filter(|chunk| chunk.start == window.extent.chunk)?;
    let stripe = chunk.stripes.get(window.extent.stripe)?;
    let is_same = stripe.physical == window.extent.physical && chunk.stripe_length() == window.extent.len;
    Layout::of(chunk).ok().filter(|_| is_same)
}

/// The extents that have bytes in `span`.
fn allocated(view: &View<'_>, span: &Range<Logical>) -> Result<Vec<Allocated>> {
    let mut found = Vec::new();
    let extents = view.extents()?;
    if let Some(first) = view.extent_at(span.start)?.filter(|first| first.start < span.start) {
        let key = Key::new(first.start.0, KeyType(0), 0);
        collect(view, &extents, key, Key::new(first.start.0, KeyType::METADATA_ITEM, u64::MAX), &mut found)?;
    }
    let last = Key::new(span.end.0.saturating_sub(1), KeyType::METADATA_ITEM, u64::MAX);
    collect(view, &extents, Key::new(span.start.0, KeyType(0), 0), last, &mut found)?;
    Ok(found)
}

fn collect(view: &View<'_>, root: &NodePtr, from: Key, to: Key, found: &mut Vec<Allocated>) -> Result<()> {
    let (nodesize, sector) = (u64::from(view.core.nodesize()), u64::from(view.core.sectorsize()));
    butterfs_tree::scan(view, root, &from, &to, &mut |key, payload| {
        let is_extent = [KeyType::EXTENT_ITEM, KeyType::METADATA_ITEM].contains(&key.kind);
        if let Some(extent) = is_extent.then(|| extent_of(key, payload, nodesize)).flatten() {
            let is_whole = extent.start.0.is_multiple_of(sector) && extent.len.is_multiple_of(sector) && extent.len > 0;
            let end = extent.start.0.checked_add(extent.len);
            let follows = found.last().is_none_or(|last: &Allocated| last.start.plus(last.len) <= extent.start);
            if !is_whole || end.is_none() || !follows {
                return Err(Error::corrupt(format!("extent item {key} is not made of whole sectors of its own")));
            }
            found.push(extent);
        }
        Ok(ControlFlow::Continue(()))
    })
}

fn extent_of(key: Key, payload: &[u8], nodesize: u64) -> Option<Allocated> {
    let (item, _) = ExtentItem::read_from_prefix(payload).ok()?;
    let (start, generation) = (Logical(key.objectid), item.generation.get());
    if key.kind == KeyType::METADATA_ITEM {
        let holds = Holds::Block { level: Level(key.offset as u8), generation };
        return Some(Allocated { start, len: nodesize, holds });
    }
    if item.flags.get() & extent_flags::TREE_BLOCK == 0 {
        return Some(Allocated { start, len: key.offset, holds: Holds::Data });
    }
    let record = ExtentRecord::parse(start, key.kind, payload).ok()?;
    let level = record.block_info.map_or(Level(0), |info| Level(info.level));
    Some(Allocated { start, len: nodesize, holds: Holds::Block { level, generation } })
}

fn parts_of(
    core: &Core,
    layout: &Layout<'_>,
    window: &Window,
    span: &Range<Logical>,
    extents: &[Allocated],
    sums: Option<&Committed<'_, '_>>,
) -> Vec<Part> {
    let mut parts = Vec::new();
    let end = window.start().plus(window.len() as u64);
    for extent in extents {
        let (from, to) = (extent.start.max(span.start), extent.start.plus(extent.len).min(span.end));
        for run in layout.runs_on(window.extent.stripe, from, to.0.saturating_sub(from.0)) {
            // A chunk's end may lie inside of a row's elements.
            if run.physical < window.start() || run.physical.plus(run.len) > end {
                continue;
            }
            let (mut found, mut lost) = (None, None);
            if extent.holds == Holds::Data
                && let Some(items) = sums
            {
                match checksums::lookup(items, ChecksumLayout::of(core), run.at, run.len) {
                    Ok(sums) => found = Some(sums),
                    Err(error) => lost = Some(error.to_string()),
                }
            }
            parts.push(Part { run, holds: extent.holds, sums: found, sums_lost: lost });
        }
    }
    parts.sort_by_key(|part| part.run.physical);
    parts
}

/// The number of extents with bytes in a unit of 64 KiB of this device.
fn units_of(layout: &Layout<'_>, parts: &[Part]) -> (u64, u64) {
    let start = layout.chunk().start.0;
    let (mut data, mut blocks) = (0, 0);
    for part in parts {
        let (first, last) = ((part.run.at.0 - start) / UNIT, (part.run.at.0 + part.run.len - 1 - start) / UNIT);
        match part.holds {
            Holds::Data => data += last - first + 1,
            Holds::Block { .. } => blocks += last - first + 1,
        }
    }
    (data, blocks)
}

/// The rows of a window whose P lies on its stripe, as far as they have extents.
fn rows_of(
    core: &Core,
    layout: &Layout<'_>,
    window: &Window,
    extents: &[Allocated],
    sums: Option<&Committed<'_, '_>>,
) -> Vec<ParityRow> {
    if layout.parity() == 0 {
        return Vec::new();
    }
    let (first, last) = (window.depths.start / UNIT, window.depths.end.div_ceil(UNIT));
    let own = (first..last).filter(|row| layout.element_on(*row, window.extent.stripe) == layout.columns());
    let row = |number: u64| {
        let (start, len) = (layout.chunk().start.plus(number * layout.row_len()), layout.row_len());
        let from = extents.partition_point(|extent| extent.start.plus(extent.len) <= start);
        let inside = extents[from..].iter().take_while(|extent| extent.start < start.plus(len));
        let pieces = inside.map(|extent| {
            let (at, end) = (extent.start.max(start), extent.start.plus(extent.len).min(start.plus(len)));
            let (len, is_data) = (end.0 - at.0, extent.holds == Holds::Data);
            let sums = sums.filter(|_| is_data);
            // Without its checksums data counts as unknown.
            let sums = sums.and_then(|items| checksums::lookup(items, ChecksumLayout::of(core), at, len).ok());
            RowPiece { at, len, holds: extent.holds, sums }
        });
        ParityRow { number, start, pieces: pieces.collect() }
    };
    own.map(row).filter(|row| !row.pieces.is_empty()).collect()
}

/// A row with parity, and what it holds.
pub(super) struct ParityRow {
    /// Counted from the start of the chunk.
    pub number: u64,
    pub start: Logical,
    pub pieces: Vec<RowPiece>,
}

/// A part of an extent in a row.
pub(super) struct RowPiece {
    pub at: Logical,
    pub len: u64,
    pub holds: Holds,
    pub sums: Option<Checksums>,
}

/// A tree of a commit.
struct Committed<'v, 'c> {
    view: &'v View<'c>,
    root: NodePtr,
}

impl Items for Committed<'_, '_> {
    type Payload = Vec<u8>;

    fn last_before(&self, key: Key) -> Result<Option<(Key, Vec<u8>)>> {
        let found = butterfs_tree::last_before(self.view, &self.root, &key)?;
        Ok(found.map(|(leaf, slot)| (leaf.key(slot), leaf.item(slot).to_vec())))
    }

    fn scan(&self, from: Key, to: Key, each: &mut Visit<'_>) -> Result<()> {
        butterfs_tree::scan(self.view, &self.root, &from, &to, each)
    }
}
