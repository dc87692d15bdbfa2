//! Logging and syncing: an inode's changes become items of its subvolume's log tree, and the log becomes what the
//! superblock leads to.
//!
//! ```text
//! log:  plan ─► edit the log tree, in memory        (under a handle, so in one transaction)
//! sync: freeze ─► write blocks, flush ─► superblock, flush     (one for all that were logged before the freeze; the
//!                                                               last flush may be the next one's first)
//! ```
//! # Invariants
//! 1. What is frozen is whole: an `fsync` is in it with all that belongs to it, or not at all.
//! 2. No superblock ever points to an incomplete log: after a failure nothing more is logged in the transaction.
//! 3. Logging and writing blocks wait for no commit; leading the superblock to them does
//!    ([`SuperblockOrder`](crate::superblock_order::SuperblockOrder)).
//! 4. Every reason not to log ends in a commit, which reports what is really wrong.

use super::batch::merged;
use super::group::{Group, Joined, Reached};
use super::lead::{Lead, Next, Outcome};
use super::plan::{LogPlan, Planned, Stop, View, is_regular};
use super::store::LogStore;
use super::{Logged, TreeLog, root_key};
use crate::commit::write_nodes;
use crate::error::{Error, Result};
use crate::extent::checksums::{self, Layout};
use crate::options::Canary;
use crate::space::Stream;
use crate::transaction::{BlockSource, Committed, Core, Handle, Tree};
use butterfs_ondisk::items::{InodeItem, RootItem};
use butterfs_ondisk::{Generation, Ino, Key, KeyType, TreeId};
use butterfs_sync::{Mutex, order};
use butterfs_tree::{Node, NodePtr};
use butterfs_volume::VolumeError;
use std::collections::BTreeMap;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Bytes that logging costs less than committing, whatever there is to commit: the paths of all the other trees.
const COMMIT_OVERHEAD_BYTES: usize = 512 << 10;

/// A request to log.
pub(crate) struct Request<'a> {
    pub tree: &'a Arc<Tree>,
    pub ino: Ino,
    pub changed: Changed,
    /// The items of inodes that are ahead of their tree.
    pub memory: &'a dyn Fn(Ino) -> Option<InodeItem>,
}

/// When an inode changed last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Changed {
    /// The number of the change, 0 if it was before the inode came into memory.
    pub change: u64,
    /// The transaction that wrote its item last, if nothing has changed since.
    pub written_in: Option<Generation>,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ticket {
    /// It is in the log of this transaction, up to this point.
    Logged(Generation, u64),
    /// It is done when this transaction is durable.
    Frozen(Generation),
    /// This transaction is to be committed.
    Commit(Generation),
}

const LOST_A_DEVICE: &str = "a device has missed something";

/// The logs of one transaction.
struct LogSet {
    store: LogStore,
    root: Option<NodePtr>,
    trees: BTreeMap<TreeId, TreeLog>,
    point: u64,
    broken: bool,
    /// The losses of the devices when it began.
    losses: u64,
}

/// The blocks to write for one sync.
struct Frozen {
    nodes: Vec<Arc<Node>>,
    root: NodePtr,
    generation: Generation,
    point: u64,
    losses: u64,
}

/// Counters of logging since the filesystem was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// The number of logs that were published in the superblock.
    pub syncs: u64,
    /// Blocks that were written for that, each counted once.
    pub blocks: u64,
    /// Bytes of items that were logged.
    pub item_bytes: u64,
    /// Bytes of directory entries among them.
    pub entry_bytes: u64,
    /// The number of commits that replaced a log, by reason.
    pub commits: BTreeMap<String, u64>,
}

/// The logs of a filesystem.
pub(crate) struct Logs {
    stats: Mutex<LogStats, { order::LOG_STATS }>,
    core: Arc<Core>,
    set: Mutex<Option<LogSet>, { order::LOG_SET }>,
    group: Group,
}

impl Logs {
    /// Nothing is logged yet.
    pub fn new(core: &Arc<Core>) -> Arc<Logs> {
        Arc::new(Logs {
            stats: Mutex::default(),
            core: Arc::clone(core),
            set: Mutex::default(),
            group: Group::default(),
        })
    }

    /// Forgets logs that nothing can lead to any more: those of transactions that are durable. The points of the next
    /// log go on from theirs, else who still waits for one of theirs would seem to have made the next log durable.
    pub fn forget_durable(&self) {
        let durable = self.core.gate.durable();
        let mut slot = self.set.lock();
        if let Some(set) = slot.take_if(|set| set.store.generation() <= durable) {
            self.group.flushed(set.point);
        }
    }

