//! A filesystem opened without trust: tree blocks and data, each the best copy that there is.
//!
//! Invariants: (1) nothing is written: the devices are wrapped so that a write is refused; (2) opening fails only where
//! there is neither a superblock nor a scan that could stand in for one.

use crate::block::{Block, Expect, Family, Quality};
use crate::cache::Cache;
use crate::chunks::{Chosen, Knowledge, Origin, number_devices};
use crate::index::{Found, Index, Segment};
use crate::key::KeyRange;
use crate::log_layer::{self, Layer, Layers};
use crate::roots::{Roots, Source};
use crate::seeds::Seeds;
use crate::superblocks::{self, SuperblockCopy};
use crate::tree::{Losses, Root, Tree};
use crate::trust::Trust;
use crate::{Result, error};
use butterfs_device::{BlockDevice, ReadOnlyDevice};
use butterfs_ondisk::chunk::{Chunk, ChunkLimits};
use butterfs_ondisk::features::{compat_ro, describe, incompat};
use butterfs_ondisk::header::Header;
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_ondisk::items::{DevExtent, DevItem, ExtentItem, InlineRef, TreeBlockInfo, extent_flags};
use butterfs_ondisk::superblock::Superblock;
use butterfs_ondisk::{ChecksumKind, DeviceId, Key, KeyType, Logical, TreeId};
use butterfs_tree::BlockIdentity;
use butterfs_volume::{ChunkMap, Layout, StripeAddress, Volume};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use zerocopy::FromBytes;

/// How to open a wreck.
#[derive(Debug, Default)]
pub struct Opening {
    /// Only this copy of the superblock counts.
    pub super_copy: Option<usize>,
    /// The findings of a scan.
    pub index: Option<Index>,
    /// The identity that a scan has found, for devices without a superblock.
    pub identity: Option<Identity>,
    /// Feature bits that do not count.
    pub ignored_features: u64,
    /// The chunk tree begins here.
    pub chunk_root: Option<u64>,
}

/// The identity of a filesystem, as its blocks have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The UUID in every block.
    pub fsid: [u8; 16],
    /// Bytes of a tree block.
    pub nodesize: u32,
    /// The checksum.
    pub checksum: ChecksumKind,
}

type Segments = Arc<Vec<Segment>>;

/// See the [module](self).
#[derive(Debug)]
pub struct Wreck {
    devices: Vec<Arc<dyn BlockDevice>>,
    volume: Volume,
    /// Bytes of each device, by its number.
    lengths: FxHashMap<u64, u64>,
    superblock: Superblock,
    family: Family,
    chosen: Chosen,
    /// The item of each device, by its place.
    items: Vec<Option<DevItem>>,
    /// All device items that any leaf has.
    found_items: Vec<DevItem>,
    /// The devices of filesystems from which this one has sprouted.
    pub(crate) seeds: Seeds,
    index: Option<Index>,
    cache: Cache,
    stand_ins: Mutex<FxHashMap<(u64, u64, u64), Segments>>,
    /// Devices that have missed commits, and that the filesystem can do without.
    behind: Vec<DeviceId>,
    /// The extent tree of the last commit, where that is known.
    extents: Mutex<Option<Root>>,
    /// Of snapshots, the subvolume that they were taken of, and when: they share its leaves.
    origins: Mutex<FxHashMap<TreeId, (TreeId, u64)>>,
    /// The log, laid over the trees of the last commit.
    layers: Layers,
    /// Blocks of the log that are gone.
    log_losses: Losses,
    /// Sentences for the user about how it was opened.
    pub notes: Vec<String>,
    /// Sentences about what may be missing or old although nothing is damaged there.
    pub cautions: Vec<String>,
}

/// Features that say where things lie, and that nobody here understands.
const BEYOND: u64 = incompat::RAID_STRIPE_TREE | incompat::EXTENT_TREE_V2 | incompat::REMAP_TREE;

