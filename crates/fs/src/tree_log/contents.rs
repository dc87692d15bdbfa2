//! The logged part of a file's content: the items of extents that changed, holes where the last commit or an earlier
//! log has something, and the checksums of new data.
//!
//! # Invariants
//! 1. Items of a file in a log do not overlap: before a range is logged, everything in the log that touches it goes,
//!    and the range grows until nothing sticks out of it, in the tree or in the log.
//! 2. When a file has been logged, each item of its extents is in the log, or is as the last commit has it. So the
//!    range of an item that has changed since is that of the log, else that of the committed item with the same key. A
//!    log of many small changes to one long committed extent costs what changed since the log before.
//! 3. Behind the end of the file everything that there is is logged: replay cuts a file off at its size. So no hole is
//!    logged there, until the file grows.
//!
//! The caller holds the file's mapping, so its extents do not change meanwhile.

use super::Logged;
use super::plan::{LogPlan, Planned, Stop, Sums, is_regular};
use crate::error::{Error, Result};
use crate::extent::TreeItems;
use crate::extent::checksums::{self, Layout};
use crate::extent::items::Items;
use crate::transaction::merge_leaves;
use butterfs_ondisk::items::{FileExtent, FileExtentBody, FileExtentHead, InodeItem, file_extent_type, inode_flags};
use butterfs_ondisk::{Ino, Key, KeyType, Logical};
use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use zerocopy::{FromBytes, IntoBytes};

/// Changed extents beyond which a commit is cheaper.
const EXTENTS_MAX: usize = 16384;

const fn key_at(ino: Ino, position: u64) -> Key {
    Key::new(ino.0, KeyType::EXTENT_DATA, position)
}

/// Bytes of the file that an item covers.
fn covered(key: Key, payload: &[u8], sector: u64) -> Result<Range<u64>> {
    let malformed = || Error::corrupt(format!("file extent {key} has {} bytes", payload.len()));
    let (head, rest) = FileExtentHead::ref_from_prefix(payload).map_err(|_| malformed())?;
    let len = match head.kind {
        file_extent_type::INLINE => sector,
        _ => FileExtentBody::ref_from_prefix(rest).map_err(|_| malformed())?.0.num_bytes.get(),
    };
    Ok(key.offset..key.offset.saturating_add(len))
}

/// An item that is to be logged.
struct Piece {
    range: Range<u64>,
    payload: Vec<u8>,
}

/// The tree in which a file's extents are looked up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Current,
    Committed,
    Log,
}

impl<L: Items> LogPlan<'_, '_, L> {
    fn sector(&self) -> u64 {
        u64::from(self.view.core().sectorsize())
    }

    /// Logs the extents of a file or the target of a symbolic link; `points` are positions of the items that changed
    /// since it was logged last.
    pub(super) fn extents(
        &mut self,
        ino: Ino,
        committed: bool,
        item: &InodeItem,
        known: Option<Logged>,
        points: Vec<u64>,
    ) -> Planned<()> {
        let whole = known.is_some_and(|known| known.whole);
        if known.is_some() && !whole {
            self.edits.removals.push((key_at(ino, 0), key_at(ino, u64::MAX)));
        }
        let origins: &[Origin] = match (committed, whole) {
            (true, true) => &[Origin::Current, Origin::Committed, Origin::Log],
            (true, false) => &[Origin::Current, Origin::Committed],
            (false, true) => &[Origin::Current, Origin::Log],
            (false, false) => return self.all_extents(ino, item),
        };
        let mut points = if whole { points } else { self.differing_extents(ino)? };
        points.sort_unstable();
        points.dedup();
        if points.len() > EXTENTS_MAX {
            return Err(Stop::Commit("too many extents changed"));
        }
        let before = points.into_iter().map(|point| self.before(ino, point, origins));
        let mut changed = before.collect::<Result<Vec<_>>>()?;
        if committed && whole {
            changed.extend(self.uncovered(ino, item)?);
            changed.sort_unstable_by_key(|range| range.start);
        }
        let mut logged = BTreeSet::new();
        for range in self.whole_items(ino, changed, origins)? {
            self.changed_range(ino, item, range, whole, &mut logged)?;
        }
        if is_regular(item) { self.tail(ino, item, whole, &logged) } else { Ok(()) }
    }

    /// Everything of a file that only the log knows.
    fn all_extents(&mut self, ino: Ino, item: &InodeItem) -> Planned<()> {
        let pieces = self.pieces(Origin::Current, ino, &(0..u64::MAX))?;
        if pieces.len() > EXTENTS_MAX {
            return Err(Stop::Commit("the file has too many extents"));
        }
        pieces.iter().try_for_each(|piece| self.write_piece(ino, item, piece, true))
    }

