//! The properties of subvolumes, and changes of those that can be changed.

use super::create::check_under_lock;
use super::preload;
use super::uuid_tree::{self, UuidKind};
use crate::env::Time;
use crate::error::{Errno, Error, Result};
use crate::file::Files;
use crate::inode::attr::{time_of, timespec};
use crate::inode::entry;
use crate::inode::entry::DirItemEntry;
use crate::inode::{self, xattr};
use crate::transaction::{Core, Reserve};
use butterfs_ondisk::checksum::name_hash;
use butterfs_ondisk::features::incompat;
use butterfs_ondisk::items::{RootItem, RootRef};
use butterfs_ondisk::{Generation, Ino, Key, KeyType, TreeId};
use std::ops::ControlFlow;
use zerocopy::FromBytes;

/// A subvolume, as its root item and its back reference describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubvolumeInfo {
    /// Its id.
    pub id: TreeId,
    /// The subvolume that holds its entry, the directory there, and the name; `None` for the top level.
    pub backref: Option<(TreeId, Ino, Vec<u8>)>,
    /// Generation of its root node.
    pub generation: Generation,
    /// Its root item's flags.
    pub flags: u64,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// The UUID of what it is a snapshot of.
    pub parent_uuid: [u8; 16],
    /// The UUID it was received as.
    pub received_uuid: [u8; 16],
    /// Transactions of the last change, of creation, when sent, when received.
    pub transids: [u64; 4],
    /// Times of the same.
    pub times: [Time; 4],
}

impl SubvolumeInfo {
    fn of(id: TreeId, item: &RootItem) -> SubvolumeInfo {
        SubvolumeInfo {
            id,
            backref: None,
            generation: Generation(item.generation.get()),
            flags: item.flags.get(),
            uuid: item.uuid,
            parent_uuid: item.parent_uuid,
            received_uuid: item.received_uuid,
            transids: [item.ctransid.get(), item.otransid.get(), item.stransid.get(), item.rtransid.get()],
            times: [time_of(item.ctime), time_of(item.otime), time_of(item.stime), time_of(item.rtime)],
        }
    }

    /// Whether it is read-only.
    pub fn is_readonly(&self) -> bool {
        self.flags & RootItem::RDONLY != 0
    }
}

/// All living subvolumes by id, the top level included.
pub fn list(core: &Core) -> Result<Vec<SubvolumeInfo>> {
    list_from(core, TreeId::FS, usize::MAX)
}