impl Wreck {
    /// Opens the filesystem on these devices, as many of its devices as there are.
    pub fn open(devices: Vec<Arc<dyn BlockDevice>>, opening: Opening) -> Result<Wreck> {
        let devices: Vec<Arc<dyn BlockDevice>> =
            devices.into_iter().map(|device| Arc::new(ReadOnlyDevice::new(device)) as Arc<dyn BlockDevice>).collect();
        let mut notes = Vec::new();
        let mut copies = superblocks::copies(&devices);
        if let Some(wanted) = opening.super_copy {
            copies.retain(|copy| copy.copy == wanted);
        }
        let superblock = choose_superblock(&copies, &opening, &mut notes)?;
        refuse_unknown(&superblock, opening.ignored_features)?;
        let known = superblocks::by_device(&copies, devices.len(), &superblock.fsid);
        let mut items: Vec<Option<DevItem>> = known.iter().map(|sb| sb.map(|sb| sb.dev_item)).collect();
        let seeds = Seeds::of(superblocks::of_others(&copies, devices.len(), &superblock), &mut items);
        let mut wreck = Wreck {
            volume: Volume::of_devices(Vec::new()),
            lengths: FxHashMap::default(),
            family: Family::of(&superblock).with_seeds(&seeds.fsids()),
            devices,
            superblock,
            chosen: Chosen::default(),
            items: Vec::new(),
            found_items: Vec::new(),
            seeds,
            index: opening.index,
            cache: Cache::default(),
            stand_ins: Mutex::default(),
            behind: Vec::new(),
            extents: Mutex::default(),
            origins: Mutex::default(),
            layers: Layers::default(),
            log_losses: Losses::default(),
            notes,
            cautions: Vec::new(),
        };
        wreck.find_chunks(items, opening.chunk_root);
        let behind: Vec<bool> =
            (0..wreck.devices.len()).map(|place| superblocks::is_behind(&copies, place, &wreck.superblock)).collect();
        wreck.note_behind(&behind);
        wreck.find_log(&copies);
        wreck.correct_levels();
        Ok(wreck)
    }

    /// Lays the log over the trees of the last commit, as much of it as can be read: for a log that cannot be replayed.
    pub fn lay_log_over(&mut self) {
        let laid = log_layer::of(self);
        (self.layers, self.log_losses) = (laid.layers, laid.losses);
        self.cautions.extend(laid.notes);
    }

    /// The part of the log that lies over a tree.
    pub(crate) fn layer(&self, root: &Root) -> Option<&Layer> {
        self.layers.get(&(root.tree, root.at))
    }

    /// Blocks that are gone of a log that was laid over the last commit.
    pub(crate) fn log_losses(&self) -> &Losses {
        &self.log_losses
    }

    /// Uses the log that a damaged primary superblock names, if its first block is good: the other copies name none.
    fn find_log(&mut self, copies: &[SuperblockCopy]) {
        let last = self.superblock;
        let is_of_last = |sb: &&Superblock| sb.fsid == last.fsid && sb.generation == last.generation;
        let primaries = copies.iter().filter(|copy| copy.copy == 0 && copy.content.is_err());
        if last.log_root.get() != 0 || primaries.clone().next().is_none() {
            return;
        }
        for sb in primaries.filter_map(|copy| copy.remains.as_deref()).filter(is_of_last) {
            let (at, generation) = (Logical(sb.log_root.get()), last.generation.get().saturating_add(1));
            let root = Expect::root(TreeId::TREE_LOG, at, Some(sb.log_root_level), Some(generation));
            let block = self.block(&root).filter(|block| at.0 != 0 && block.quality.trust() == Trust::Proved);
            if let Some(block) = block {
                let level = block.node.level().get();
                (self.superblock.log_root, self.superblock.log_root_level) = (sb.log_root, level);
                self.notes.push("the log is that of a damaged primary superblock".to_owned());
                return;
            }
        }
        self.cautions.push(
            "a primary superblock is damaged, and only that names the log: what was synced after the last commit may \
             be missing"
                .to_owned(),
        );
    }

    /// Gives the roots that the superblock names the levels of their blocks.
    fn correct_levels(&mut self) {
        let sb = &self.superblock;
        let generation = sb.generation.get();
        let roots = [
            (TreeId::ROOT, sb.root.get(), sb.root_level, generation),
            (TreeId::CHUNK, sb.chunk_root.get(), sb.chunk_root_level, sb.chunk_root_generation.get()),
            (TreeId::TREE_LOG, sb.log_root.get(), sb.log_root_level, generation.saturating_add(1)),
        ];
        let levels = roots.map(|(tree, at, level, generation)| {
            let want = Expect::root(tree, Logical(at), Some(level), Some(generation));
            let block = self.block(&want).filter(|block| at != 0 && block.quality == Quality::Good);
            block.map_or(level, |block| block.node.level().get())
        });
        let sb = &mut self.superblock;
        [sb.root_level, sb.chunk_root_level, sb.log_root_level] = levels;
    }

    /// Remembers which devices have missed commits. Where the filesystem needs them nevertheless, they count as whole.
    fn note_behind(&mut self, is_behind: &[bool]) {
        let numbers = self.numbers();
        let places = (0..numbers.len()).filter(|place| is_behind[*place]);
        let behind: Vec<(usize, DeviceId)> = places.filter_map(|place| Some((place, numbers[place]?))).collect();
        let ids: Vec<DeviceId> = behind.iter().map(|(_, id)| *id).collect();
        if ids.is_empty() {
            return;
        }
        // Older chunk trees know chunks that are gone.
        let is_current = |start: u64| {
            let of_last = |(known, origin): &(u64, Origin)| *known == start && *origin >= Origin::ChunkTree;
            self.chosen.origins.iter().any(of_last)
        };
        let mut map = ChunkMap::default();
        for chunk in self.chosen.map.iter().filter(|chunk| is_current(chunk.start.0)) {
            // They are taken from a map, so none overlaps another one.
            let _ = map.insert(chunk.clone());
        }
        if !self.volume.can_do_without(&map, &ids) {
            return;
        }
        self.cautions.extend(behind.iter().map(|(place, _)| superblocks::behind_note(&*self.devices[*place])));
        self.behind = ids;
    }