    /// Logs an inode. A regular file's mapping is held. `None` where blocks are missing from `source`: nothing is
    /// logged then.
    pub fn log(&self, handle: &Handle, request: &Request<'_>, source: BlockSource<'_>) -> Option<Ticket> {
        let generation = handle.generation();
        if let Some(written) = request.changed.written_in.filter(|written| *written < generation) {
            return Some(Ticket::Frozen(written));
        }
        let mut slot = self.set.lock();
        // Points go on counting from one transaction to the next.
        let point = slot.as_ref().map_or(0, |set| set.point).max(self.group.durable());
        if slot.as_ref().is_none_or(|set| set.store.generation() != generation) {
            let (root, trees, store) = (None, BTreeMap::new(), LogStore::new(Arc::clone(handle.shared_transaction())));
            let losses = self.core.volume.losses();
            let broken = !self.core.volume.is_whole() && !self.core.has_canary(Canary::LogOnTooFew);
            *slot = Some(LogSet { store, root, trees, point, broken, losses });
        }
        let set = slot.as_mut().expect("just made");
        if set.broken || self.must_commit(handle, request.tree) {
            return Some(Ticket::Commit(generation));
        }
        match self.log_in(handle, set, request, source) {
            Ok(point) => Some(Ticket::Logged(generation, point)),
            Err(Stop::Missing) => None,
            Err(stop) => {
                set.broken = true;
                self.count_commit(&stop);
                Some(Ticket::Commit(generation))
            }
        }
    }

    /// Counters of logging so far.
    pub fn stats(&self) -> LogStats {
        self.stats.lock().clone()
    }

    fn count_commit(&self, stop: &Stop) {
        let reason = match stop {
            Stop::Missing => return,
            Stop::Commit(reason) => (*reason).to_owned(),
            Stop::Failed(error) => error.to_string(),
        };
        *self.stats.lock().commits.entry(reason).or_default() += 1;
    }

    /// Whether changes in this transaction cannot be expressed in a log.
    fn must_commit(&self, handle: &Handle, tree: &Tree) -> bool {
        let core = &self.core;
        let generation = handle.generation();
        handle.transaction().books().forbid_log()
            || core.incompat() != core.superblock().incompat_flags.get()
            || tree.is_deleted()
            || tree.committed_root(generation).is_none()
    }

    fn log_in(
        &self,
        handle: &Handle,
        set: &mut LogSet,
        request: &Request<'_>,
        source: BlockSource<'_>,
    ) -> Planned<u64> {
        let (core, tree, ino) = (&self.core, request.tree, request.ino);
        let root = tree.committed_root(handle.generation()).ok_or(Stop::Commit("the subvolume is new"))?;
        let committed = Committed { source, root };
        if !set.trees.contains_key(&tree.id()) {
            let last_committed = committed.last_before(Key::new(Ino::LAST_FREE.0 + 1, KeyType(0), 0))?;
            let last_committed = Ino(last_committed.map_or(0, |(key, _)| key.objectid));
            let root = set.store.new_tree(core)?;
            let log = TreeLog { root, logged: Default::default(), last_committed, recorded: None };
            set.trees.insert(tree.id(), log);
            handle.transaction().note_logged(tree);
        }
        let log = &set.trees[&tree.id()];
        let known = log.logged.get(&ino).copied().unwrap_or_default();
        if known.whole && known.change == request.changed.change && known.change != 0 {
            return Ok(known.point);
        }
        let is_file = (request.memory)(ino).is_some_and(|item| is_regular(&item));
        let quick = known.whole && is_file && !tree.watch.any_renamed() && !tree.watch.xattrs_changed(ino);
        let gate = (!quick).then(|| core.names_gate.write());
        let view = View { source, tree, committed, generation: handle.generation(), memory: request.memory };
        let (mut log_root, policies) = (log.root, core.options().policies.clone());
        let budget = if policies.log_at_any_cost { usize::MAX } else { self.commit_bytes() };
        let log_items = set.store.items(core, &mut log_root);
        let plan = LogPlan::new(view, policies, (log, &log_items), budget);
        let edits = if quick { plan.quick(ino) } else { plan.make(ino) }?;
        drop(gate);
        self.apply(set, tree.id(), edits, request)
    }

    /// About what a commit would write now.
    fn commit_bytes(&self) -> usize {
        self.core.nodes.dirty_count() * self.core.nodesize() as usize + COMMIT_OVERHEAD_BYTES
    }

