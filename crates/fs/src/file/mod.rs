//! File contents: reading, buffered writing, write-back, truncation, allocation.
//!
//! A write copies into the inode's buffer and returns. Write-back gives buffered data a place on disk, writes it
//! there, and only then records it: file extent items, references, checksums, size, all under one handle.
//!
//! # Invariants
//! 1. The tree never refers to data that is not on the device. `InodeItem::size` covers only what is recorded.
//! 2. Every byte in the buffer has space reserved, or lies in preallocated space that was found writable in place.
//! 3. A sector in the buffer is whole and correct: what a write does not cover was read, verified, and is zero
//!    beyond the end of the file.
//! 4. Locks, in this order: the mapping lock (held by whoever changes which extents a file has, write-back
//!    included), a handle, the inode, the buffer for a moment. A reader holds the inode shared while it reads the
//!    device, so that no extent it reads is given up and reused meanwhile.
//! 5. Buffered data is never dropped because of an error: it stays, and `fsync` reports the error.
//!
//! # Not here
//! Names, permissions, the transaction.

mod allocation;
mod buffer;
pub mod codec;
mod dirty;
mod exclusive;
mod extents;
pub mod item;
mod pressure;
mod reader;
mod reflink;
mod seek;
mod size;
mod unpacked;
mod write_back;

pub use allocation::Allocation;
pub use buffer::MAX_FILE_SIZE;
pub use pressure::Flusher;
pub use seek::Whence;

use crate::error::Error;
use crate::extent::TreeItems;
use crate::extent::checksums::Layout;
use crate::inode::{Inode, InodeId};
use crate::transaction::{Core, DataReservation};
use butterfs_ondisk::Generation;
use butterfs_ondisk::features::incompat;
use dirty::DirtyRuns;
use extents::FileContext;
use parking_lot::{Condvar, Mutex, MutexGuard};
use pressure::Pressure;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use unpacked::UnpackedExtents;

/// The content of one inode that is not in the tree yet. Small while there is none.
#[derive(Default)]
pub struct FileData {
    /// See invariant 4 of the [module](self).
    mapping: Mutex<()>,
    buffer: Mutex<Option<Box<Buffer>>>,
}

#[derive(Default)]
struct Buffer {
    dirty: DirtyRuns,
    /// What write-back is busy with; older than `dirty`.
    writing: Option<Arc<DirtyRuns>>,
    /// Promised for `dirty`.
    reserved: Option<DataReservation>,
    /// Why data could not be written back, until somebody has been told.
    failed: Option<Error>,
    counted: Counted,
}

/// Bytes of one buffer in the filesystem's total.
#[derive(Default)]
struct Counted {
    total: Option<Arc<AtomicU64>>,
    bytes: u64,
}