    /// Whether some device has missed commits that others have.
    pub fn has_devices_behind(&self) -> bool {
        !self.behind.is_empty()
    }

    /// Whether this device has missed commits that others have.
    pub fn is_behind(&self, id: DeviceId) -> bool {
        self.behind.contains(&id)
    }

    /// Whether a copy of a byte of the logical space lies on a device that has missed commits, or is computed from one.
    pub fn is_on_device_behind(&self, at: Logical, copy: usize) -> bool {
        if self.behind.is_empty() {
            return false;
        }
        let Some(layout) = self.chosen.map.get(at).and_then(|chunk| Layout::of(chunk).ok()) else { return false };
        if copy >= layout.mirrors() {
            return layout.chunk().stripes.iter().any(|stripe| self.is_behind(stripe.device));
        }
        let piece = layout.pieces(at, 1).next();
        piece.is_some_and(|piece| {
            let address = layout.stripe_address(&piece, copy);
            self.is_behind(layout.chunk().stripes[address.stripe].device)
        })
    }

    /// The superblock that counts; without one, what could be put together.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The devices, read-only.
    pub fn devices(&self) -> &[Arc<dyn BlockDevice>] {
        &self.devices
    }

    /// The chunks, and where they are known from.
    pub fn chunks(&self) -> &Chosen {
        &self.chosen
    }

    /// The logical space.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// The item of each device, by its place, as far as it is known.
    pub fn device_items(&self) -> &[Option<DevItem>] {
        &self.items
    }

    /// The device items that leaves have, also of devices that are not here.
    pub fn found_device_items(&self) -> &[DevItem] {
        &self.found_items
    }

    /// Whether it is a device of a seed filesystem, from which this one has sprouted: those are only read.
    pub fn is_seed(&self, id: DeviceId) -> bool {
        self.seeds.has(id)
    }

    /// The number of each device, by its place, as far as it is known.
    pub fn numbers(&self) -> Vec<Option<DeviceId>> {
        self.items.iter().map(|item| item.map(|item| DeviceId(item.devid.get()))).collect()
    }

    /// The rules for a block that is written.
    pub(crate) fn identity(&self, chunk_tree_uuid: [u8; 16]) -> BlockIdentity {
        BlockIdentity { chunk_tree_uuid, ..self.family.identity() }
    }

    /// Whether a byte of the logical space lies on a device that is there, in any copy.
    pub fn has_storage(&self, at: Logical) -> bool {
        let Some(chunk) = self.chosen.map.get(at) else { return false };
        let Ok(layout) = Layout::of(chunk) else { return false };
        let Some(piece) = layout.pieces(at, 1).next() else { return false };
        let is_there = |address: StripeAddress| {
            let device = self.lengths.get(&chunk.stripes[address.stripe].device.0);
            device.is_some_and(|len| address.physical.0 < *len)
        };
        let computed = layout.parity() > 0;
        computed || (0..layout.mirrors()).any(|mirror| is_there(layout.stripe_address(&piece, mirror)))
    }

    /// The findings of a scan.
    pub fn index(&self) -> Option<&Index> {
        self.index.as_ref()
    }

    /// Bytes of a sector.
    pub fn sectorsize(&self) -> u64 {
        u64::from(self.superblock.sectorsize.get())
    }

    /// Bytes of a tree block.
    pub fn nodesize(&self) -> usize {
        self.superblock.nodesize.get() as usize
    }

    /// The checksum.
    pub fn checksum(&self) -> ChecksumKind {
        self.family.checksum
    }

