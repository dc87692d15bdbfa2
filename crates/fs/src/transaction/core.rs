//! The state that an open filesystem keeps from one transaction to the next, below inodes.

use super::BlockSource;
use super::devices::Devices;
use super::dirty_inodes::DirtyInodes;
use super::discards::Discards;
use super::gate::Gate;
use super::in_place::InPlaceWrites;
use super::moved::Moved;
use super::subvolume_table::SubvolumeTable;
use super::tree::Tree;
use super::tree_table::{GlobalTrees, TreeTable};
use crate::env::Env;
use crate::error::{Errno, Error, Result};
use crate::node_io::{NodeCache, Work};
use crate::options::{Canary, DataPolicy, Options};
use crate::space::Space;
use crate::superblock_order::SuperblockOrder;
use butterfs_ondisk::features::{compat_ro, incompat};
use butterfs_ondisk::items::RootItem;
use butterfs_ondisk::superblock::Superblock;
use butterfs_ondisk::{ChecksumKind, Generation, Ino, Key, KeyType, TreeId};
use butterfs_sync::{Mutex, RwLock, order};
use butterfs_tree::NodePtr;
use butterfs_volume::Volume;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// See the [module](self).
pub struct Core {
    pub(crate) volume: Arc<Volume>,
    pub(crate) nodes: NodeCache,
    pub(crate) space: Space,
    pub(crate) gate: Gate,
    pub(crate) trees: TreeTable,
    pub(crate) dirty_inodes: DirtyInodes,
    pub(crate) devices: Devices,
    pub(crate) in_place: InPlaceWrites,
    /// Which extents have got another address.
    pub(crate) moved: Moved,
    /// The order of superblock writers.
    pub(crate) order: SuperblockOrder,
    /// The last committed one.
    pub(crate) superblock: Mutex<Superblock, { order::SUPERBLOCK }>,
    /// Held by whoever changes the set of subvolumes.
    pub(crate) subvolume_table: SubvolumeTable,
    /// Held shared by whoever changes names, exclusively by whoever logs them: CPU only.
    pub(crate) names_gate: RwLock<(), { order::NAMES }>,
    /// Held between looking up the references of a block that may be shared and changing them.
    pub(crate) sharing: Mutex<(), { order::SHARING }>,
    /// The last operation that needed tree space found none.
    pub(crate) trees_full: AtomicBool,
    pub(crate) costs: Costs,
    pub(crate) discards: Discards,
    options: Options,
    data_policy: Mutex<DataPolicy, { order::DATA_POLICY }>,
    env: Env,
    incompat: AtomicU64,
    compat_ro: u64,
    uuid_tree_current: AtomicBool,
    checksum_kind: ChecksumKind,
    sectorsize: u32,
    read_only: AtomicBool,
    /// The root that stands for a subvolume's own, for reading.
    another_root: OnceLock<NodePtr>,
}

/// The cost of work so far, for tests of its bounds.
#[derive(Default)]
pub(crate) struct Costs {
    /// Items of the extent tree that were looked at for keyed references.
    pub keyed_refs: AtomicU64,
    /// The most changes of references that were booked at once.
    pub most_booked: AtomicUsize,
    /// The most steps, and the most reads of nodes, of one stop of all handles since somebody asked.
    pub longest_stop: (AtomicU64, AtomicU64),
}

impl Costs {
    /// Everybody waited for this work.
    pub fn count_stop(&self, work: &Work) {
        self.longest_stop.0.fetch_max(work.steps(), Ordering::Relaxed);
        self.longest_stop.1.fetch_max(work.reads, Ordering::Relaxed);
    }
}