impl Counted {
    fn set(&mut self, bytes: u64) {
        let Some(total) = &self.total else { return };
        total.fetch_add(bytes.wrapping_sub(self.bytes), Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl Buffer {
    fn is_idle(&self) -> bool {
        self.dirty.is_empty() && self.writing.is_none() && self.failed.is_none()
    }

    fn bytes(&self) -> u64 {
        self.dirty.bytes() + self.writing.as_ref().map_or(0, |runs| runs.bytes())
    }

    /// Gives back what is reserved beyond the dirty bytes.
    fn trim_reservation(&mut self) {
        let needed = self.dirty.bytes();
        if let Some(reserved) = &mut self.reserved
            && reserved.bytes() > needed
        {
            reserved.shrink(reserved.bytes() - needed);
        }
    }

    fn reserve(&mut self, more: DataReservation) {
        match &mut self.reserved {
            Some(reserved) => reserved.merge(more),
            None => self.reserved = Some(more),
        }
    }
}

impl FileData {
    /// Works on the buffer, which comes and goes with its content.
    fn with<R>(&self, work: impl FnOnce(&mut Buffer) -> R) -> R {
        let mut slot = self.buffer.lock();
        let buffer = slot.get_or_insert_default();
        let result = work(buffer);
        buffer.counted.set(buffer.bytes());
        if buffer.is_idle() {
            *slot = None;
        }
        result
    }

    fn lock_mapping(&self) -> MutexGuard<'_, ()> {
        self.mapping.lock()
    }

    /// Forgets everything: the inode is being deleted.
    pub fn discard(&self) {
        *self.buffer.lock() = None;
    }

    /// Bytes that wait for write-back.
    pub fn dirty_bytes(&self) -> u64 {
        self.buffer.lock().as_ref().map_or(0, |buffer| buffer.bytes())
    }

    /// Whether nothing waits and nothing is left to be told.
    pub fn is_idle(&self) -> bool {
        self.buffer.lock().is_none()
    }

    /// The buffered run that `position` lies in, else the next one.
    fn next_buffered(&self, position: u64) -> Option<Range<u64>> {
        let slot = self.buffer.lock();
        let buffer = slot.as_ref()?;
        let dirty = buffer.dirty.next(position);
        let writing = buffer.writing.as_ref().and_then(|runs| runs.next(position));
        [dirty, writing].into_iter().flatten().min_by_key(|run| (run.start.max(position), u64::MAX - run.end))
    }

    /// Copies what the buffer holds of `range` into `out`, and returns what it does not hold.
    fn overlay(&self, range: &Range<u64>, out: &mut [u8]) -> Vec<Range<u64>> {
        let slot = self.buffer.lock();
        let Some(buffer) = slot.as_ref() else { return vec![range.clone()] };
        let mut copy = |runs: &DirtyRuns, range: &Range<u64>, base: u64| {
            for (at, piece) in runs.pieces(range.clone()) {
                let from = (at - base) as usize;
                out[from..from + piece.len()].copy_from_slice(piece);
            }
            runs.gaps(range.clone())
        };
        let gaps = copy(&buffer.dirty, range, range.start);
        let Some(writing) = &buffer.writing else { return gaps };
        gaps.iter().flat_map(|gap| copy(writing, gap, range.start)).collect()
    }
}

/// Inodes with buffered data, oldest first.
#[derive(Default)]
struct Waiting {
    inodes: FxHashMap<InodeId, Arc<Inode>>,
    order: VecDeque<InodeId>,
}

/// The contents of all files of one filesystem.
pub struct Files {
    core: Arc<Core>,
    waiting: Mutex<Waiting>,
    buffered_bytes: Arc<AtomicU64>,
    unpacked: Mutex<UnpackedExtents>,
    pressure: Mutex<Pressure>,
    wake: Condvar,
}

impl Files {
    /// Nothing is buffered yet.
    pub fn new(core: Arc<Core>) -> Files {
        Files {
            core,
            waiting: Mutex::default(),
            buffered_bytes: Arc::default(),
            unpacked: Mutex::default(),
            pressure: Mutex::default(),
            wake: Condvar::new(),
        }
    }

    fn sector(&self) -> u64 {
        u64::from(self.core.sectorsize())
    }

    fn round_down(&self, position: u64) -> u64 {
        position / self.sector() * self.sector()
    }

    /// The last whole sector of all is as far as it goes.
    fn round_up(&self, position: u64) -> u64 {
        position.checked_next_multiple_of(self.sector()).unwrap_or(self.round_down(u64::MAX))
    }

    /// The sectors that `range` touches.
    fn sectors_of(&self, range: &Range<u64>) -> Range<u64> {
        self.round_down(range.start)..self.round_up(range.end)
    }

    /// The whole sectors inside `range`, perhaps none.
    fn sectors_in(&self, range: &Range<u64>) -> Range<u64> {
        let start = self.round_up(range.start);
        start..self.round_down(range.end).max(start)
    }

    fn layout(&self) -> Layout {
        Layout::of(&self.core)
    }

    fn context(&self, inode: &Inode, generation: Generation) -> FileContext {
        FileContext {
            ino: inode.ino.0,
            sectorsize: self.sector(),
            no_holes: self.core.has_incompat(incompat::NO_HOLES),
            generation: generation.0,
        }
    }

    /// The file's extents, to look at.
    fn extents<'a>(&'a self, inode: &'a Inode) -> (FileContext, TreeItems<'a>) {
        (self.context(inode, self.core.generation()), TreeItems::reading(&self.core, &inode.tree))
    }
}
