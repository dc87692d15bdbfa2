//! The chunks of an image, and the trees that describe them and everything else: sizes first, then bytes.
//!
//! ```text
//! device   | 1 MiB reserved | SYSTEM, copy | DATA … | METADATA, copy … | unallocated …
//! ```
//! A logical address is the place of the first copy on the device, so that nothing has to be known before data is
//! written.
//!
//! # Invariants
//! 1. The number of tree blocks is known before the first of them is written: the run that counts and the run that
//!    writes are the same code.
//! 2. Everything is of one generation.

use crate::blocks::{Addresses, Block, Items, Output, TreeWriter};
use crate::data::CHUNK_LEN;
use crate::entry::Sent;
use crate::error::{Error, ErrorKind, Result};
use crate::pool::SECTOR;
use crate::subvolumes::{Context, Numbered, Reference};
use butterfs_fs::mkfs::{
    FilesystemSpec, GENERATION, Item, PlacedTree, Settings, default_entry, directory_inode, inode_ref,
};
use butterfs_ondisk::checksum::extent_data_ref_hash;
use butterfs_ondisk::chunk::{Chunk, ChunkStripe, STRIPE_LEN};
use butterfs_ondisk::features::compat_ro;
use butterfs_ondisk::header::{ITEM_LEN, leaf_data_size};
use butterfs_ondisk::items::{block_group_flags as bits, *};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{DeviceId, Ino, Key, KeyType, Logical, Physical, TreeId};
use butterfs_tree::BlockIdentity;
use butterfs_volume::{ChunkMap, Volume};
use std::ops::Range;
use zerocopy::IntoBytes;

/// A subvolume's root item, besides what the tree itself decides.
#[derive(Clone, Debug)]
pub struct SubvolumeRoot {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// That of the subvolume it is a snapshot of, or zeros.
    pub parent_uuid: [u8; 16],
    /// Whether it is read-only.
    pub is_read_only: bool,
    /// The subvolume that it is a copy of.
    pub sent: Option<Sent>,
}

/// The input of all trees.
pub struct Plan<'a> {
    /// Everything but the chunks.
    pub spec: FilesystemSpec,
    /// The subvolumes with their numbers; the first is the top level.
    pub numbered: &'a [Numbered<'a>],
    /// The subvolumes' root items, in the same order.
    pub roots: &'a [SubvolumeRoot],
    /// The input of subvolumes' items.
    pub context: Context<'a>,
    /// The default subvolume.
    pub default: TreeId,
    /// Sorted.
    pub references: Vec<Reference>,
    /// Room beyond the content.
    pub slack: Slack,
}

/// Room that an image has beyond its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slack {
    /// Bytes of data.
    pub data: u64,
    /// Bytes of metadata that should be free.
    pub metadata: u64,
    /// Bytes of metadata that must be free.
    pub least_metadata: u64,
    /// Bytes of the device.
    pub total: Total,
}

/// Bytes of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Total {
    /// As few as possible.
    Least,
    /// So many.
    Exactly(u64),
    /// So many, or more.
    AtLeast(u64),
}

impl Total {
    /// The bytes of a device of which the chunks need `needed`; `None` where they do not fit.
    fn of(self, needed: u64) -> Option<u64> {
        match self {
            Total::Least => Some(needed),
            Total::Exactly(bytes) => Some(bytes).filter(|bytes| *bytes >= needed),
            Total::AtLeast(bytes) => Some(bytes.max(needed)),
        }
    }
}

/// The plan with all sizes.
pub struct Sized<'a> {
    plan: Plan<'a>,
    /// Blocks of the trees that do not describe the space.
    main_blocks: usize,
    /// Blocks of the others.
    late: Vec<Block>,
}

/// How often sizes are tried: more blocks need more items about blocks, but only few more.
const MOST_ROUNDS: usize = 64;
/// Bytes of the system chunk.
pub const SYSTEM_LEN: u64 = 4 << 20;

