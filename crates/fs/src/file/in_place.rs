//! Writing where data is already: into preallocated space, and over the data of files without copy on write
//! (`NODATACOW`), as long as nobody else can see it.
//!
//! # Invariants
//! 1. Data that a snapshot or another file shows is never overwritten. No snapshot is taken between the moment when
//!    data is found to be nobody else's and the end of writing it: a handle is held meanwhile. (What a snapshot shows
//!    of preallocated space is zeros, whatever is written there.)
//! 2. Data with checksums is never overwritten.
//! 3. Overwriting changes no item but the inode's, which changes always: so a commit that makes the data durable has
//!    something to commit.

use super::Files;
use super::exclusive::is_exclusive;
use super::item::{ExtentKind, FileExtent};
use super::placement::Placed;
use crate::error::Result;
use crate::extent::TreeItems;
use crate::extent::checksums;
use crate::file_buffer::DirtyRuns;
use crate::inode::Inode;
use butterfs_ondisk::items::inode_flags;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// Bytes that are overwritten under one handle: a commit waits for them.
const OVERWRITTEN_AT_ONCE: u64 = 1 << 20;

impl Files {
    /// Whether all of `ranges` may be written in place.
    pub(super) fn all_in_place(&self, inode: &Inode, ranges: &[Range<u64>]) -> Result<bool> {
        for range in ranges {
            let mut at = range.start;
            for extent in self.in_place_extents(inode, range)? {
                if extent.start > at {
                    return Ok(false);
                }
                at = extent.end();
            }
            if at < range.end {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The extents in `range` that may be written in place now; data only for the moment.
    pub(super) fn in_place_extents(&self, inode: &Inode, range: &Range<u64>) -> Result<Vec<FileExtent>> {
        if !inode.with(|state| state.has(inode_flags::PREALLOC | inode_flags::NODATACOW)) {
            return Ok(Vec::new());
        }
        // Nothing settles while a handle is held, so references are either pending or booked.
        let _handle = self.core.join(0)?;
        self.in_place_now(inode, range)
    }

    /// The same, by somebody who holds a handle.
    fn in_place_now(&self, inode: &Inode, range: &Range<u64>) -> Result<Vec<FileExtent>> {
        let overwrites = inode.with(|state| state.has(inode_flags::NODATACOW));
        let (context, items) = self.extents(inode);
        let mut found = Vec::new();
        context.overlapping(&items, range, &mut |extent, _| {
            let is_data = extent.kind == ExtentKind::Regular && extent.is_on_disk();
            found.extend((extent.kind == ExtentKind::Prealloc || overwrites && is_data).then_some(extent));
            Ok(ControlFlow::Continue(()))
        })?;
        let mut allowed = Vec::new();
        let mut known: Option<(FileExtent, bool)> = None;
        for extent in found {
            let same = known.filter(|(other, _)| {
                other.data_ref(inode.tree_id(), 0) == extent.data_ref(inode.tree_id(), 0)
                    && (other.generation, other.kind) == (extent.generation, extent.kind)
            });
            let writable = match same {
                Some((_, writable)) => writable,
                None => {
                    is_exclusive(&self.core, &inode.tree, inode.ino, &extent)?
                        && (extent.kind == ExtentKind::Prealloc || self.has_no_checksums(&extent)?)
                }
            };
            known = Some((extent, writable));
            if writable {
                allowed.push(extent);
            }
        }
        Ok(allowed)
    }

    fn has_no_checksums(&self, extent: &FileExtent) -> Result<bool> {
        let csum_tree = TreeItems::reading(&self.core, &self.core.globals().csum);
        Ok(checksums::lookup(&csum_tree, self.layout(), extent.at, extent.disk_len)?.none_present())
    }

    /// Writes `range`, which lies in one extent of data, over what is there. Returns how far that was allowed.
    pub(super) fn overwrite(&self, inode: &Arc<Inode>, runs: &DirtyRuns, range: &Range<u64>) -> Result<u64> {
        let mut at = range.start;
        while at < range.end {
            let part = at..range.end.min(at + OVERWRITTEN_AT_ONCE);
            let _handle = self.core.join(0)?;
            let found = self.in_place_now(inode, &part)?;
            let covering = found.iter().find(|extent| extent.start <= part.start && part.end <= extent.end());
            let Some(extent) = covering.filter(|extent| extent.kind == ExtentKind::Regular) else { break };
            let place = extent.at.plus(extent.offset + (part.start - extent.start));
            self.write_data(inode, runs, &[Placed::new(part.clone(), place, true)])?;
            at = part.end;
        }
        if at > range.start {
            self.note_overwritten(inode, at)?;
        }
        Ok(at)
    }

    fn note_overwritten(&self, inode: &Arc<Inode>, end: u64) -> Result<()> {
        let handle = self.start_recording(4)?;
        let _guard = inode.lock_exclusive()?;
        let context = self.context(inode, handle.generation());
        let mut items = TreeItems::editing(&handle, &inode.tree);
        self.advance_size(inode, &context, &mut items, end, |_| ()).inspect_err(|error| handle.failed(error))
    }
}
