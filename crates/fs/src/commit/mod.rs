//! The commit: settle until nothing is left to book, write, flush, superblocks, flush.
//!
//! # Order on disk
//! 1. Data of recorded file extents is written before it is recorded, by whoever records it.
//! 2. All tree blocks of the generation, all copies. 3. Flush. 4. Superblocks (see `Volume::write_superblock`).
//! 5. Only now what the generation freed may be used again.
//!
//! # Invariants
//! 1. A generation without a dirty block writes nothing, and its number is used by the next one.
//! 2. Settling converges: a block is copied at most once in a generation, and every round only books what the
//!    round before changed.
//! 3. After an error nothing is written any more.

mod ahead;
mod retirement;
mod superblock;

use crate::env::Point;
use crate::error::Result;
use crate::extent;
use crate::options::Canary;
use crate::transaction::{Core, Handle};
use butterfs_ondisk::items::DevItem;
use butterfs_ondisk::superblock::Superblock;
use butterfs_ondisk::{Generation, Logical, TreeId};
use butterfs_tree::Node;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Tree blocks are written in runs of at most this many bytes.
const WRITE_RUN_BYTES: usize = 1 << 20;
/// Runs of at least this many bytes go to the device at once, while the next ones are prepared.
const BEGIN_FLUSH_BYTES: usize = 256 << 10;

impl Core {
    /// Makes everything durable that was recorded before the call. Waits for a commit that is under way; callers
    /// that arrive meanwhile share the next one. No handle may be held.
    pub fn commit(self: &Arc<Self>) -> Result<()> {
        let running = self.progress.lock().running;
        self.commit_through(running)
    }

    /// Makes everything durable up to a transaction. No handle may be held.
    pub(crate) fn commit_through(self: &Arc<Self>, wanted: Generation) -> Result<()> {
        if let Some(aborted) = self.aborted() {
            return Err(aborted);
        }
        let _turn = self.commit_lock.lock();
        let durable = self.progress.lock().durable;
        if durable >= wanted {
            return Ok(());
        }
        if let Some(aborted) = self.aborted() {
            return Err(aborted);
        }
        let _alarm = self.alarm();
        self.commit_in_turn().inspect_err(|error| self.abort(error))?;
        if extent::stale_devices_changed(self) {
            // A device has missed something of this commit, which must be on disk before anybody relies on the commit.
            self.commit_in_turn().inspect_err(|error| self.abort(error))?;
        }
        Ok(())
    }

    fn commit_in_turn(self: &Arc<Self>) -> Result<()> {
        self.book_before_commit()?;
        let stopped = self.stop_handles()?;
        let generation = stopped.generation;
        // An error aborts before handles go on.
        if !self.settle(generation).inspect_err(|error| self.abort(error))? {
            return Ok(());
        }
        let frozen = self.nodes.freeze(generation);
        self.env().passes("the transaction is frozen");
        let superblock = self.next_superblock(generation);
        let devices = self.volume.device_items();
        let identity = self.nodes.identity();
        self.end_logs(generation);
        if !self.new_chunks.lock().is_empty() {
            self.note_growth(generation.next());
        }
        stopped.resume(generation.next());
        if self.has_canary(Canary::PinnedReusedEarly) {
            self.space.release(generation);
        }
        self.env().reached(Point::WritingNodes);
        self.volume.check_ownership()?;
        let written = self.write_nodes(&frozen, &identity);
        if !self.has_canary(Canary::WriteErrorIgnored) {
            written?;
        }
        self.env().reached(Point::FlushingNodes);
        if !self.has_canary(Canary::NoBarrier) {
            self.volume.flush()?;
            self.env().reached(Point::WritingSuperblock);
        }
        self.order.commit(generation.0, |log_on_disk| self.write_superblock(superblock, devices, log_on_disk))?;
        self.nodes.written(&frozen);
        self.progress.lock().durable = generation;
        self.unshared.forget(generation);
        self.env().passes("the transaction is durable");
        self.env().reached(Point::Durable);
        for (at, len) in self.space.release(generation) {
            // Of what is no tree block there is nothing to forget.
            if len == u64::from(self.nodesize()) {
                self.nodes.forget_dead(at, generation);
            }
        }
        self.free_retired_chunks();
        if let Some(hook) = self.durable_hook.get() {
            hook(generation);
        }
        extent::remember_state(self);
        if !self.volume.stale_devices().is_empty() {
            self.want_cleaning();
        }
        Ok(())
    }

    /// With a log on disk the secondary superblocks go first: were the primary torn, an old secondary one would show the
    /// filesystem without what the log has promised. Without one they follow, durable with the next commit's blocks.
    fn write_superblock(&self, superblock: Superblock, devices: Vec<DevItem>, log_on_disk: bool) -> Result<()> {
        self.env().passes("superblocks are written");
        if let Some(aborted) = self.aborted() {
            return Err(aborted);
        }
        if log_on_disk {
            self.volume.write_superblock_with(&superblock, &devices)?;
        } else {
            self.volume.write_primary_superblock_with(&superblock, &devices)?;
            self.volume.write_secondary_superblocks(&superblock, &devices);
        }
        *self.superblock.lock() = superblock;
        *self.committed_devices.lock() = devices;
        Ok(())
    }