impl Core {
    /// A filesystem whose trees are not yet open.
    pub fn new(volume: Arc<Volume>, superblock: Superblock, nodes: NodeCache, options: Options, env: Env) -> Core {
        let durable = superblock.generation();
        let devices = Devices { committed: Mutex::new(volume.device_items()), ..Devices::default() };
        Core {
            space: Space::new(superblock.nodesize.get()),
            gate: Gate::new(durable),
            trees: TreeTable::default(),
            dirty_inodes: DirtyInodes::default(),
            devices,
            in_place: InPlaceWrites::default(),
            moved: Moved::default(),
            // What the secondary superblocks hold is not known: the first commit writes them before the primary one.
            order: SuperblockOrder::new(durable.0),
            subvolume_table: SubvolumeTable::default(),
            names_gate: RwLock::new(()),
            sharing: Mutex::new(()),
            trees_full: AtomicBool::new(false),
            costs: Costs::default(),
            discards: Discards::new(options.discard, options.policies.discard_delay()),
            incompat: AtomicU64::new(superblock.incompat_flags.get()),
            uuid_tree_current: AtomicBool::new(superblock.uuid_tree_generation == superblock.generation),
            checksum_kind: superblock.checksum_kind().expect("the superblock was validated"),
            sectorsize: superblock.sectorsize.get(),
            compat_ro: superblock.compat_ro_flags.get(),
            read_only: AtomicBool::new(options.read_only),
            another_root: OnceLock::new(),
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
        self.gate.generation()
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

    /// Removes incompat features that nothing on disk needs since the last commit.
    pub(super) fn clear_incompat(&self, bits: u64) {
        self.incompat.fetch_and(!bits, Ordering::Relaxed);
        self.nodes.change_identity(|identity| identity.incompat &= !bits);
    }

    /// Takes features back that the running transaction added.
    pub(crate) fn restore_features(&self, incompat: u64, uuid_tree_current: bool) {
        self.incompat.store(incompat, Ordering::Relaxed);
        self.uuid_tree_current.store(uuid_tree_current, Ordering::Relaxed);
        self.nodes.change_identity(|identity| identity.incompat = incompat);
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
        self.trees.globals()
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
        match self.trees.get(id) {
            Some(tree) => Ok(tree),
            None => Ok(self.trees.enter(self.open_tree(&self.globals().root, id)?)),
        }
    }

    /// Opens a tree from its root item in `root`, without remembering it.
    pub fn open_tree(&self, root: &Tree, id: TreeId) -> Result<Tree> {
        match self.stored_tree(root, id)? {
            Some(tree) if tree.is_deleted() && id.is_subvolume() => Err(deleted_subvolume(id)),
            Some(tree) => Ok(tree),
            None => Err(Error::refused_at(Errno::ENOENT, format!("there is no tree {id}"))),
        }
    }

    /// The same of any tree that has a root item in `root`.
    pub(crate) fn stored_tree(&self, root: &Tree, id: TreeId) -> Result<Option<Tree>> {
        self.stored_tree_from(self.into(), root, id)
    }

    /// The same with blocks from `source`.
    pub(crate) fn stored_tree_from(&self, source: BlockSource<'_>, root: &Tree, id: TreeId) -> Result<Option<Tree>> {
        let behind = Key::new(id.0, KeyType(KeyType::ROOT_ITEM.0 + 1), 0);
        let found = root.last_before(source, behind)?;
        let found = found.filter(|(key, _)| key.objectid == id.0 && key.kind == KeyType::ROOT_ITEM);
        let Some((key, item)) = found else { return Ok(None) };
        let item = RootItem::parse(&item)
            .ok_or_else(|| Error::corrupt(format!("root item {key} has {} bytes", item.len())))?;
        Ok(Some(Tree::from_item(id, key.offset, self.as_shown(id, item))))
    }

    /// From now on a subvolume begins there, and is the default one. Only for reading.
    pub(crate) fn show_another_root(&self, root: NodePtr) {
        assert!(self.is_read_only(), "another root is for reading");
        self.another_root.get_or_init(|| root);
    }

    /// The subvolume that is shown by another root than its own.
    pub(crate) fn shown_by_another_root(&self) -> Option<TreeId> {
        self.another_root.get().map(|root| root.tree)
    }

    fn as_shown(&self, id: TreeId, item: RootItem) -> RootItem {
        match self.another_root.get().filter(|root| root.tree == id) {
            Some(root) => {
                let (bytenr, generation) = (root.at.0.into(), root.generation.0.into());
                RootItem { bytenr, generation, level: root.level.get(), ..item }
            }
            None => item,
        }
    }

    /// Looks once for the greatest number of a subvolume that is in use.
    pub(crate) fn number_trees(&self) -> Result<()> {
        let behind = Key::new(Ino::LAST_FREE.0, KeyType(255), u64::MAX);
        let last = self.globals().root.last_before(self, behind)?.map_or(0, |(key, _)| key.objectid);
        self.trees.number_from(last);
        Ok(())
    }
}

fn deleted_subvolume(id: TreeId) -> Error {
    Error::refused_at(Errno::ENOENT, format!("subvolume {id} is deleted"))
}
