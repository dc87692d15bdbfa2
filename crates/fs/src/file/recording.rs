//! Recording written data in the trees: extents, references, checksums, bytes, size, all under one handle.
//!
//! It goes in steps of bounded size. Each leaves the file with new content for a prefix of what is recorded, and the
//! old one for the rest.

use super::Files;
use super::extents::{Effects, FileContext};
use super::placement::{Chunk, Placed};
use crate::error::{Errno, Result};
use crate::extent::TreeItems;
use crate::extent::checksums;
use crate::extent::items::EditItems;
use crate::file_extent::FileExtent;
use crate::inode::{Inode, InodeState};
use crate::transaction::{Handle, Reserve};
use butterfs_ondisk::TreeId;
use std::sync::Arc;

/// Items that one step changes, about.
const ITEMS_PER_STEP: u64 = 48;
/// Extents that are dropped at once for one that is recorded.
const DROPS_PER_EXTENT: usize = 16;

/// References and bytes that change while extents are edited.
pub(super) struct Booking<'a> {
    handle: &'a Handle,
    tree: TreeId,
    ino: u64,
    nbytes: i64,
}

impl<'a> Booking<'a> {
    pub(super) fn new(handle: &'a Handle, inode: &Inode) -> Booking<'a> {
        Booking { handle, tree: inode.tree_id(), ino: inode.ino.0, nbytes: 0 }
    }

    /// Brings the inode's count of bytes up to date.
    pub(super) fn apply(&self, state: &mut InodeState) {
        if self.nbytes >= 0 {
            state.add_nbytes(self.nbytes as u64);
        } else {
            state.sub_nbytes(self.nbytes.unsigned_abs());
        }
    }
}

impl Effects for Booking<'_> {
    fn add_ref(&mut self, extent: &FileExtent, new: bool) {
        if let Some(data) = extent.data_ref(self.tree, self.ino) {
            self.handle.add_data_ref(data, new);
        }
    }

    fn drop_ref(&mut self, extent: &FileExtent) {
        if let Some(data) = extent.data_ref(self.tree, self.ino) {
            self.handle.drop_data_ref(data);
        }
    }

    fn add_nbytes(&mut self, change: i64) {
        // Items of a damaged filesystem can claim anything.
        self.nbytes = self.nbytes.saturating_add(change);
    }
}

/// The progress of recording: the part of the chunk that has an owner, and up to where in the file everything is
/// recorded.
pub(super) struct Progress<'a, 'f> {
    pub chunk: Option<&'a mut Chunk<'f>>,
    pub done: &'a mut u64,
}

impl Progress<'_, '_> {
    fn note(&mut self, piece: &Placed, first: bool) {
        if let Some(chunk) = &mut self.chunk
            && first
        {
            chunk.recorded(piece.disk_len());
        }
        *self.done = piece.recorded;
    }
}

impl Files {
    /// Records written data in the trees, in steps.
    pub(super) fn record(
        &self,
        inode: &Arc<Inode>,
        placed: &mut [Placed],
        digests: &[u8],
        mut progress: Progress<'_, '_>,
    ) -> Result<()> {
        let (mut from, mut digests) = (0, digests);
        let per_sector = if digests.is_empty() { 0 } else { self.engine.checksum_kind().len() as u64 };
        let mut most_items = ITEMS_PER_STEP;
        while from < placed.len() {
            let (count, items) = self.step(inode, &placed[from..], most_items)?;
            let now = &mut placed[from..from + count];
            let bytes: u64 = now.iter().map(Placed::disk_len).sum();
            let (own, others) = digests.split_at((bytes / self.sector() * per_sector) as usize);
            match self.record_step(inode, now, own, items, &mut progress) {
                // Where little space is left, it is enough for a small step at a time.
                Err(error) if error.is(Errno::ENOSPC) && count > 1 && now.iter().all(Placed::is_unrecorded) => {
                    most_items = 1;
                    continue;
                }
                recorded => recorded?,
            }
            (from, digests) = (from + count, others);
        }
        Ok(())
    }

