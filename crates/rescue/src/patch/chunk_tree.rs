//! The chunk tree from what was found.
//!
//! The device tree says which chunks there are, and the extent tree where the blocks of the chunk tree lie and of which
//! generation they are. So the new blocks take the places of the old ones, and no other tree changes.
//!
//! Invariant: a chunk is written only if the device extents confirm each of its stripes; where one is not confirmed, or
//! the blocks do not fill their places, nothing is written.

use super::Writer;
use super::sizes::write_sealed;
use crate::roots::Roots;
use crate::tree::Tree;
use crate::wreck::Wreck;
use crate::{Error, Result, error};
use butterfs_device::BlockDevice;
use butterfs_ondisk::chunk::{Chunk, append_sys_chunk};
use butterfs_ondisk::header::ITEM_LEN;
use butterfs_ondisk::items::{DevExtent, DevItem, ExtentItem, TreeBlockInfo, block_group_flags as bits, extent_flags};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Generation, Key, KeyType, Level, Logical, TreeId};
use butterfs_tree::Node;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// The chunk tree to write.
#[derive(Debug)]
pub struct Plan {
    /// The chunks, ascending.
    pub chunks: Vec<Chunk>,
    /// Chunks that the device tree names and that are not known: sentences.
    pub lost: Vec<String>,
    /// The tree on disk says the same.
    pub is_sound: bool,
    items: Vec<DevItem>,
    /// Address, level and generation of each block of the tree.
    places: Vec<(Logical, u8, u64)>,
    uuid: [u8; 16],
}

/// Finds out what the chunk tree must be.
pub fn plan(wreck: &Wreck) -> Result<Plan> {
    let roots = Roots::assemble(wreck);
    let tree = |id: TreeId| roots.trees.get(&id).map(|root| Tree::new(wreck, root.root));
    let devices = tree(TreeId::DEV).ok_or_else(|| Error("the device tree is lost".to_owned()))?;
    let extents = device_extents(&devices)?;
    let mut plan = Plan {
        chunks: Vec::new(),
        lost: Vec::new(),
        is_sound: false,
        items: Vec::new(),
        places: Vec::new(),
        uuid: [0; 16],
    };
    for (start, places) in &extents {
        match wreck.chunks().map.get(Logical(*start)).filter(|chunk| chunk.start.0 == *start) {
            Some(chunk) if is_confirmed(chunk, places) => plan.chunks.push(chunk.clone()),
            Some(_) => plan.lost.push(format!("chunk {start}: its stripes are not where the device tree has them")),
            None => plan.lost.push(format!("chunk {start}: nothing says how it lies on the devices")),
        }
    }
    plan.items = device_items(wreck, &extents);
    name_devices(&mut plan);
    plan.is_sound = is_sound(wreck, &plan);
    if !plan.is_sound {
        plan.places = blocks_of_chunk_tree(&roots, wreck)?;
        let root = roots.root_tree.ok_or_else(|| Error("the root tree is lost".to_owned()))?;
        let expect = crate::block::Expect::root(TreeId::ROOT, Logical(root.at), root.level, root.generation);
        let block = wreck.block(&expect).ok_or_else(|| Error("the root tree is lost".to_owned()))?;
        plan.uuid = block.node.header().chunk_tree_uuid;
    }
    Ok(plan)
}

type Extents = BTreeMap<u64, Vec<(u64, u64, u64)>>;

/// Device, address and length of the device extents of each chunk.
fn device_extents(tree: &Tree<'_>) -> Result<Extents> {
    let mut extents = Extents::new();
    let losses = tree.scan(Key::MIN, Key::MAX, &mut |key, data, _| {
        let extent = DevExtent::read_from_prefix(data).ok().filter(|_| key.kind == KeyType::DEV_EXTENT);
        if let Some((extent, _)) = extent {
            let of_chunk = extents.entry(extent.chunk_offset.get()).or_default();
            of_chunk.push((key.objectid, key.offset, extent.length.get()));
        }
        ControlFlow::Continue(())
    });
    if losses.is_none() && !extents.is_empty() { Ok(extents) } else { error("the device tree cannot be read whole") }
}