/// The bytes of the device before data.
pub fn data_start(settings: &Settings) -> u64 {
    butterfs_fs::mkfs::RESERVED + SYSTEM_LEN * settings.metadata.stripes_per_device as u64
}

fn chunk(spec: &FilesystemSpec, start: u64, len: u64, kind: u64) -> Chunk {
    let settings = &spec.settings;
    let profile = if kind & bits::DATA != 0 { settings.data } else { settings.metadata };
    let kind = match kind {
        bits::SYSTEM => kind,
        _ if settings.mixed() => bits::DATA | bits::METADATA,
        _ => kind,
    };
    let device = &spec.devices[0];
    let stripe = |copy: usize| ChunkStripe {
        device: DeviceId(1),
        physical: Physical(start + copy as u64 * len),
        dev_uuid: device.uuid,
    };
    let stripes = (0..profile.stripes_per_device).map(stripe).collect();
    Chunk::new(Logical(start), len, kind | profile.bit, settings.sectorsize, stripes)
}

/// Where a chunk ends on the device.
fn physical_end(chunk: &Chunk) -> u64 {
    chunk.stripes.iter().map(|stripe| stripe.physical.0 + chunk.length).max().unwrap_or_default()
}

/// The parts of a chunk that may be used.
fn usable(chunk: &Chunk) -> Vec<Range<u64>> {
    let mut at = chunk.start.0;
    let mut out = Vec::new();
    for excluded in ChunkMap::new().superblock_exclusions(chunk) {
        out.extend((at < excluded.start.0).then_some(at..excluded.start.0));
        at = excluded.end.0;
    }
    out.extend((at < chunk.end().0).then_some(at..chunk.end().0));
    out
}

