//! Transactions: who may change what now, and what the changes wait for.
//!
//! ```text
//! Running ──► Settling ──► Writing ──► Durable
//!              │             └ generation+1 is already Running: it edits and allocates
//!              └ new handles wait: CPU only. References that many have queued are settled in slices before
//! ```
//!
//! # Invariants
//! 1. At most one transaction is Writing and one Running.
//! 2. Trees change only under a [`Handle`]; Settling begins when no handle is left.
//! 3. Locks are taken in the order of one table ([`butterfs_sync::order`]), which a debug build checks.
//! 4. A failed commit, an edit that fails half-way, or a panic anywhere aborts ([`abort`]): reads go on, writes return
//!    `EROFS`, and what is on disk is the last durable transaction.
//!
//! [`Core`] is everything of an open filesystem below inodes. Settling and writing are done in `commit`.

mod abort;
mod chunk_allocation;
mod difference;
mod editor;
pub mod extent_item;
mod free_space_load;
mod handle;
mod in_place;
mod log_space;
mod lookup;
mod ref_changes;
pub mod refs;
mod reserve;
mod subvolume_table;
mod tree;
mod unshared;
mod watch;

pub use chunk_allocation::DeviceSpace;
pub(crate) use difference::{Committed, merge_leaves};
pub(crate) use editor::Loading;
pub use handle::{DataRef, Handle};
pub(crate) use in_place::{InPlaceWrite, InPlaceWrites};
pub use reserve::{DataReservation, Reserve};
pub(crate) use subvolume_table::Readers;
pub(crate) use tree::Fetched;
pub use tree::{ItemRef, Tree};
pub(crate) use unshared::Unshared;
pub(crate) use watch::Watch;

use crate::env::Env;
use crate::error::{Errno, Error, Result};
use crate::node_io::NodeCache;
use crate::options::{Canary, DataPolicy, Options};
use crate::space::Space;
use butterfs_ondisk::chunk::Chunk;
use butterfs_ondisk::features::{compat_ro, incompat};
use butterfs_ondisk::items::{DevItem, LeftState, RootItem, StaleDevice};
use butterfs_ondisk::superblock::Superblock;
use butterfs_ondisk::{ChecksumKind, DeviceId, Generation, Ino, Key, KeyType, Logical, TreeId};
use butterfs_sync::{Condvar, Mutex, RwLock, order};
use butterfs_volume::{DeviceStats, Volume};
use refs::RefQueue;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// The trees that every filesystem has once.
pub struct GlobalTrees {
    /// Tree of tree roots.
    pub root: Arc<Tree>,
    /// Chunks and devices.
    pub chunk: Arc<Tree>,
    /// Extents and their references.
    pub extent: Arc<Tree>,
    /// Device extents.
    pub dev: Arc<Tree>,
    /// Data checksums.
    pub csum: Arc<Tree>,
    /// Free space, where the filesystem has the tree and it is valid.
    pub free_space: Option<Arc<Tree>>,
    /// Block groups, where they have a tree of their own.
    pub block_group: Option<Arc<Tree>>,
}

/// Where the running transaction stands.
#[derive(Debug)]
pub(crate) struct Progress {
    pub running: Generation,
    pub durable: Generation,
    pub handles: usize,
    pub settling: bool,
    /// How many wait for the end of settling to join.
    pub waiting: usize,
    pub aborted: Option<Box<str>>,
}

/// What runs first when a transaction settles: brings what is changed in memory into the trees.
pub type SettleHook = Box<dyn Fn(&Handle) -> Result<()> + Send + Sync>;

/// Something that can only be done while a transaction settles and everything in memory is in the trees: a snapshot.
/// It refuses before it changes anything; an error it returns ends the transaction.
pub type SettleTask = Box<dyn FnOnce(&Handle) -> Result<()> + Send>;

/// What the device tree says about a device that has missed writes.
pub(crate) struct StaleItem {
    /// Its item.
    pub item: StaleDevice,
    /// It was written since the filesystem was opened.
    pub is_written: bool,
}