/// Whether the stripes of a chunk are its device extents, all of them.
fn is_confirmed(chunk: &Chunk, places: &[(u64, u64, u64)]) -> bool {
    let len = chunk.stripe_length();
    let mut stripes: Vec<_> = chunk.stripes.iter().map(|stripe| (stripe.device.0, stripe.physical.0, len)).collect();
    let mut places = places.to_vec();
    stripes.sort_unstable();
    places.sort_unstable();
    stripes == places
}

/// The device items, with what their extents use.
fn device_items(wreck: &Wreck, extents: &Extents) -> Vec<DevItem> {
    let known = wreck.device_items().iter().flatten();
    let mut items: BTreeMap<u64, DevItem> = known.map(|item| (item.devid.get(), *item)).collect();
    wreck.found_device_items().iter().for_each(|item| {
        items.entry(item.devid.get()).or_insert(*item);
    });
    for item in items.values_mut() {
        let own = extents.values().flatten().filter(|extent| extent.0 == item.devid.get());
        item.bytes_used = own.fold(0u64, |sum, extent| sum.saturating_add(extent.2)).into();
    }
    items.into_values().collect()
}

/// Gives the stripes the UUIDs of their devices, which a mount compares: a chunk known from device extents has none.
fn name_devices(plan: &mut Plan) {
    let uuids: BTreeMap<u64, [u8; 16]> = plan.items.iter().map(|item| (item.devid.get(), item.uuid)).collect();
    for chunk in &mut plan.chunks {
        for stripe in &mut chunk.stripes {
            match uuids.get(&stripe.device.0) {
                Some(uuid) => stripe.dev_uuid = *uuid,
                None if stripe.dev_uuid != [0; 16] => {}
                None => plan.lost.push(format!("chunk {}: nothing names device {}", chunk.start, stripe.device)),
            }
        }
    }
}

/// Whether the chunk tree on disk can be read, and has all of this.
fn is_sound(wreck: &Wreck, plan: &Plan) -> bool {
    let sb = wreck.superblock();
    let (at, level, generation) = sb.chunk_tree_root();
    let root =
        crate::tree::Root { tree: TreeId::CHUNK, at: at.0, level: Some(level.0), generation: Some(generation.0) };
    let mut missing: BTreeMap<u64, &Chunk> = plan.chunks.iter().map(|chunk| (chunk.start.0, chunk)).collect();
    let limits = butterfs_ondisk::chunk::ChunkLimits::from(sb);
    let losses = Tree::new(wreck, root).scan(Key::MIN, Key::MAX, &mut |key, data, _| {
        let parsed = Chunk::parse(Logical(key.offset), data, &limits).ok().filter(|_| key.kind == KeyType::CHUNK_ITEM);
        if parsed.is_some_and(|parsed| missing.get(&key.offset).is_some_and(|chunk| chunk.maps_like(&parsed))) {
            missing.remove(&key.offset);
        }
        ControlFlow::Continue(())
    });
    losses.is_none() && missing.is_empty()
}

/// Address, level and generation of the chunk tree's blocks, as the extent tree has them.
fn blocks_of_chunk_tree(roots: &Roots, wreck: &Wreck) -> Result<Vec<(Logical, u8, u64)>> {
    let root = roots.trees.get(&TreeId::EXTENT).ok_or_else(|| Error("the extent tree is lost".to_owned()))?;
    let tree = Tree::new(wreck, root.root);
    let mut blocks = Vec::new();
    for chunk in wreck.chunks().map.iter().filter(|chunk| chunk.kind & bits::SYSTEM != 0) {
        let (first, last) =
            (Key::new(chunk.start.0, KeyType(0), 0), Key::new(chunk.end().0 - 1, KeyType(255), u64::MAX));
        let losses = tree.scan(first, last, &mut |key, data, _| {
            blocks.extend(block_of(key, data));
            ControlFlow::Continue(())
        });
        if !losses.is_none() {
            return error("the extent tree cannot be read where it names the blocks of the chunk tree");
        }
    }
    if blocks.is_empty() { error("the extent tree names no block of the chunk tree") } else { Ok(blocks) }
}

