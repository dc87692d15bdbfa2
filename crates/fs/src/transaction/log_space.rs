//! Space for logs: blocks that no tree of the filesystem ever records.
//!
//! # Invariants
//! 1. A log block is taken from the metadata space and from nothing else; on disk it is free space.
//! 2. What logs have taken in a transaction comes back when that transaction is durable, written or not: until then the
//!    superblock on disk may lead to it.
//! 3. A log leaves alone what is promised to others and what the commit needs: it is refused, and its caller commits.
//!
//! A log lies where the one before lay, as far as that is free again: a sparse file that holds the device does not grow
//! then, and its flush costs about half.

use super::{Core, Tree};
use crate::error::{Error, Result};
use crate::space::{Class, Found};
use butterfs_ondisk::{Generation, Logical, TreeId};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A promise of space for the blocks of a log, taken back when dropped.
pub(crate) struct LogPromise {
    core: Arc<Core>,
    bytes: u64,
}

impl Drop for LogPromise {
    fn drop(&mut self) {
        self.core.space.unreserve(Class::Metadata, self.bytes);
    }
}

impl Core {
    /// Promises room for `blocks` more log blocks, if there is any to spare.
    pub(crate) fn promise_log(self: &Arc<Self>, blocks: u64) -> Option<LogPromise> {
        let bytes = blocks * u64::from(self.nodesize());
        let floor = self.commit_cost() + self.global_reserve();
        self.space.reserve(Class::Metadata, bytes, floor).then(|| LogPromise { core: Arc::clone(self), bytes })
    }

    /// Takes a block for a log. The caller has a handle, and a promise.
    pub(crate) fn allocate_log_block(&self) -> Result<Logical> {
        if let Some(at) = self.log_block_again() {
            self.log_blocks.lock().push(at);
            return Ok(at);
        }
        loop {
            match self.space.allocate_node(Class::Metadata) {
                Found::Extent(at, _) => {
                    self.log_blocks.lock().push(at);
                    return Ok(at);
                }
                Found::Load(group) => self.load_group(group)?,
                Found::Nothing => return Err(Error::NoNode { system: false }),
            }
        }
    }

    /// Takes the next block of those that the logs of an earlier transaction had, if any of them is free.
    fn log_block_again(&self) -> Option<Logical> {
        let mut places = self.log_places.lock();
        std::iter::from_fn(|| places.pop()).find(|at| self.space.retake_node(Class::Metadata, *at))
    }

    /// The logs of `generation`, which settles, end with it.
    pub(crate) fn end_logs(&self, generation: Generation) {
        let mut blocks = std::mem::take(&mut *self.log_blocks.lock());
        blocks.iter().for_each(|at| self.space.pin(*at, u64::from(self.nodesize()), generation));
        if !blocks.is_empty() {
            blocks.reverse();
            *self.log_places.lock() = blocks;
        }
        self.logged_trees.lock().drain(..).for_each(|tree| tree.watch.end());
    }

    /// A subvolume has a log in the running transaction, and inodes that are watched.
    pub(crate) fn note_logged(&self, tree: &Arc<Tree>) {
        self.logged_trees.lock().push(Arc::clone(tree));
    }

    /// A subvolume got a place in `generation`: no log can say so.
    pub(crate) fn note_placed(&self, subvolume: TreeId, generation: Generation) {
        self.placed_in.lock().insert(subvolume, generation);
    }

    /// Places that subvolumes got up to `generation` are durable.
    pub(crate) fn forget_placed(&self, generation: Generation) {
        self.placed_in.lock().retain(|_, placed| *placed > generation);
    }

    /// The transaction in which a subvolume got its place, unless that is durable.
    pub(crate) fn placed_in(&self, subvolume: TreeId) -> Option<Generation> {
        self.placed_in.lock().get(&subvolume).copied()
    }

    /// A chunk was added in `generation`: what lies in it is lost unless that transaction is committed.
    pub(crate) fn note_growth(&self, generation: Generation) {
        self.grown_in.store(generation.0, Ordering::Relaxed);
    }

    /// Whether a chunk was added in `generation`.
    pub(crate) fn has_grown_in(&self, generation: Generation) -> bool {
        self.grown_in.load(Ordering::Relaxed) == generation.0
    }
}
