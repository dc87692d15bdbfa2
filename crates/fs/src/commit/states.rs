//! The states of a transaction from the freeze on. Each is a value, and each step takes the value of the one before.

use super::nodes::write_nodes;
use super::{Engine, chunk_moves, device_changes, unused_groups};
use crate::env::Point;
use crate::error::Result;
use crate::options::Canary;
use crate::space::Stream;
use crate::superblock_order::Committing;
use crate::transaction::{Core, Ended, Stopped};
use butterfs_ondisk::Generation;
use butterfs_ondisk::items::DevItem;
use butterfs_ondisk::superblock::Superblock;
use butterfs_tree::{BlockIdentity, Node};
use std::sync::Arc;

/// It changes no more, and the next one runs.
#[must_use = "its changes are in memory only"]
pub(super) struct Frozen {
    generation: Generation,
    nodes: Vec<Arc<Node>>,
    identity: BlockIdentity,
    superblock: Superblock,
    devices: Vec<DevItem>,
    ended: Ended,
    /// Data that was allocated before it belongs to this transaction or an earlier one.
    epoch: u64,
}

/// Its tree blocks are durable.
#[must_use = "no superblock leads to it"]
pub(super) struct Written<'a>(Frozen, Committing<'a>);

/// A superblock leads to it.
#[must_use = "what it freed is not given back"]
pub(super) struct Durable {
    generation: Generation,
    ended: Ended,
}

impl Engine {
    /// Ends the running transaction, in which everything is booked, and lets the next one run.
    pub(super) fn freeze(&self, stopped: Stopped) -> Frozen {
        let handle = stopped.handle();
        let generation = handle.generation();
        let nodes = self.nodes.freeze(generation);
        self.env().passes("the transaction is frozen");
        let superblock = self.next_superblock(handle.transaction());
        let devices = self.volume.device_items();
        let identity = self.nodes.identity();
        self.space.close(&[Stream::Trees]);
        let epoch = self.space.end_epoch();
        let ended = stopped.end_transaction();
        if self.has_canary(Canary::PinnedReusedEarly) {
            self.space.release(generation);
        }
        Frozen { generation, nodes, identity, superblock, devices, ended, epoch }
    }
}

impl Frozen {
    /// Writes its tree blocks, and flushes. The flush also makes the secondary superblocks durable, which then are what
    /// the primary ones are until these are written: were those torn, whoever reads a secondary one finds all that was
    /// promised, by a commit and by logs.
    pub fn write(self, core: &Core) -> Result<Written<'_>> {
        core.env().reached(Point::WritingNodes);
        core.volume.check_ownership()?;
        if core.has_canary(Canary::DiscardedEarly) {
            core.discard_too_early(self.generation);
        }
        let written = write_nodes(core, &self.nodes, &self.identity);
        if !core.has_canary(Canary::WriteErrorIgnored) {
            written?;
        }
        // Nothing that shares parity with what is about to be needed may be on its way.
        core.space.await_writes(self.epoch);
        let committing = core.order.commit(self.generation.0);
        if committing.copies_behind() && !core.has_canary(Canary::CopiesBehind) {
            core.volume.refresh_secondary_superblocks();
        }
        core.env().reached(Point::FlushingNodes);
        if !core.has_canary(Canary::NoBarrier) {
            core.volume.order()?;
            core.env().reached(Point::WritingSuperblock);
        }
        Ok(Written(self, committing))
    }
}

/// How a transaction that is written ended.
pub(super) enum Published {
    /// A superblock leads to it.
    Durable(Durable),
    /// A device has failed since it was frozen: it has no superblock, and the next one has all of it.
    LeftToNext,
}

impl Written<'_> {
    /// Writes the superblocks that lead to it, unless its trees do not name a device that has failed meanwhile.
    pub fn publish(self, core: &Core) -> Result<Published> {
        let Written(Frozen { generation, nodes, superblock, devices, ended, .. }, committing) = self;
        if core.volume.has_unrecorded_loss() && !core.has_canary(Canary::LossUnnamed) {
            core.nodes.written(&nodes);
            core.gate.with_books(|books| {
                books.must_happen = true;
                books.label.get_or_insert(superblock.label);
                books.removed_chunks.extend(ended.removed_chunks);
                books.moved_chunks.extend(ended.moved_chunks);
                books.changed_devices.extend(ended.changed_devices);
            });
            core.order.leave_to_next(generation.0);
            return Ok(Published::LeftToNext);
        }
        device_changes::publish(core, &ended.changed_devices)?;
        write_superblock(core, superblock, devices)?;
        committing.end();
        core.nodes.written(&nodes);
        core.gate.note_durable(generation);
        core.env().passes("the transaction is durable");
        core.env().reached(Point::Durable);
        Ok(Published::Durable(Durable { generation, ended }))
    }
}

impl Durable {
    /// Gives back the space that it freed.
    pub fn release(self, core: &Core) {
        for (at, len) in core.release_freed(self.generation) {
            // Only tree blocks are in the cache.
            if len == u64::from(core.nodesize()) {
                core.nodes.forget_dead(at, self.generation);
            }
        }
        core.discard_chunks(&self.ended.removed_chunks);
        unused_groups::free_chunks(core, &self.ended.removed_chunks);
        chunk_moves::end_moves(core, &self.ended.moved_chunks);
        device_changes::settle(core, &self.ended.changed_devices);
        core.gate.forget_written();
    }
}

/// The secondary superblocks follow the primary ones, durable with the next flush.
fn write_superblock(core: &Core, superblock: Superblock, devices: Vec<DevItem>) -> Result<()> {
    core.env().passes("superblocks are written");
    if let Some(aborted) = core.aborted() {
        return Err(aborted);
    }
    core.volume.write_primary_superblock_with(&superblock, &devices)?;
    core.volume.write_secondary_superblocks(&superblock, &devices);
    *core.superblock.lock() = superblock;
    *core.devices.committed.lock() = devices;
    Ok(())
}