/// See the [module](self).
pub struct Core {
    pub(crate) volume: Arc<Volume>,
    pub(crate) nodes: NodeCache,
    pub(crate) space: Space,
    pub(crate) refs: RefQueue,
    pub(crate) in_place: InPlaceWrites,
    pub(crate) unshared: Unshared,
    pub(crate) device_space: Mutex<DeviceSpace, { order::DEVICE_SPACE }>,
    pub(crate) new_chunks: Mutex<Vec<Chunk>, { order::NEW_CHUNKS }>,
    /// Chunks of the running transaction whose items are in the trees already.
    pub(crate) chunks_booked_ahead: Mutex<Vec<Logical>, { order::BOOKED_AHEAD }>,
    /// Held by whoever books references ahead of the commit.
    pub(crate) booking_turn: Mutex<(), { order::BOOKING_TURN }>,
    /// Chunks that the transaction which settles or is being written has removed: their place on the devices is free
    /// when it is durable.
    pub(crate) retired_chunks: Mutex<Vec<Chunk>, { order::RETIRED_CHUNKS }>,
    /// Groups with a version 1 cache, once somebody has asked.
    pub(crate) cached_groups: OnceLock<BTreeSet<Logical>>,
    /// The next commit is to give empty groups back, even if nothing else has changed.
    pub(crate) retirement_wish: AtomicBool,
    pub(crate) progress: Mutex<Progress, { order::PROGRESS }>,
    /// The most steps, and the most reads of nodes, of one stop of all handles since somebody asked.
    pub(crate) longest_stop: (AtomicU64, AtomicU64),
    pub(crate) changed: Condvar,
    pub(crate) commit_lock: Mutex<(), { order::COMMIT }>,
    pub(crate) superblock: Mutex<Superblock, { order::SUPERBLOCK }>,
    /// Blocks that logs of the running transaction have taken.
    pub(crate) log_blocks: Mutex<Vec<Logical>, { order::LOG_BLOCKS }>,
    /// Blocks that the last transaction with logs had for them and this one has not tried yet, the first one last.
    pub(crate) log_places: Mutex<Vec<Logical>, { order::LOG_PLACES }>,
    /// Subvolumes that have a log in the running transaction.
    pub(crate) logged_trees: Mutex<Vec<Arc<Tree>>, { order::LOGGED_TREES }>,
    /// The transaction in which the last chunk was added.
    pub(crate) grown_in: AtomicU64,
    /// Subvolumes that got another place, and in which transaction, if that is not durable yet.
    pub(crate) placed_in: Mutex<FxHashMap<TreeId, Generation>, { order::PLACED_IN }>,
    /// Held shared by whoever changes names, exclusively by whoever logs them: CPU only.
    pub(crate) names_gate: RwLock<(), { order::NAMES }>,
    /// Who may write the superblock when.
    pub(crate) order: crate::superblock_order::SuperblockOrder,
    /// What the superblocks of the last commit say about each device.
    pub(crate) committed_devices: Mutex<Vec<DevItem>, { order::COMMITTED_DEVICES }>,
    /// The error counters of the devices as the device tree has them.
    pub(crate) recorded_stats: Mutex<BTreeMap<DeviceId, DeviceStats>, { order::DEVICE_STATS }>,
    /// The devices that the device tree calls stale.
    pub(crate) stale_items: Mutex<BTreeMap<DeviceId, StaleItem>, { order::STALE_ITEMS }>,
    /// The last commits, newest first, in which devices may have been left behind.
    pub(crate) last_states: Mutex<[LeftState; 4], { order::LAST_STATES }>,
    /// Runs when a transaction is durable: forgets its logs.
    pub(crate) durable_hook: OnceLock<Box<dyn Fn(Generation) + Send + Sync>>,
    /// Held between looking up the references of a block that may be shared and changing them.
    pub(crate) sharing: Mutex<(), { order::SHARING }>,
    /// Held by whoever changes the set of subvolumes.
    pub(crate) subvolume_table: subvolume_table::SubvolumeTable,
    pub(crate) settle_hook: OnceLock<SettleHook>,
    /// Writes data back when space is short; false when there is none.
    pub(crate) shortage_hook: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
    /// Held by whoever does that.
    pub(crate) shortage: Mutex<(), { order::SHORTAGE }>,
    /// Held by whoever waits for the last of the reserve.
    pub(crate) scarcity: Mutex<(), { order::SCARCITY }>,
    /// How many do.
    pub(crate) in_turn: AtomicUsize,
    /// The last operation that needed tree space found none.
    pub(crate) trees_full: AtomicBool,
    pub(crate) settle_tasks: Mutex<Vec<SettleTask>, { order::FREEZE_TASKS }>,
    pub(crate) commit_wish: (Mutex<bool, { order::WISHES }>, Condvar),
    pub(crate) cleaning_wish: (Mutex<bool, { order::WISHES }>, Condvar),
    running: AtomicU64,
    incompat: AtomicU64,
    options: Options,
    data_policy: Mutex<DataPolicy, { order::DATA_POLICY }>,
    env: Env,
    globals: OnceLock<GlobalTrees>,
    trees: Mutex<FxHashMap<TreeId, Arc<Tree>>, { order::OPEN_TREES }>,
    /// Trees that may have something to record.
    unrecorded: Mutex<FxHashSet<TreeId>, { order::UNRECORDED }>,
    /// So many trees were left open when unused ones were last closed.
    trees_left: AtomicUsize,
    changes: AtomicU64,
    dirty_inodes: AtomicUsize,
    next_tree_id: AtomicU64,
    uuid_tree_current: AtomicBool,
    checksum_kind: ChecksumKind,
    sectorsize: u32,
    compat_ro: u64,
    read_only: AtomicBool,
}