impl<'a> Plan<'a> {
    /// Finds chunks that have room for everything.
    pub fn size(mut self) -> Result<Sized<'a>> {
        let (identity, nodesize) = (self.identity(), self.spec.settings.nodesize);
        let mut counting = Output::new(&identity, Addresses::unlimited(nodesize), None);
        self.write_main(&mut counting)?;
        let main_blocks = counting.blocks.len();
        let data_chunks = self.data_chunks();
        let mut late: Vec<Block> = Vec::new();
        for _ in 0..MOST_ROUNDS {
            let needed = main_blocks + late.len();
            self.lay_out(&data_chunks, needed)?;
            // As if there were room for more than was laid out: the next round lays that out too.
            let mut addresses = self.addresses().and_unlimited();
            let main: Vec<Block> = (0..main_blocks)
                .map(|_| self.placeholder(&mut addresses))
                .collect::<Option<_>>()
                .ok_or_else(no_room)?;
            let mut dry = Output::new(&identity, addresses, None);
            self.write_late(&mut dry, &main, &late, &[])?;
            // The system chunk's blocks come first in the list, and are not counted as needed elsewhere; one node too
            // many is.
            if dry.blocks == late {
                return Ok(Sized { plan: self, main_blocks, late });
            }
            late = dry.blocks;
        }
        Err(no_room())
    }

    fn placeholder(&self, addresses: &mut Addresses) -> Option<Block> {
        addresses.take().map(|at| Block { at, level: 0, owner: TreeId::FS })
    }

    fn identity(&self) -> BlockIdentity {
        butterfs_fs::mkfs::identity(&self.spec)
    }

    /// Chunks for the data that there is, and for what should be free.
    fn data_chunks(&self) -> Vec<Chunk> {
        let used = self.context.data.used();
        let mut out: Vec<Chunk> = Vec::new();
        let (mut start, mut free) = (used.start, self.slack.data.next_multiple_of(STRIPE_LEN));
        while start < used.end || free > 0 || out.is_empty() {
            let taken = used.end.saturating_sub(start).next_multiple_of(STRIPE_LEN).min(CHUNK_LEN);
            let extra = free.min(CHUNK_LEN - taken);
            let excluded = |len| {
                usable(&chunk(&self.spec, start, len, bits::DATA)).iter().map(|it| it.end - it.start).sum::<u64>()
            };
            let len = (taken + extra).max(STRIPE_LEN);
            free -= excluded(len).saturating_sub(excluded(taken.max(1))).min(extra);
            // What superblock copies take away is not worth another chunk.
            free = if free <= 2 * STRIPE_LEN { 0 } else { free };
            out.push(chunk(&self.spec, start, len, bits::DATA));
            start += len;
        }
        out
    }

    /// Sets the chunks: for so many tree blocks, and for what should be free; less of that where the device is too
    /// small.
    fn lay_out(&mut self, data: &[Chunk], blocks: usize) -> Result<()> {
        let bytes = blocks as u64 * u64::from(self.spec.settings.nodesize);
        for slack in [self.slack.metadata, self.slack.least_metadata] {
            let mut chunks = vec![chunk(&self.spec, butterfs_fs::mkfs::RESERVED, SYSTEM_LEN, bits::SYSTEM)];
            chunks.extend_from_slice(data);
            let mut wanted = bytes + slack;
            while wanted > 0 {
                let start = chunks.last().map_or(0, physical_end);
                let piece = self.metadata_chunk(start, wanted);
                wanted = wanted.saturating_sub(self.room_in(&piece));
                chunks.push(piece);
            }
            let end = chunks.last().map_or(0, physical_end);
            self.spec.chunks = chunks;
            if let Some(total) = self.slack.total.of(end) {
                self.spec.devices[0].total_bytes = total;
                return Ok(());
            }
        }
        let end = self.spec.chunks.last().map_or(0, physical_end);
        Err(Error::new(ErrorKind::NoSpace, format!("the image needs {end} bytes, which is more than its size")))
    }

    /// A chunk of metadata in which so much fits, as far as one chunk has room.
    fn metadata_chunk(&self, start: u64, wanted: u64) -> Chunk {
        let mut len = wanted.next_multiple_of(STRIPE_LEN).min(CHUNK_LEN);
        loop {
            let piece = chunk(&self.spec, start, len, bits::METADATA);
            if self.room_in(&piece) >= wanted || len == CHUNK_LEN {
                return piece;
            }
            len += STRIPE_LEN;
        }
    }

    fn room_in(&self, chunk: &Chunk) -> u64 {
        Addresses::new(self.spec.settings.nodesize, usable(chunk)).left() / u64::from(self.spec.settings.nodesize)
            * u64::from(self.spec.settings.nodesize)
    }

    /// Where tree blocks may lie: in the chunks behind those of data.
    fn addresses(&self) -> Addresses {
        let data_end = self.data_end();
        let chunks = self.spec.chunks.iter().filter(|chunk| chunk.start.0 >= data_end);
        Addresses::new(self.spec.settings.nodesize, chunks.flat_map(usable))
    }

    fn system_addresses(&self) -> Addresses {
        Addresses::new(self.spec.settings.nodesize, usable(&self.spec.chunks[0]))
    }

    /// Where the chunks of data end.
    fn data_end(&self) -> u64 {
        let count = self.data_chunks().len();
        self.spec.chunks[count].end().0
    }

    /// Writes the trees that do not describe the space.
    fn write_main(&self, output: &mut Output<'_>) -> Result<Vec<PlacedTree>> {
        let mut placed = Vec::new();
        for numbered in self.numbered {
            let mut tree = TreeWriter::new(output, numbered.id);
            numbered.items(self.context, &mut tree)?;
            placed.push(tree.finish()?);
        }
        let mut tree = TreeWriter::new(output, TreeId::CSUM);
        self.checksums(&mut tree)?;
        placed.push(tree.finish()?);
        placed.push(whole_tree(output, TreeId::UUID, self.uuids())?);
        placed.push(whole_tree(output, TreeId::DATA_RELOC, self.spec.items(TreeId::DATA_RELOC, &[]))?);
        Ok(placed)
    }

    fn uuids(&self) -> Vec<Item> {
        let mut items = Vec::new();
        for (numbered, root) in self.numbered.iter().zip(self.roots) {
            items.push(butterfs_fs::mkfs::uuid_item(&root.uuid, numbered.id));
            items.extend(root.sent.map(|sent| received_item(&sent, numbered.id)));
        }
        items.sort();
        // Copies of one subvolume share an item.
        items.dedup_by(|later, first| {
            let is_same = later.0 == first.0;
            if is_same {
                first.1.extend_from_slice(&later.1);
            }
            is_same
        });
        items
    }

    /// Writes the trees that describe the space, themselves included: `late` says where their blocks are going to be.
    fn write_late(
        &self,
        output: &mut Output<'_>,
        main: &[Block],
        late: &[Block],
        placed: &[PlacedTree],
    ) -> Result<Vec<PlacedTree>> {
        let mut blocks: Vec<Block> = main.iter().chain(late).copied().collect();
        blocks.sort_by_key(|block| block.at);
        let mut made = vec![self.write_chunk_tree(output)?];
        made.push(whole_tree(output, TreeId::DEV, self.spec.items(TreeId::DEV, &[]))?);
        let used = self.used(&blocks);
        if self.spec.settings.compat_ro & compat_ro::FREE_SPACE_TREE != 0 {
            let mut tree = TreeWriter::new(output, TreeId::FREE_SPACE);
            self.free_space(&used, &mut tree)?;
            made.push(tree.finish()?);
        }
        let groups = self.block_groups(&used);
        let has_own_tree = self.spec.settings.compat_ro & compat_ro::BLOCK_GROUP_TREE != 0;
        if has_own_tree {
            made.push(whole_tree(output, TreeId::BLOCK_GROUP, groups.clone())?);
        }
        let mut tree = TreeWriter::new(output, TreeId::EXTENT);
        self.extents(&blocks, if has_own_tree { Vec::new() } else { groups }, &mut tree)?;
        made.push(tree.finish()?);
        let all: Vec<PlacedTree> = placed.iter().chain(&made).cloned().collect();
        made.push(whole_tree(output, TreeId::ROOT, self.root_tree(&all))?);
        Ok(made)
    }

    fn write_chunk_tree(&self, output: &mut Output<'_>) -> Result<PlacedTree> {
        output.flush()?;
        let outside = std::mem::replace(&mut output.addresses, self.system_addresses());
        let mut items = self.spec.items(TreeId::CHUNK, &[]);
        items.sort();
        let tree = whole_tree(output, TreeId::CHUNK, items);
        output.addresses = outside;
        tree
    }

    /// The extents of data, each with its references.
    fn live(&self) -> impl Iterator<Item = &[Reference]> {
        self.references.chunk_by(|one, other| one.address == other.address)
    }

    fn checksums(&self, out: &mut dyn Items) -> Result<()> {
        let checksum_len = self.spec.settings.checksum.len();
        let room = leaf_data_size(self.spec.settings.nodesize);
        let most = ((room - 2 * ITEM_LEN) / checksum_len - 1) * checksum_len;
        let key = |address| Key::new(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM, address);
        let (mut start, mut item) = (0, Vec::new());
        for references in self.live() {
            let (mut at, end) = (references[0].address, references[0].address + references[0].stored);
            while at < end {
                let behind = start + (item.len() / checksum_len * SECTOR) as u64;
                if !item.is_empty() && (behind != at || item.len() == most) {
                    out.bytes(key(start), &item)?;
                    item.clear();
                }
                if item.is_empty() {
                    start = at;
                }
                let sectors = ((end - at) as usize / SECTOR).min((most - item.len()) / checksum_len);
                let Some(found) = self.context.data.checksums(at, sectors) else { break };
                item.extend_from_slice(found);
                at += (found.len() / checksum_len * SECTOR) as u64;
            }
        }
        if item.is_empty() { Ok(()) } else { out.bytes(key(start), &item) }
    }

    /// The space in use, as few ranges as possible.
    fn used(&self, blocks: &[Block]) -> Vec<Range<u64>> {
        let nodesize = u64::from(self.spec.settings.nodesize);
        let mut all: Vec<Range<u64>> = blocks.iter().map(|block| block.at.0..block.at.0 + nodesize).collect();
        all.extend(self.live().map(|it| it[0].address..it[0].address + it[0].stored));
        all.sort_by_key(|range| range.start);
        let starts: Vec<u64> = self.spec.chunks.iter().map(|chunk| chunk.start.0).collect();
        let mut out: Vec<Range<u64>> = Vec::new();
        for range in all {
            match out.last_mut() {
                Some(last) if last.end == range.start && starts.binary_search(&range.start).is_err() => {
                    last.end = range.end
                }
                _ => out.push(range),
            }
        }
        out
    }

    fn block_groups(&self, used: &[Range<u64>]) -> Vec<Item> {
        let item = |chunk: &Chunk| {
            let bytes: u64 = within(used, chunk).iter().map(|range| range.end - range.start).sum();
            let item = BlockGroupItem {
                used: bytes.into(),
                chunk_objectid: objectid::FIRST_CHUNK_TREE.into(),
                flags: chunk.kind.into(),
            };
            (Key::new(chunk.start.0, KeyType::BLOCK_GROUP_ITEM, chunk.length), item.as_bytes().to_vec())
        };
        self.spec.chunks.iter().map(item).collect()
    }

    fn free_space(&self, used: &[Range<u64>], out: &mut dyn Items) -> Result<()> {
        for chunk in &self.spec.chunks {
            let mut at = chunk.start.0;
            let mut free = Vec::new();
            for range in within(used, chunk) {
                free.extend((at < range.start).then_some((at, range.start - at)));
                at = range.end;
            }
            free.extend((at < chunk.end().0).then_some((at, chunk.end().0 - at)));
            let info = FreeSpaceInfo { extent_count: (free.len() as u32).into(), flags: 0.into() };
            out.bytes(Key::new(chunk.start.0, KeyType::FREE_SPACE_INFO, chunk.length), info.as_bytes())?;
            for (start, len) in free {
                out.bytes(Key::new(start, KeyType::FREE_SPACE_EXTENT, len), &[])?;
            }
        }
        Ok(())
    }

    fn extents(&self, blocks: &[Block], groups: Vec<Item>, out: &mut dyn Items) -> Result<()> {
        let block = |block: &Block| self.spec.block_extent(block.owner, block.at, butterfs_ondisk::Level(block.level));
        let mut blocks = blocks.iter().map(block).peekable();
        let mut groups = groups.into_iter().peekable();
        let mut before = |address: u64, out: &mut dyn Items| -> Result<()> {
            loop {
                let (block, group) = (blocks.peek().map(|it| it.0), groups.peek().map(|it| it.0));
                let first = block.into_iter().chain(group).min().filter(|key| key.objectid < address);
                let Some(first) = first else { return Ok(()) };
                let next = if block == Some(first) { blocks.next() } else { groups.next() };
                let (key, bytes) = next.expect("it was looked at");
                out.bytes(key, &bytes)?;
            }
        };
        for references in self.live() {
            before(references[0].address, out)?;
            // A block group that begins with this extent comes behind it.
            self.data_extent(references, out)?;
        }
        before(u64::MAX, out)
    }

    /// The item of an extent, with as many references inside as the kernel would put there.
    fn data_extent(&self, references: &[Reference], out: &mut dyn Items) -> Result<()> {
        let inline_len = 1 + ExtentDataRef::LEN;
        let most = (leaf_data_size(self.spec.settings.nodesize) >> 4) - ITEM_LEN;
        let inside = ((most - ExtentItem::LEN) / inline_len).min(references.len());
        let mut hashed: Vec<(u64, ExtentDataRef)> = references.iter().map(data_ref).collect();
        // Inside an item the larger hash comes first.
        hashed.sort_by_key(|(hash, _)| std::cmp::Reverse(*hash));
        let item = ExtentItem {
            refs: (references.len() as u64).into(),
            generation: GENERATION.0.into(),
            flags: extent_flags::DATA.into(),
        };
        let mut bytes = item.as_bytes().to_vec();
        for (_, reference) in &hashed[..inside] {
            bytes.push(KeyType::EXTENT_DATA_REF.0);
            bytes.extend_from_slice(reference.as_bytes());
        }
        out.bytes(Key::new(references[0].address, KeyType::EXTENT_ITEM, references[0].stored), &bytes)?;
        let mut keyed = hashed.split_off(inside);
        keyed.reverse();
        let mut last = None;
        for (hash, reference) in keyed {
            let offset = last.filter(|last| *last >= hash).map_or(hash, |last: u64| last + 1);
            last = Some(offset);
            out.bytes(Key::new(references[0].address, KeyType::EXTENT_DATA_REF, offset), reference.as_bytes())?;
        }
        Ok(())
    }

    fn root_tree(&self, placed: &[PlacedTree]) -> Vec<Item> {
        let described = placed.iter().filter(|tree| !matches!(tree.id, TreeId::ROOT | TreeId::CHUNK));
        let mut items: Vec<Item> = described.map(|tree| self.root_item(tree)).collect();
        if placed.iter().all(|tree| tree.id != TreeId::FS) {
            // Where only sizes count, the trees that have none yet are of some size.
            let unplaced = |id| self.root_item(&PlacedTree { id, levels: vec![vec![Logical(0)]] });
            items.extend(self.numbered.iter().map(|numbered| unplaced(numbered.id)));
            items.extend([TreeId::CSUM, TreeId::UUID, TreeId::DATA_RELOC].map(unplaced));
        }
        let directory = Ino::TREE_ROOT_DIR.0;
        let inode = directory_inode(u64::from(self.spec.settings.nodesize), self.spec.now, self.spec.now);
        items.push((Key::new(directory, KeyType::INODE_ITEM, 0), inode.as_bytes().to_vec()));
        items.push((Key::new(directory, KeyType::INODE_REF, directory), inode_ref(b"..")));
        items.push((Key::new(TreeId::FS.0, KeyType::INODE_REF, directory), inode_ref(b"default")));
        items.push(default_entry(directory, self.default));
        for parent in self.numbered {
            for nested in &parent.nested {
                let child = self.numbered[nested.subvolume as usize].id;
                let head = RootRef {
                    dirid: nested.folder.into(),
                    sequence: nested.index.into(),
                    name_len: (nested.name.len() as u16).into(),
                };
                let bytes = [head.as_bytes(), &nested.name].concat();
                items.push((Key::new(parent.id.0, KeyType::ROOT_REF, child.0), bytes.clone()));
                items.push((Key::new(child.0, KeyType::ROOT_BACKREF, parent.id.0), bytes));
            }
        }
        items.sort();
        items
    }

    /// The item that says where a tree is. Those of subvolumes say what they are.
    fn root_item(&self, tree: &PlacedTree) -> Item {
        let Some(index) = self.numbered.iter().position(|numbered| numbered.id == tree.id) else {
            return self.spec.root_item(tree);
        };
        // All subvolumes have items like that of the top level.
        let (_, bytes) = self.spec.root_item(&PlacedTree { id: TreeId::FS, levels: tree.levels.clone() });
        let mut item = RootItem::parse(&bytes).expect("it was just made");
        let root = &self.roots[index];
        (item.uuid, item.parent_uuid) = (root.uuid, root.parent_uuid);
        if index > 0 {
            (item.ctransid, item.otransid) = (GENERATION.0.into(), GENERATION.0.into());
        }
        if let Some(sent) = root.sent {
            item.received_uuid = sent.uuid;
            (item.stransid, item.rtransid) = (sent.generation.into(), GENERATION.0.into());
            item.rtime = self.context.epoch.into();
        }
        item.flags = (if root.is_read_only { RootItem::RDONLY } else { 0 }).into();
        (Key::new(tree.id.0, KeyType::ROOT_ITEM, 0), item.as_bytes().to_vec())
    }
}