fn block_of(key: Key, data: &[u8]) -> Option<(Logical, u8, u64)> {
    let (item, rest) = ExtentItem::read_from_prefix(data).ok()?;
    let is_block = item.flags.get() & extent_flags::TREE_BLOCK != 0;
    let level = match key.kind {
        KeyType::METADATA_ITEM => u8::try_from(key.offset).ok()?,
        KeyType::EXTENT_ITEM => TreeBlockInfo::read_from_prefix(rest).ok()?.0.level,
        _ => return None,
    };
    is_block.then_some((Logical(key.objectid), level, item.generation.get()))
}

/// Writes the tree, leaves first, and then the superblocks.
pub fn apply(plan: &Plan, wreck: &Wreck, devices: &[Arc<dyn BlockDevice>]) -> Result<()> {
    if let Some(lost) = plan.lost.first() {
        return error(format!("nothing is written, because something is missing: {lost}"));
    }
    let items = items_of(plan);
    let (leaves, nodes): (Vec<_>, Vec<_>) = plan.places.iter().copied().partition(|(_, level, _)| *level == 0);
    if nodes.len() > 1 || (nodes.is_empty() && leaves.len() != 1) {
        return error(format!("a chunk tree of {} leaves and {} nodes is not rebuilt here", leaves.len(), nodes.len()));
    }
    let blocks = fill(plan, wreck, &items, &leaves)?;
    let writer = Writer::new(wreck, devices)?;
    for leaf in &blocks {
        write_sealed(&writer, wreck, leaf.at(), leaf)?;
    }
    let (root, level, generation) = nodes.first().copied().unwrap_or(leaves[0]);
    if let [(at, level, generation)] = nodes[..] {
        let mut node =
            Node::new_empty(&wreck.identity(plan.uuid), at, Level(level), Generation(generation), TreeId::CHUNK);
        for leaf in &blocks {
            let first = leaf.first_key().expect("a leaf that was filled");
            node.insert_pointer(node.nritems(), first, leaf.at(), leaf.generation());
        }
        write_sealed(&writer, wreck, at, &node)?;
    }
    let mut sb = *wreck.superblock();
    sb.chunk_root = root.0.into();
    sb.chunk_root_level = level;
    sb.chunk_root_generation = generation.into();
    sb.sys_chunk_array_size = 0.into();
    sb.sys_chunk_array.fill(0);
    for chunk in plan.chunks.iter().filter(|chunk| chunk.kind & bits::SYSTEM != 0) {
        if !append_sys_chunk(&mut sb, chunk) {
            return error("the system chunks do not fit into the superblock");
        }
    }
    writer.write_superblock(&sb, &|_| ())
}

fn items_of(plan: &Plan) -> Vec<(Key, Vec<u8>)> {
    let device =
        |item: &DevItem| (Key::new(objectid::DEV_ITEMS, KeyType::DEV_ITEM, item.devid.get()), item.as_bytes().to_vec());
    let mut items: Vec<(Key, Vec<u8>)> = plan.items.iter().map(device).collect();
    items.extend(plan.chunks.iter().map(|chunk| (chunk.key(), chunk.encode())));
    items.sort_by_key(|(key, _)| *key);
    items
}

/// As many leaves as there are places, each with about as many bytes.
fn fill(plan: &Plan, wreck: &Wreck, items: &[(Key, Vec<u8>)], places: &[(Logical, u8, u64)]) -> Result<Vec<Node>> {
    let total: usize = items.iter().map(|(_, data)| data.len() + ITEM_LEN).sum();
    let (mut blocks, mut rest, mut done) = (Vec::new(), items.iter().peekable(), 0);
    for (number, (at, _, generation)) in places.iter().enumerate() {
        let identity = wreck.identity(plan.uuid);
        let mut leaf = Node::new_empty(&identity, *at, Level(0), Generation(*generation), TreeId::CHUNK);
        let until = total * (number + 1) / places.len();
        while let Some((key, data)) = rest.peek() {
            let len = data.len() + ITEM_LEN;
            if leaf.free_space() < len || (done >= until && !leaf.is_empty()) {
                break;
            }
            leaf.insert_item(leaf.nritems(), *key, data);
            done += len;
            rest.next();
        }
        blocks.push(leaf);
    }
    if rest.peek().is_some() || blocks.iter().any(Node::is_empty) {
        return error("the items of the chunk tree do not fill the blocks that the extent tree names");
    }
    Ok(blocks)
}
