//! Writing where data is already: into preallocated space, and over the data of files without copy on write
//! (`NODATACOW`), as long as nobody else can see it.
//!
//! # Invariants
//! 1. Data that a snapshot or another file shows, or showed in the last commit, is never overwritten. The extents are
//!    asked for and held under one handle ([`InPlaceWrite`]), and held until the data is written and recorded.
//!    Meanwhile:
//!    - a commit does not wait: no handle is held;
//!    - truncating, punching, cloning and deduplicating wait for the mapping lock, which the writer holds;
//!    - unlinking and dropping a deleted subvolume do not wait, and what they free is not used again;
//!    - a snapshot of the subvolume waits, and other writers copy their data until it is made;
//!    - an `fsync` of the same file waits for the mapping lock; its log never refers to data that is not written.
//! 2. Data with checksums is never overwritten.
//! 3. Overwriting changes no item but the inode's, which changes always: so a commit that makes the data durable has
//!    something to commit.

use super::Files;
use super::placement::Placed;
use super::recording::Progress;
use crate::backref::is_exclusive;
use crate::error::Result;
use crate::extent::TreeItems;
use crate::extent::checksums;
use crate::file_buffer::DirtyRuns;
use crate::file_extent::{ExtentKind, FileExtent};
use crate::inode::Inode;
use crate::options::{Canary, ParityWrites};
use crate::transaction::{BlockSource, InPlaceWrite, without_waiting};
use butterfs_ondisk::Logical;
use butterfs_ondisk::items::inode_flags;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// Extents that are held at once.
const HELD_AT_ONCE: usize = 16;

/// An extent that may be written in place as long as this lives.
pub(super) struct HeldExtent {
    pub extent: FileExtent,
    _write: InPlaceWrite,
}

/// The extents that may be written in place in a part of a file.
pub(super) struct HeldExtents {
    pub extents: Vec<HeldExtent>,
    /// Up to here in the file these are all.
    pub through: u64,
}

impl HeldExtent {
    /// The address on disk of `range` of the file, which lies in the extent.
    fn place(&self, range: &Range<u64>) -> Logical {
        self.extent.at.plus(self.extent.offset + (range.start - self.extent.start))
    }
}

impl Files {
    /// Whether all of `ranges` may be written in place. The inode is not locked.
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

    /// The extents in `range` that may be written in place now.
    fn in_place_extents(&self, inode: &Inode, range: &Range<u64>) -> Result<Vec<FileExtent>> {
        if !Files::may_have_own_space(inode) {
            return Ok(Vec::new());
        }
        without_waiting(self.engine.core(), &inode.tree, |source| {
            // Nothing freezes while a handle is held, so references are either pending or booked.
            let _handle = self.engine.join()?;
            // Write-back splits extents meanwhile, item by item, with the inode locked.
            let _guard = inode.lock_shared()?;
            Ok(self.in_place_now(source, inode, range, usize::MAX)?.0)
        })
    }

    /// Holds the first few extents in `range` that may be written in place. The mapping lock is held.
    pub(super) fn hold_in_place(&self, inode: &Inode, range: &Range<u64>) -> Result<HeldExtents> {
        if !Files::may_have_own_space(inode) {
            return Ok(HeldExtents { extents: Vec::new(), through: range.end });
        }
        without_waiting(self.engine.core(), &inode.tree, |source| {
            let handle = self.engine.join()?;
            let (found, through) = self.in_place_now(source, inode, range, HELD_AT_ONCE)?;
            let hold = |extent: FileExtent| {
                let write = self.engine.begin_in_place(&handle, inode.tree_id(), extent.at, extent.disk_len)?;
                Some(HeldExtent { extent, _write: write })
            };
            Ok(HeldExtents { extents: found.into_iter().filter_map(hold).collect(), through })
        })
    }

    fn may_have_own_space(inode: &Inode) -> bool {
        inode.with(|state| state.has(inode_flags::PREALLOC | inode_flags::NODATACOW))
    }