/// A subvolume by the UUID of the one that it is a copy of.
fn received_item(sent: &Sent, subvolume: TreeId) -> Item {
    let (key, value) = butterfs_fs::mkfs::uuid_item(&sent.uuid, subvolume);
    (Key::new(key.objectid, KeyType::UUID_KEY_RECEIVED_SUBVOL, key.offset), value)
}

fn no_room() -> Error {
    Error::new(ErrorKind::NoSpace, "the metadata does not fit into the image")
}

fn data_ref(reference: &Reference) -> (u64, ExtentDataRef) {
    let Reference { root, inode, offset, .. } = *reference;
    let item = ExtentDataRef { root: root.into(), objectid: inode.into(), offset: offset.into(), count: 1.into() };
    (extent_data_ref_hash(root, inode, offset), item)
}

/// The ranges inside of a chunk.
fn within<'a>(used: &'a [Range<u64>], chunk: &Chunk) -> &'a [Range<u64>] {
    let from = used.partition_point(|range| range.start < chunk.start.0);
    let to = used.partition_point(|range| range.start < chunk.end().0);
    &used[from..to]
}

fn whole_tree(output: &mut Output<'_>, id: TreeId, items: Vec<Item>) -> Result<PlacedTree> {
    let mut tree = TreeWriter::new(output, id);
    items.iter().try_for_each(|(key, bytes)| tree.bytes(*key, bytes))?;
    tree.finish()
}

