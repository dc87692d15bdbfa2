//! A transaction as a value: everything that belongs to one generation, and to no other.
//!
//! ```text
//! Transaction ──end──► Ended: what the commit writes and gives back
//!      └────────────► the next Transaction, with what it inherits
//! ```
//!
//! # Invariants
//! 1. What waits here is in no tree yet. The queue of references and the chunks are empty when a transaction ends, but
//!    for chunks that were planned after the last round of booking: those the next transaction inherits.
//! 2. Whoever holds a [`Handle`](super::Handle) may use its transaction: it does not end meanwhile. Whoever holds none
//!    uses [`Gate::with_books`](super::gate::Gate::with_books), and never meets one that has ended.
//! 3. [`Traces`] live until the transaction is durable.

use super::Tree;
use super::refs::RefQueue;
use crate::space::Space;
use butterfs_device::BlockDevice;
use butterfs_ondisk::chunk::Chunk;
use butterfs_ondisk::items::{DevItem, DevReplaceItem};
use butterfs_ondisk::{DeviceId, Generation, Logical, TreeId};
use butterfs_sync::{Mutex, MutexGuard, order};
use rustc_hash::FxHashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the [module](self).
pub(crate) struct Transaction {
    generation: Generation,
    /// Changes of references that wait for the extent tree.
    pub refs: RefQueue,
    /// The work of the commit: changes for the trees, and other tasks.
    books: Mutex<Books, { order::BOOKS }>,
    /// Blocks of its logs.
    pub(super) log_blocks: Mutex<LogBlocks, { order::LOG_BLOCKS }>,
    /// Trees that may have something to record.
    unrecorded: Mutex<FxHashSet<TreeId>, { order::UNRECORDED }>,
    /// State that others need until it is durable.
    pub traces: Arc<Traces>,
}

/// See [`Transaction`].
#[derive(Default)]
pub(crate) struct Books {
    /// Chunks whose items are in no tree yet.
    pub new_chunks: Vec<Chunk>,
    /// Chunks of this transaction whose items are in the trees already.
    pub chunks_booked_ahead: Vec<Logical>,
    /// Chunks that it has removed: their place on the devices is free when it is durable.
    pub removed_chunks: Vec<Chunk>,
    /// Chunks that get other stripes with this commit.
    pub moves: Vec<MovedChunk>,
    /// Those of them whose items say so: the old places are free when it is durable.
    pub moved_chunks: Vec<MovedChunk>,
    /// Devices that change with this commit.
    pub device_changes: Vec<DeviceChange>,
    /// Those of them that the trees say.
    pub changed_devices: Vec<DeviceChange>,
    /// A chunk was added: what lies in it is lost unless the transaction is committed.
    pub has_allocated_chunk: bool,
    /// Extents were moved: a log would name addresses that the last commit does not know.
    pub has_moved_extents: bool,
    /// The filesystem's label from this commit on.
    pub label: Option<[u8; 256]>,
    /// The commit is to give empty block groups back.
    pub deletes_groups: bool,
    /// The commit is to happen even if no tree changes.
    pub must_happen: bool,
    has_ended: bool,
}

/// A chunk before and after it moves.
#[derive(Clone, Debug)]
pub(crate) struct MovedChunk {
    pub from: Chunk,
    pub to: Chunk,
}

/// A change of a device.
#[derive(Clone, Debug)]
pub(crate) enum DeviceChange {
    /// It has so many bytes.
    Resize { id: DeviceId, total_bytes: u64 },
    /// It joins.
    Add { item: DevItem, device: Arc<dyn BlockDevice> },
    /// It is a seed from now on, and has this generation.
    Seed { id: DeviceId, generation: u64 },
    /// It leaves; no chunk lies on it.
    Remove(DeviceId),
    /// The device tree says this about a replacement.
    Replace(DevReplaceItem),
    /// The device that takes over has the number of the other one, and is what `device` says.
    Replaced { item: DevReplaceItem, device: DevItem },
}

/// Blocks that the logs of a transaction have, and could have.
#[derive(Default)]
pub(super) struct LogBlocks {
    /// Taken by logs of this transaction.
    pub taken: Vec<Logical>,
    /// The log blocks of the last transaction with logs that this one has not tried yet, the first one last.
    pub reusable: Vec<Logical>,
    /// Subvolumes that have a log.
    pub trees: Vec<Arc<Tree>>,
}

/// The state of a transaction that others need until it is durable.
#[derive(Default)]
pub(crate) struct Traces {
    /// Extents of data that have lost a user. The last commit still shows the data to the user that is gone, and a
    /// power cut brings that commit back; so nobody overwrites it in place, although the trees in memory have one user
    /// left.
    unshared: Mutex<FxHashSet<Logical>, { order::UNSHARED }>,
    /// Subvolumes that got another place: no log can say so.
    placed: Mutex<FxHashSet<TreeId>, { order::PLACED_IN }>,
    /// Block groups are deleted with it.
    deletes_groups: AtomicBool,
}