impl Core {
    /// A filesystem whose trees are not yet open.
    pub fn new(volume: Arc<Volume>, superblock: Superblock, nodes: NodeCache, options: Options, env: Env) -> Core {
        let durable = superblock.generation();
        Core {
            space: Space::new(superblock.nodesize.get()),
            refs: RefQueue::default(),
            in_place: InPlaceWrites::default(),
            unshared: Unshared::default(),
            device_space: Mutex::default(),
            new_chunks: Mutex::default(),
            chunks_booked_ahead: Mutex::default(),
            booking_turn: Mutex::new(()),
            retired_chunks: Mutex::default(),
            cached_groups: OnceLock::new(),
            retirement_wish: AtomicBool::new(false),
            progress: Mutex::new(Progress {
                running: durable.next(),
                durable,
                handles: 0,
                settling: false,
                waiting: 0,
                aborted: None,
            }),
            changed: Condvar::new(),
            longest_stop: Default::default(),
            commit_lock: Mutex::new(()),
            log_blocks: Mutex::default(),
            log_places: Mutex::default(),
            logged_trees: Mutex::default(),
            grown_in: AtomicU64::new(0),
            placed_in: Mutex::default(),
            names_gate: RwLock::new(()),
            // What the secondary superblocks hold is not known: the first commit writes them before the primary one.
            order: crate::superblock_order::SuperblockOrder::new(durable.0, true),
            committed_devices: Mutex::new(volume.device_items()),
            recorded_stats: Mutex::default(),
            stale_items: Mutex::default(),
            last_states: Mutex::default(),
            durable_hook: OnceLock::new(),
            sharing: Mutex::new(()),
            subvolume_table: Default::default(),
            settle_hook: OnceLock::new(),
            shortage_hook: OnceLock::new(),
            shortage: Mutex::new(()),
            scarcity: Mutex::new(()),
            in_turn: AtomicUsize::new(0),
            trees_full: AtomicBool::new(false),
            settle_tasks: Mutex::default(),
            commit_wish: (Mutex::new(false), Condvar::new()),
            cleaning_wish: (Mutex::new(false), Condvar::new()),
            running: AtomicU64::new(durable.next().0),
            incompat: AtomicU64::new(superblock.incompat_flags.get()),
            globals: OnceLock::new(),
            trees: Mutex::default(),
            unrecorded: Mutex::default(),
            trees_left: AtomicUsize::new(0),
            changes: AtomicU64::new(0),
            dirty_inodes: AtomicUsize::new(0),
            next_tree_id: AtomicU64::new(0),
            uuid_tree_current: AtomicBool::new(superblock.uuid_tree_generation == superblock.generation),
            checksum_kind: superblock.checksum_kind().expect("the superblock was validated"),
            sectorsize: superblock.sectorsize.get(),
            compat_ro: superblock.compat_ro_flags.get(),
            read_only: AtomicBool::new(options.read_only),
            superblock: Mutex::new(superblock),
            volume,
            nodes,
            data_policy: Mutex::new(options.data),
            options,
            env,
        }
    }

