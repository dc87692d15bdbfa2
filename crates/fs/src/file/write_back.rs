//! Write-back: buffered data gets its place on disk, is written there, and is recorded.
//!
//! ```text
//! dirty ──take──► writing ──place──► on the device ──record──► in the trees
//!   ▲                │ reads see it, new writes go to `dirty`
//!   └──── an error ──┘
//! ```
//!
//! # Errors
//! A device error is an error of its file, not of the filesystem: data that is not recorded makes no tree wrong. The
//! data stays dirty, the message log names the file, each `fsync` and `sync` tries again and reports what it meets.
//! Only when writers need the memory, such data is dropped, and the next `fsync` or `close` of the file reports that it
//! is lost. (The kernel drops it at once.) Other files and commits go on.
//!
//! Not here: the places ([`placement`](super::placement)), the trees ([`recording`](super::recording)), files in
//! their items ([`inline`](super::inline)).

use super::compression::{BATCH_BYTES, CompressionRequest, Piece, take_batch};
use super::placement::Placed;
use super::recording::Progress;
use super::{Files, Waiting};
use crate::error::{Errno, Error, Result};
use crate::file_buffer::{Buffer, DirtyRuns};
use crate::file_extent::ExtentKind;
use crate::inode::Inode;
use crate::transaction::DataReservation;
use butterfs_ondisk::TreeId;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that are allocated, written and recorded together.
const CHUNK_BYTES: u64 = 32 << 20;

impl Files {
    /// Writes back what is buffered of an inode. After an error it stays buffered.
    pub fn write_back(&self, inode: &Arc<Inode>) -> Result<()> {
        if inode.data.is_idle() {
            self.forget_waiting(inode);
            return Ok(());
        }
        let _mapping = inode.data.lock_mapping();
        self.write_back_locked(inode)
    }

    /// Why data was lost or could not be written back yet, once.
    pub fn take_error(&self, inode: &Inode) -> Option<Error> {
        let take = |buffer: &mut Buffer| {
            let failed = buffer.failed.take();
            buffer.lost.take().or(failed)
        };
        if inode.data.is_idle() { None } else { inode.data.with(take) }
    }

    /// Writes back what is buffered. Reports data that was lost since the last report, once, and data that cannot be
    /// written, each time.
    pub fn write_back_for_sync(&self, inode: &Arc<Inode>) -> Result<()> {
        let result = self.write_back(inode);
        let earlier = self.take_error(inode);
        result.and(earlier.map_or(Ok(()), Err))
    }

    /// Writes back all inodes. Returns the first error, after having tried all.
    pub fn write_back_all(&self) -> Result<()> {
        self.write_back_all_of(|_| true)
    }

    /// Writes back all inodes for somebody who needs those of a subvolume: errors of others stay with them.
    pub fn write_back_all_for(&self, tree: TreeId) -> Result<()> {
        self.write_back_all_of(|inode| inode.tree_id() == tree)
    }

