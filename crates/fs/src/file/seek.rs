//! The positions of data and holes (`SEEK_DATA`, `SEEK_HOLE`).
//!
//! Buffered data is data; preallocated space that nobody wrote reads as zeros and counts as a hole. Behind the end
//! of every file is a hole.

use super::Files;
use crate::backref::is_only_user;
use crate::error::{Errno, Error, Result};
use crate::file_extent::{ExtentKind, FileExtent};
use crate::inode::Inode;
use crate::transaction::{BlockSource, without_waiting};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// The kind of range to look for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whence {
    /// The next data.
    Data,
    /// The next hole.
    Hole,
}

impl Files {
    /// The first position at or behind `offset` that is data, or a hole. `ENXIO` when there is none before the end.
    pub fn seek(&self, inode: &Inode, offset: u64, whence: Whence) -> Result<u64> {
        without_waiting(self.engine.core(), &inode.tree, |source| self.seek_in(source, inode, offset, whence))
    }

    fn seek_in(&self, source: BlockSource<'_>, inode: &Inode, offset: u64, whence: Whence) -> Result<u64> {
        let _guard = inode.lock_shared()?;
        let size = inode.size();
        if offset >= size {
            return Err(Error::refused(Errno::ENXIO, "the offset is behind the end of the file"));
        }
        let mut at = offset;
        while at < size {
            let (end, is_data) = self.stretch(source, inode, at, size)?;
            if is_data == (whence == Whence::Data) {
                return Ok(at);
            }
            at = end;
        }
        match whence {
            Whence::Hole => Ok(size),
            Whence::Data => Err(Error::refused(Errno::ENXIO, "there is no data behind the offset")),
        }
    }

    /// The first `most` extents that overlap `range`, with what is buffered written back first.
    pub fn list_extents(&self, inode: &Arc<Inode>, range: &Range<u64>, most: usize) -> Result<Vec<FileExtent>> {
        if !self.engine.is_read_only() {
            self.write_back(inode)?;
        }
        without_waiting(self.engine.core(), &inode.tree, |source| {
            let _guard = inode.lock_shared()?;
            let (context, items) = self.extents_from(source, inode);
            context.list(&items, range, most)
        })
    }

    /// Whether others than the file may use the data of one of its extents, in other files or in snapshots.
    pub fn is_shared(&self, inode: &Inode, extent: &FileExtent) -> Result<bool> {
        let is_only_user = without_waiting(self.engine.core(), &inode.tree, |source| {
            // Nothing freezes while a handle is held, so references are either pending or booked.
            let _handle = if self.engine.is_read_only() { None } else { Some(self.engine.join()?) };
            is_only_user(source, &inode.tree, inode.ino, extent)
        })?;
        Ok(extent.is_on_disk() && !is_only_user)
    }

    /// How far from `at` on the file is all data or all hole, at least; and which.
    fn stretch(&self, source: BlockSource<'_>, inode: &Inode, at: u64, size: u64) -> Result<(u64, bool)> {
        let next_buffered = match inode.data.next_buffered(at) {
            Some(range) if range.start <= at => return Ok((range.end, true)),
            Some(range) => range.start,
            None => size,
        };
        let limit = next_buffered.min(size);
        let (context, items) = self.extents_from(source, inode);
        // Without an extent the rest is a hole; one that begins later ends the hole.
        let mut found = (limit, false);
        context.overlapping(&items, &(at..limit), &mut |extent, _| {
            let is_data =
                extent.kind == ExtentKind::Inline || (extent.kind == ExtentKind::Regular && !extent.is_hole());
            found = match extent.start > at {
                true => (extent.start, false),
                false => (extent.end().min(limit), is_data),
            };
            Ok(ControlFlow::Break(()))
        })?;
        Ok(found)
    }
}
