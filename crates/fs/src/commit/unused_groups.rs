//! Deleting unused block groups: their items go with the transaction that freezes, and their place on the devices is
//! free when it is durable.
//!
//! # Invariants
//! 1. A group is deleted in a later transaction than the one that emptied it, and never in the one that made it.
//! 2. Until the transaction is durable the chunk map and the device space hold the chunk: no other one can lie where
//!    the last commit still has it.
//! 3. What removing the items takes is there before the first one goes.
//!
//! A group with a version 1 cache stays: its cache inode would have to go with it.

use super::Engine;
use crate::error::Result;
use crate::extent;
use crate::space::Class;
use crate::transaction::{Core, Handle};
use butterfs_ondisk::chunk::Chunk;
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Key, KeyType, Logical};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

/// Groups that are deleted in one transaction.
const MOST_GROUPS: u64 = 32;

/// Tree blocks that removing the items of one group may copy: a few in each of three trees.
const NODES_PER_GROUP: u64 = 16;

impl Engine {
    /// Removes the items of empty groups that nobody needs.
    pub(super) fn delete_unused_groups(&self, handle: &Handle) -> Result<()> {
        let cost = self.commit_cost();
        let room = self.space.totals(Class::Metadata).free.saturating_sub(cost);
        let most = (room / (NODES_PER_GROUP * u64::from(self.nodesize()))).min(MOST_GROUPS);
        let mut keep = self.groups_with_caches()?.clone();
        keep.extend(self.volume.moving().iter().map(|chunk| chunk.start));
        {
            let mut books = handle.transaction().books();
            keep.extend(books.new_chunks.iter().map(|chunk| chunk.start));
            keep.extend(std::mem::take(&mut books.chunks_booked_ahead));
        }
        let deleted = self.space.delete_unused(cost + self.global_reserve(), most as usize, &keep);
        if !deleted.is_empty() {
            handle.transaction().traces.note_deleted_groups();
        }
        let map = self.volume.chunk_map();
        for group in deleted {
            let chunk = map.get(group.start).expect("a block group has a chunk");
            extent::remove_chunk_items(handle, chunk)?;
            handle.transaction().books().removed_chunks.push(chunk.clone());
        }
        Ok(())
    }

    /// Whether some group has a version 1 cache.
    pub(crate) fn has_version_1_caches(&self) -> Result<bool> {
        Ok(!self.groups_with_caches()?.is_empty())
    }

    /// There are no more version 1 caches, and the last commit says so.
    pub(crate) fn forget_version_1_caches(&self) {
        self.caches_are_gone.store(true, Ordering::Release);
    }

    /// Looked for once: nothing here makes such caches.
    pub(super) fn groups_with_caches(&self) -> Result<&BTreeSet<Logical>> {
        static NONE: BTreeSet<Logical> = BTreeSet::new();
        if self.caches_are_gone.load(Ordering::Acquire) {
            return Ok(&NONE);
        }
        if let Some(groups) = self.cached_groups.get() {
            return Ok(groups);
        }
        let key = |offset| Key::new(objectid::FREE_SPACE, KeyType(0), offset);
        let mut groups = BTreeSet::new();
        self.globals().root.scan(self.core(), key(0), key(u64::MAX), &mut |key, _| {
            groups.insert(Logical(key.offset));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(self.cached_groups.get_or_init(|| groups))
    }

    /// Whether a commit may give the place of empty groups back to the devices, or one is doing so.
    pub(crate) fn has_unused_groups(&self) -> bool {
        self.space.has_emptied() || self.gate.deletes_groups()
    }

    /// A commit that also gives empty groups back, for who needs their place. No handle may be held.
    pub(crate) fn commit_for_space(&self) -> Result<()> {
        let ((), generation) = self.gate.with_books(|books| books.deletes_groups = true);
        self.commit_through(generation)
    }

    /// The same, if there are such groups.
    pub(crate) fn commit_unused_groups(&self) -> Result<()> {
        if self.space.has_emptied() { self.commit_for_space() } else { Ok(()) }
    }
}

/// The transaction that removed the items of these chunks is durable: their place is free.
pub(super) fn free_chunks(core: &Core, deleted: &[Chunk]) {
    if deleted.is_empty() {
        return;
    }
    let mut devices = core.devices.space.lock();
    let mut map = (*core.volume.chunk_map()).clone();
    for chunk in deleted {
        map.remove(chunk.start);
        devices.remove_chunk(chunk);
    }
    core.volume.set_chunk_map(map);
}