    /// Writes back all inodes, several at once. Returns the first error that `counts`, after having tried all.
    fn write_back_all_of(&self, counts: impl Fn(&Inode) -> bool + Sync) -> Result<()> {
        let inodes = self.oldest(usize::MAX);
        let threads = if self.engine.env().background() { self.engine.env().threads().min(inodes.len()) } else { 1 };
        let next = AtomicUsize::new(0);
        let work = || {
            let mut first = Ok(());
            while let Some(inode) = inodes.get(next.fetch_add(1, Ordering::Relaxed)) {
                let result = self.write_back(inode);
                first = first.and(if counts(inode) { result } else { Ok(()) });
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
                // A panic in one of these threads is a broken invariant: it goes on in the caller.
                result.and(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            })
        })
    }

    /// Writes back all inodes whose mapping nobody holds. Errors stay with their inodes. False when there were none.
    pub(crate) fn write_back_idle(&self) -> bool {
        let inodes = self.oldest(usize::MAX);
        let mut any = false;
        for inode in inodes {
            if let Some(_mapping) = inode.data.mapping.try_lock() {
                any |= self.write_back_locked(&inode).is_ok();
            }
        }
        any
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
    pub(super) fn write_back_locked(&self, inode: &Arc<Inode>) -> Result<()> {
        if let Some(aborted) = self.engine.aborted() {
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
        self.engine.env().passes("buffered data is being written back");
        let result = self.write_runs(inode, &runs, &mut reserved, &mut done);
        // Of a deleted subvolume even the blocks may be gone that were read to find where to record.
        let deleted = matches!(&result, Err(error) if error.is(Errno::ESTALE) || inode.tree.is_deleted());
        let news = inode.data.with(|buffer| {
            buffer.writing = None;
            let Err(error) = &result else {
                (buffer.failed, buffer.failure_told) = (None, false);
                return false;
            };
            if deleted {
                return false;
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
            !std::mem::replace(&mut buffer.failure_told, true)
        });
        self.forget_waiting(inode);
        if let (true, Err(error @ Error::Device(_))) = (news, &result) {
            self.tell_of(inode, &format!("data cannot be written: {error}; it is kept in memory and tried again"));
        }
        if deleted { Ok(()) } else { result }
    }

    /// Forgets what is buffered and cannot be written, because somebody needs the memory. The mapping lock is held.
    pub(super) fn drop_unwritable(&self, inode: &Arc<Inode>, error: &Error) {
        let dropped = inode.data.with(|buffer| {
            let dropped = std::mem::take(&mut buffer.dirty).bytes();
            (buffer.reserved, buffer.failed, buffer.failure_told) = (None, None, false);
            buffer.lost = Some(error.clone());
            dropped
        });
        self.forget_waiting(inode);
        self.tell_of(inode, &format!("{dropped} bytes of data are lost, because memory is needed and {error}"));
    }

    fn tell_of(&self, inode: &Inode, what: &str) {
        let text = format!("inode {} of subvolume {}: {what}", inode.ino, inode.tree_id());
        self.engine.volume().report(None, text);
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
            while at < run.end {
                let held = self.hold_in_place(inode, &(at..run.end))?;
                for held in &held.extents {
                    let part = held.extent.start.max(at)..held.extent.end().min(run.end);
                    if part.is_empty() {
                        continue;
                    }
                    push_range(&mut new, at..part.start);
                    self.write_new(inode, runs, &mut new, reserved, done)?;
                    match held.extent.kind {
                        ExtentKind::Prealloc => self.write_prealloc(inode, runs, held, &part)?,
                        _ => self.overwrite(inode, runs, held, &part)?,
                    }
                    (at, *done) = (part.end, part.end);
                }
                push_range(&mut new, at..held.through);
                at = held.through;
            }
        }
        self.write_new(inode, runs, &mut new, reserved, done)
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

    /// The same, compressed as `request` says, where it says something.
    pub(super) fn write_new_as(
        &self,
        inode: &Arc<Inode>,
        runs: &DirtyRuns,
        ranges: &mut Vec<Range<u64>>,
        reserved: &mut Option<DataReservation>,
        done: &mut u64,
        request: Option<CompressionRequest>,
    ) -> Result<()> {
        while !ranges.is_empty() {
            let request = request.map_or_else(|| self.compression_request(inode), |request| Ok(Some(request)))?;
            let pieces = match request {
                Some(request) => self.compress(inode, runs, &take_batch(ranges, BATCH_BYTES), request)?,
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
            let mut chunk = match self.allocate((wanted, least), Files::stream_of(inode), reserved) {
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
            let digests = match (self.write_data(inode, runs, &placed), reserved.as_mut()) {
                (Err(error), Some(reserved)) => {
                    chunk.avoid(reserved);
                    return Err(error);
                }
                (written, _) => written?,
            };
            chunk.written();
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