    fn differing_extents(&mut self, ino: Ino) -> Planned<Vec<u64>> {
        let (from, to) = (key_at(ino, 0), key_at(ino, u64::MAX));
        let (old, new) = self.view.tree.changed_leaves(&self.view.committed, from, to)?;
        let mut points = Vec::new();
        merge_leaves::<Error>((&old, &new), (from, to), &mut |key, _, _| {
            points.push(key.offset);
            Ok(())
        })?;
        Ok(points)
    }

    /// The range that the item at a position had when the file was logged last, as far as the log does not say it:
    /// that of the last commit. It can be a hole now. Empty where there was no item.
    fn before(&self, ino: Ino, point: u64, origins: &[Origin]) -> Result<Range<u64>> {
        if origins.contains(&Origin::Committed)
            && let Some(committed) = self.range_at(Origin::Committed, ino, point)?
            && committed.start == point
            && !(origins.contains(&Origin::Log) && self.range_at(Origin::Log, ino, point)?.is_some())
        {
            return Ok(committed);
        }
        Ok(point..point)
    }

    /// Ranges, in order, that hold these and whole items; those that touch each other become one.
    fn whole_items(&self, ino: Ino, changed: Vec<Range<u64>>, origins: &[Origin]) -> Result<Vec<Range<u64>>> {
        let mut whole: Vec<Range<u64>> = Vec::new();
        for range in changed {
            match whole.last_mut() {
                Some(last) if range.start < last.end && range.end <= last.end => {}
                Some(last) if range.start < last.end => *last = self.grown(ino, last.start..range.end, origins)?,
                _ => match (self.grown(ino, range, origins)?, whole.last_mut()) {
                    (range, Some(last)) if range.start <= last.end => last.end = last.end.max(range.end),
                    (range, _) if range.is_empty() => {}
                    (range, _) => whole.push(range),
                },
            }
        }
        Ok(whole)
    }

    /// A range that grows until no item sticks out of it.
    fn grown(&self, ino: Ino, mut range: Range<u64>, origins: &[Origin]) -> Result<Range<u64>> {
        let origins = || origins.iter().filter(|origin| **origin != Origin::Committed);
        loop {
            let (mut grown, last) = (range.clone(), range.end.saturating_sub(1).max(range.start));
            for origin in origins() {
                let at_end = if last == range.start { None } else { self.range_at(*origin, ino, last)? };
                for found in self.range_at(*origin, ino, range.start)?.into_iter().chain(at_end) {
                    grown = grown.start.min(found.start)..grown.end.max(found.end);
                }
            }
            if grown == range {
                return Ok(range);
            }
            range = grown;
        }
    }

    /// The ranges in which the last commit has something that an earlier log cut off at the size that the file had
    /// then. A file that has grown since needs what is there now, above all the holes.
    fn uncovered(&self, ino: Ino, item: &InodeItem) -> Result<Vec<Range<u64>>> {
        let aligned = |size: u64| size.next_multiple_of(self.sector());
        let before = self.logged_item(ino)?.map_or(0, |item| aligned(item.size.get()));
        let now = aligned(item.size.get());
        if before >= now {
            return Ok(Vec::new());
        }
        let pieces = self.pieces(Origin::Committed, ino, &(before..now))?;
        Ok(pieces.iter().map(|piece| piece.range.start.max(before)..piece.range.end).collect())
    }

    /// Logs what there is in a range of whole items now.
    fn changed_range(
        &mut self,
        ino: Ino,
        item: &InodeItem,
        range: Range<u64>,
        is_logged: bool,
        logged: &mut BTreeSet<u64>,
    ) -> Planned<()> {
        if is_logged {
            self.edits.removals.push((key_at(ino, range.start), key_at(ino, range.end - 1)));
        }
        let end_of_file = item.size.get().next_multiple_of(self.sector());
        let mut at = range.start;
        for piece in self.pieces(Origin::Current, ino, &range)? {
            self.write_hole(ino, at..piece.range.start.min(end_of_file));
            self.write_piece(ino, item, &piece, false)?;
            logged.insert(piece.range.start);
            at = piece.range.end;
        }
        self.write_hole(ino, at..range.end.min(end_of_file));
        Ok(())
    }

    /// Logs what reaches beyond the end of the file and is not logged yet.
    fn tail(&mut self, ino: Ino, item: &InodeItem, whole: bool, logged: &BTreeSet<u64>) -> Planned<()> {
        let end_of_file = item.size.get().next_multiple_of(self.sector());
        for piece in self.pieces(Origin::Current, ino, &(end_of_file..u64::MAX))? {
            if logged.contains(&piece.range.start) {
                continue;
            }
            if whole {
                self.edits.removals.push((key_at(ino, piece.range.start), key_at(ino, piece.range.end - 1)));
            }
            self.write_piece(ino, item, &piece, false)?;
        }
        Ok(())
    }

