//! File contents: reading, buffered writing, write-back, truncation, allocation.
//!
//! A write copies into the inode's buffer and returns. Write-back gives buffered data a place on disk, writes it
//! there, and only then records it: file extent items, references, checksums, size, all under one handle.
//!
//! # Invariants
//! 1. The tree never refers to data that is not on the device. `InodeItem::size` covers only what is recorded.
//! 2. Every byte in the buffer has space reserved, or lies where it was found writable in place.
//! 3. A sector in the buffer is whole and correct: what a write does not cover was read, verified, and is zero
//!    beyond the end of the file.
//! 4. Locks, in this order: the mapping lock (held by whoever changes which extents a file has, write-back
//!    included), a handle, the inode, the buffer for a moment. A reader holds the inode shared while it reads the
//!    device, so that no extent it reads is given up and reused meanwhile.
//! 5. Buffered data stays after an error, as long as memory allows, and `fsync` reports the error.
//!
//! # Not here
//! Names, permissions, the transaction.

mod allocation;
mod buffer;
mod compression;
mod dedupe;
mod defragment;
mod encoded;
pub(crate) mod extents;
mod in_place;
mod inline;
mod placement;
mod pressure;
mod read_ahead;
mod reader;
mod recording;
mod reflink;
mod seek;
mod size;
mod unpacked;
mod write_back;

pub use allocation::Allocation;
pub use buffer::MAX_FILE_SIZE;
pub use butterfs_codec as codec;
pub use defragment::Defragment;
pub use encoded::Encoded;
pub use pressure::WriteBackThread;
pub use seek::Whence;
pub use size::Resized;

use crate::commit::Engine;
use crate::error::{Errno, Result};
use crate::extent::TreeItems;
use crate::extent::checksums::Layout;
use crate::file_buffer::Buffer;
use crate::inode::xattr::CAPABILITY;
use crate::inode::{Inode, InodeId, Known, preload};
use crate::parallel::Helpers;
use crate::transaction::{BlockSource, DataReservation, Handle, Reserve};
use butterfs_ondisk::features::incompat;
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Generation, Key, KeyType, Logical};
use butterfs_sync::{Condvar, Mutex, order};
use extents::FileContext;
use pressure::Pressure;
use read_ahead::ReadAhead;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use unpacked::UnpackedExtents;

/// Leaves of extents that one step changes, at most.
const LEAVES_PER_STEP: usize = 8;

/// Inodes with buffered data, oldest first.
#[derive(Default)]
struct Waiting {
    inodes: FxHashMap<InodeId, Arc<Inode>>,
    order: VecDeque<InodeId>,
}

/// The contents of all files of one filesystem.
pub struct Files {
    engine: Arc<Engine>,
    waiting: Mutex<Waiting, { order::WAITING_WRITERS }>,
    buffered_bytes: Arc<AtomicU64>,
    unpacked: Mutex<UnpackedExtents, { order::UNPACKED }>,
    encoders: Mutex<Vec<codec::Encoder>, { order::ENCODERS }>,
    helpers: Helpers,
    ahead: ReadAhead,
    pressure: Mutex<Pressure, { order::PRESSURE }>,
    wake: Condvar,
    /// The write-back thread has done what it was asked for.
    idle: Condvar,
}

impl Files {
    /// Nothing is buffered yet.
    pub fn new(engine: Arc<Engine>) -> Files {
        Files {
            ahead: ReadAhead::new(Arc::clone(engine.core())),
            engine,
            waiting: Mutex::default(),
            buffered_bytes: Arc::default(),
            unpacked: Mutex::default(),
            encoders: Mutex::default(),
            helpers: Helpers::default(),
            pressure: Mutex::default(),
            wake: Condvar::new(),
            idle: Condvar::new(),
        }
    }

    /// The engine that they are stored by.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Joins the running transaction, with space for what `reserve` says; where that is short, what others have
    /// buffered is written back. No handle may be held, and no lock but those of mappings.
    pub(crate) fn start(&self, reserve: Reserve) -> Result<Handle> {
        self.engine.start_with(reserve, Some(&|| self.write_back_idle()))
    }

    /// The same for a change of what is acknowledged already: for want of other space, the reserve serves.
    fn start_surely(&self, items: u64) -> Result<Handle> {
        match self.start(Reserve::items(items)) {
            Err(error) if error.is(Errno::ENOSPC) => self.start(Reserve::removal(items)),
            other => other,
        }
    }

    /// Reserves `bytes` of data space. No handle may be held, and no lock but those of mappings.
    fn reserve_data(&self, bytes: u64) -> Result<DataReservation> {
        self.engine.reserve_data(bytes, Some(&|| self.write_back_idle()))
    }

    fn sector(&self) -> u64 {
        u64::from(self.engine.sectorsize())
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
        Layout::of(&self.engine)
    }

    fn context(&self, inode: &Inode, generation: Generation) -> FileContext {
        FileContext {
            ino: inode.ino.0,
            sectorsize: self.sector(),
            no_holes: self.engine.has_incompat(incompat::NO_HOLES),
            generation: generation.0,
        }
    }

    /// The file's extents, to look at.
    fn extents<'a>(&'a self, inode: &'a Inode) -> (FileContext, TreeItems<'a>) {
        self.extents_from(BlockSource::loading(self.engine.core()), inode)
    }

    fn extents_from<'a>(&self, source: BlockSource<'a>, inode: &'a Inode) -> (FileContext, TreeItems<'a>) {
        (self.context(inode, self.engine.generation()), TreeItems::reading(source, &inode.tree))
    }

    /// Has in memory what a change of the file's extents from `range` on changes, as far as one step goes.
    fn preload_extents(&self, inode: &Inode, range: &Range<u64>) {
        let key = |offset| Key::new(inode.ino.0, KeyType::EXTENT_DATA, offset);
        inode.tree.preload(self.engine.core(), &[key(inode.with(|state| state.item.size.get()))]);
        inode.tree.preload_range(self.engine.core(), key(range.start), key(range.end.max(1) - 1), LEAVES_PER_STEP);
        if inode.with(|state| state.capability != Known::Absent) {
            preload::attribute(self.engine.core(), &inode.tree, inode.ino, CAPABILITY);
        }
    }

    /// The same for the checksums of data.
    fn preload_checksums(&self, at: Logical, len: u64) {
        let key = |at: u64| Key::new(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM, at);
        let csum = &self.engine.globals().csum;
        csum.preload_range(self.engine.core(), key(at.0), key(at.0 + len), LEAVES_PER_STEP);
    }
}
