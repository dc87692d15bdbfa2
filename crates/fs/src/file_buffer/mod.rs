//! Data that was written to a file and is not in its tree yet: dirty runs, data in write-back, and the space that is
//! reserved for it. Every inode has one; it is small while there is nothing.
//!
//! # Invariants
//! 1. A sector in the buffer is whole and correct.
//! 2. Buffered data is dropped only when it is recorded, cut off, its inode deleted, or when a device refuses it and
//!    writers need the memory; then `lost` says so.
//!
//! When data is buffered, and how it becomes extents, is the business of `file`.

mod dirty;

pub(crate) use dirty::DirtyRuns;

use crate::error::Error;
use crate::transaction::DataReservation;
use butterfs_sync::{Mutex, MutexGuard, RwLock, order};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The content of one inode that is not in the tree yet. Small while there is none.
#[derive(Default)]
pub struct FileData {
    /// Held by whoever changes which extents the file has.
    pub(crate) mapping: Mutex<(), { order::MAPPING }>,
    /// Shared by writes, and held alone by a change of content that takes several steps. Taken before `mapping`.
    pub(crate) whole: RwLock<(), { order::WHOLE }>,
    buffer: Mutex<Option<Box<Buffer>>, { order::BUFFER }>,
    /// The number of times that what the file has on disk has changed. Raised with the inode locked.
    changes: AtomicU64,
}

/// The buffered data.
#[derive(Default)]
pub(crate) struct Buffer {
    /// Not on its way to the device yet.
    pub(crate) dirty: DirtyRuns,
    /// The data in write-back; older than `dirty`.
    pub(crate) writing: Option<Arc<DirtyRuns>>,
    /// Reserved for `dirty`.
    pub(crate) reserved: Option<DataReservation>,
    /// Why `dirty` could not be written back, until somebody has been told.
    pub(crate) failed: Option<Error>,
    /// The message log knows that `dirty` cannot be written.
    pub(crate) failure_told: bool,
    /// Why data was dropped, until somebody has been told.
    pub(crate) lost: Option<Error>,
    /// This buffer's share of the filesystem's total.
    pub(crate) counted: Counted,
}

/// Bytes of one buffer in the filesystem's total.
#[derive(Default)]
pub(crate) struct Counted {
    pub(crate) total: Option<Arc<AtomicU64>>,
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
    /// Whether there is nothing to keep.
    pub(crate) fn is_idle(&self) -> bool {
        self.dirty.is_empty() && self.writing.is_none() && self.failed.is_none() && self.lost.is_none()
    }

    /// Bytes that wait for write-back, or that it is busy with.
    pub(crate) fn bytes(&self) -> u64 {
        self.dirty.bytes() + self.writing.as_ref().map_or(0, |runs| runs.bytes())
    }

    /// Gives back what is reserved beyond the dirty bytes.
    pub(crate) fn trim_reservation(&mut self) {
        let needed = self.dirty.bytes();
        if let Some(reserved) = &mut self.reserved
            && reserved.bytes() > needed
        {
            reserved.shrink(reserved.bytes() - needed);
        }
    }

    /// Takes another reservation in.
    pub(crate) fn reserve(&mut self, more: DataReservation) {
        match &mut self.reserved {
            Some(reserved) => reserved.merge(more),
            None => self.reserved = Some(more),
        }
    }
}

impl FileData {
    /// Works on the buffer, which comes and goes with its content.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Buffer) -> R) -> R {
        let mut slot = self.buffer.lock();
        let buffer = slot.get_or_insert_default();
        let result = work(buffer);
        buffer.counted.set(buffer.bytes());
        if buffer.is_idle() {
            *slot = None;
        }
        result
    }

    /// See [`FileData::mapping`].
    pub(crate) fn lock_mapping(&self) -> MutexGuard<'_, ()> {
        self.mapping.lock()
    }

    /// Notes that the file's extents are about to change. The inode is locked.
    pub(crate) fn extents_change(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that every such change raises.
    pub(crate) fn version(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
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
    pub(crate) fn next_buffered(&self, position: u64) -> Option<Range<u64>> {
        let slot = self.buffer.lock();
        let buffer = slot.as_ref()?;
        let dirty = buffer.dirty.next(position);
        let writing = buffer.writing.as_ref().and_then(|runs| runs.next(position));
        [dirty, writing].into_iter().flatten().min_by_key(|run| (run.start.max(position), u64::MAX - run.end))
    }

    /// Copies what the buffer holds of `range` into `out`, and returns what it does not hold.
    pub(crate) fn overlay(&self, range: &Range<u64>, out: &mut [u8]) -> Vec<Range<u64>> {
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
