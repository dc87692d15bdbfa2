//! Write-back: buffered data gets its place on disk, is written there, and is recorded.
//!
//! ```text
//! dirty ──take──► writing ──place──► on the device ──record──► in the trees
//!   ▲                │ reads see it, new writes go to `dirty`
//!   └──── an error ──┘
//! ```
//!
//! Data is placed in whole chunks of contiguous space, however scattered it is in the file: one allocation, few
//! device writes and one run of checksums serve many small extents. Recording goes in steps of bounded size; each
//! leaves the file with new content for a prefix of the chunk, and the old one for the rest.

use super::dirty::DirtyRuns;
use super::extents::{Effects, FileContext};
use super::item::{ExtentKind, FileExtent, key_at};
use super::{Files, Waiting};
use crate::error::{Errno, Error, Result};
use crate::extent::TreeItems;
use crate::extent::checksums;
use crate::extent::items::EditItems;
use crate::inode::{Inode, InodeState};
use crate::transaction::{DataReservation, Handle, Reserve};
use butterfs_ondisk::header::max_item_size;
use butterfs_ondisk::items::{FileExtentHead, inode_flags};
use butterfs_ondisk::{Logical, TreeId};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that are allocated, written and recorded together.
const CHUNK_BYTES: u64 = 32 << 20;
/// Pieces smaller than this are gathered before they are written to the device.
const GATHER_BELOW: usize = 256 << 10;
/// Buffers for gathering.
const GATHER_BYTES: usize = 1 << 20;
/// Items that one step of recording changes, about.
const ITEMS_PER_STEP: u64 = 48;
/// Extents that are dropped at once for one that is recorded.
const DROPS_PER_EXTENT: usize = 16;

/// Data with a place on disk: a range of the file, and where it is.
#[derive(Clone, Debug)]
struct Placed {
    file: Range<u64>,
    at: Logical,
    in_place: bool,
    /// How far it is recorded.
    recorded: u64,
}

impl Placed {
    fn new(file: Range<u64>, at: Logical, in_place: bool) -> Placed {
        Placed { recorded: file.start, file, at, in_place }
    }

    fn len(&self) -> u64 {
        self.file.end - self.file.start
    }

    /// The item for all of it.
    fn extent(&self, generation: u64) -> FileExtent {
        FileExtent::new(ExtentKind::Regular, self.file.start, self.at, self.len(), generation)
    }
}

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
    pub(super) fn settle(&self, state: &mut InodeState) {
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

/// Allocated space; what is not recorded goes back when dropped.
pub(super) struct Chunk<'a> {
    files: &'a Files,
    pub at: Logical,
    pub len: u64,
}

impl Chunk<'_> {
    /// The first `len` bytes have an owner.
    pub fn recorded(&mut self, len: u64) {
        self.at = self.at.plus(len);
        self.len -= len;
    }
}

/// How far recording has come: what of the chunk has an owner, and up to where in the file everything is recorded.
struct Progress<'a, 'f> {
    chunk: Option<&'a mut Chunk<'f>>,
    done: &'a mut u64,
}

impl Progress<'_, '_> {
    fn note(&mut self, piece: &Placed, first: bool) {
        if let Some(chunk) = &mut self.chunk
            && first
        {
            chunk.recorded(piece.len());
        }
        *self.done = piece.recorded;
    }
}