    /// Fills the chunk map: from the superblock, the chunk tree, and what a scan has found.
    fn find_chunks(&mut self, mut items: Vec<Option<DevItem>>, chunk_root: Option<u64>) {
        let limits = ChunkLimits::from(&self.superblock);
        let mut knowledge = Knowledge::default();
        knowledge.learn_superblock(&self.superblock);
        self.use_chunks(&knowledge, &limits, &items);
        let mut is_whole = None;
        for (at, level, generation) in self.chunk_roots(chunk_root) {
            let root = Expect::root(TreeId::CHUNK, Logical(at), level, generation);
            let origin = if is_whole.is_none() { Origin::ChunkTree } else { Origin::FoundLeaf };
            let read = self.learn_below(&root, &mut knowledge, &limits, origin);
            is_whole.get_or_insert(read);
            self.use_chunks(&knowledge, &limits, &items);
        }
        self.settle_seeds(&knowledge, &mut items);
        self.use_chunks(&knowledge, &limits, &items);
        if self.index.is_some() {
            self.learn_found(TreeId::CHUNK, &mut knowledge, &limits);
            self.number_unknown(&knowledge, &mut items);
        } else if let [None] = items[..] {
            items[0] = knowledge.device_items().next().copied();
        }
        self.move_starts(&mut knowledge, &limits, &items);
        // A chunk that lost its item is still known from its device extents.
        let is_complete = is_whole == Some(true) && self.has_all_device_extents();
        if !is_complete {
            self.use_chunks(&knowledge, &limits, &items);
            self.learn_trees(&mut knowledge, &limits);
            OF_CHUNKS.into_iter().for_each(|tree| self.learn_found(tree, &mut knowledge, &limits));
        }
        self.use_chunks(&knowledge, &limits, &items);
        self.prove_by_checksums(&knowledge, &limits);
        self.found_items = knowledge.device_items().copied().collect();
        self.items = items;
        self.move_stripes();
        self.note_missing_seeds();
        self.cache.clear();
        let guessed = self.chosen.origins.iter().filter(|(_, origin)| *origin == Origin::DeviceExtents).count();
        if guessed > 0 {
            self.notes.push(format!("{guessed} chunks are known from device extents only"));
        }
        self.notes.extend(self.chosen.lost.clone());
    }

    /// Adds the chunks of which only the checksums of their data say in which order their stripes are.
    fn prove_by_checksums(&mut self, knowledge: &Knowledge, limits: &ChunkLimits) {
        let mut lost = knowledge.starts();
        lost.retain(|start| self.chosen.map.get(Logical(*start)).is_none());
        for chunk in knowledge.unordered(&lost, limits) {
            let Some(chunk) = crate::order::proven(self, chunk) else { continue };
            let start = chunk.start.0;
            if self.chosen.map.insert(chunk).is_ok() {
                self.chosen.origins.push((start, Origin::DeviceExtents));
                self.chosen.lost.retain(|sentence| !sentence.starts_with(&format!("chunk {start}:")));
            }
        }
        self.volume.set_chunk_map(self.chosen.map.clone());
    }

    /// Moves chunks of trees to where their tree blocks say, if the root tree can be read only then.
    fn move_starts(&mut self, knowledge: &mut Knowledge, limits: &ChunkLimits, items: &[Option<DevItem>]) {
        let (at, level, generation) = self.superblock.tree_root();
        let root = Expect::root(TreeId::ROOT, at, Some(level.0), Some(generation.0));
        self.cache.clear();
        if self.block(&root).is_some() {
            return;
        }
        let of_trees = |chunk: &Chunk| chunk.kind & bits::METADATA != 0;
        for chunk in knowledge.chunks().into_iter().filter(of_trees) {
            let mut bytes = vec![0; self.nodesize()];
            let start = butterfs_volume::claimed_start(&chunk, self.nodesize() as u64, &mut |device, physical| {
                self.volume.read_device(device, physical, &mut bytes).ok()?;
                let at = Logical(Header::read_from_prefix(&bytes).ok()?.0.bytenr.get());
                self.is_block_of(at, &bytes).then_some(at)
            });
            let Some(start) = start.filter(|start| *start != chunk.start) else { continue };
            knowledge.move_chunk(chunk.start, start);
            self.use_chunks(knowledge, limits, items);
            self.cache.clear();
            if self.block(&root).is_some() {
                self.notes.push(format!(
                    "chunk {}: its tree blocks say that it begins at {}; 'butterfs rescue chunk-recover' repairs the \
                     chunk's item",
                    chunk.start.0, start.0
                ));
                return;
            }
            knowledge.move_chunk(start, chunk.start);
            self.use_chunks(knowledge, limits, items);
            self.cache.clear();
        }
    }

    /// Believes the device tree about places of stripes where what lies there fits its checksums, and what lies at the
    /// place that the chunk's item names does not.
    fn move_stripes(&mut self) {
        let moved = crate::stripes::moved(self, &self.roots_of_last_commit());
        if moved.is_empty() {
            return;
        }
        let is_same = |chunk: &Chunk| !moved.iter().any(|moved| moved.from == chunk.start);
        let kept: Vec<Chunk> = self.chosen.map.iter().filter(|chunk| is_same(chunk)).cloned().collect();
        self.chosen.map = ChunkMap::default();
        let (chunks, notes): (Vec<Chunk>, Vec<String>) =
            moved.into_iter().map(|moved| (moved.chunk, moved.sentence)).unzip();
        for chunk in kept.into_iter().chain(chunks) {
            let start = chunk.start;
            if self.chosen.map.insert(chunk).is_err() {
                self.notes.push(format!("chunk {start}: it contradicts other chunks"));
            }
        }
        self.notes.extend(notes);
        self.volume.set_chunk_map(self.chosen.map.clone());
    }

