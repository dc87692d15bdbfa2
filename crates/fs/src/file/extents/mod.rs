//! The extents of one file, as edits of its items: dropping a range, inserting, holes, writing into preallocated
//! space.
//!
//! # Invariants
//! 1. Items of a file do not overlap. Whoever inserts has dropped what was there.
//! 2. Every item with an extent holds one reference; [`Effects`] hears of each that comes or goes, and of the bytes
//!    that the inode's `nbytes` gains or loses.
//! 3. The extent's address, length, compression and `ram_bytes` never change when an item is cut.
//! 4. Ranges are whole sectors. The caller has rewritten partial sectors, and inline data that it wants to keep.
//!
//! Not here: data, locks, transactions, the inode.

use crate::error::{Error, Result};
use crate::extent::items::{EditItems, Items};
use crate::file_extent::{ExtentKind, FileExtent, key_at};
use butterfs_ondisk::KeyType;
use std::ops::{ControlFlow, Range};

/// Looks at an extent and its payload, and says whether to go on.
pub type Visit<'a> = dyn FnMut(FileExtent, &[u8]) -> Result<ControlFlow<()>> + 'a;

/// The effects of editing a file's extents elsewhere.
pub trait Effects {
    /// One more item refers to the extent; `new` when it was allocated for it just now.
    fn add_ref(&mut self, extent: &FileExtent, new: bool);
    /// One item less refers to the extent.
    fn drop_ref(&mut self, extent: &FileExtent);
    /// The file covers more bytes, or fewer.
    fn add_nbytes(&mut self, change: i64);
}

/// The properties of the file that the edits need.
#[derive(Clone, Copy, Debug)]
pub struct FileContext {
    /// The inode.
    pub ino: u64,
    /// Bytes of a sector.
    pub sectorsize: u64,
    /// Whether gaps between items are holes, so that holes have no items.
    pub no_holes: bool,
    /// The running transaction.
    pub generation: u64,
}

impl FileContext {
    /// Calls `each` for the extents that overlap `range`, in order, with their payloads.
    pub fn overlapping(&self, items: &impl Items, range: &Range<u64>, each: &mut Visit<'_>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        if let Some((extent, payload)) = self.before(items, range.start)?
            && extent.end() > range.start
            && each(extent, &payload)?.is_break()
        {
            return Ok(());
        }
        items.scan(key_at(self.ino, range.start), key_at(self.ino, range.end - 1), &mut |key, payload| {
            let extent = FileExtent::parse(key, payload, self.sectorsize)?;
            if extent.len == 0 {
                return Ok(ControlFlow::Continue(()));
            }
            each(extent, payload)
        })
    }

    /// The last extent that starts before `position`.
    pub fn before<I: Items>(&self, items: &I, position: u64) -> Result<Option<(FileExtent, I::Payload)>> {
        let found = items.last_before(key_at(self.ino, position))?;
        let found = found.filter(|(key, _)| key.objectid == self.ino && key.kind == KeyType::EXTENT_DATA);
        found
            .map(|(key, payload)| FileExtent::parse(key, &payload, self.sectorsize).map(|extent| (extent, payload)))
            .transpose()
    }