impl Drop for Chunk<'_> {
    fn drop(&mut self) {
        if self.len > 0 {
            self.files.core.return_data(self.at, self.len);
        }
    }
}

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
        let inodes: Vec<Arc<Inode>> = {
            let waiting = self.waiting.lock();
            waiting.order.iter().filter_map(|id| waiting.inodes.get(id)).cloned().collect()
        };
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
            if order.front() == Some(&inode.id()) {
                order.pop_front();
            }
            if order.len() > 2 * inodes.len() + 16 {
                order.retain(|id| inodes.contains_key(id));
            }
        }
    }

    /// Takes what is dirty and brings it to disk. The mapping lock is held.
    pub(super) fn write_back(&self, inode: &Arc<Inode>) -> Result<()> {
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
        let result = self.write_runs(inode, &runs, &mut reserved, &mut done);
        let deleted = matches!(&result, Err(error) if error.is(Errno::ESTALE));
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
                let place = extent.at.plus(extent.offset + (part.start - extent.start));
                let mut placed = [Placed::new(part.clone(), place, true)];
                let digests = self.write_data(inode, runs, &placed)?;
                self.record(inode, &mut placed, &digests, Progress { chunk: None, done })?;
                at = part.end;
            }
            push_range(&mut new, at..run.end);
        }
        self.write_new(inode, runs, &mut new, reserved, done)
    }

    /// Gives `ranges` new places, and empties the list.
    fn write_new(
        &self,
        inode: &Arc<Inode>,
        runs: &DirtyRuns,
        ranges: &mut Vec<Range<u64>>,
        reserved: &mut Option<DataReservation>,
        done: &mut u64,
    ) -> Result<()> {
        let mut rest = std::mem::take(ranges).into_iter().peekable();
        while rest.peek().is_some() {
            let wanted = rest.clone().map(|range| range.end - range.start).sum::<u64>().min(CHUNK_BYTES);
            let mut chunk = self.allocate(wanted, reserved)?;
            let (at, mut placed, mut used) = (chunk.at, Vec::new(), 0);
            while used < chunk.len
                && let Some(range) = rest.peek_mut()
            {
                let len = (range.end - range.start).min(chunk.len - used);
                placed.push(Placed::new(range.start..range.start + len, at.plus(used), false));
                used += len;
                range.start += len;
                if range.start == range.end {
                    rest.next();
                }
            }
            let digests = self.write_data(inode, runs, &placed)?;
            self.record(inode, &mut placed, &digests, Progress { chunk: Some(&mut chunk), done })?;
        }
        Ok(())
    }

    /// Contiguous space out of the reservation or, for data that had none, out of what is free.
    fn allocate(&self, wanted: u64, reserved: &mut Option<DataReservation>) -> Result<Chunk<'_>> {
        if reserved.as_ref().is_none_or(|reserved| reserved.bytes() == 0) {
            *reserved = Some(self.core.reserve_data(wanted)?);
        }
        self.place(wanted, reserved.as_mut().expect("just made"))
    }

    /// Contiguous space out of a promise, `wanted` bytes or fewer.
    pub(super) fn place(&self, wanted: u64, promise: &mut DataReservation) -> Result<Chunk<'_>> {
        let (at, len) = self.core.allocate_data(wanted.min(promise.bytes()), self.sector(), promise)?;
        Ok(Chunk { files: self, at, len })
    }

    /// Makes inline data a regular extent. The mapping lock is held.
    pub(super) fn convert_inline(&self, inode: &Arc<Inode>) -> Result<()> {
        let sector = 0..self.sector();
        let mut reserved = Some(self.core.reserve_data(self.sector())?);
        let content = {
            let _guard = inode.lock_shared()?;
            self.sectors(inode, &sector)?
        };
        let mut runs = DirtyRuns::default();
        runs.write(0, &content);
        self.write_new(inode, &runs, &mut vec![sector], &mut reserved, &mut 0)
    }

    /// Writes data to its places, which lie one behind the other on disk. Returns the checksums, none for a file
    /// without.
    fn write_data(&self, inode: &Inode, runs: &DirtyRuns, placed: &[Placed]) -> Result<Vec<u8>> {
        let (layout, summed) = (self.layout(), !inode.with(|state| state.has(inode_flags::NODATASUM)));
        let mut digests = Vec::new();
        let mut gathered: Vec<u8> = Vec::new();
        let mut next = placed[0].at;
        let write = |from: Logical, bytes: &[u8]| -> Result<Logical> {
            if !bytes.is_empty() {
                // A device that loses data cannot be trusted with the next commit either.
                let written = self.core.volume().write(from, bytes).map_err(Error::from);
                written.inspect_err(|error| self.core.abort(error))?;
            }
            Ok(from.plus(bytes.len() as u64))
        };
        for (_, piece) in placed.iter().flat_map(|piece| runs.pieces(piece.file.clone())) {
            if summed {
                digests.extend_from_slice(&layout.digests(piece));
            }
            let large = piece.len() >= GATHER_BELOW;
            if large || gathered.len() + piece.len() > GATHER_BYTES {
                next = write(next, &gathered)?;
                gathered.clear();
            }
            if large {
                next = write(next, piece)?;
            } else {
                gathered.extend_from_slice(piece);
            }
        }
        write(next, &gathered)?;
        Ok(digests)
    }

    /// Records written data in the trees, in steps.
    fn record(
        &self,
        inode: &Arc<Inode>,
        placed: &mut [Placed],
        digests: &[u8],
        mut progress: Progress<'_, '_>,
    ) -> Result<()> {
        let (mut rest, mut digests) = (placed, digests);
        let per_sector = if digests.is_empty() { 0 } else { self.core.checksum_kind().len() as u64 };
        while !rest.is_empty() {
            let (count, items) = self.step(inode, rest)?;
            let (now, later) = rest.split_at_mut(count);
            let bytes: u64 = now.iter().map(Placed::len).sum();
            let (own, others) = digests.split_at((bytes / self.sector() * per_sector) as usize);
            self.record_step(inode, now, own, items, &mut progress)?;
            (rest, digests) = (later, others);
        }
        Ok(())
    }

    /// How many of `placed` are recorded together, and how many items that may change.
    fn step(&self, inode: &Inode, placed: &[Placed]) -> Result<(usize, u64)> {
        let (context, tree) = self.extents(inode);
        let (mut count, mut items, mut bytes) = (0, 0, 0);
        for piece in placed {
            let dropped = context.list(&tree, &piece.file, DROPS_PER_EXTENT)?.len() as u64;
            if count > 0 && items + dropped + 3 > ITEMS_PER_STEP {
                break;
            }
            (count, items, bytes) = (count + 1, items + dropped + 3, bytes + piece.len());
        }
        let digests = bytes / self.sector() * self.core.checksum_kind().len() as u64;
        Ok((count, items + 2 + digests / (u64::from(self.core.nodesize()) / 2)))
    }

    /// Joins the transaction to record data that was acknowledged: for want of other space, the reserve serves.
    fn start_recording(&self, items: u64) -> Result<Handle> {
        match self.core.start(Reserve::items(items)) {
            Err(error) if error.is(Errno::ENOSPC) => self.core.start(Reserve::removal(items)),
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
        while placed.iter().any(|piece| piece.recorded < piece.file.end) {
            let handle = self.start_recording(items)?;
            let _guard = inode.lock_exclusive()?;
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
            let mut csums = TreeItems::editing(handle, &self.core.globals().csum);
            checksums::insert(&mut csums, self.layout(), placed[0].at, digests)?;
        }
        let mut end = 0;
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
        self.advance_size(inode, &context, &mut items, end, |state| booking.settle(state))
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

    /// The largest content that is kept in the item.
    fn max_inline(&self) -> u64 {
        u64::from(self.core.options().max_inline).min(self.longest_inline())
    }

    /// The largest content that can be kept in an item at all.
    pub(super) fn longest_inline(&self) -> u64 {
        let in_leaf = max_item_size(self.core.nodesize()) - FileExtentHead::LEN;
        (self.sector() - 1).min(in_leaf as u64)
    }

    /// Records a small file's whole content in its item. False when it is not one.
    fn record_inline(&self, inode: &Arc<Inode>, runs: &DirtyRuns) -> Result<bool> {
        let sector = self.sector();
        let only_first = runs.bytes() == sector && runs.contains(0);
        let fits = |size: u64| size > 0 && size <= self.max_inline();
        let plain = !inode.with(|state| state.has(inode_flags::NODATACOW));
        if !only_first || !plain || !fits(inode.size()) || !self.has_no_other_extent(inode)? {
            return Ok(false);
        }
        let handle = self.start_recording(6)?;
        let _guard = inode.lock_exclusive()?;
        let size = inode.size();
        if !fits(size) {
            return Ok(false);
        }
        let mut data = vec![0; sector as usize];
        runs.pieces(0..sector)
            .for_each(|(at, piece)| data[at as usize..at as usize + piece.len()].copy_from_slice(piece));
        self.insert_inline(&handle, inode, &data[..size as usize]).inspect_err(|error| handle.failed(error))?;
        Ok(true)
    }

    /// Puts `data` in the place of the first sector's extent, as the file's only content.
    pub(super) fn insert_inline(&self, handle: &Handle, inode: &Arc<Inode>, data: &[u8]) -> Result<()> {
        let context = self.context(inode, handle.generation());
        let mut items = TreeItems::editing(handle, &inode.tree);
        let mut booking = Booking::new(handle, inode);
        context.drop_range(&mut items, &(0..self.sector()), usize::MAX, &mut booking)?;
        let payload = FileExtent::encode_inline(context.generation, data.len() as u64, 0, data);
        if !items.insert(key_at(inode.ino.0, 0), &payload)? {
            return Err(Error::corrupt(format!("inode {}: an extent where the range was free", inode.ino)));
        }
        booking.add_nbytes(data.len() as i64);
        inode.change(|state| {
            state.item.size = (data.len() as u64).into();
            booking.settle(state);
        });
        Ok(())
    }

    /// Whether the file has no extent but one in its first sector, and that not a preallocated one.
    fn has_no_other_extent(&self, inode: &Inode) -> Result<bool> {
        let (context, items) = self.extents(inode);
        let last = context.before(&items, u64::MAX)?.map(|(extent, _)| extent);
        Ok(last.is_none_or(|last| last.end() <= self.sector() && last.kind != ExtentKind::Prealloc))
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