    /// Whether these bytes are a tree block of the filesystem at an address, with the right checksum.
    pub(crate) fn is_block_of(&self, at: Logical, bytes: &[u8]) -> bool {
        let want = Expect::root(TreeId(0), at, None, None);
        self.family.has_checksum(bytes) && self.family.grade(bytes, &want).is_some()
    }

    /// Roots that the chunk tree may have, the one that counts first.
    fn chunk_roots(&self, asked: Option<u64>) -> Vec<(u64, Option<u8>, Option<u64>)> {
        if let Some(at) = asked {
            return vec![(at, None, None)];
        }
        let sb = &self.superblock;
        let own = (sb.chunk_root.get(), Some(sb.chunk_root_level), Some(sb.chunk_root_generation.get()));
        let slots = sb.super_roots.iter().filter(|slot| slot.chunk_root.get() != 0);
        let older =
            slots.map(|slot| (slot.chunk_root.get(), Some(slot.chunk_root_level), Some(slot.chunk_root_gen.get())));
        let mut roots: Vec<_> = [own].into_iter().chain(older).collect();
        let mut seen = FxHashSet::default();
        roots.retain(|(at, _, generation)| *at != 0 && seen.insert((*at, *generation)));
        roots
    }

    fn use_chunks(&mut self, knowledge: &Knowledge, limits: &ChunkLimits, items: &[Option<DevItem>]) {
        let numbers: Vec<Option<DeviceId>> =
            items.iter().map(|item| item.map(|item| DeviceId(item.devid.get()))).collect();
        self.chosen = knowledge.choose(limits, self.index.as_ref(), &numbers);
        let mut given = FxHashSet::default();
        let members = items.iter().zip(&self.devices).filter_map(|(item, device)| Some(((*item)?, device.clone())));
        let members: Vec<_> = members.filter(|(item, _)| given.insert(item.devid.get())).collect();
        self.lengths = members.iter().map(|(item, device)| (item.devid.get(), device.len())).collect();
        self.volume = Volume::of_devices(members);
        self.volume.set_chunk_map(self.chosen.map.clone());
    }

    /// Reads all leaves below a block; says whether all of them are sound.
    fn learn_below(&self, root: &Expect, knowledge: &mut Knowledge, limits: &ChunkLimits, origin: Origin) -> bool {
        let Some(block) = self.block(root).filter(|block| block.fits(&root.window)) else { return false };
        let is_good = block.quality == Quality::Good;
        if block.node.is_leaf() {
            knowledge.learn_leaf(&block.node, limits, if is_good { origin } else { Origin::FoundLeaf });
            return is_good;
        }
        let below = crate::tree::children(&block.node, root, KeyRange::ALL);
        below.fold(is_good, |all, child| self.learn_below(&child, knowledge, limits, origin) && all)
    }

