//! Locks of rows with parity: who writes into a row excludes other writers of the row and those who compute an element
//! of it.
//!
//! # Invariants
//! 1. A thread holds one of these locks at a time: a write is cut where [`RowLocks::end_of_lock`] says.
//! 2. The lock is held while devices are read and written. Nobody waits for it but who uses the same rows, or one in
//!    [`LOCKS`] others that share the lock by chance.

use butterfs_ondisk::chunk::{Chunk, STRIPE_LEN};
use butterfs_sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, order};

/// Neighbouring rows under one lock, so that a long write becomes one long write per device.
const ROWS_PER_LOCK: u64 = 16;
/// Locks of a volume.
const LOCKS: u64 = 64;

type RowLock = RwLock<(), { order::ROWS }>;

/// The locks of a volume's rows.
#[derive(Debug)]
pub(crate) struct RowLocks(Vec<RowLock>);

impl Default for RowLocks {
    fn default() -> RowLocks {
        RowLocks((0..LOCKS).map(|_| RowLock::default()).collect())
    }
}

impl RowLocks {
    fn of(&self, chunk: &Chunk, row: u64) -> &RowLock {
        let index = (chunk.start.0 / STRIPE_LEN).wrapping_add(row / ROWS_PER_LOCK) % LOCKS;
        &self.0[index as usize]
    }

    /// For computing elements of a row.
    pub fn read(&self, chunk: &Chunk, row: u64) -> RwLockReadGuard<'_, ()> {
        self.of(chunk, row).read()
    }

    /// For writing into a row.
    pub fn write(&self, chunk: &Chunk, row: u64) -> RwLockWriteGuard<'_, ()> {
        self.of(chunk, row).write()
    }

    /// The first row behind `row` that has another lock.
    pub fn end_of_lock(row: u64) -> u64 {
        (row / ROWS_PER_LOCK + 1) * ROWS_PER_LOCK
    }
}