    fn apply(
        &self,
        set: &mut LogSet,
        tree: TreeId,
        mut edits: super::plan::Edits,
        request: &Request<'_>,
    ) -> Planned<u64> {
        let core = &self.core;
        let scattered = 3 * (edits.removals.len() + edits.puts.len() + edits.sums.len());
        let sums: usize = edits.sums.iter().map(|sums| sums.digests.len()).sum();
        let bytes = edits.bytes() + sums;
        let new = 2 * bytes / core.nodesize() as usize + 32;
        let blocks = new + scattered.min(2 * (set.store.len() + new));
        let _promise = core.reserve_log(blocks as u64).ok_or(Stop::Commit("there is no space to spare for a log"))?;
        let log = set.trees.get_mut(&tree).expect("it was made before anything was planned");
        core.env().passes("a log is edited");
        let mut items = set.store.items(core, &mut log.root);
        for (from, to) in edits.removals {
            items.remove_range(from, to)?;
        }
        let canary = core.has_canary(Canary::LoggedItemLeftOut);
        let kept = |key: &Key| !canary || key.kind != KeyType::EXTENT_DATA || !key.objectid.is_multiple_of(2);
        // In one go, because gaps that are filled later leave blocks half empty.
        let fresh = merged(edits.fresh.sorted(), edits.born.sorted());
        items.insert_many(fresh.filter(|(key, _)| kept(key)))?;
        for (key, payload) in edits.puts.sorted().filter(|(key, _)| kept(key)) {
            items.put(key, payload)?;
        }
        for sums in &edits.sums {
            checksums::insert(&mut items, Layout::of(core), sums.at, &sums.digests)?;
        }
        let mut stats = self.stats.lock();
        (stats.item_bytes, stats.entry_bytes) =
            (stats.item_bytes + bytes as u64, stats.entry_bytes + edits.entry_bytes as u64);
        drop(stats);
        set.point += 1;
        let point = set.point;
        log.logged.reserve(edits.logged.len() + edits.born_inodes.len());
        let born = Logged { point, ..Logged::default() };
        log.logged.extend(edits.born_inodes.into_iter().map(|ino| (ino, born)));
        for (ino, logged) in edits.logged {
            let change = if ino == request.ino { request.changed.change } else { 0 };
            let whole = logged.whole || log.logged.get(&ino).is_some_and(|known| known.whole);
            log.logged.insert(ino, Logged { whole, change, point });
        }
        Ok(point)
    }