    /// Books everything. False when the generation has changed nothing.
    fn settle(self: &Arc<Self>, generation: Generation) -> Result<bool> {
        let handle = self.settling_handle(generation);
        self.close_unused_trees();
        let hook = |handle: &Handle| self.settle_hook.get().map_or(Ok(()), |hook| hook(handle));
        hook(&handle)?;
        for task in std::mem::take(&mut *self.settle_tasks.lock()) {
            task(&handle)?;
            hook(&handle)?;
        }
        if self.has_changes() || self.retirement_wish.swap(false, Ordering::Relaxed) {
            self.retire_groups(&handle)?;
        }
        if !self.has_changes() {
            return Ok(false);
        }
        while self.book(&handle)? {}
        let root = &self.globals().root;
        if root.root().generation != generation {
            root.touch_root(&handle)?;
            while self.book(&handle)? {}
        }
        Ok(true)
    }

    fn has_changes(&self) -> bool {
        self.nodes.dirty_count() > 0
            || !self.refs.is_empty()
            || !self.new_chunks.lock().is_empty()
            || self.has_unrecorded()
            || extent::stale_devices_changed(self)
    }

    /// One round: chunks, references, block groups, root items. True when there was anything.
    fn book(&self, handle: &Handle) -> Result<bool> {
        self.env().passes("a round of settling begins");
        let mut any = !self.book_chunks(handle)?.is_empty();
        any |= extent::write_device_stats(handle)?;
        any |= extent::write_stale_devices(handle)?;
        any |= extent::run_refs(handle)?;
        // References may have needed one more chunk, whose block group has no item yet.
        any |= !self.book_chunks(handle)?.is_empty();
        any |= extent::write_block_groups(handle)?;
        any |= self.write_root_items(handle)?;
        Ok(any)
    }

    /// Inserts the items of new chunks, also of those that this takes; says where they begin.
    fn book_chunks(&self, handle: &Handle) -> Result<Vec<Logical>> {
        let mut booked = Vec::new();
        loop {
            let chunks = std::mem::take(&mut *self.new_chunks.lock());
            if chunks.is_empty() {
                return Ok(booked);
            }
            for chunk in &chunks {
                extent::insert_chunk_items(handle, chunk)?;
                booked.push(chunk.start);
            }
        }
    }

    fn write_root_items(&self, handle: &Handle) -> Result<bool> {
        let mut any = false;
        let (generation, now) = (handle.generation(), self.env().now());
        for tree in self.take_unrecorded() {
            if matches!(tree.id(), TreeId::ROOT | TreeId::CHUNK) {
                continue;
            }
            let Some(item) = tree.take_unrecorded(self.nodesize(), generation, now) else { continue };
            any = true;
            self.globals().root.put(handle, tree.root_item_key(), item.as_bytes())?;
        }
        Ok(any)
    }

    /// Writes nodes, which lie in the order of their addresses, neighbours in one go.
    pub(crate) fn write_nodes(&self, nodes: &[Arc<Node>], identity: &butterfs_tree::BlockIdentity) -> Result<()> {
        let nodesize = self.nodesize() as usize;
        let map = self.volume.chunk_map();
        let mut rest = nodes;
        let mut buffer = vec![0; (nodes.len() * nodesize).min(WRITE_RUN_BYTES.max(nodesize))];
        while let Some(first) = rest.first() {
            let start = first.at();
            let chunk_end = map.get(start).map_or(start, |chunk| chunk.end());
            let most = rest.len().min(buffer.len() / nodesize);
            let follows = |index: usize| {
                let at = start.plus((index * nodesize) as u64);
                rest[index].at() == at && at < chunk_end
            };
            let run = (1..most).take_while(|&index| follows(index)).count() + 1;
            for (node, out) in rest[..run].iter().zip(buffer.chunks_exact_mut(nodesize)) {
                node.seal_into(out, identity)?;
            }
            let bytes = run * nodesize;
            self.env().passes("tree blocks are written");
            self.volume.write(start, &buffer[..bytes])?;
            rest = &rest[run..];
            // After the last one the flush comes at once.
            if !rest.is_empty() && bytes >= BEGIN_FLUSH_BYTES {
                self.volume.begin_flush(start, bytes);
            }
        }
        Ok(())
    }

    /// Asks the background thread for a commit soon.
    pub(crate) fn want_commit(&self) {
        *self.commit_wish.0.lock() = true;
        self.commit_wish.1.notify_all();
    }

    /// Wakes the background thread for whatever it looks at next.
    pub(crate) fn wake_timer(&self) {
        self.want_commit();
    }

    /// Wakes the cleaner: a subvolume was deleted, or the filesystem is being closed.
    pub(crate) fn want_cleaning(&self) {
        *self.cleaning_wish.0.lock() = true;
        self.cleaning_wish.1.notify_all();
    }

    /// Waits until there may be something to clean.
    pub(crate) fn wait_for_cleaning(&self) {
        let mut wanted = self.cleaning_wish.0.lock();
        while !std::mem::take(&mut *wanted) {
            self.cleaning_wish.1.wait(&mut wanted);
        }
    }

    /// Waits until somebody wants a commit, at most `interval`. True when the time was up.
    pub(crate) fn wait_for_wish(&self, interval: Duration) -> bool {
        let deadline = self.env().uptime() + interval;
        let mut wanted = self.commit_wish.0.lock();
        while !*wanted {
            let left = deadline.saturating_sub(self.env().uptime());
            if left.is_zero() || self.commit_wish.1.wait_for(&mut wanted, left) {
                break;
            }
        }
        !std::mem::take(&mut *wanted)
    }
}
