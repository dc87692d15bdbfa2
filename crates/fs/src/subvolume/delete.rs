//! Deleting a subvolume: it loses its name and its UUIDs at once, its blocks later (see `cleaner`).

use super::create::check_under_lock;
use super::uuid_tree::{self, UuidKind};
use super::{info, preload};
use crate::env::Point;
use crate::error::{Errno, Error, Result};
use crate::file::Files;
use crate::inode::directory::{self, EntryTarget};
use crate::inode::{InodeCache, InodeId, subvolume_entry};
use crate::options::Canary;
use crate::transaction::{Core, Handle, Reserve, Tree};
use butterfs_ondisk::items::RootItem;
use butterfs_ondisk::key::{DiskKey, objectid};
use butterfs_ondisk::{Key, KeyType, TreeId};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Items that deletion changes.
const ITEMS: u64 = 10;

/// The key of a deleted tree's orphan item in the root tree.
pub(super) fn orphan_key(id: TreeId) -> Key {
    Key::new(objectid::ORPHAN, KeyType::ORPHAN_ITEM, id.0)
}

/// The facts that the caller of [`delete`] knows about the subvolume, or demands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Victim {
    /// The only subvolume that may be deleted: the one whose permissions the caller has checked.
    pub expected: Option<TreeId>,
    /// It must be empty, as for rmdir(2).
    pub empty: bool,
    /// The subvolume that is mounted, which stays.
    pub mounted: TreeId,
}

/// Deletes the subvolume that `name` in `parent` leads to, and returns its id. `ESTALE` when it is not the expected
/// one.
pub fn delete(inodes: &InodeCache, files: &Files, parent: InodeId, name: &[u8], victim: Victim) -> Result<TreeId> {
    let core = files.engine();
    core.env().reached(Point::SubvolumeAsked);
    let parent = inodes.get(parent)?;
    preload::deleting(inodes, &parent, name);
    let handle = files.start(Reserve::removal(ITEMS))?;
    let _guard = parent.lock_exclusive()?;
    parent.must_lose_entries()?;
    let found = directory::find(core.core(), &parent.tree, parent.ino, name)?;
    let found = found.ok_or_else(|| Error::refused(Errno::ENOENT, "there is no such name"))?;
    let EntryTarget::Subvolume(id) = found.target else {
        return Err(Error::refused(Errno::EINVAL, "not a subvolume"));
    };
    let looked = core.has_canary(Canary::SubvolumeCheckedEarly);
    if !looked && victim.expected.is_some_and(|expected| expected != id) {
        return Err(Error::refused(Errno::ESTALE, "the name leads to another subvolume by now"));
    }
    let backref = subvolume_entry::confirm(core, parent.id(), name, id)?
        .ok_or_else(|| Error::refused(Errno::EINVAL, "the directory stands for a subvolume that is not here"))?;
    let tree = core.tree(id)?;
    if id == victim.mounted {
        return Err(Error::refused(Errno::EBUSY, "the subvolume is mounted"));
    }
    let root = inodes.get(InodeId::root_of(id))?;
    root.must_lose_names()?;
    if victim.empty && root.size() != 0 {
        return Err(Error::refused(Errno::ENOTEMPTY, "the subvolume is not empty"));
    }
    let table = check_under_lock(core, || must_be_deletable(core, id))?;
    if let Some(table) = &table {
        table.must_not_read(id)?;
    }
    let gone = || -> Result<()> {
        directory::remove(&handle, &parent, name, &found, backref.index)?;
        subvolume_entry::remove(&handle, parent.tree_id(), id)?;
        mark_deleted(&handle, &tree)
    };
    gone().inspect_err(|error| handle.failed(error))?;
    parent.change(|state| {
        state.grow_directory(-2 * name.len() as i64);
        state.touch_content(core.env().now());
    });
    Ok(id)
}

fn must_be_deletable(core: &Core, id: TreeId) -> Result<()> {
    if id == TreeId::FS {
        return Err(Error::refused(Errno::EPERM, "the top-level subvolume cannot be deleted"));
    }
    if info::default_id(core)? == id {
        return Err(Error::refused(Errno::EPERM, "the default subvolume cannot be deleted"));
    }
    let mut nested = false;
    let (from, to) = (Key::new(id.0, KeyType::ROOT_REF, 0), Key::new(id.0, KeyType::ROOT_REF, u64::MAX));
    core.globals().root.scan(core, from, to, &mut |_, _| {
        nested = true;
        Ok(ControlFlow::Break(()))
    })?;
    if nested {
        return Err(Error::refused(Errno::ENOTEMPTY, "the subvolume holds other subvolumes"));
    }
    Ok(())
}

fn mark_deleted(handle: &Handle, tree: &Arc<Tree>) -> Result<()> {
    let item = tree.root_item();
    tree.change_root_item(handle, |item| {
        item.refs = 0.into();
        item.drop_progress = DiskKey::default();
        item.drop_level = 0;
        item.flags = (item.flags.get() | RootItem::DEAD).into();
    });
    handle.core().globals().root.insert(handle, orphan_key(tree.id()), &[])?;
    uuid_tree::remove(handle, UuidKind::Subvolume, &item.uuid, tree.id())?;
    uuid_tree::remove(handle, UuidKind::Received, &item.received_uuid, tree.id())
}