    /// Whether all device extents of the last commit, as far as they can be read, belong to chunks that are known.
    fn has_all_device_extents(&self) -> bool {
        let roots = self.roots_of_last_commit();
        let Some(root) = roots.trees.get(&TreeId::DEV) else { return true };
        let mut has_all = true;
        Tree::new(self, root.root).scan(Key::MIN, Key::MAX, &mut |key, data, _| {
            let extent = DevExtent::read_from_prefix(data).ok().filter(|_| key.kind == KeyType::DEV_EXTENT);
            has_all &=
                extent.is_none_or(|(extent, _)| self.chosen.map.get(Logical(extent.chunk_offset.get())).is_some());
            if has_all { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        has_all
    }

    pub(crate) fn roots_of_last_commit(&self) -> Roots {
        let (at, level, generation) = self.superblock.tree_root();
        let root = Root { tree: TreeId::ROOT, at: at.0, level: Some(level.0), generation: Some(generation.0) };
        Roots::of(self, root, Source::Current)
    }

    /// Reads device extents and block groups of the last commit, as far as they can be read.
    fn learn_trees(&self, knowledge: &mut Knowledge, limits: &ChunkLimits) {
        let roots = self.roots_of_last_commit();
        for tree in OF_CHUNKS.into_iter().filter_map(|tree| roots.trees.get(&tree)) {
            let of_tree = tree.root.generation.unwrap_or_default();
            Tree::new(self, tree.root).scan(Key::MIN, Key::MAX, &mut |key, data, _| {
                if matches!(key.kind, KeyType::DEV_EXTENT | KeyType::BLOCK_GROUP_ITEM) {
                    knowledge.learn_item(key, data, of_tree, limits, Origin::DeviceExtents);
                }
                ControlFlow::Continue(())
            });
        }
    }

    /// Reads all leaves of a tree that a scan has found.
    fn learn_found(&self, tree: TreeId, knowledge: &mut Knowledge, limits: &ChunkLimits) {
        let Some(index) = &self.index else { return };
        let mut seen = FxHashSet::default();
        for found in index.of(tree, 0) {
            if seen.insert((found.logical, found.generation))
                && let Some(block) = self.found_block(found)
            {
                knowledge.learn_leaf(&block.node, limits, Origin::FoundLeaf);
            }
        }
    }

    /// Believes the chunk tree about which of the other filesystems' devices belong here.
    fn settle_seeds(&mut self, knowledge: &Knowledge, items: &mut [Option<DevItem>]) {
        let known: Vec<DevItem> = knowledge.device_items().copied().collect();
        for place in self.seeds.settle(&known, items) {
            self.index = self.index.take().map(|index| index.without_device(place));
            let name = self.devices[place].name();
            self.cautions.push(format!("{name} belongs to another filesystem, and not to a seed of this one"));
        }
        self.family = self.family.with_seeds(&self.seeds.fsids());
        self.cache.clear();
    }

    /// Names the devices of seeds that are missing although chunks lie on them.
    fn note_missing_seeds(&mut self) {
        let is_there = |id: u64| self.items.iter().flatten().any(|item| item.devid.get() == id);
        let own = [self.superblock.fsid, self.superblock.block_fsid()];
        let is_of_seed = |item: &&DevItem| item.fsid != [0; 16] && !own.contains(&item.fsid);
        let has_chunks = |id: u64| {
            let mut stripes = self.chosen.map.iter().flat_map(|chunk| &chunk.stripes);
            stripes.any(|stripe| stripe.device.0 == id)
        };
        let missing = self.found_items.iter().filter(is_of_seed).filter(|item| !is_there(item.devid.get()));
        let missing = missing.filter(|item| has_chunks(item.devid.get()));
        self.cautions.extend(missing.map(|item| {
            format!(
                "device {} is missing: it belongs to the seed filesystem {}, from which this one has sprouted; what \
                 lies on it is read only when it is given too",
                item.devid,
                uuid::Uuid::from_bytes(item.fsid)
            )
        }));
    }

    fn number_unknown(&mut self, knowledge: &Knowledge, items: &mut [Option<DevItem>]) {
        let Some(index) = &self.index else { return };
        let known: Vec<Option<DeviceId>> =
            items.iter().map(|item| item.map(|item| DeviceId(item.devid.get()))).collect();
        // A device of another filesystem has a number of its own.
        let others: Vec<usize> = self.seeds.rejected().to_vec();
        let all: Vec<&DevItem> = knowledge.device_items().collect();
        let ids: Vec<DeviceId> = all.iter().map(|item| DeviceId(item.devid.get())).collect();
        let numbers = number_devices(&known, &ids, &knowledge.chunks(), index);
        for (place, (item, number)) in items.iter_mut().zip(numbers).enumerate() {
            if others.contains(&place) {
                continue;
            }
            let of_number = |number: DeviceId| all.iter().find(|item| item.devid.get() == number.0).map(|item| **item);
            // Where no device item is left either, one device can only be the first.
            let alone = (known.len() == 1).then(|| DevItem { devid: 1.into(), ..DevItem::default() });
            *item = item.or_else(|| number.and_then(of_number)).or(alone);
        }
    }

    /// The best copy of a tree block, whoever knows where it lies.
    pub fn block(&self, want: &Expect) -> Option<Arc<Block>> {
        let identity = (want.at.0, want.generation, want.level, want.tree.0, want.window);
        if let Some(known) = self.cache.get(&identity) {
            return known;
        }
        let read = self.read_block(want);
        let found = read.and_then(|block| self.with_level_confirmed(block, want)).map(Arc::new);
        self.cache.put(identity, found.clone(), self.nodesize());
        found
    }

    fn read_block(&self, want: &Expect) -> Option<Block> {
        let mut bytes = vec![0; self.nodesize()];
        let mut best: Option<Block> = None;
        let better = |block: Option<Block>, best: &mut Option<Block>| {
            if let Some(block) = block.filter(|block| best.as_ref().is_none_or(|best| block.quality < best.quality)) {
                *best = Some(block);
            }
            best.as_ref().is_some_and(|best| best.quality == Quality::Good)
        };
        for copy in 0..self.volume.copies(want.at) {
            if self.volume.read_copy(want.at, copy, &mut bytes).is_ok()
                && better(self.family.grade(&bytes, want), &mut best)
            {
                return best;
            }
        }
        for found in self.index.iter().flat_map(|index| index.at(want.at.0)) {
            let is_wanted = want.generation.is_none_or(|generation| generation == found.generation);
            if is_wanted && self.read_at(found, &mut bytes) && better(self.family.grade(&bytes, want), &mut best) {
                return best;
            }
        }
        best
    }

    /// The first copy of a block that fits but for one field of its header.
    pub(crate) fn read_with_header_corrected(&self, want: &Expect) -> Option<Block> {
        let mut bytes = vec![0; self.nodesize()];
        (0..self.volume.copies(want.at)).find_map(|copy| {
            let read = self.volume.read_copy(want.at, copy, &mut bytes);
            read.ok().and_then(|_| self.family.with_header_corrected(&bytes, want))
        })
    }

    fn read_at(&self, found: &Found, bytes: &mut [u8]) -> bool {
        self.devices.get(usize::from(found.device)).is_some_and(|device| device.read_at(found.physical, bytes).is_ok())
    }

    /// A block where a scan has found it.
    pub fn found_block(&self, found: &Found) -> Option<Arc<Block>> {
        let tree = TreeId(found.owner);
        let want = Expect::root(tree, Logical(found.logical), Some(found.level), Some(found.generation));
        let identity = (found.logical, want.generation, want.level, found.owner, want.window);
        if let Some(Some(known)) = self.cache.get(&identity) {
            return Some(known);
        }
        let mut bytes = vec![0; self.nodesize()];
        let block = self.read_at(found, &mut bytes).then(|| self.family.grade(&bytes, &want)).flatten();
        let block = block.filter(|block| block.quality == Quality::Good).map(Arc::new);
        if block.is_some() {
            self.cache.put(identity, block.clone(), self.nodesize());
        }
        block
    }

    /// Remembers of which subvolume a snapshot was taken, and when.
    pub(crate) fn note_origin(&self, snapshot: TreeId, source: TreeId, generation: u64) {
        if self.origins.lock().insert(snapshot, (source, generation)).is_none() {
            self.stand_ins.lock().clear();
        }
    }

    /// The subvolumes that a tree may share blocks with because it is a snapshot of them, the nearest first.
    pub(crate) fn origins_of(&self, tree: TreeId) -> Vec<TreeId> {
        let writers = self.writers(&Expect::root(tree, Logical(0), None, None));
        writers.into_iter().skip(1).map(|(origin, _)| origin).collect()
    }

    /// The trees that have written blocks of a tree, and up to which generation.
    fn writers(&self, want: &Expect) -> Vec<(TreeId, u64)> {
        let mut writers = vec![(want.tree, want.generation.unwrap_or(u64::MAX))];
        let origins = self.origins.lock();
        while let Some((source, taken)) = origins.get(&writers[writers.len() - 1].0) {
            if writers.len() == MOST_ORIGINS || writers.iter().any(|(known, _)| known == source) {
                break;
            }
            let until = writers[writers.len() - 1].1.min(*taken);
            writers.push((*source, until));
        }
        writers
    }

    /// Remembers the extent tree of the last commit: it confirms leaves that stand for lost ones.
    pub(crate) fn note_extents(&self, extents: Root) {
        *self.extents.lock() = Some(extents);
        self.stand_ins.lock().clear();
        self.cache.clear();
    }

    /// The root of the extent tree of the last commit, where that is known.
    pub(crate) fn extent_root(&self) -> Option<Root> {
        *self.extents.lock()
    }

    /// Leaves that a scan has found and that stand for what a lost block had.
    pub(crate) fn stand_ins(&self, want: &Expect) -> Segments {
        let Some(index) = &self.index else { return Segments::default() };
        let identity = (want.tree.0, want.at.0, want.generation.unwrap_or(u64::MAX));
        if let Some(known) = self.stand_ins.lock().get(&identity) {
            return Arc::clone(known);
        }
        // Without the lock: the extent tree may have lost blocks too.
        let extents = self.extents.lock().filter(|_| want.tree.is_subvolume());
        let is_confirmed = |found: &Found| extents.is_some_and(|extents| self.is_in_use(extents, want.tree, found));
        let made = Arc::new(index.segments(&self.writers(want), &want.window, &is_confirmed));
        let mut known = self.stand_ins.lock();
        if known.len() > MOST_STAND_INS {
            known.clear();
        }
        known.insert(identity, Arc::clone(&made));
        made
    }

    /// Whether an extent tree has this block, of this generation, for this tree.
    fn is_in_use(&self, extents: Root, tree: TreeId, found: &Found) -> bool {
        let key = |kind, offset| Key::new(found.logical, kind, offset);
        let (mut is_there, mut is_of_tree) = (false, false);
        let (first, last) = (key(KeyType::EXTENT_ITEM, 0), key(KeyType::TREE_BLOCK_REF, u64::MAX));
        Tree::new(self, extents).scan(first, last, &mut |key, data, quality| {
            if quality.trust() != Trust::Proved {
                return ControlFlow::Break(());
            }
            match key.kind {
                KeyType::TREE_BLOCK_REF => is_of_tree |= key.offset == tree.0,
                KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM => {
                    let (generation, own) = tree_block(key, data).unwrap_or_default();
                    is_there |= generation == found.generation;
                    is_of_tree |= own.contains(&tree.0);
                }
                _ => {}
            }
            ControlFlow::Continue(())
        });
        is_there && is_of_tree
    }
}

/// The generation of a tree block and the trees that it belongs to, by its extent item.
pub(crate) fn tree_block(key: Key, data: &[u8]) -> Option<(u64, Vec<u64>)> {
    let (item, mut rest) = ExtentItem::read_from_prefix(data).ok()?;
    if key.kind == KeyType::EXTENT_ITEM {
        (_, rest) = TreeBlockInfo::read_from_prefix(rest).ok()?;
    }
    let is_block = item.flags.get() & extent_flags::TREE_BLOCK != 0;
    let mut trees = Vec::new();
    while let Ok((reference, more)) = InlineRef::read_from_prefix(rest) {
        if reference.kind == KeyType::TREE_BLOCK_REF.0 {
            trees.push(reference.offset.get());
        }
        rest = more;
    }
    is_block.then_some((item.generation.get(), trees))
}

/// Trees that say where chunks are, beside the chunk tree.
const OF_CHUNKS: [TreeId; 3] = [TreeId::DEV, TreeId::BLOCK_GROUP, TreeId::EXTENT];

/// Snapshots of snapshots of snapshots.
const MOST_ORIGINS: usize = 16;

/// Lost blocks whose stand-ins are remembered.
const MOST_STAND_INS: usize = 256;

fn choose_superblock(copies: &[SuperblockCopy], opening: &Opening, notes: &mut Vec<String>) -> Result<Superblock> {
    if let Some((copy, sb)) = superblocks::ruling(copies) {
        if let Err(why) = &copy.content {
            notes.push(format!("the superblock at {} is used although it is damaged: {why}", copy.at));
        } else if copy.copy > 0 {
            notes.push(format!("the copy of the superblock at {} is used", copy.at));
        }
        return Ok(*sb);
    }
    match (&opening.identity, &opening.index) {
        (Some(identity), Some(index)) => {
            notes.push("there is no superblock; what a scan has found stands in for it".to_owned());
            Ok(put_together(identity, index))
        }
        _ => error("there is no superblock on the devices; 'butterfs rescue scan' finds out what else is there"),
    }
}

/// A superblock from what a scan has found: the newest root tree and chunk tree, and the features of today.
fn put_together(identity: &Identity, index: &Index) -> Superblock {
    let mut sb = Superblock { fsid: identity.fsid, metadata_uuid: identity.fsid, ..Superblock::default() };
    sb.magic = butterfs_ondisk::superblock::MAGIC;
    sb.nodesize = identity.nodesize.into();
    sb.leafsize = identity.nodesize.into();
    sb.sectorsize = 4096.into();
    sb.stripesize = 4096.into();
    sb.csum_type = (identity.checksum as u16).into();
    let newest = |tree: TreeId| {
        let all = index.of_tree(tree).iter();
        all.max_by_key(|found| (found.generation, found.level)).copied()
    };
    sb.incompat_flags = (incompat::MIXED_BACKREF
        | incompat::EXTENDED_IREF
        | incompat::SKINNY_METADATA
        | incompat::NO_HOLES
        | incompat::BIG_METADATA
        | incompat::RAID56
        | incompat::RAID1C34
        | if identity.nodesize == 4096 { incompat::MIXED_GROUPS } else { 0 })
    .into();
    sb.num_devices = 1.into();
    if let Some(root) = newest(TreeId::ROOT) {
        sb.root = root.logical.into();
        sb.root_level = root.level;
        sb.generation = root.generation.into();
    }
    if let Some(root) = newest(TreeId::CHUNK) {
        sb.chunk_root = root.logical.into();
        sb.chunk_root_level = root.level;
        sb.chunk_root_generation = root.generation.into();
    }
    sb
}

fn refuse_unknown(sb: &Superblock, ignored: u64) -> Result<()> {
    let known = (incompat::SUPPORTED | incompat::READ_ONLY) & !BEYOND;
    let unknown = sb.incompat_flags.get() & !known & !ignored;
    if unknown == 0 {
        return Ok(());
    }
    let names = describe(unknown, incompat::NAMES);
    error(format!(
        "the filesystem has features that are not known here: {names} (--ignore-feature NAME reads it all the same)"
    ))
}

/// The bit of a feature, by its name or as a number; `None`: there is none of that name.
pub fn feature_bit(name: &str) -> Option<u64> {
    let of_table = incompat::NAMES.iter().chain(compat_ro::NAMES).find(|(_, known)| known.eq_ignore_ascii_case(name));
    let number = || name.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    of_table.map(|(bit, _)| *bit).or_else(number)
}