    /// How many of `placed` are recorded together, and how many items that may change: about `most_items`.
    fn step(&self, inode: &Inode, placed: &[Placed], most_items: u64) -> Result<(usize, u64)> {
        let (context, tree) = self.extents(inode);
        let (mut count, mut items, mut bytes) = (0, 0, 0);
        for piece in placed {
            let dropped = context.list(&tree, &piece.file, DROPS_PER_EXTENT)?.len() as u64;
            if count > 0 && items + dropped + 3 > most_items {
                break;
            }
            (count, items, bytes) = (count + 1, items + dropped + 3, bytes + piece.disk_len());
        }
        let digests = bytes / self.sector() * self.engine.checksum_kind().len() as u64;
        Ok((count, items + 2 + digests / (u64::from(self.engine.nodesize()) / 2)))
    }

    /// Joins the transaction to record data that was acknowledged: for want of other space, the reserve serves.
    pub(super) fn start_recording(&self, items: u64) -> Result<Handle> {
        match self.engine.start(Reserve::items(items)) {
            Err(error) if error.is(Errno::ENOSPC) => self.engine.start(Reserve::removal(items)),
            other => other,
        }
    }

    /// Records `placed`; more than one handle is needed only where very many old extents have to go.
    fn record_step(
        &self,
        inode: &Arc<Inode>,
        placed: &mut [Placed],
        digests: &[u8],
        items: u64,
        progress: &mut Progress<'_, '_>,
    ) -> Result<()> {
        let mut digests = Some(digests).filter(|digests| !digests.is_empty());
        while let Some(next) = placed.iter().find(|piece| piece.recorded < piece.file.end) {
            let end = placed.last().map_or(next.file.end, |last| last.file.end);
            self.preload_extents(inode, &(next.recorded..end));
            if let Some(digests) = digests {
                let sectors = (digests.len() / self.engine.checksum_kind().len()) as u64;
                self.preload_checksums(placed[0].at, sectors * self.sector());
            }
            let handle = self.start_recording(items)?;
            let _guard = inode.lock_extents()?;
            let recorded = self.record_under(&handle, inode, placed, digests.take(), progress);
            recorded.inspect_err(|error| handle.failed(error))?;
        }
        Ok(())
    }

    /// Records of each of `placed` as much as one handle has room for.
    fn record_under(
        &self,
        handle: &Handle,
        inode: &Arc<Inode>,
        placed: &mut [Placed],
        digests: Option<&[u8]>,
        progress: &mut Progress<'_, '_>,
    ) -> Result<()> {
        let context = self.context(inode, handle.generation());
        let mut items = TreeItems::editing(handle, &inode.tree);
        let mut booking = Booking::new(handle, inode);
        if let Some(digests) = digests {
            let mut csums = TreeItems::editing(handle, &self.engine.globals().csum);
            checksums::insert(&mut csums, self.layout(), placed[0].at, digests)?;
        }
        let mut end = 0;
        self.engine.env().passes("written data is being recorded");
        for piece in placed.iter_mut().filter(|piece| piece.recorded < piece.file.end) {
            let first = piece.recorded == piece.file.start;
            let range = piece.recorded..piece.file.end;
            if piece.in_place {
                context.write_prealloc(&mut items, &range, &mut booking)?;
                piece.recorded = range.end;
            } else {
                let stopped = context.drop_range(&mut items, &range, DROPS_PER_EXTENT, &mut booking)?;
                let part = piece.extent(context.generation).part(&(range.start..stopped));
                context.insert(&mut items, &part, first, &mut booking)?;
                piece.recorded = stopped;
            }
            end = piece.recorded;
            progress.note(piece, first);
        }
        self.advance_size(inode, &context, &mut items, end, |state| booking.apply(state))
    }

    /// The size on disk follows what is recorded up to `end`.
    pub(super) fn advance_size(
        &self,
        inode: &Arc<Inode>,
        context: &FileContext,
        items: &mut impl EditItems,
        end: u64,
        also: impl FnOnce(&mut InodeState),
    ) -> Result<()> {
        let (before, after) = inode.with(|state| {
            let before = state.item.size.get();
            (before, before.max(end.min(state.size)))
        });
        context.fill_gaps(items, &(self.round_up(before)..self.round_up(after).max(self.round_up(before))))?;
        inode.change(|state| {
            state.item.size = after.into();
            also(state);
        });
        Ok(())
    }
}
