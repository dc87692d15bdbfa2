//! Questions about the file extents of subvolumes: which are new, and who uses an address.
//!
//! Both read items as they are in the trees; the caller brings written data there first. The first one leaves out what
//! is older. For the second one, back references say which inodes and positions to look at, but not in which
//! subvolumes, because snapshots share nodes: it looks in each.

use super::sharers::sharers_of;
use crate::error::{Errno, Error, Result};
use crate::file::codec::MAX_UNCOMPRESSED;
use crate::file::item::FileExtent;
use crate::transaction::Core;
use crate::transaction::extent_item::{ExtentRecord, counted};
use crate::transaction::refs::RefBy;
use butterfs_ondisk::items::{ExtentDataRef, ExtentItem, extent_flags};
use butterfs_ondisk::{Generation, Ino, Key, KeyType, Logical, TreeId};
use std::ops::ControlFlow;
use zerocopy::FromBytes;

/// Shows the file extents of a subvolume that were written in transaction `since` or later.
pub fn newer_than(
    core: &Core,
    id: TreeId,
    since: Generation,
    show: &mut dyn FnMut(Ino, &FileExtent) -> Result<()>,
) -> Result<()> {
    let (from, to) = (Key::new(Ino::ROOT_DIR.0, KeyType(0), 0), Key::new(Ino::LAST_FREE.0, KeyType(255), u64::MAX));
    of_range(core, id, since, (from, to), &mut |ino, extent| {
        if extent.generation >= since.0 { show(ino, extent) } else { Ok(()) }
    })
}

/// Shows the file extents between two keys, of leaves not older than `since`.
fn of_range(
    core: &Core,
    id: TreeId,
    since: Generation,
    (from, to): (Key, Key),
    show: &mut dyn FnMut(Ino, &FileExtent) -> Result<()>,
) -> Result<()> {
    let tree = core.tree(id)?;
    let sectorsize = u64::from(core.sectorsize());
    tree.scan_since(core, since, from, to, &mut |key, payload| {
        if key.kind == KeyType::EXTENT_DATA {
            show(Ino(key.objectid), &FileExtent::parse(key, payload, sectorsize)?)?;
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// A file that uses an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct User {
    /// The subvolume.
    pub tree: TreeId,
    /// The file.
    pub ino: Ino,
    /// Where in the file the address is; for a compressed extent, or when the whole extent was asked for, where the
    /// used part of the extent is.
    pub offset: u64,
}

/// The files that use the data at an address; those of its whole extent when `whole_extent`. `ENOENT` when there is no
/// data.
pub fn users_of(core: &Core, at: Logical, whole_extent: bool) -> Result<Vec<User>> {
    let (start, len) = extent_of(core, at)?;
    let sharers = sharers_of(core, start, len, usize::MAX, false)?.unwrap_or_default();
    let mut users = Vec::new();
    for info in super::info::list(core)? {
        for (ino, base) in &sharers.places {
            // Where the extent begins in the file may be before the file's first byte.
            let first = if i64::try_from(*base).is_ok() { *base } else { 0 };
            let last = base.wrapping_add(len.max(MAX_UNCOMPRESSED as u64) - 1);
            let range = [first, last].map(|offset| Key::new(ino.0, KeyType::EXTENT_DATA, offset));
            of_range(core, info.id, Generation(0), range.into(), &mut |ino, extent| {
                let starts = extent.start.wrapping_sub(extent.offset);
                if extent.at != start || !extent.is_on_disk() || starts != *base {
                    return Ok(());
                }
                let (into, plain) = (at.0 - start.0, extent.compression == 0);
                let covered = into >= extent.offset && into < extent.offset + extent.len;
                let offset = match whole_extent || !plain {
                    true => extent.start,
                    false if covered => extent.start + into - extent.offset,
                    false => return Ok(()),
                };
                users.push(User { tree: info.id, ino, offset });
                Ok(())
            })?;
        }
    }
    users.sort_unstable();
    Ok(users)
}

/// Where the data extent starts that an address is in, and its bytes on disk.
fn extent_of(core: &Core, at: Logical) -> Result<(Logical, u64)> {
    let none = || Error::refused_at(Errno::ENOENT, format!("there is no file data at {at}"));
    let mut behind = Key::new(at.0, KeyType(KeyType::EXTENT_ITEM.0 + 1), 0);
    // Behind the item and before the address there can be references of the extent, with its address in their keys, and
    // the item of its block group.
    loop {
        let Some((key, payload)) = core.globals().extent.last_before(core, behind)? else { return Err(none()) };
        match key.kind {
            KeyType::EXTENT_ITEM => {
                let item = ExtentItem::ref_from_prefix(&payload).ok();
                let is_data = item.is_some_and(|(item, _)| item.flags.get() & extent_flags::DATA != 0);
                let inside = is_data && at.0 - key.objectid < key.offset;
                return if inside { Ok((Logical(key.objectid), key.offset)) } else { Err(none()) };
            }
            KeyType::METADATA_ITEM => return Err(none()),
            KeyType::BLOCK_GROUP_ITEM => behind = key,
            _ => behind = Key::new(key.objectid, KeyType(KeyType::EXTENT_ITEM.0 + 1), 0),
        }
    }
}

/// Users of an address as its back references name them, at most about `most`: the files that were written there, and
/// not the snapshots that share their trees. Costs no more than reading that many references. None where no data is.
pub fn some_users_of(core: &Core, at: Logical, most: usize) -> Result<Vec<User>> {
    let (start, len) = match extent_of(core, at) {
        Err(error) if error.is(Errno::ENOENT) => return Ok(Vec::new()),
        found => found?,
    };
    let key = Key::new(start.0, KeyType::EXTENT_ITEM, len);
    let Some(item) = core.globals().extent.get(core, key)? else { return Ok(Vec::new()) };
    let mut found: Vec<RefBy> = ExtentRecord::parse(start, key.kind, &item)?.inline.iter().map(|one| one.by).collect();
    let keyed = Key::new(start.0, KeyType::EXTENT_DATA_REF, 0)..=Key::new(start.0, KeyType::EXTENT_DATA_REF, u64::MAX);
    core.globals().extent.scan(core, *keyed.start(), *keyed.end(), &mut |_, payload| {
        found.extend(ExtentDataRef::read_from_bytes(payload).ok().map(|item| counted(&item).by));
        Ok(if found.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    let user = |by: RefBy| match by {
        RefBy::File { tree, ino, offset } => {
            Some(User { tree, ino: Ino(ino), offset: offset.wrapping_add(at.0 - start.0) })
        }
        _ => None,
    };
    Ok(found.into_iter().filter_map(user).take(most).collect())
}
