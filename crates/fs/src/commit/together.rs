//! A generation that one user has for itself, and the way back from it.
//!
//! # Invariants
//! 1. Nobody else is in the filesystem meanwhile; nothing is logged and nothing is committed.
//! 2. No data of the last commit is overwritten in place, so its trees describe what is on the devices.
//! 3. After going back, everything in memory below inodes is what the last commit says. The generation's number is used
//!    again: nothing of it was written but data, to places that the last commit calls free.

use super::Engine;
use crate::error::{Errno, Error, Result};
use crate::options::Canary;
use crate::space::GroupInfo;
use crate::transaction::{DeviceSpace, Tree};
use butterfs_ondisk::TreeId;
use butterfs_volume::ChunkMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The state of the last commit, as far as no tree holds it or a copy costs little.
pub(crate) struct Before {
    map: Arc<ChunkMap>,
    devices: DeviceSpace,
    groups: Vec<GroupInfo>,
    incompat: u64,
    uuid_tree_current: bool,
}

impl Engine {
    /// The most bytes of tree blocks that may be changed together.
    pub const MOST_TOGETHER: usize = 128 << 20;

    /// Commits, and keeps what it takes to go back there. The caller is alone.
    pub(crate) fn begin_together(&self) -> Result<Before> {
        // Also where nothing has changed: what is pinned, and logs, end with it.
        self.commit_anyway()?;
        let before = Before {
            map: self.volume.chunk_map(),
            devices: self.devices.space.lock().clone(),
            groups: self.space.groups(),
            incompat: self.incompat(),
            uuid_tree_current: self.uuid_tree_current(),
        };
        self.is_together.store(true, Ordering::Release);
        Ok(before)
    }

    /// From now on there may be commits again.
    pub(crate) fn end_together(&self) {
        self.is_together.store(false, Ordering::Release);
    }

    /// Whether somebody is alone, and a commit would separate what belongs together.
    pub(crate) fn is_together(&self) -> bool {
        self.is_together.load(Ordering::Acquire)
    }

    /// Refuses what asks for a commit while somebody is alone.
    pub(crate) fn must_not_be_together(&self) -> Result<()> {
        match self.is_together() {
            true => {
                Err(Error::refused(Errno::EBUSY, "within a transaction of several operations nothing is committed"))
            }
            false => Ok(()),
        }
    }

    /// For a test of the tests: commits in between.
    pub(super) fn separate_together(&self) -> Result<()> {
        if self.is_together() && self.has_canary(Canary::TogetherSeparated) {
            self.end_together();
            self.commit()?;
            self.is_together.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Refuses a change while somebody is alone and has changed too much already.
    pub(super) fn must_not_be_too_much(&self) -> Result<()> {
        let bytes = self.nodes.dirty_count() * self.nodesize() as usize;
        match self.is_together() && bytes > Engine::MOST_TOGETHER {
            true => Err(Error::refused(
                Errno::E2BIG,
                "a transaction of several operations changes at most 128 MiB of trees",
            )),
            false => Ok(()),
        }
    }

    /// Throws away what the running transaction has done, of which no handle is left.
    pub(crate) fn go_back(&self, before: Before) -> Result<()> {
        let stopped = self.stop_handles()?;
        stopped.start_again();
        self.dirty_inodes.forget_all();
        self.nodes.forget_dirty();
        self.volume.set_chunk_map((*before.map).clone());
        *self.devices.space.lock() = before.devices;
        self.restore_features(before.incompat, before.uuid_tree_current);
        let with_chunk = |group: &GroupInfo| {
            let chunk = before.map.get(group.start).expect("a block group has a chunk");
            (*group, before.map.superblock_exclusions(chunk), chunk.parity_columns())
        };
        self.space.start_again(before.groups.iter().map(with_chunk));
        self.reopen_trees()
    }

    /// Every open tree is what the last commit says.
    fn reopen_trees(&self) -> Result<()> {
        let superblock = self.superblock();
        let globals = self.globals();
        globals.chunk.start_again(&Tree::from_superblock(TreeId::CHUNK, superblock.chunk_tree_root()));
        globals.root.start_again(&Tree::from_superblock(TreeId::ROOT, superblock.tree_root()));
        for tree in self.trees.all() {
            if matches!(tree.id(), TreeId::CHUNK | TreeId::ROOT) {
                continue;
            }
            match self.stored_tree(&globals.root, tree.id())? {
                Some(stored) => tree.start_again(&stored),
                None => {
                    tree.vanish();
                    self.trees.forget(tree.id());
                }
            }
        }
        Ok(())
    }
}