    /// Logs what reached beyond the end of a file that stays as it was committed.
    pub(super) fn committed_tail(&mut self, ino: Ino, size: u64) -> Planned<()> {
        let end_of_file = size.next_multiple_of(self.sector());
        for piece in self.pieces(Origin::Committed, ino, &(end_of_file..u64::MAX))? {
            self.edits.fresh.push(key_at(ino, piece.range.start), &piece.payload);
        }
        Ok(())
    }

    /// The items that overlap a range.
    fn pieces(&self, origin: Origin, ino: Ino, range: &Range<u64>) -> Result<Vec<Piece>> {
        let sector = self.sector();
        let mut pieces = Vec::new();
        let mut take = |key: Key, payload: &[u8]| -> Result<ControlFlow<()>> {
            let covered = covered(key, payload, sector)?;
            if covered.end > range.start && !covered.is_empty() {
                pieces.push(Piece { range: covered, payload: payload.to_vec() });
            }
            Ok(ControlFlow::Continue(()))
        };
        let (view, start) = (&self.view, key_at(ino, range.start));
        if range.start > 0
            && let Some((key, payload)) = self.last_before(origin, start)?
        {
            let _ = take(key, &payload)?;
        }
        let last = key_at(ino, range.end - 1);
        match origin {
            Origin::Current => view.tree.scan(view.source, start, last, &mut take)?,
            Origin::Committed => view.committed.scan(start, last, &mut take)?,
            Origin::Log => self.log_items.scan(start, last, &mut take)?,
        }
        Ok(pieces)
    }

    /// The range of the item that covers a position.
    fn range_at(&self, origin: Origin, ino: Ino, position: u64) -> Result<Option<Range<u64>>> {
        let Some((key, payload)) = self.last_before(origin, key_at(ino, position.saturating_add(1)))? else {
            return Ok(None);
        };
        let found = covered(key, &payload, self.sector())?;
        Ok(found.contains(&position).then_some(found))
    }

    /// The last item of the extents of the file before a key of theirs.
    fn last_before(&self, origin: Origin, before: Key) -> Result<Option<(Key, Vec<u8>)>> {
        let view = &self.view;
        let found = match origin {
            Origin::Current => view.tree.last_before(view.source, before)?.map(|(key, item)| (key, item.to_vec())),
            Origin::Committed => view.committed.last_before(before)?,
            Origin::Log => self.log_items.last_before(before)?.map(|(key, item)| (key, item.to_vec())),
        };
        Ok(found.filter(|(key, _)| key.objectid == before.objectid && key.kind == before.kind))
    }

    fn write_hole(&mut self, ino: Ino, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let len = range.end - range.start;
        let head = FileExtentHead {
            generation: self.view.generation.0.into(),
            ram_bytes: len.into(),
            kind: file_extent_type::REGULAR,
            ..FileExtentHead::default()
        };
        let hole = FileExtent { head, body: FileExtentBody { num_bytes: len.into(), ..FileExtentBody::default() } };
        self.edits.puts.push(key_at(ino, range.start), hole.as_bytes());
    }

    fn write_piece(&mut self, ino: Ino, item: &InodeItem, piece: &Piece, fresh: bool) -> Planned<()> {
        let batch = if fresh { &mut self.edits.fresh } else { &mut self.edits.puts };
        batch.push(key_at(ino, piece.range.start), &piece.payload);
        let summed = item.flags.get() & inode_flags::NODATASUM == 0;
        match FileExtent::read_from_bytes(&piece.payload) {
            Ok(extent) if summed && extent.head.kind == file_extent_type::REGULAR => self.sums(&extent),
            _ => Ok(()),
        }
    }

    /// The checksums of data that the last commit does not know.
    fn sums(&mut self, extent: &FileExtent) -> Planned<()> {
        let FileExtent { head, body } = extent;
        if body.disk_bytenr.get() == 0 || head.generation.get() != self.view.generation.0 {
            return Ok(());
        }
        let (at, len) = match head.compression {
            0 => (body.disk_bytenr.get() + body.offset.get(), body.num_bytes.get()),
            _ => (body.disk_bytenr.get(), body.disk_num_bytes.get()),
        };
        let core = self.view.core();
        let csums = TreeItems::reading(self.view.source, &core.globals().csum);
        let found = checksums::lookup(&csums, Layout::of(core), Logical(at), len)?;
        for (index, digests) in found.runs() {
            let at = Logical(at + index as u64 * self.sector());
            self.edits.sums.push(Sums { at, digests: digests.to_vec() });
        }
        Ok(())
    }
}
