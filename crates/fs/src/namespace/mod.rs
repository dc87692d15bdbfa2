//! Operations on names and attributes, each of them whole or not at all, each under one handle.
//!
//! # Invariants
//! 1. An operation joins its handle first, shows by the gate of names that it is under way, and then locks the inodes
//!    it changes, in the order of their ids. An inode that is only known after a lookup is looked up, locked, and
//!    looked up again.
//! 2. Refusals come before the first change; after it only damage on disk can stop an operation, which ends the
//!    transaction.
//! 3. An inode that lost its last name is disposed of when lock and handle are gone.

mod attributes;
mod creation;
mod extended;
mod flags;
mod link;
mod listing;
mod lookup;
mod removal;
mod rename;

pub use listing::DirEntry;
pub use rename::RenameMode;

use crate::error::{Errno, Error, Result};
use crate::file::Files;
use crate::inode::attr::Attr;
use crate::inode::{Inode, InodeCache, InodeId, subvolume_entry};
use crate::transaction::{Core, Handle, Reserve};
use butterfs_ondisk::TreeId;
use butterfs_sync::{Mutex, RwLockWriteGuard, order};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// See the [module](self).
pub struct Namespace {
    inodes: Arc<InodeCache>,
    files: Arc<Files>,
    /// Held by renames between directories, so that nobody moves a directory below itself from two sides.
    renames: Mutex<(), { order::RENAMES }>,
    /// Placeholders that were looked up, with the directory they were found in.
    placeholders: Mutex<FxHashMap<InodeId, (Attr, InodeId)>, { order::PLACEHOLDERS }>,
    /// Subvolumes whose orphans of earlier mounts are gone.
    cleaned: Mutex<FxHashSet<TreeId>, { order::CLEANED_TREES }>,
}

impl Namespace {
    /// The names of an open filesystem.
    pub fn new(inodes: Arc<InodeCache>, files: Arc<Files>) -> Namespace {
        Namespace { inodes, files, renames: Mutex::new(()), placeholders: Mutex::default(), cleaned: Mutex::default() }
    }

    /// The inodes in memory.
    pub fn inodes(&self) -> &Arc<InodeCache> {
        &self.inodes
    }

    fn core(&self) -> &Arc<Core> {
        self.inodes.engine().core()
    }

    /// The inode with this id. Placeholders are none.
    pub fn inode(&self, id: InodeId) -> Result<Arc<Inode>> {
        if id.is_placeholder() {
            return Err(subvolume_entry::placeholder_refusal());
        }
        self.inodes.get(id)
    }

    /// The directory with this id.
    fn directory(&self, id: InodeId) -> Result<Arc<Inode>> {
        let inode = self.inode(id)?;
        if !inode.is_directory() {
            return Err(Error::refused(Errno::ENOTDIR, "not a directory"));
        }
        Ok(inode)
    }

    /// Runs an operation under a handle of its own. No lock is held.
    fn run<R>(&self, reserve: Reserve, operation: impl FnOnce(&Handle) -> Result<R>) -> Result<R> {
        self.inodes.relieve()?;
        let handle = self.files.start(reserve)?;
        let _gate = self.core().names_gate.read();
        operation(&handle).inspect_err(|error| {
            if !matches!(error, Error::Refused { .. }) {
                handle.failed(error);
            }
        })
    }

    /// Forgets the deleted subvolumes, which may exist again.
    pub(crate) fn forget_cleaned(&self) {
        self.cleaned.lock().clear();
    }

    /// Deletes what earlier mounts, or the source of a snapshot, left without a name in a subvolume, once. A read-only
    /// one too, unless it is being sent: then a later call does it, and so where there is no room for it now. Reading
    /// goes on where nothing is written any more. No lock and no handle is held.
    pub fn enter_subvolume(&self, tree: TreeId) -> Result<()> {
        if self.core().is_read_only() || self.cleaned.lock().contains(&tree) {
            return Ok(());
        }
        match crate::inode::orphan::clean_up(&self.inodes, &self.core().tree(tree)?) {
            Ok(done) => {
                if done {
                    self.cleaned.lock().insert(tree);
                }
                Ok(())
            }
            Err(Error::Aborted(_)) => Ok(()),
            Err(error) if error.is(Errno::ENOSPC) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Locks inodes exclusively in the order of their ids, each once; refuses if one is gone.
fn lock_all<'a>(inodes: &[&'a Arc<Inode>]) -> Result<Vec<RwLockWriteGuard<'a, ()>>> {
    let mut ordered = inodes.to_vec();
    ordered.sort_unstable_by_key(|inode| inode.id());
    ordered.dedup_by_key(|inode| inode.id());
    ordered.into_iter().map(|inode| inode.lock_exclusive()).collect()
}
