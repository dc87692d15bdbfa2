//! Extents that relocation has given another address, for readers that hold on to addresses.
//!
//! Most readers look an extent up and hold it while they read; if it moves meanwhile, they look it up again. A reader
//! of a committed state keeps addresses for longer: as long as such a reader lives, the old place of each moved extent
//! is not used for anything else, and [`Moved::now_at`] says where its data is now.
//!
//! # Invariants
//! 1. The count changes only while no handle is open: under a handle it tells whether addresses that were found before
//!    are still right.
//! 2. A tree block that a reader's root leads to stays as it is on disk until no reader is left.

use super::Core;
use butterfs_ondisk::Logical;
use butterfs_sync::{Mutex, order};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default)]
struct Readers {
    count: usize,
    /// Old places that are held for them.
    held: Vec<(Logical, u64)>,
    /// Data, from the old address to the new one.
    data: FxHashMap<Logical, Logical>,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Moved {
    count: AtomicU64,
    readers: Mutex<Readers, { order::MOVED }>,
}

impl Moved {
    /// The number of times that extents were moved.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// The position at which the data is that began at `at` when the first of today's readers began.
    pub fn now_at(&self, at: Logical) -> Logical {
        let readers = self.readers.lock();
        let (mut now, mut steps) = (at, 0);
        while let Some(next) = readers.data.get(&now).filter(|_| steps <= readers.data.len()) {
            (now, steps) = (*next, steps + 1);
        }
        now
    }
}

impl Core {
    /// Extents are moved now: these places lose what is there, and data goes from the first address of each pair to the
    /// second. No handle is open but the caller's.
    pub(crate) fn note_moved(&self, places: &[(Logical, u64)], data: impl Iterator<Item = (Logical, Logical)>) {
        self.moved.count.fetch_add(1, Ordering::Release);
        let mut readers = self.moved.readers.lock();
        if readers.count == 0 {
            return;
        }
        self.space.hold(places);
        readers.held.extend_from_slice(places);
        readers.data.extend(data);
    }

    /// Begins to read a committed state. No extent is moved while the caller finds its root: it holds a handle.
    pub(crate) fn read_committed(self: &Arc<Self>) -> CommittedReader {
        self.moved.readers.lock().count += 1;
        CommittedReader(Arc::clone(self))
    }
}

/// Somebody reads a committed state until this is dropped.
pub(crate) struct CommittedReader(Arc<Core>);

impl Drop for CommittedReader {
    fn drop(&mut self) {
        let mut readers = self.0.moved.readers.lock();
        readers.count -= 1;
        if readers.count == 0 {
            self.0.space.end_hold(&readers.held);
            *readers = Readers::default();
        }
    }
}
