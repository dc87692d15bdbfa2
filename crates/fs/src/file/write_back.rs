//! Write-back: buffered data gets its place on disk, is written there, and is recorded.
//!
//! ```text
//! dirty ──take──► writing ──place──► on the device ──record──► in the trees
//!   ▲                │ reads see it, new writes go to `dirty`
//!   └──── an error ──┘
//! ```
//!
//! Not here: the places ([`placement`](super::placement)), the trees ([`recording`](super::recording)), files in
//! their items ([`inline`](super::inline)).

use super::compression::{BATCH_BYTES, Piece, Wish, take_batch};
use super::item::{ExtentKind, FileExtent};
use super::placement::Placed;
use super::recording::Progress;
use super::{Files, Waiting};
use crate::error::{Errno, Error, Result};
use crate::file_buffer::DirtyRuns;
use crate::inode::Inode;
use crate::transaction::DataReservation;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that are allocated, written and recorded together.
const CHUNK_BYTES: u64 = 32 << 20;

impl Files {
    /// Writes back what is buffered of an inode. On an error it stays buffered.
    pub fn flush(&self, inode: &Arc<Inode>) -> Result<()> {
        if inode.data.is_idle() {
            self.forget_waiting(inode);
            return Ok(());
        }
        let _mapping = inode.data.lock_mapping();
        self.write_back(inode)
    }

    /// Why an earlier write-back failed, once.
    pub fn take_error(&self, inode: &Inode) -> Option<Error> {
        if inode.data.is_idle() { None } else { inode.data.with(|buffer| buffer.failed.take()) }
    }

    /// Writes back what is buffered, and tells of an error of an earlier attempt, once.
    pub fn flush_for_sync(&self, inode: &Arc<Inode>) -> Result<()> {
        let earlier = self.take_error(inode);
        let result = self.flush(inode);
        if result.is_err() {
            inode.data.with(|buffer| buffer.failed = None);
        }
        result.and(earlier.map_or(Ok(()), Err))
    }

