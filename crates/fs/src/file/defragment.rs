//! Defragmenting: extents that are short and have neighbours are written anew, as one, perhaps compressed.
//!
//! # Invariants
//! 1. Content and times stay. Data is read and recorded with the mapping locked, so that nothing but buffered writes
//!    comes in between, which win.
//! 2. Holes, preallocated space and data in items stay what they are.
//!
//! Data that snapshots and clones share is not shared with them afterwards.

use super::Files;
use super::compression::CompressionRequest;
use crate::error::Result;
use crate::file_buffer::DirtyRuns;
use crate::file_extent::{ExtentKind, FileExtent};
use crate::inode::Inode;
use crate::options::Method;
use butterfs_ondisk::items::inode_flags;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// Bytes that are read and written anew together.
const CLUSTER_BYTES: u64 = 16 << 20;
/// Bytes of a compressed extent, at most.
const COMPRESSED_BYTES: u64 = 128 << 10;

/// A request to defragment.
#[derive(Clone, Debug)]
pub struct Defragment {
    /// The offset in the file.
    pub range: Range<u64>,
    /// Extents of at least so many bytes stay.
    pub threshold: u64,
    /// Compress all of it by this method.
    pub compress: Option<Method>,
}

impl Default for Defragment {
    fn default() -> Defragment {
        Defragment { range: 0..u64::MAX, threshold: 32 << 20, compress: None }
    }
}

impl Files {
    /// Defragments a file; returns how many bytes were written anew.
    pub fn defragment(&self, inode: &Arc<Inode>, how: &Defragment) -> Result<u64> {
        self.must_be_writable(inode)?;
        let stays_plain = inode.with(|state| state.has(inode_flags::NODATACOW | inode_flags::NODATASUM));
        let how = Defragment { compress: how.compress.filter(|_| !stays_plain), ..how.clone() };
        let (mut at, mut moved) = (self.round_down(how.range.start), 0);
        loop {
            let _mapping = inode.data.lock_mapping();
            self.write_back_locked(inode)?;
            let end = self.round_up(inode.size()).min(self.round_up(how.range.end));
            if at >= end {
                return Ok(moved);
            }
            // A file may be as long as numbers go and hold one sector.
            let Some(data) = self.first_data(inode, &(at..end))? else { return Ok(moved) };
            let at_data = at.max(self.round_down(data));
            let window = at_data..end.min(at_data.saturating_add(4 * CLUSTER_BYTES));
            at = window.end;
            for cluster in self.clusters(inode, &window, &how)? {
                moved += cluster.end - cluster.start;
                self.write_anew(inode, cluster, how.compress)?;
            }
        }
    }

    /// The start of the first extent with data in `range`. The extent may begin before `range`.
    fn first_data(&self, inode: &Inode, range: &Range<u64>) -> Result<Option<u64>> {
        let (context, items) = self.extents(inode);
        let mut first = None;
        context.overlapping(&items, range, &mut |extent, _| {
            first = extent.is_on_disk().then_some(extent.start);
            Ok(if first.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(first)
    }

    /// Ranges of at most [`CLUSTER_BYTES`] that are worth it.
    fn clusters(&self, inode: &Inode, window: &Range<u64>, how: &Defragment) -> Result<Vec<Range<u64>>> {
        let (context, items) = self.extents(inode);
        let extents = context.list(&items, window, usize::MAX)?;
        let is_data = |extent: &FileExtent| extent.kind == ExtentKind::Regular && extent.is_on_disk();
        let is_done = |extent: &FileExtent| match how.compress {
            Some(method) => extent.compression == method.algorithm.raw() && extent.len >= COMPRESSED_BYTES,
            None if extent.compression != 0 => extent.len >= COMPRESSED_BYTES.min(how.threshold),
            None => extent.len >= how.threshold,
        };
        let goes_on = |a: &FileExtent, b: &FileExtent| {
            let wanted = |extent: &FileExtent| is_data(extent) && !is_done(extent);
            wanted(a) && wanted(b) && a.end() == b.start
        };
        let mut clusters = Vec::new();
        for run in extents.chunk_by(goes_on) {
            let alone = run.len() == 1 && how.compress.is_none();
            if alone || !is_data(&run[0]) || is_done(&run[0]) {
                continue;
            }
            let (start, end) = (run[0].start.max(window.start), run[run.len() - 1].end().min(window.end));
            let cuts = (start..end).step_by(CLUSTER_BYTES as usize);
            clusters.extend(cuts.map(|at| at..end.min(at + CLUSTER_BYTES)));
        }
        Ok(clusters)
    }

    /// Reads data and gives it a new place. The mapping lock is held.
    fn write_anew(&self, inode: &Arc<Inode>, range: Range<u64>, compress: Option<Method>) -> Result<()> {
        let mut reserved = Some(self.reserve_data(range.end - range.start)?);
        let content = self.sectors_on_disk(inode, &range)?;
        let mut runs = DirtyRuns::default();
        runs.write(range.start, &content);
        drop(content);
        let request = compress.map(CompressionRequest::of);
        self.write_new_as(inode, &runs, &mut vec![range], &mut reserved, &mut 0, request)
    }
}