/// The state that an ended transaction leaves to its commit.
pub(crate) struct Ended {
    /// Chunks whose place on the devices is free when the transaction is durable.
    pub removed_chunks: Vec<Chunk>,
    /// Chunks whose old place is.
    pub moved_chunks: Vec<MovedChunk>,
    /// Devices that have changed with it.
    pub changed_devices: Vec<DeviceChange>,
    /// State that others need until then.
    pub traces: Arc<Traces>,
}

impl Books {
    /// Whether what is written from now on is only found by a commit.
    pub fn forbid_log(&self) -> bool {
        self.has_allocated_chunk || self.has_moved_extents
    }

    /// Whether chunks or devices wait to be brought into the trees.
    pub fn has_chunk_work(&self) -> bool {
        !self.new_chunks.is_empty() || !self.moves.is_empty() || !self.device_changes.is_empty()
    }
}

impl Transaction {
    /// The first transaction after `durable`.
    pub fn after(durable: Generation) -> Transaction {
        Transaction {
            generation: durable.next(),
            refs: RefQueue::default(),
            books: Mutex::default(),
            log_blocks: Mutex::default(),
            unrecorded: Mutex::default(),
            traces: Arc::default(),
        }
    }

    /// Its number.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The work of the commit, for those who hold a handle of it, or have ended all of them.
    pub fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock()
    }

    /// The same, unless the transaction has ended.
    pub(super) fn open_books(&self) -> Option<MutexGuard<'_, Books>> {
        Some(self.books.lock()).filter(|books| !books.has_ended)
    }

    /// A tree may have something to record.
    pub fn note_unrecorded(&self, tree: TreeId) {
        self.unrecorded.lock().insert(tree);
    }

    /// The trees that may have something to record; each is noted again when it changes after this.
    pub fn take_unrecorded(&self) -> FxHashSet<TreeId> {
        std::mem::take(&mut *self.unrecorded.lock())
    }

    /// The same, to look at.
    pub fn unrecorded(&self) -> Vec<TreeId> {
        self.unrecorded.lock().iter().copied().collect()
    }

    /// Ends it, while no handle is left and everything is booked: the next transaction, whose logs may lie at
    /// `reusable`, and what this one leaves.
    pub(super) fn end(&self, books: &mut Books, reusable: Vec<Logical>) -> (Transaction, Ended) {
        let inherited = Books {
            has_allocated_chunk: !books.new_chunks.is_empty(),
            new_chunks: std::mem::take(&mut books.new_chunks),
            deletes_groups: books.deletes_groups,
            ..Books::default()
        };
        let log_blocks = LogBlocks { reusable, ..LogBlocks::default() };
        let next = Transaction {
            books: Mutex::new(inherited),
            log_blocks: Mutex::new(log_blocks),
            // A tree is noted once, until a commit looks at it.
            unrecorded: Mutex::new(self.take_unrecorded()),
            ..Transaction::after(self.generation)
        };
        books.has_ended = true;
        let removed_chunks = std::mem::take(&mut books.removed_chunks);
        let moved_chunks = std::mem::take(&mut books.moved_chunks);
        let changed_devices = std::mem::take(&mut books.changed_devices);
        (next, Ended { removed_chunks, moved_chunks, changed_devices, traces: Arc::clone(&self.traces) })
    }

    /// The logs end with the transaction; says where those of the next one may lie. What they have taken comes back
    /// when the transaction is durable, written or not.
    pub(super) fn end_logs(&self, space: &Space, nodesize: u32) -> Vec<Logical> {
        let LogBlocks { mut taken, reusable, trees } = std::mem::take(&mut *self.log_blocks.lock());
        trees.into_iter().for_each(|tree| tree.watch.end());
        taken.iter().for_each(|at| space.pin(*at, u64::from(nodesize), self.generation));
        taken.reverse();
        if taken.is_empty() { reusable } else { taken }
    }
}

impl Traces {
    /// The extent at `at` has lost a user, and has others.
    pub fn note_unshared(&self, at: Logical) {
        self.unshared.lock().insert(at);
    }

    /// Whether the extent at `at` has lost a user.
    pub(super) fn has_unshared(&self, at: Logical) -> bool {
        self.unshared.lock().contains(&at)
    }

    /// A subvolume got a place.
    pub fn note_placed(&self, subvolume: TreeId) {
        self.placed.lock().insert(subvolume);
    }

    /// Whether a subvolume got a place.
    pub(super) fn has_placed(&self, subvolume: TreeId) -> bool {
        self.placed.lock().contains(&subvolume)
    }

    /// Block groups are deleted.
    pub fn note_deleted_groups(&self) {
        self.deletes_groups.store(true, Ordering::Relaxed);
    }

    /// Whether block groups are deleted.
    pub(super) fn deletes_groups(&self) -> bool {
        self.deletes_groups.load(Ordering::Relaxed)
    }
}