    /// How the filesystem was opened.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// How new data is stored.
    pub fn data_policy(&self) -> DataPolicy {
        *self.data_policy.lock()
    }

    /// Stores data another way from now on.
    pub fn set_data_policy(&self, policy: DataPolicy) {
        *self.data_policy.lock() = policy;
    }

    /// Whether this bug was asked for.
    pub(crate) fn has_canary(&self, canary: Canary) -> bool {
        self.options.policies.canary == Some(canary)
    }

    /// Time, randomness, threads.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// The devices as one space.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Bytes of a sector.
    pub fn sectorsize(&self) -> u32 {
        self.sectorsize
    }

    /// Bytes of a tree block.
    pub fn nodesize(&self) -> u32 {
        self.nodes.nodesize()
    }

    /// The checksum of blocks and data.
    pub fn checksum_kind(&self) -> ChecksumKind {
        self.checksum_kind
    }

    /// The running transaction.
    pub fn generation(&self) -> Generation {
        Generation(self.running.load(Ordering::Acquire))
    }

    pub(crate) fn set_generation(&self, generation: Generation) {
        self.running.store(generation.0, Ordering::Release);
        self.nodes.change_identity(|identity| identity.super_generation = Generation(generation.0 - 1));
    }

    /// Whether the filesystem has an incompat feature.
    pub fn has_incompat(&self, bit: u64) -> bool {
        self.incompat.load(Ordering::Relaxed) & bit != 0
    }

    /// All incompat features, with those that the running transaction added.
    pub fn incompat(&self) -> u64 {
        self.incompat.load(Ordering::Relaxed)
    }

    /// Adds an incompat feature; it reaches the superblock with the running transaction.
    pub fn set_incompat(&self, bit: u64) {
        self.incompat.fetch_or(bit, Ordering::Relaxed);
        self.nodes.change_identity(|identity| identity.incompat |= bit);
    }

    /// Whether the filesystem has a compat_ro feature.
    pub fn has_compat_ro(&self, bit: u64) -> bool {
        self.compat_ro & bit != 0
    }

    /// Whether tree blocks have METADATA_ITEMs.
    pub(crate) fn skinny(&self) -> bool {
        self.has_incompat(incompat::SKINNY_METADATA)
    }

    /// Whether the free space tree is maintained.
    pub(crate) fn maintains_free_space_tree(&self) -> bool {
        self.has_compat_ro(compat_ro::FREE_SPACE_TREE_VALID) && self.globals().free_space.is_some()
    }

