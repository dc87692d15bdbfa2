//! Marks of compression that are not those of the data.
//!
//! Invariant: only data that fits its checksum says anything; or there are no checksums, which packed data always has.

use crate::action::Pass;
use crate::checksums;
use crate::forest::Forest;
use crate::inodes;
use crate::trouble::Result;
use butterfs_ondisk::items::{FileExtent, FileExtentHead, compression, file_extent_type};
use butterfs_ondisk::packing::{self, LARGEST, Packing};
use butterfs_ondisk::{Key, KeyType, TreeId};
use zerocopy::{FromBytes, IntoBytes};

/// Marks an extent as its data is packed, if the data says how.
pub(crate) fn settle(forest: &mut Forest, tree: TreeId, key: Key, data: &[u8]) -> Result<()> {
    let Ok((head, rest)) = FileExtentHead::read_from_prefix(data) else { return Ok(()) };
    let right = match head.kind {
        file_extent_type::INLINE => {
            of_inline(&head, rest).map(|mark| (mark, [with(head, mark).as_bytes(), rest].concat()))
        }
        file_extent_type::REGULAR => of_extent(forest, (tree, key.objectid), data)?,
        _ => None,
    };
    let Some((mark, data)) = right else { return Ok(()) };
    forest.put(tree, key, &data)?;
    let (start, inode, name) = (key.offset, key.objectid, packing::name(mark));
    forest.did(Pass::Files, format!("marks the extent at {start} of inode {inode} of tree {tree} as {name}"));
    Ok(())
}

fn with(head: FileExtentHead, mark: u8) -> FileExtentHead {
    FileExtentHead { compression: mark, ..head }
}

fn of_inline(head: &FileExtentHead, data: &[u8]) -> Option<u8> {
    let (mark, stored, unpacked) = (head.compression, data.len() as u64, head.ram_bytes.get());
    let right = Packing { mark, stored, unpacked, unit: 1 }.right_mark(data)?;
    // Data that is not packed has the same length stored and unpacked.
    (right != compression::NONE || stored == unpacked).then_some(right)
}

/// The right mark of an extent, and the item with it.
fn of_extent(forest: &Forest, file: (TreeId, u64), data: &[u8]) -> Result<Option<(u8, Vec<u8>)>> {
    let Ok(mut extent) = FileExtent::read_from_bytes(data) else { return Ok(None) };
    let (at, stored) = (extent.body.disk_bytenr.get(), extent.body.disk_num_bytes.get());
    let own = Key::new(at, KeyType::EXTENT_ITEM, stored);
    if at == 0 || !forest.get(TreeId::EXTENT, own).is_ok_and(|item| item.is_some()) {
        return Ok(None);
    }
    let (mark, unpacked, unit) = (extent.head.compression, extent.head.ram_bytes.get(), forest.store.sectorsize());
    let Some(right) = right_mark(forest, file, at, Packing { mark, stored, unpacked, unit })? else { return Ok(None) };
    let length = if right == compression::NONE { stored } else { unpacked };
    if extent.body.offset.get().saturating_add(extent.body.num_bytes.get()) > length {
        return Ok(None);
    }
    (extent.head.compression, extent.head.ram_bytes) = (right, length.into());
    Ok(Some((right, extent.as_bytes().to_vec())))
}

fn right_mark(forest: &Forest, file: (TreeId, u64), at: u64, packing: Packing) -> Result<Option<u8>> {
    let is_marked = packing.mark != compression::NONE;
    let is_as_long = packing.stored == packing.unpacked;
    if is_marked && is_as_long && packing.stored > LARGEST {
        return Ok(Some(compression::NONE));
    }
    if !packing.is_doubtful() {
        return Ok(None);
    }
    if let Some(start) = checksums::verified_sector(forest, at)? {
        return Ok(packing.right_mark(&start));
    }
    let never_has_some = checksums::covered(forest, at, packing.stored)? == 0 && !inodes::has_checksums(forest, file)?;
    Ok((is_marked && is_as_long && never_has_some).then_some(compression::NONE))
}