    /// Writes back all inodes, several at once. Returns the first error, after having tried all.
    pub fn flush_all(&self) -> Result<()> {
        let inodes = self.oldest(usize::MAX);
        let threads = if self.core.env().background() { self.core.env().threads().min(inodes.len()) } else { 1 };
        let next = AtomicUsize::new(0);
        let work = || {
            let mut first = Ok(());
            while let Some(inode) = inodes.get(next.fetch_add(1, Ordering::Relaxed)) {
                first = first.and(self.flush(inode));
            }
            first
        };
        if threads <= 1 || inodes.len() < 4 {
            return work();
        }
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let own = work();
            others.into_iter().fold(own, |result, other| {
                // A panic in a flusher is a broken invariant: it goes on in the caller.
                result.and(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            })
        })
    }

    /// Writes back all inodes whose mapping nobody holds. Errors stay with their inodes.
    pub(super) fn write_back_idle(&self) {
        let inodes: Vec<Arc<Inode>> = self.waiting.lock().inodes.values().cloned().collect();
        for inode in inodes {
            if let Some(_mapping) = inode.data.mapping.try_lock() {
                let _ = self.write_back(&inode);
            }
        }
    }

    /// Notes that an inode has something to write back.
    pub(super) fn await_write_back(&self, inode: &Arc<Inode>) {
        let Waiting { inodes, order } = &mut *self.waiting.lock();
        inodes.entry(inode.id()).or_insert_with(|| {
            order.push_back(inode.id());
            Arc::clone(inode)
        });
    }

    fn forget_waiting(&self, inode: &Inode) {
        let Waiting { inodes, order } = &mut *self.waiting.lock();
        if inode.data.dirty_bytes() == 0 && inodes.remove(&inode.id()).is_some() {
            while order.front().is_some_and(|id| !inodes.contains_key(id)) {
                order.pop_front();
            }
            if order.len() > 2 * inodes.len() + 16 {
                order.retain(|id| inodes.contains_key(id));
            }
        }
    }

    /// Takes what is dirty and brings it to disk. The mapping lock is held.
    pub(super) fn write_back(&self, inode: &Arc<Inode>) -> Result<()> {
        if let Some(aborted) = self.core.aborted() {
            return Err(aborted);
        }
        let taken = inode.data.with(|buffer| {
            if buffer.dirty.is_empty() {
                return None;
            }
            let runs = Arc::new(std::mem::take(&mut buffer.dirty));
            buffer.writing = Some(Arc::clone(&runs));
            Some((runs, buffer.reserved.take()))
        });
        let Some((runs, mut reserved)) = taken else {
            self.forget_waiting(inode);
            return Ok(());
        };
        let mut done = 0;
        self.core.env().passes("buffered data is being written back");
        let result = self.write_runs(inode, &runs, &mut reserved, &mut done);
        // Of a deleted subvolume even the blocks may be gone that were read to find where to record.
        let deleted = matches!(&result, Err(error) if error.is(Errno::ESTALE) || inode.is_in_deleted_subvolume());
        inode.data.with(|buffer| {
            buffer.writing = None;
            let Err(error) = &result else { return };
            if deleted {
                return;
            }
            runs.iter().for_each(|(at, data)| {
                let skip = done.clamp(at, at + data.len() as u64) - at;
                buffer.dirty.write_below(at + skip, &data[skip as usize..]);
            });
            if let Some(reserved) = reserved.take() {
                buffer.reserve(reserved);
            }
            buffer.trim_reservation();
            buffer.failed = Some(error.clone());
        });
        self.forget_waiting(inode);
        if deleted { Ok(()) } else { result }
    }

    /// Brings `runs` to disk; `done` is how far in the file everything is recorded.
    fn write_runs(
        &self,
        inode: &Arc<Inode>,
        runs: &DirtyRuns,
        reserved: &mut Option<DataReservation>,
        done: &mut u64,
    ) -> Result<()> {
        if self.record_inline(inode, runs)? {
            return Ok(());
        }
        let mut new: Vec<Range<u64>> = Vec::new();
        for run in joined(runs) {
            let mut at = run.start;
            for extent in self.in_place_extents(inode, &run)? {
                let part = extent.start.max(at)..extent.end().min(run.end);
                push_range(&mut new, at..part.start);
                self.write_new(inode, runs, &mut new, reserved, done)?;
                if extent.kind == ExtentKind::Prealloc {
                    self.write_prealloc(inode, runs, &extent, &part, done)?;
                } else {
                    let overwritten = self.overwrite(inode, runs, &part)?;
                    *done = overwritten.max(*done);
                    push_range(&mut new, overwritten..part.end);
                }
                at = part.end;
            }
            push_range(&mut new, at..run.end);
        }
        self.write_new(inode, runs, &mut new, reserved, done)
    }

    /// Brings `part` to the preallocated space of `extent`.
    fn write_prealloc(
        &self,
        inode: &Arc<Inode>,
        runs: &DirtyRuns,
        extent: &FileExtent,
        part: &Range<u64>,
        done: &mut u64,
    ) -> Result<()> {
        let place = extent.at.plus(extent.offset + (part.start - extent.start));
        let mut placed = [Placed::new(part.clone(), place, true)];
        let digests = self.write_data(inode, runs, &placed)?;
        self.record(inode, &mut placed, &digests, Progress { chunk: None, done })
    }

    /// Gives `ranges` new places, and empties the list.
    pub(super) fn write_new(
        &self,
        inode: &Arc<Inode>,
        runs: &DirtyRuns,
        ranges: &mut Vec<Range<u64>>,
        reserved: &mut Option<DataReservation>,
        done: &mut u64,
    ) -> Result<()> {
        self.write_new_as(inode, runs, ranges, reserved, done, None)
    }

    /// The same, compressed as `wish` says, where it says something.
    pub(super) fn write_new_as(
        &self,
        inode: &Arc<Inode>,
        runs: &DirtyRuns,
        ranges: &mut Vec<Range<u64>>,
        reserved: &mut Option<DataReservation>,
        done: &mut u64,
        wish: Option<Wish>,
    ) -> Result<()> {
        while !ranges.is_empty() {
            let wish = wish.map_or_else(|| self.compression_wish(inode), |wish| Ok(Some(wish)))?;
            let pieces = match wish {
                Some(wish) => self.compress(inode, runs, &take_batch(ranges, BATCH_BYTES), wish)?,
                None => std::mem::take(ranges).into_iter().map(Piece::plain).collect(),
            };
            self.write_pieces(inode, runs, pieces.into(), reserved, done)?;
        }
        Ok(())
    }

    /// Gives data places, writes and records it.
    fn write_pieces(
        &self,
        inode: &Arc<Inode>,
        runs: &DirtyRuns,
        mut pieces: VecDeque<Piece>,
        reserved: &mut Option<DataReservation>,
        done: &mut u64,
    ) -> Result<()> {
        while let Some(first) = pieces.front() {
            let least = if first.stored.is_some() { first.disk_len() } else { self.sector() };
            let wanted = pieces.iter().map(Piece::disk_len).sum::<u64>().min(CHUNK_BYTES).max(least);
            let mut chunk = match self.allocate(wanted, least, reserved) {
                // Compressed data must lie in one place; scattered free space takes it as it was.
                Err(error) if error.is(Errno::ENOSPC) && least > self.sector() => {
                    pieces[0].stored = None;
                    continue;
                }
                allocated => allocated?,
            };
            let mut placed = Files::fill(&chunk, &mut pieces);
            if let Some(reserved) = reserved {
                chunk.trim(placed.iter().map(Placed::disk_len).sum(), reserved);
            }
            let digests = self.write_data(inode, runs, &placed)?;
            self.record(inode, &mut placed, &digests, Progress { chunk: Some(&mut chunk), done })?;
        }
        Ok(())
    }
}

/// Ranges of the file that runs cover, neighbours as one.
fn joined(runs: &DirtyRuns) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    runs.iter().for_each(|(at, data)| push_range(&mut ranges, at..at + data.len() as u64));
    ranges
}

/// Appends a range, or lets the last one grow. Empty ones count for nothing.
fn push_range(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut() {
        _ if range.is_empty() => {}
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}