    /// Makes durable what was logged.
    pub fn sync(&self, generation: Generation, point: u64) -> Result<Synced> {
        loop {
            let leader = match self.group.join(point) {
                Joined::Durable => return Ok(Synced::Done),
                Joined::Leads(leader) => leader,
            };
            match self.lead(generation, point) {
                Ok(reached) => leader.end(reached),
                Err(stop @ (Stop::Commit(_) | Stop::Missing)) => {
                    self.count_commit(&stop);
                    return Ok(Synced::Commit);
                }
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
    }

    /// Writes everything that is logged now; returns up to which point that is.
    fn lead(&self, generation: Generation, point: u64) -> Planned<Reached> {
        let core = &self.core;
        let frozen = {
            let handle = core.join()?;
            if handle.generation() > generation { None } else { Some(self.freeze(&handle)?) }
        };
        let Some(frozen) = frozen else {
            // It is frozen, with everything that was logged.
            return match core.order.wait_durable(generation.0) {
                true => Ok(Reached::Durable(point)),
                false => Err(self.stopped()),
            };
        };
        let identity = core.nodes.identity();
        core.env().passes("a log is frozen");
        let mut lead = Lead::begin(&core.order, &self.group, frozen.generation.0, frozen.point);
        loop {
            match lead.next() {
                Next::WriteBlocks => self.or_commit(write_nodes(core, &frozen.nodes, &identity))?,
                Next::FlushBlocks => self.or_commit(self.flush_blocks(&frozen))?,
                Next::WriteSuperblock => self.write_superblock(&frozen)?,
                Next::FlushSuperblock => self.or_abort(core.volume.flush())?,
                Next::Ended(ended) => return self.ended(&frozen, ended),
            }
        }
    }

    fn ended(&self, frozen: &Frozen, how: Outcome) -> Planned<Reached> {
        match how {
            Outcome::Committed => Ok(Reached::Durable(frozen.point)),
            Outcome::Stopped => Err(self.stopped()),
            Outcome::Led(reached) if self.is_everywhere(frozen) => {
                let mut stats = self.stats.lock();
                (stats.syncs, stats.blocks) = (stats.syncs + 1, stats.blocks + frozen.nodes.len() as u64);
                Ok(reached)
            }
            Outcome::Led(_) | Outcome::LeftToNext => {
                self.give_up();
                Err(Stop::Commit(LOST_A_DEVICE))
            }
        }
    }

    /// A device that has missed something may lead to an earlier log, with a superblock as new as the others'. So what
    /// is acknowledged is a log that every device leads to.
    fn is_everywhere(&self, frozen: &Frozen) -> bool {
        self.core.has_canary(Canary::LogOnTooFew) || self.core.volume.losses() == frozen.losses
    }

    fn flush_blocks(&self, frozen: &Frozen) -> Result<()> {
        // The log's data is needed from now on: nothing that shares parity with it may be on its way.
        self.core.space.await_writes(self.core.space.end_epoch());
        if !self.core.has_canary(Canary::LogSuperblockEarly) {
            self.core.volume.order()?;
        }
        if self.is_everywhere(frozen) { Ok(()) } else { Err(Error::Device(LOST_A_DEVICE.into())) }
    }

    fn write_superblock(&self, frozen: &Frozen) -> Planned<()> {
        let core = &self.core;
        core.env().passes("a superblock is about to lead to a log");
        let mut superblock = core.superblock();
        superblock.log_root = frozen.root.at.0.into();
        superblock.log_root_level = frozen.root.level.0;
        if !self.is_everywhere(frozen) {
            self.give_up();
            return Err(Stop::Commit(LOST_A_DEVICE));
        }
        let devices = core.devices.committed.lock().clone();
        self.or_abort(core.volume.write_unflushed_primary_superblock(&superblock, &devices))
    }

    /// Nothing points to blocks that could not be written: a commit does without them.
    fn or_commit(&self, written: Result<()>) -> Planned<()> {
        written.map_err(|_| {
            self.give_up();
            Stop::Commit("the log could not be written")
        })
    }

    /// After an error the target of the superblock is unknown.
    fn or_abort(&self, written: std::result::Result<(), VolumeError>) -> Planned<()> {
        Ok(written.map_err(Error::from).inspect_err(|error| self.core.abort(error))?)
    }

    fn stopped(&self) -> Stop {
        Stop::Failed(self.core.aborted().unwrap_or(Error::Aborted("nothing is written any more".into())))
    }

    fn give_up(&self) {
        if let Some(set) = &mut *self.set.lock() {
            set.broken = true;
        }
    }

    /// Hands out what is to be written; the caller has a handle of the log's transaction.
    fn freeze(&self, handle: &Handle) -> Planned<Frozen> {
        let core = &self.core;
        let mut slot = self.set.lock();
        let set = slot.as_mut().filter(|set| !set.broken).ok_or(Stop::Commit("the log lacks something"))?;
        if handle.transaction().books().forbid_log() {
            return Err(Stop::Commit("a chunk was added, or extents were moved"));
        }
        let frozen = set.freeze(core);
        core.space.close(&[Stream::Logs]);
        if frozen.is_err() {
            set.broken = true;
        }
        frozen
    }
}

/// How a sync ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Synced {
    /// Everything is durable.
    Done,
    /// The transaction is to be committed.
    Commit,
}

impl LogSet {
    fn freeze(&mut self, core: &Arc<Core>) -> Planned<Frozen> {
        let blocks = 4 * self.trees.len() + 32;
        let _promise = core.reserve_log(blocks as u64).ok_or(Stop::Commit("there is no space to spare for a log"))?;
        let generation = self.store.generation();
        let mut root = match self.root {
            Some(root) => root,
            None => self.store.new_tree(core)?,
        };
        let mut items = self.store.items(core, &mut root);
        for (id, log) in &mut self.trees {
            if log.recorded != Some(log.root) {
                items.put(root_key(*id), root_item(&log.root, core.nodesize()).as_bytes())?;
                log.recorded = Some(log.root);
            }
        }
        self.root = Some(root);
        Ok(Frozen { nodes: self.store.freeze(), root, generation, point: self.point, losses: self.losses })
    }
}

/// A log tree's root item.
fn root_item(root: &NodePtr, nodesize: u32) -> RootItem {
    let inode = InodeItem {
        generation: 1.into(),
        size: 3.into(),
        nbytes: u64::from(nodesize).into(),
        nlink: 1.into(),
        mode: 0o040_755.into(),
        ..InodeItem::default()
    };
    RootItem {
        inode,
        generation: root.generation.0.into(),
        generation_v2: root.generation.0.into(),
        bytenr: root.at.0.into(),
        level: root.level.0,
        ..RootItem::default()
    }
}
