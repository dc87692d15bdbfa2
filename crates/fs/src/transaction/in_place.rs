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
//! 4. None begins in a closed group, and whoever empties a group waits for those that live in it: the copy of an extent
//!    has everything that was written to it.
//! 5. Nobody waits here with a handle or the commit lock: a writer may need a commit to end its write.

use super::{Core, Handle};
use crate::options::Canary;
use butterfs_ondisk::{Logical, TreeId};
use butterfs_sync::{Condvar, Mutex, order};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The writes in place in one subvolume.
#[derive(Default)]
struct InTree {
    writes: usize,
    snapshots: usize,
}

/// Writes in place that are under way.
#[derive(Default)]
struct UnderWay {
    trees: FxHashMap<TreeId, InTree>,
    /// Extents by address, with how many write to each.
    extents: BTreeMap<Logical, usize>,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct InPlaceWrites {
    under_way: Mutex<UnderWay, { order::IN_PLACE }>,
    changed: Condvar,
}

impl InPlaceWrites {
    /// False while a snapshot of the subvolume is being taken.
    fn begin(&self, tree: TreeId, at: Logical) -> bool {
        let mut under_way = self.under_way.lock();
        let state = under_way.trees.entry(tree).or_default();
        if state.snapshots > 0 {
            return false;
        }
        state.writes += 1;
        *under_way.extents.entry(at).or_default() += 1;
        true
    }

    fn end(&self, tree: TreeId, at: Logical) {
        let mut under_way = self.under_way.lock();
        let count = under_way.extents.get_mut(&at).expect("it has begun");
        *count -= 1;
        if *count == 0 {
            under_way.extents.remove(&at);
        }
        drop(under_way);
        self.change(tree, |state| state.writes -= 1);
    }

    /// Waits until nobody writes in place to extents that begin in `range`.
    fn wait_for(&self, range: Range<Logical>) {
        let mut under_way = self.under_way.lock();
        while under_way.extents.range(range.clone()).next().is_some() {
            self.changed.wait(&mut under_way);
        }
    }

    /// Whether somebody has stopped writes in place in the subvolume, or waits for them to end.
    pub fn is_stopped(&self, tree: TreeId) -> bool {
        self.under_way.lock().trees.get(&tree).is_some_and(|state| state.snapshots > 0)
    }

    fn stop(&self, tree: TreeId) {
        let mut under_way = self.under_way.lock();
        under_way.trees.entry(tree).or_default().snapshots += 1;
        while under_way.trees.get(&tree).is_some_and(|state| state.writes > 0) {
            self.changed.wait(&mut under_way);
        }
    }

    fn change(&self, tree: TreeId, change: impl FnOnce(&mut InTree)) {
        let trees = &mut self.under_way.lock().trees;
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
    at: Logical,
    /// The whole extent, unless a test wants it unprotected.
    held: Option<(Logical, u64)>,
}

impl Drop for InPlaceWrite {
    fn drop(&mut self) {
        if let Some((at, len)) = self.held {
            self.core.space.end_hold(&[(at, len)]);
        }
        self.core.in_place.end(self.tree, self.at);
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
    /// Begins a write in place to the extent of `len` bytes at `at`, which the caller has found to be nobody else's
    /// under `handle`. `None` while a snapshot of the subvolume is being taken, or its block group emptied.
    pub(crate) fn begin_in_place(&self, handle: &Handle, tree: TreeId, at: Logical, len: u64) -> Option<InPlaceWrite> {
        if !self.in_place.begin(tree, at) {
            return None;
        }
        // Whoever closes a group waits afterwards for those that have begun: one of the two sees the other.
        if self.space.is_closed(at) {
            self.in_place.end(tree, at);
            return None;
        }
        let held = (!self.has_canary(Canary::InPlaceUnprotected)).then_some((at, len));
        if let Some((at, len)) = held {
            self.space.hold(&[(at, len)]);
        }
        Some(InPlaceWrite { core: Arc::clone(handle.core()), tree, at, held })
    }

    /// Waits for the writes in place to extents that begin in `range`, a closed group. No handle and no lock may be
    /// held.
    pub(crate) fn await_in_place(&self, range: Range<Logical>) {
        self.in_place.wait_for(range);
    }

    /// Waits for the writes in place that are under way in a subvolume, and lets none begin. No handle and no lock may
    /// be held.
    pub(crate) fn stop_in_place(self: &Arc<Self>, tree: TreeId) -> InPlaceStopped {
        self.in_place.stop(tree);
        InPlaceStopped { core: Arc::clone(self), tree }
    }
}
