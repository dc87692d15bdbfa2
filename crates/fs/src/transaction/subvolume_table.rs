//! The lock under which the set of subvolumes changes, and who reads a subvolume as a tree.
//!
//! # Invariants
//! 1. Whoever makes, deletes, moves or marks a subvolume, or names the default one, checks what may refuse it and acts
//!    while holding this lock. So two such operations never both succeed where only one may.
//! 2. A handle and the inode locks are taken before it, and nobody waits for a handle while holding it. Snapshots need
//!    no lock: they are made while a transaction freezes, when no handle is left.
//! 3. A read-only subvolume that somebody reads as a tree is neither deleted, nor made writable, nor cleaned.

use super::{Core, Tree};
use crate::error::{Errno, Error, Result};
use butterfs_ondisk::TreeId;
use butterfs_sync::{Mutex, MutexGuard, order};
use rustc_hash::FxHashMap;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct SubvolumeTable(Mutex<Readers, { order::SUBVOLUME_TABLE }>);

/// Read-only subvolumes that somebody reads as trees, and how many do.
#[derive(Default)]
pub(crate) struct Readers(FxHashMap<TreeId, usize>);

impl SubvolumeTable {
    /// Locks the table.
    pub fn lock(&self) -> MutexGuard<'_, Readers> {
        self.0.lock()
    }
}

impl Readers {
    /// One reader more.
    pub fn begin(&mut self, id: TreeId) {
        *self.0.entry(id).or_default() += 1;
    }

    /// One reader less.
    pub fn end(&mut self, id: TreeId) {
        if let Some(readers) = self.0.get_mut(&id) {
            *readers -= 1;
            if *readers == 0 {
                self.0.remove(&id);
            }
        }
    }

    /// Refuses a change of a subvolume that somebody reads.
    pub fn must_not_read(&self, id: TreeId) -> Result<()> {
        match self.0.contains_key(&id) {
            true => Err(Error::refused(Errno::EPERM, "the subvolume is being sent")),
            false => Ok(()),
        }
    }
}

impl Core {
    /// Lets the engine change a subvolume for reasons of its own: at once if it is writable; a read-only one under the
    /// lock, and not while somebody reads it.
    pub(crate) fn maintain(&self, tree: &Tree) -> Result<Option<MutexGuard<'_, Readers>>> {
        if !tree.is_readonly() {
            return Ok(None);
        }
        let table = self.subvolume_table.lock();
        table.must_not_read(tree.id()).map(|()| Some(table))
    }
}
