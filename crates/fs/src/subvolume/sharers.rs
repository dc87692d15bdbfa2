//! Who may share a data extent, from its back references.
//!
//! A reference names a tree, or a leaf, at the time it was made; snapshots share both without being named. So what is
//! found here is where to look, in any subvolume of the family: an inode number and a position in the file. Whoever
//! asks looks there before believing it.

use crate::error::{Error, Result};
use crate::file::item::FileExtent;
use crate::transaction::extent_item::{ExtentRecord, counted};
use crate::transaction::refs::RefBy;
use crate::transaction::{Core, Loading};
use butterfs_ondisk::items::ExtentDataRef;
use butterfs_ondisk::{Generation, Ino, Key, KeyType, Level, Logical, TreeId};
use butterfs_tree::{Node, NodePtr, NodeSource};
use std::ops::ControlFlow;
use std::sync::Arc;
use zerocopy::FromBytes;

/// What the references of an extent say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sharers {
    /// References, those of one leaf or one file counted one by one.
    pub references: u64,
    /// Inodes, and the position in the file of the extent's first byte, modulo 2^64. Each once.
    pub places: Vec<(Ino, u64)>,
}

/// The references of the extent of `len` bytes at `at`; at most about `most` places. With `only_if_shared`, an extent
/// with one reference has no places. `None` when there is no such extent.
pub fn sharers_of(core: &Core, at: Logical, len: u64, most: usize, only_if_shared: bool) -> Result<Option<Sharers>> {
    let extents = &core.globals().extent;
    let key = Key::new(at.0, KeyType::EXTENT_ITEM, len);
    let Some(item) = extents.get(core, key)? else { return Ok(None) };
    let record = ExtentRecord::parse(at, key.kind, &item)?;
    let mut found = Sharers { references: record.refs, places: Vec::new() };
    if only_if_shared && record.refs < 2 {
        return Ok(Some(found));
    }
    let mut seen = rustc_hash::FxHashSet::default();
    for reference in &record.inline {
        add(core, at, reference.by, &mut found, &mut seen)?;
    }
    let (from, to) = (Key::new(at.0, KeyType::EXTENT_DATA_REF, 0), Key::new(at.0, KeyType::SHARED_DATA_REF, u64::MAX));
    let mut keyed = Vec::new();
    extents.scan(core, from, to, &mut |key, payload| {
        match key.kind {
            KeyType::EXTENT_DATA_REF => {
                keyed.extend(ExtentDataRef::read_from_bytes(payload).ok().map(|r| counted(&r).by))
            }
            KeyType::SHARED_DATA_REF => keyed.push(RefBy::Leaf(Logical(key.offset))),
            _ => {}
        }
        Ok(if keyed.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    for by in keyed {
        if found.places.len() >= most {
            break;
        }
        add(core, at, by, &mut found, &mut seen)?;
    }
    Ok(Some(found))
}

type Seen = rustc_hash::FxHashSet<(Ino, u64)>;

fn add(core: &Core, at: Logical, by: RefBy, found: &mut Sharers, seen: &mut Seen) -> Result<()> {
    let mut put = |place: (Ino, u64)| {
        if seen.insert(place) {
            found.places.push(place);
        }
    };
    match by {
        RefBy::File { ino, offset, .. } => put((Ino(ino), offset)),
        RefBy::Leaf(leaf) => {
            // A leaf that was given up since, or is of a transaction not settled, has nothing to say.
            let Some(node) = leaf_at(core, leaf)? else { return Ok(()) };
            for (key, payload) in node.items().filter(|(key, _)| key.kind == KeyType::EXTENT_DATA) {
                let extent = FileExtent::parse(key, payload, u64::from(core.sectorsize()))?;
                if extent.at == at && extent.is_on_disk() {
                    put((Ino(key.objectid), extent.start.wrapping_sub(extent.offset)));
                }
            }
        }
        RefBy::Tree(_) | RefBy::Block(_) => {}
    }
    Ok(())
}

/// The leaf at an address, of whichever subvolume; its generation is that of its extent.
fn leaf_at(core: &Core, at: Logical) -> Result<Option<Arc<Node>>> {
    let extents = &core.globals().extent;
    for key in [Key::new(at.0, KeyType::METADATA_ITEM, 0), Key::new(at.0, KeyType::EXTENT_ITEM, core.nodesize().into())]
    {
        let Some(item) = extents.get(core, key)? else { continue };
        let generation = Generation(ExtentRecord::parse(at, key.kind, &item)?.generation);
        let ptr = NodePtr { at, generation, level: Level(0), tree: TreeId(0), first_key: None };
        return match Loading(core).node(&ptr) {
            Ok(node) => Ok(Some(node)),
            Err(Error::Device(_)) => Ok(None),
            Err(error) => Err(error),
        };
    }
    Ok(None)
}