impl Sized<'_> {
    /// Bytes of the image.
    pub fn total_bytes(&self) -> u64 {
        self.plan.spec.total_bytes()
    }

    /// The description of the filesystem.
    pub fn spec(&self) -> &FilesystemSpec {
        &self.plan.spec
    }

    /// Writes all trees, and the superblock after them; what is written is durable then.
    pub fn write(&self, volume: &Volume) -> Result<()> {
        let failed = |error: butterfs_volume::VolumeError| Error::new(ErrorKind::Output, error.to_string());
        let plan = &self.plan;
        let map = ChunkMap::from_chunks(plan.spec.chunks.iter().cloned()).expect("chunks do not overlap");
        volume.set_chunk_map(map);
        let identity = plan.identity();
        let mut output = Output::new(&identity, plan.addresses(), Some(volume));
        let placed = plan.write_main(&mut output)?;
        assert_eq!(output.blocks.len(), self.main_blocks, "counting and writing are the same");
        let main = std::mem::take(&mut output.blocks);
        let late = plan.write_late(&mut output, &main, &self.late, &placed)?;
        assert!(output.blocks == self.late, "counting and writing are the same");
        output.flush()?;
        volume.flush().map_err(failed)?;
        let trees: Vec<PlacedTree> = placed.into_iter().chain(late).collect();
        let mut superblock = butterfs_fs::mkfs::superblock(&plan.spec, &trees);
        let data: u64 = plan.live().map(|references| references[0].stored).sum();
        superblock.bytes_used = (superblock.bytes_used.get() + data).into();
        for backup in &mut superblock.super_roots {
            backup.bytes_used = superblock.bytes_used;
        }
        volume.write_superblock(&superblock).map_err(failed)
    }
}