    /// The extents that overlap `range`, at most `limit` of them.
    pub fn list(&self, items: &impl Items, range: &Range<u64>, limit: usize) -> Result<Vec<FileExtent>> {
        let mut found = Vec::new();
        self.overlapping(items, range, &mut |extent, _| {
            found.push(extent);
            Ok(if found.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        Ok(found)
    }

    /// The parts of `range` that no item covers.
    pub fn gaps(&self, items: &impl Items, range: &Range<u64>) -> Result<Vec<Range<u64>>> {
        let (mut gaps, mut at) = (Vec::new(), range.start);
        self.overlapping(items, range, &mut |extent, _| {
            if extent.start > at {
                gaps.push(at..extent.start);
            }
            at = at.max(extent.end());
            Ok(ControlFlow::Continue(()))
        })?;
        if at < range.end {
            gaps.push(at..range.end);
        }
        Ok(gaps)
    }

    /// Takes `range` away from the extents that overlap it, at most `limit` of them. Returns where it stopped:
    /// everything before that is free of items.
    pub fn drop_range(
        &self,
        items: &mut impl EditItems,
        range: &Range<u64>,
        limit: usize,
        effects: &mut dyn Effects,
    ) -> Result<u64> {
        let found = self.list(items, range, limit)?;
        let stopped = match found.last() {
            Some(last) if found.len() == limit => last.end().min(range.end),
            _ => range.end,
        };
        for extent in found {
            self.cut(items, &extent, range, effects)?;
        }
        Ok(stopped)
    }

    /// Takes `range` out of one extent that it overlaps.
    fn cut(
        &self,
        items: &mut impl EditItems,
        extent: &FileExtent,
        range: &Range<u64>,
        effects: &mut dyn Effects,
    ) -> Result<()> {
        let key = key_at(self.ino, extent.start);
        let (starts_inside, ends_inside) = (range.start > extent.start, range.end < extent.end());
        if extent.kind == ExtentKind::Inline && (starts_inside || ends_inside) {
            return Err(Error::corrupt(format!("inline extent {key} is cut at {range:?}")));
        }
        let lost = extent.range().end.min(range.end) - extent.start.max(range.start);
        let nbytes = match extent.kind {
            ExtentKind::Inline => extent.nbytes(),
            _ if extent.is_hole() => 0,
            _ => lost,
        };
        effects.add_nbytes(-(nbytes as i64));
        if starts_inside {
            items.replace(key, &extent.part(&(extent.start..range.start)).encode())?;
        } else {
            items.remove(key)?;
        }
        if ends_inside {
            let right = extent.part(&(range.end..extent.end()));
            self.insert_item(items, &right)?;
        }
        match (extent.is_on_disk(), starts_inside, ends_inside) {
            (true, true, true) => effects.add_ref(extent, false),
            (true, false, false) => effects.drop_ref(extent),
            _ => {}
        }
        Ok(())
    }

    fn insert_item(&self, items: &mut impl EditItems, extent: &FileExtent) -> Result<()> {
        let key = key_at(self.ino, extent.start);
        if !items.insert(key, &extent.encode())? {
            return Err(Error::corrupt(format!("file extent {key} exists where the range was free")));
        }
        Ok(())
    }

    /// Inserts an extent into a range that is free of items, or lets the extent before grow when it goes on there.
    /// `new`: it was just allocated and has no reference yet.
    pub fn insert(
        &self,
        items: &mut impl EditItems,
        extent: &FileExtent,
        new: bool,
        effects: &mut dyn Effects,
    ) -> Result<()> {
        effects.add_nbytes(extent.nbytes() as i64);
        if !new
            && let Some((before, _)) = self.before(items, extent.start)?
            && before.continues_in(extent)
            && before.generation == extent.generation
        {
            let grown = FileExtent { len: before.len + extent.len, ..before };
            items.replace(key_at(self.ino, grown.start), &grown.encode())?;
            return Ok(());
        }
        self.insert_item(items, extent)?;
        if extent.is_on_disk() {
            effects.add_ref(extent, new);
        }
        Ok(())
    }

    /// Makes `range`, which is free of items, a hole: nothing where gaps are holes, else one item together with the
    /// holes beside it.
    pub fn insert_hole(&self, items: &mut impl EditItems, range: &Range<u64>) -> Result<()> {
        if self.no_holes || range.is_empty() {
            return Ok(());
        }
        let mut whole = range.clone();
        if let Some((before, _)) = self.before(items, range.start)?
            && before.is_hole()
            && before.end() == range.start
        {
            items.remove(key_at(self.ino, before.start))?;
            whole.start = before.start;
        }
        let behind = self.list(items, &(range.end..range.end.saturating_add(1)), 1)?;
        if let Some(behind) = behind.first()
            && behind.is_hole()
            && behind.start == range.end
        {
            items.remove(key_at(self.ino, behind.start))?;
            whole.end = behind.end();
        }
        self.insert_item(items, &FileExtent::hole(&whole, self.generation))
    }

    /// Makes every gap in `range` an explicit hole, where gaps are not holes by themselves.
    pub fn fill_gaps(&self, items: &mut impl EditItems, range: &Range<u64>) -> Result<()> {
        if self.no_holes || range.is_empty() {
            return Ok(());
        }
        for gap in self.gaps(items, range)? {
            self.insert_hole(items, &gap)?;
        }
        Ok(())
    }

    /// Says that `range`, which lies in preallocated extents, has been written in place.
    pub fn write_prealloc(
        &self,
        items: &mut impl EditItems,
        range: &Range<u64>,
        effects: &mut dyn Effects,
    ) -> Result<()> {
        for extent in self.list(items, range, usize::MAX)? {
            if extent.kind != ExtentKind::Prealloc || extent.is_hole() {
                return Err(Error::corrupt(format!("inode {}: no preallocated extent at {range:?}", self.ino)));
            }
            let written = extent.start.max(range.start)..extent.end().min(range.end);
            self.convert(items, &extent, &written, effects)?;
        }
        Ok(())
    }

    /// Splits a preallocated extent around `written`, and merges the written part with what goes on beside it.
    fn convert(
        &self,
        items: &mut impl EditItems,
        extent: &FileExtent,
        written: &Range<u64>,
        effects: &mut dyn Effects,
    ) -> Result<()> {
        let current = FileExtent { generation: self.generation, ..*extent };
        let mut middle = FileExtent { kind: ExtentKind::Regular, ..current.part(written) };
        let mut old = vec![*extent];
        if written.start == extent.start
            && let Some((before, _)) = self.before(items, extent.start)?
            && before.continues_in(&middle)
        {
            old.push(before);
            middle = FileExtent { start: before.start, offset: before.offset, len: before.len + middle.len, ..middle };
        }
        if written.end == extent.end()
            && let Some(behind) = self.list(items, &(extent.end()..extent.end().saturating_add(1)), 1)?.first()
            && middle.continues_in(behind)
        {
            old.push(*behind);
            middle.len += behind.len;
        }
        let mut parts = vec![middle];
        parts.extend((extent.start < written.start).then(|| current.part(&(extent.start..written.start))));
        parts.extend((written.end < extent.end()).then(|| current.part(&(written.end..extent.end()))));
        for part in &old {
            items.remove(key_at(self.ino, part.start))?;
        }
        for part in &parts {
            self.insert_item(items, part)?;
        }
        for _ in old.len()..parts.len() {
            effects.add_ref(extent, false);
        }
        for _ in parts.len()..old.len() {
            effects.drop_ref(extent);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