    /// Of the first `limit` candidates in `range` those that may be written in place, and up to where these are all.
    /// The caller holds a handle.
    fn in_place_now(
        &self,
        source: BlockSource<'_>,
        inode: &Inode,
        range: &Range<u64>,
        limit: usize,
    ) -> Result<(Vec<FileExtent>, u64)> {
        let overwrites = inode.with(|state| state.has(inode_flags::NODATACOW));
        let (context, items) = self.extents_from(source, inode);
        let (mut found, mut through) = (Vec::new(), range.end);
        context.overlapping(&items, range, &mut |extent, _| {
            let is_data = extent.kind == ExtentKind::Regular && extent.is_on_disk();
            let is_candidate = extent.kind == ExtentKind::Prealloc || overwrites && is_data;
            found.extend((is_candidate && !self.endangers_others(&extent)).then_some(extent));
            if found.len() < limit {
                return Ok(ControlFlow::Continue(()));
            }
            through = extent.end().min(range.end);
            Ok(ControlFlow::Break(()))
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
                    is_exclusive(source, &inode.tree, inode.ino, &extent)?
                        && (extent.kind == ExtentKind::Prealloc || self.may_overwrite(source, &extent)?)
                }
            };
            known = Some((extent, writable));
            if writable {
                allowed.push(extent);
            }
        }
        Ok((allowed, through))
    }

    /// Whether writing where an extent is could endanger other data, and that is not wanted.
    fn endangers_others(&self, extent: &FileExtent) -> bool {
        self.engine.options().parity_writes == ParityWrites::Copied && self.engine.volume().row_of(extent.at).is_some()
    }

    /// Whether data of which this is the only user may be overwritten: it has no checksums, and the last commit shows
    /// it to nobody else either.
    fn may_overwrite(&self, source: BlockSource<'_>, extent: &FileExtent) -> Result<bool> {
        let is_shown = self.engine.gate.was_unshared(extent.at) && !self.engine.has_canary(Canary::UnsharedEarly);
        // What several operations do together can be taken back.
        Ok(!is_shown && !self.engine.is_together() && self.has_no_checksums(source, extent)?)
    }

    fn has_no_checksums(&self, source: BlockSource<'_>, extent: &FileExtent) -> Result<bool> {
        let csum_tree = TreeItems::reading(source, &self.engine.globals().csum);
        Ok(checksums::lookup(&csum_tree, self.layout(), extent.at, extent.disk_len)?.none_present())
    }

    /// Writes `range`, which lies in `held`, over the data that is there.
    pub(super) fn overwrite(
        &self,
        inode: &Arc<Inode>,
        runs: &DirtyRuns,
        held: &HeldExtent,
        range: &Range<u64>,
    ) -> Result<()> {
        self.write_data(inode, runs, &[Placed::new(range.clone(), held.place(range), true)])?;
        self.note_overwritten(inode, range.end)
    }

    /// Writes `range`, which lies in `held`, to the preallocated space that is there.
    pub(super) fn write_prealloc(
        &self,
        inode: &Arc<Inode>,
        runs: &DirtyRuns,
        held: &HeldExtent,
        range: &Range<u64>,
    ) -> Result<()> {
        let mut placed = [Placed::new(range.clone(), held.place(range), true)];
        let digests = self.write_data(inode, runs, &placed)?;
        self.record(inode, &mut placed, &digests, Progress { chunk: None, done: &mut 0 })
    }

    fn note_overwritten(&self, inode: &Arc<Inode>, end: u64) -> Result<()> {
        self.preload_extents(inode, &(end..end));
        let handle = self.start_recording(4)?;
        let _guard = inode.lock_extents()?;
        let context = self.context(inode, handle.generation());
        let mut items = TreeItems::editing(&handle, &inode.tree);
        self.advance_size(inode, &context, &mut items, end, |_| ()).inspect_err(|error| handle.failed(error))
    }
}