    /// Whether nothing may be written.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    /// Forbids writing, or allows it again (remount). The caller has committed.
    pub fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Ordering::Relaxed);
    }

    /// The last committed superblock.
    pub fn superblock(&self) -> Superblock {
        *self.superblock.lock()
    }

    /// Whether the UUID tree was complete when the filesystem was opened, and so stays complete.
    pub fn uuid_tree_current(&self) -> bool {
        self.uuid_tree_current.load(Ordering::Relaxed)
    }

    /// Says that the UUID tree is complete from now on.
    pub fn set_uuid_tree_current(&self) {
        self.uuid_tree_current.store(true, Ordering::Relaxed);
    }

    /// The global trees.
    pub fn globals(&self) -> &GlobalTrees {
        self.globals.get().expect("the global trees are opened first")
    }

    /// Sets the global trees, once.
    pub fn set_globals(&self, globals: GlobalTrees) {
        let all = [&globals.root, &globals.chunk, &globals.extent, &globals.dev, &globals.csum];
        let mut trees = self.trees.lock();
        let optional = [&globals.free_space, &globals.block_group];
        for tree in all.into_iter().chain(optional.into_iter().flatten()) {
            trees.insert(tree.id(), Arc::clone(tree));
        }
        drop(trees);
        assert!(self.globals.set(globals).is_ok(), "the global trees are opened once");
    }

    /// The tree with this id, opened from its root item. `ENOENT` when there is none, or it is deleted.
    pub fn tree(&self, id: TreeId) -> Result<Arc<Tree>> {
        let tree = self.tree_even_deleted(id)?;
        if id.is_subvolume() && tree.is_deleted() {
            return Err(deleted_subvolume(id));
        }
        Ok(tree)
    }

    /// The same; of a deleted subvolume the tree that is still in memory, if it is.
    pub fn tree_even_deleted(&self, id: TreeId) -> Result<Arc<Tree>> {
        if let Some(tree) = self.trees.lock().get(&id) {
            return Ok(Arc::clone(tree));
        }
        let tree = Arc::new(self.open_tree(&self.globals().root, id)?);
        let mut trees = self.trees.lock();
        Ok(Arc::clone(trees.entry(id).or_insert(tree)))
    }

    /// The root item of a tree as it is now: the one in memory if the tree is open, since what is stored follows only
    /// when the transaction settles; else `stored`.
    pub fn current_root_item(&self, id: TreeId, stored: RootItem) -> RootItem {
        self.trees.lock().get(&id).map_or(stored, |tree| tree.root_item())
    }

    /// Opens a tree from its root item in `root`, without remembering it.
    pub fn open_tree(&self, root: &Tree, id: TreeId) -> Result<Tree> {
        let behind = Key::new(id.0, KeyType(KeyType::ROOT_ITEM.0 + 1), 0);
        let found = root.last_before(self, behind)?;
        let found = found.filter(|(key, _)| key.objectid == id.0 && key.kind == KeyType::ROOT_ITEM);
        let Some((key, item)) = found else {
            return Err(Error::refused_at(Errno::ENOENT, format!("there is no tree {id}")));
        };
        let item = RootItem::parse(&item)
            .ok_or_else(|| Error::corrupt(format!("root item {key} has {} bytes", item.len())))?;
        if item.refs.get() == 0 && id.is_subvolume() {
            return Err(deleted_subvolume(id));
        }
        Ok(Tree::from_item(id, key.offset, item))
    }

    /// Makes a tree known that was made by the running transaction.
    pub fn remember_tree(&self, tree: Arc<Tree>) {
        self.trees.lock().insert(tree.id(), tree);
    }

    /// Looks once for the greatest number that is in use. Before anything can be deleted: a number that went with its
    /// tree would come again, while memory and whoever is served still know what had it.
    pub(crate) fn number_trees(&self) -> Result<()> {
        let behind = Key::new(Ino::LAST_FREE.0, KeyType(255), u64::MAX);
        let last = self.globals().root.last_before(self, behind)?.map_or(0, |(key, _)| key.objectid);
        self.next_tree_id.store(last.saturating_add(1).max(Ino::FIRST_FREE.0), Ordering::Relaxed);
        Ok(())
    }

    /// A number for a new subvolume. Numbers are not used again while the filesystem is open.
    pub fn next_tree_id(&self) -> Result<TreeId> {
        let id = TreeId(self.next_tree_id.fetch_add(1, Ordering::Relaxed));
        if !id.is_subvolume() {
            return Err(Error::refused(Errno::ENOSPC, "all subvolume numbers are used up"));
        }
        Ok(id)
    }

    /// Forgets a tree that was deleted.
    pub fn forget_tree(&self, id: TreeId) {
        self.trees.lock().remove(&id);
    }

    /// A tree may have something to record in this transaction.
    pub(crate) fn note_unrecorded(&self, id: TreeId) {
        self.unrecorded.lock().insert(id);
    }

    /// The trees that may have something to record, by id; each is noted again when it changes after this.
    pub(crate) fn take_unrecorded(&self) -> Vec<Arc<Tree>> {
        let noted = std::mem::take(&mut *self.unrecorded.lock());
        let trees = self.trees.lock();
        let mut taken: Vec<Arc<Tree>> = noted.iter().filter_map(|id| trees.get(id).cloned()).collect();
        taken.sort_unstable_by_key(|tree| tree.id());
        taken.iter().for_each(|tree| tree.looked_at());
        taken
    }

    /// Whether some tree has something to record.
    pub(crate) fn has_unrecorded(&self) -> bool {
        let noted = self.unrecorded.lock();
        let trees = self.trees.lock();
        noted.iter().filter_map(|id| trees.get(id)).any(|tree| tree.has_unrecorded())
    }

    /// Closes subvolumes that nobody uses when many are open, and twice as many as were left the last time. Trees with
    /// changes stay, and those that a snapshot of the running transaction shares, which only the tree in memory knows.
    pub(crate) fn close_unused_trees(&self) {
        /// They take some hundred bytes each.
        const MANY_TREES: usize = 256;
        let generation = self.generation().0;
        let mut trees = self.trees.lock();
        if trees.len() <= MANY_TREES.max(2 * self.trees_left.load(Ordering::Relaxed)) {
            return;
        }
        trees.retain(|id, tree| {
            let shared_now = tree.forced_cow.load(Ordering::Relaxed) >= generation;
            !id.is_subvolume() || Arc::strong_count(tree) > 1 || shared_now || tree.has_unrecorded()
        });
        self.trees_left.store(trees.len(), Ordering::Relaxed);
    }

    /// What runs first when a transaction settles. Set once.
    pub fn on_settle(&self, hook: SettleHook) {
        assert!(self.settle_hook.set(hook).is_ok(), "the settle hook is set once");
    }

    /// What writes data back when space is short. Set once.
    pub(crate) fn on_shortage(&self, hook: Box<dyn Fn() -> bool + Send + Sync>) {
        assert!(self.shortage_hook.set(hook).is_ok(), "the hook is set once");
    }

    /// What runs when a transaction is durable. Set once.
    pub(crate) fn on_durable(&self, hook: Box<dyn Fn(Generation) + Send + Sync>) {
        assert!(self.durable_hook.set(hook).is_ok(), "the hook is set once");
    }

    /// A number for a change of an inode; never 0, and never the same twice.
    pub(crate) fn next_change(&self) -> u64 {
        self.changes.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Has `task` done by the commit that the caller asks for next.
    pub fn when_settling(&self, task: SettleTask) {
        self.settle_tasks.lock().push(task);
    }

    /// Counts inodes that the settle hook will write, so that space is kept for them.
    pub fn count_dirty_inodes(&self, change: isize) {
        if change >= 0 {
            self.dirty_inodes.fetch_add(change as usize, Ordering::Relaxed);
        } else {
            self.dirty_inodes.fetch_sub(change.unsigned_abs(), Ordering::Relaxed);
        }
    }

    /// Inodes that the settle hook will write.
    pub(crate) fn dirty_inodes(&self) -> usize {
        self.dirty_inodes.load(Ordering::Relaxed)
    }
}

fn deleted_subvolume(id: TreeId) -> Error {
    Error::refused_at(Errno::ENOENT, format!("subvolume {id} is deleted"))
}
