//! Writes to extents that trees refer to already: into preallocated space, and over data without copy on write.
//!
//! The device write runs with no handle and no lock but the file's mapping lock, so meanwhile the extent can lose its
//! owner (unlink, a deleted subvolume), commits become durable, and snapshots are taken.
//!
//! # Invariants
//! 1. Under one handle the writer finds out that the extent belongs to nobody else, and begins an [`InPlaceWrite`].
//!    Nothing is freed between the two, because references are booked only when no handle is open.
//! 2. While an [`InPlaceWrite`] lives, its extent is not used for anything else, whoever frees it and however many
//!    commits pass ([`Space::hold`](crate::space::Space::hold)).
//! 3. A snapshot is made while no [`InPlaceWrite`] lives in its source, so it shares no extent that still changes. It
//!    waits for those that live; meanwhile none begins, and the data is copied on write.
//! 4. Nobody waits here with a handle or the commit lock: a writer may need a commit to end its write.

use super::{Core, Handle};
use crate::options::Canary;
use butterfs_ondisk::{Logical, TreeId};
use butterfs_sync::{Condvar, Mutex, order};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// What goes on in one subvolume.
#[derive(Default)]
struct InTree {
    writes: usize,
    snapshots: usize,
}

/// Writes in place that are under way, by subvolume.
#[derive(Default)]
pub(crate) struct InPlaceWrites {
    trees: Mutex<FxHashMap<TreeId, InTree>, { order::IN_PLACE }>,
    changed: Condvar,
}

impl InPlaceWrites {
    /// False while a snapshot of the subvolume is being taken.
    fn begin(&self, tree: TreeId) -> bool {
        let mut trees = self.trees.lock();
        let state = trees.entry(tree).or_default();
        if state.snapshots > 0 {
            return false;
        }
        state.writes += 1;
        true
    }

    /// Whether somebody has stopped writes in place in the subvolume, or waits for them to end.
    pub fn is_stopped(&self, tree: TreeId) -> bool {
        self.trees.lock().get(&tree).is_some_and(|state| state.snapshots > 0)
    }

    fn stop(&self, tree: TreeId) {
        let mut trees = self.trees.lock();
        trees.entry(tree).or_default().snapshots += 1;
        while trees.get(&tree).is_some_and(|state| state.writes > 0) {
            self.changed.wait(&mut trees);
        }
    }

    fn change(&self, tree: TreeId, change: impl FnOnce(&mut InTree)) {
        let mut trees = self.trees.lock();
        let state = trees.get_mut(&tree).expect("it has begun");
        change(state);
        if state.writes == 0 {
            self.changed.notify_all();
            if state.snapshots == 0 {
                trees.remove(&tree);
            }
        }
    }
}

/// A write in place that is under way; it ends when dropped. See the [module](self).
pub(crate) struct InPlaceWrite {
    core: Arc<Core>,
    tree: TreeId,
    /// The whole extent, unless a test wants it unprotected.
    held: Option<(Logical, u64)>,
}

impl Drop for InPlaceWrite {
    fn drop(&mut self) {
        if let Some((at, len)) = self.held {
            self.core.space.end_hold(&[(at, len)]);
        }
        self.core.in_place.change(self.tree, |state| state.writes -= 1);
    }
}

/// Nobody begins to write in place in the subvolume until this is dropped.
pub(crate) struct InPlaceStopped {
    core: Arc<Core>,
    tree: TreeId,
}

impl Drop for InPlaceStopped {
    fn drop(&mut self) {
        self.core.in_place.change(self.tree, |state| state.snapshots -= 1);
    }
}

impl Core {
    /// Begins a write in place to the extent of `len` bytes at `at`, which the caller has found to be nobody else's under
    /// `handle`. `None` while a snapshot of the subvolume is being taken.
    pub(crate) fn begin_in_place(&self, handle: &Handle, tree: TreeId, at: Logical, len: u64) -> Option<InPlaceWrite> {
        if !self.in_place.begin(tree) {
            return None;
        }
        let held = (!self.has_canary(Canary::InPlaceUnprotected)).then_some((at, len));
        if let Some((at, len)) = held {
            self.space.hold(&[(at, len)]);
        }
        Some(InPlaceWrite { core: Arc::clone(handle.core()), tree, held })
    }

    /// Waits for the writes in place that are under way in a subvolume, and lets none begin. No handle and no lock may be
    /// held.
    pub(crate) fn stop_in_place(self: &Arc<Self>, tree: TreeId) -> InPlaceStopped {
        self.in_place.stop(tree);
        InPlaceStopped { core: Arc::clone(self), tree }
    }
}
