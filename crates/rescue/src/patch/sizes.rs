//! Sizes of devices: whole sectors, and no more than there are; the filesystem's size is their sum.

use super::Writer;
use crate::block::Expect;
use crate::tree::{Root, Tree};
use crate::wreck::Wreck;
use crate::{Error, Result, error};
use butterfs_device::BlockDevice;
use butterfs_ondisk::items::{DevExtent, DevItem};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Key, KeyType, Logical, TreeId};
use std::ops::ControlFlow;
use std::sync::Arc;
use zerocopy::FromBytes;

/// The sizes that are wrong.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Number, old and new size of devices.
    pub devices: Vec<(u64, u64, u64)>,
    /// Old and new size of the filesystem, where they differ.
    pub total: Option<(u64, u64)>,
}

/// Compares the device items with the devices.
pub fn plan(wreck: &Wreck) -> Result<Plan> {
    let sector = wreck.sectorsize();
    let (mut plan, mut sum) = (Plan::default(), 0u64);
    let tree = chunk_tree(wreck);
    let (first, last) = (
        Key::new(objectid::DEV_ITEMS, KeyType::DEV_ITEM, 0),
        Key::new(objectid::DEV_ITEMS, KeyType::DEV_ITEM, u64::MAX),
    );
    let losses = tree.scan(first, last, &mut |key, data, _| {
        if let Ok((item, _)) = DevItem::read_from_prefix(data) {
            let old = item.total_bytes.get();
            let place = wreck.numbers().iter().position(|number| number.is_some_and(|number| number.0 == key.offset));
            let len = place.map_or(u64::MAX, |place| wreck.devices()[place].len());
            let new = old.min(len) / sector * sector;
            if new != old {
                plan.devices.push((key.offset, old, new));
            }
            sum = sum.saturating_add(new);
        }
        ControlFlow::Continue(())
    });
    if losses.blocks() > 0 {
        return error("the chunk tree cannot be read whole; 'butterfs rescue chunk-recover' comes first");
    }
    for (id, _, new) in &plan.devices {
        if let Some(end) = last_extent(wreck, *id).filter(|end| end > new) {
            return error(format!("device {id} has {new} bytes, but holds a chunk that ends at {end}"));
        }
    }
    let old = wreck.superblock().total_bytes.get();
    plan.total = (sum != old).then_some((old, sum));
    Ok(plan)
}

fn chunk_tree(wreck: &Wreck) -> Tree<'_> {
    let (at, level, generation) = wreck.superblock().chunk_tree_root();
    Tree::new(wreck, Root { tree: TreeId::CHUNK, at: at.0, level: Some(level.0), generation: Some(generation.0) })
}

/// Where the last chunk on a device ends.
fn last_extent(wreck: &Wreck, id: u64) -> Option<u64> {
    let roots = crate::roots::Roots::assemble(wreck);
    let tree = Tree::new(wreck, roots.trees.get(&TreeId::DEV)?.root);
    let last = tree.last(Key::new(id, KeyType::DEV_EXTENT, 0), Key::new(id, KeyType::DEV_EXTENT, u64::MAX));
    let (key, data) = last?;
    let extent = DevExtent::read_from_prefix(&data).ok()?.0;
    Some(key.offset.saturating_add(extent.length.get()))
}

/// Writes the new sizes: device items in the chunk tree, then the superblocks.
pub fn apply(plan: &Plan, wreck: &Wreck, devices: &[Arc<dyn BlockDevice>]) -> Result<()> {
    let writer = Writer::new(wreck, devices)?;
    let mut blocks = Vec::new();
    chunk_tree(wreck).blocks(&mut |block, expect| {
        if block.node.is_leaf() {
            blocks.push((*expect, block.node.clone()));
        }
        true
    });
    for (Expect { at, .. }, mut node) in blocks {
        let mut changed = false;
        for (id, _, new) in &plan.devices {
            if let Ok(slot) = node.find(Key::new(objectid::DEV_ITEMS, KeyType::DEV_ITEM, *id)) {
                let (item, _) = DevItem::mut_from_prefix(node.item_mut(slot))
                    .map_err(|_| Error("a device item is too short".to_owned()))?;
                item.total_bytes = (*new).into();
                changed = true;
            }
        }
        if changed {
            write_sealed(&writer, wreck, at, &node)?;
        }
    }
    let mut sb = *wreck.superblock();
    if let Some((_, new)) = plan.total {
        sb.total_bytes = new.into();
    }
    let sizes = plan.devices.clone();
    writer.write_superblock(&sb, &move |item| {
        if let Some((_, _, new)) = sizes.iter().find(|(id, ..)| *id == item.devid.get()) {
            item.total_bytes = (*new).into();
        }
    })
}

/// Writes a block with its checksum.
pub(super) fn write_sealed(writer: &Writer<'_>, wreck: &Wreck, at: Logical, node: &butterfs_tree::Node) -> Result<()> {
    let mut bytes = vec![0; wreck.nodesize()];
    let uuid = node.header().chunk_tree_uuid;
    node.seal_into(&mut bytes, &wreck.identity(uuid)).map_err(|corrupt| Error(corrupt.to_string()))?;
    writer.write_block(at, &bytes)?;
    Ok(())
}
