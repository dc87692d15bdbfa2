//! Questions about the file extents of subvolumes: which are new, and who uses an address.
//!
//! Both read file extent items as they are in the trees; the caller brings written data there first. The second one
//! reads all of them: references through shared nodes do not say which subvolumes they come from.

use crate::error::{Errno, Error, Result};
use crate::file::item::FileExtent;
use crate::transaction::Core;
use butterfs_ondisk::items::{ExtentItem, extent_flags};
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
    of_tree(core, id, &mut |ino, extent| if extent.generation >= since.0 { show(ino, extent) } else { Ok(()) })
}

fn of_tree(core: &Core, id: TreeId, show: &mut dyn FnMut(Ino, &FileExtent) -> Result<()>) -> Result<()> {
    let tree = core.tree(id)?;
    let sectorsize = u64::from(core.sectorsize());
    let (from, to) = (Key::new(Ino::ROOT_DIR.0, KeyType(0), 0), Key::new(Ino::LAST_FREE.0, KeyType(255), u64::MAX));
    tree.scan(core, from, to, &mut |key, payload| {
        if key.kind == KeyType::EXTENT_DATA {
            show(Ino(key.objectid), &FileExtent::parse(key, payload, sectorsize)?)?;
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// A file that uses an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// The subvolume.
    pub tree: TreeId,
    /// The file.
    pub ino: Ino,
    /// Where in the file the address is; for a compressed extent, where the extent is.
    pub offset: u64,
}

/// The files that use the data at an address; those of its whole extent when `whole_extent`. `ENOENT` when there is no
/// data.
pub fn users_of(core: &Core, at: Logical, whole_extent: bool) -> Result<Vec<User>> {
    let start = extent_of(core, at)?;
    let mut users = Vec::new();
    for info in super::info::list(core)? {
        of_tree(core, info.id, &mut |ino, extent| {
            if extent.at != start || !extent.is_on_disk() {
                return Ok(());
            }
            let (into, plain) = (at.0 - start.0, extent.compression == 0);
            let covered = into >= extent.offset && into < extent.offset + extent.len;
            if whole_extent || !plain || covered {
                let offset = if plain && covered { extent.start + into - extent.offset } else { extent.start };
                users.push(User { tree: info.id, ino, offset });
            }
            Ok(())
        })?;
    }
    Ok(users)
}

/// Where the data extent starts that an address is in.
fn extent_of(core: &Core, at: Logical) -> Result<Logical> {
    let none = || Error::refused_at(Errno::ENOENT, format!("there is no file data at {at}"));
    let mut behind = Key::new(at.0, KeyType(KeyType::EXTENT_ITEM.0 + 1), 0);
    // Between the item and the address there can be references of the extent, and the item of its block group.
    loop {
        let Some((key, payload)) = core.globals().extent.last_before(core, behind)? else { return Err(none()) };
        match key.kind {
            KeyType::EXTENT_ITEM => {
                let item = ExtentItem::ref_from_prefix(&payload).ok();
                let is_data = item.is_some_and(|(item, _)| item.flags.get() & extent_flags::DATA != 0);
                let inside = is_data && at.0 - key.objectid < key.offset;
                return if inside { Ok(Logical(key.objectid)) } else { Err(none()) };
            }
            KeyType::METADATA_ITEM => return Err(none()),
            _ => behind = key,
        }
    }
}