/// The first `most` living subvolumes from `from` on, by id.
pub fn list_from(core: &Core, from: TreeId, most: usize) -> Result<Vec<SubvolumeInfo>> {
    let mut found: Vec<SubvolumeInfo> = Vec::new();
    scan(core, from, TreeId(Ino::LAST_FREE.0), &mut |key, payload| {
        let id = TreeId(key.objectid);
        match key.kind {
            // What belongs to the last one comes before it.
            KeyType::ROOT_ITEM if found.len() >= most => return Ok(ControlFlow::Break(())),
            KeyType::ROOT_ITEM => {
                found.extend(living(core, id, payload).map(|item| SubvolumeInfo::of(id, &item)));
            }
            KeyType::ROOT_BACKREF => {
                if let Some(last) = found.last_mut().filter(|last| last.id == id) {
                    last.backref = Some(backref(key, payload)?);
                }
            }
            _ => {}
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(found)
}

/// Shows the root items of the living subvolumes from `first` to `last`, both included, by id.
pub(super) fn visit(core: &Core, first: TreeId, last: TreeId, show: &mut dyn FnMut(TreeId, &RootItem)) -> Result<()> {
    scan(core, first, last, &mut |key, payload| {
        let id = TreeId(key.objectid);
        if let Some(item) = (key.kind == KeyType::ROOT_ITEM).then(|| living(core, id, payload)).flatten() {
            show(id, &item);
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// Shows the items that the root tree has of subvolumes.
fn scan(
    core: &Core,
    first: TreeId,
    last: TreeId,
    show: &mut dyn FnMut(Key, &[u8]) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let (from, to) = (Key::new(first.0, KeyType(0), 0), Key::new(last.0, KeyType(255), u64::MAX));
    core.globals().root.scan(core, from, to, &mut |key, payload| {
        if TreeId(key.objectid).is_subvolume() { show(key, payload) } else { Ok(ControlFlow::Continue(())) }
    })
}

/// The root item of a subvolume as it is now; none of a deleted one.
fn living(core: &Core, id: TreeId, payload: &[u8]) -> Option<RootItem> {
    RootItem::parse(payload).map(|item| core.trees.current_root_item(id, item)).filter(|item| item.refs.get() > 0)
}

fn backref(key: Key, payload: &[u8]) -> Result<(TreeId, Ino, Vec<u8>)> {
    let (head, name) = RootRef::ref_from_prefix(payload)
        .map_err(|_| Error::corrupt(format!("root back reference {key} has {} bytes", payload.len())))?;
    Ok((TreeId(key.offset), Ino(head.dirid.get()), name.to_vec()))
}

/// One subvolume.
pub fn info(core: &Core, id: TreeId) -> Result<SubvolumeInfo> {
    let tree = core.tree(id)?;
    let mut info = SubvolumeInfo::of(id, &tree.root_item());
    let (from, to) = (Key::new(id.0, KeyType::ROOT_BACKREF, 0), Key::new(id.0, KeyType::ROOT_BACKREF, u64::MAX));
    core.globals().root.scan(core, from, to, &mut |key, payload| {
        info.backref = Some(backref(key, payload)?);
        Ok(ControlFlow::Break(()))
    })?;
    Ok(info)
}

pub(super) fn default_key(core: &Core) -> Key {
    Key::new(core.superblock().root_dir_objectid.get(), KeyType::DIR_ITEM, name_hash(b"default"))
}

/// The default subvolume; 5 where none is named.
pub fn default_id(core: &Core) -> Result<TreeId> {
    if let Some(id) = core.shown_by_another_root() {
        return Ok(id);
    }
    let Some(item) = core.globals().root.get(core, default_key(core))? else { return Ok(TreeId::FS) };
    Ok(entry::find(&item, b"default")?.map_or(TreeId::FS, |(_, found)| TreeId(found.location.objectid)))
}

/// Makes `id` the default subvolume.
pub fn set_default(files: &Files, id: TreeId) -> Result<()> {
    let core = files.engine();
    preload::naming_default(core);
    preload::identity(core, id);
    let handle = files.start(Reserve::items(2))?;
    let _table = check_under_lock(core, || core.tree(id).map(|_| ()))?;
    let location = Key::new(id.0, KeyType::ROOT_ITEM, u64::MAX);
    let kind = butterfs_ondisk::items::dir_type::DIR;
    let entry = DirItemEntry::of_directory(location, handle.generation(), kind, b"default").to_bytes();
    core.globals().root.put(&handle, default_key(core), &entry)?;
    core.set_incompat(incompat::DEFAULT_SUBVOL);
    Ok(())
}

/// Records what a subvolume was received as, and makes it read-only, in one step. The caller has brought written data
/// into the trees.
pub fn finish_received(files: &Files, id: TreeId, uuid: &[u8; 16], stransid: u64, mark: &[u8]) -> Result<()> {
    let core = files.engine();
    preload::identity(core, id);
    uuid_tree::preload(core, UuidKind::Received, uuid);
    if let Ok(tree) = core.tree(id) {
        inode::preload::attribute(core, &tree, Ino::ROOT_DIR, mark);
    }
    let handle = files.start(Reserve::items(5))?;
    let _table = core.subvolume_table.lock();
    let tree = core.tree(id)?;
    let item = tree.root_item();
    if tree.is_readonly() {
        return Err(Error::refused(Errno::EROFS, "the subvolume is read-only"));
    }
    match xattr::remove(&handle, &tree, Ino::ROOT_DIR, mark) {
        Err(error) if error.is(Errno::ENODATA) => {}
        other => other?,
    }
    uuid_tree::add(&handle, UuidKind::Received, uuid, id)?;
    if item.received_uuid != *uuid {
        uuid_tree::remove(&handle, UuidKind::Received, &item.received_uuid, id)?;
    }
    let (generation, now) = (handle.generation().0, timespec(core.env().now()));
    tree.change_root_item(&handle, |item| {
        item.received_uuid = *uuid;
        (item.stransid, item.rtransid) = (stransid.into(), generation.into());
        (item.stime, item.rtime) = (Default::default(), now);
        item.flags = (item.flags.get() | RootItem::RDONLY).into();
    });
    Ok(())
}

/// Sets or clears the read-only flag. A received subvolume that becomes writable is no longer a received one.
pub fn set_readonly(files: &Files, id: TreeId, read_only: bool) -> Result<()> {
    let core = files.engine();
    preload::identity(core, id);
    let handle = files.start(Reserve::items(3))?;
    let table = core.subvolume_table.lock();
    let tree = core.tree(id)?;
    let item = tree.root_item();
    if tree.is_readonly() == read_only {
        return Ok(());
    }
    if !read_only {
        table.must_not_read(id)?;
        uuid_tree::remove(&handle, UuidKind::Received, &item.received_uuid, id)?;
    }
    tree.change_root_item(&handle, |item| {
        if read_only {
            item.flags = (item.flags.get() | RootItem::RDONLY).into();
            return;
        }
        item.flags = (item.flags.get() & !RootItem::RDONLY).into();
        item.received_uuid = [0; 16];
        (item.stransid, item.rtransid) = (0.into(), 0.into());
        (item.stime, item.rtime) = Default::default();
    });
    Ok(())
}
