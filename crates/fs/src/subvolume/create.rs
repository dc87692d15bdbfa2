//! New subvolumes and snapshots.

use super::uuid_tree::{self, UuidKind};
use super::{preload, quota_groups};
use crate::env::{Point, Time};
use crate::error::{Errno, Error, Result};
use crate::file::Files;
use crate::inode::attr::{Caller, InodeId, dir_type_of, mode, timespec};
use crate::inode::directory::{self, check_name};
use crate::inode::entry::DirItemEntry;
use crate::inode::subvolume_entry::{self, RootBackref};
use crate::inode::{Inode, InodeCache};
use crate::options::Canary;
use crate::transaction::{Core, Handle, Readers, Reserve, Tree};
use butterfs_ondisk::items::{InodeItem, InodeRef, RootItem, inode_flags};
use butterfs_ondisk::{Ino, Key, KeyType, TreeId};
use butterfs_sync::MutexGuard;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Items that making a subvolume changes: two inode items, four directory and root entries, root item, UUIDs, and two
/// of its quota group.
const ITEMS: u64 = 14;

/// Refuses what is no directory before it looks at the name, as the system does.
fn check_place(parent: &Inode, name: &[u8]) -> Result<()> {
    if !parent.is_directory() {
        return Err(Error::refused(Errno::ENOTDIR, "not a directory"));
    }
    check_name(name)
}

/// Locks the table of subvolumes, and then finds out whether `check` refuses what is about to be done.
pub(super) fn check_under_lock(core: &Core, check: impl Fn() -> Result<()>) -> Result<Option<MutexGuard<'_, Readers>>> {
    // The canary's check comes before the lock, and nobody looks again.
    let early = core.has_canary(Canary::SubvolumeCheckedEarly);
    let table = (!early).then(|| core.subvolume_table.lock());
    check()?;
    core.env().reached(Point::SubvolumeChecked);
    Ok(table)
}

/// Makes an empty subvolume.
pub fn create(inodes: &InodeCache, files: &Files, caller: &Caller, parent: InodeId, name: &[u8]) -> Result<TreeId> {
    let core = files.engine();
    let parent = inodes.get(parent)?;
    check_place(&parent, name)?;
    let uuid = core.env().uuid();
    preload::making(core, &parent, name, &uuid);
    let handle = files.start(Reserve::items(ITEMS))?;
    let _guard = parent.lock_exclusive()?;
    let _table = check_under_lock(core, || must_hold(&parent, core, name))?;
    let id = core.trees.next_id()?;
    make(&handle, caller, &parent, name, (id, uuid)).inspect_err(|error| handle.failed(error))?;
    Ok(id)
}

fn make(
    handle: &Handle,
    caller: &Caller,
    parent: &Arc<Inode>,
    name: &[u8],
    (id, uuid): (TreeId, [u8; 16]),
) -> Result<()> {
    let core = handle.core();
    let (generation, now) = (handle.generation().0, core.env().now());
    let item = RootItem {
        inode: embedded_inode(core),
        generation: generation.into(),
        generation_v2: generation.into(),
        root_dirid: Ino::ROOT_DIR.0.into(),
        refs: 1.into(),
        uuid,
        ctransid: generation.into(),
        otransid: generation.into(),
        ctime: timespec(now),
        otime: timespec(now),
        ..RootItem::default()
    };
    let tree = Arc::new(Tree::create(handle, id, item)?);
    let root = InodeItem {
        generation: generation.into(),
        transid: generation.into(),
        nlink: 1.into(),
        mode: (mode::S_IFDIR | 0o777 & !caller.umask).into(),
        uid: caller.uid.into(),
        gid: caller.gid.into(),
        atime: timespec(now),
        ctime: timespec(now),
        mtime: timespec(now),
        otime: timespec(now),
        ..InodeItem::default()
    };
    let root_dir = Ino::ROOT_DIR.0;
    let dots = [InodeRef { index: 0.into(), name_len: 2.into() }.as_bytes(), b".."].concat();
    tree.insert_many(
        handle,
        &[
            (Key::new(root_dir, KeyType::INODE_ITEM, 0), root.as_bytes()),
            (Key::new(root_dir, KeyType::INODE_REF, root_dir), &dots),
        ],
    )?;
    make_known(handle, tree)?;
    uuid_tree::add(handle, UuidKind::Subvolume, &item.uuid, id)?;
    enter(handle, parent, name, Key::new(id.0, KeyType::ROOT_ITEM, 0), now)
}

/// From now on the subvolume can be found. Its root item's final form follows when the transaction freezes.
fn make_known(handle: &Handle, tree: Arc<Tree>) -> Result<()> {
    let core = handle.core();
    core.globals().root.insert(handle, tree.root_item_key(), tree.root_item().as_bytes())?;
    core.trees.remember(tree);
    Ok(())
}

/// The inode in a root item of a subvolume; only its flags mean something.
fn embedded_inode(core: &Core) -> InodeItem {
    InodeItem {
        generation: 1.into(),
        size: 3.into(),
        nbytes: u64::from(core.nodesize()).into(),
        nlink: 1.into(),
        mode: (mode::S_IFDIR | 0o755).into(),
        flags: inode_flags::ROOT_ITEM_INIT.into(),
        ..InodeItem::default()
    }
}

/// Makes the entry of a subvolume in its directory, and the records of its back reference.
fn enter(handle: &Handle, parent: &Arc<Inode>, name: &[u8], location: Key, now: Time) -> Result<()> {
    let kind = dir_type_of(mode::S_IFDIR).expect("directories have a type");
    let entry = DirItemEntry::of_directory(location, handle.generation(), kind, name);
    let index = directory::add(handle, parent, &entry)?;
    let backref = RootBackref { directory: parent.id(), index };
    subvolume_entry::add(handle, backref, name, TreeId(location.objectid))?;
    quota_groups::add(handle, TreeId(location.objectid))?;
    parent.change(|state| {
        state.grow_directory(2 * name.len() as i64);
        state.touch_content(now);
    });
    Ok(())
}

/// Makes a snapshot of `source` and waits until it is durable. What was written to the source before the call is in
/// it. The caller has brought written data into the trees.
pub fn snapshot(
    inodes: &InodeCache,
    files: &Files,
    source: TreeId,
    parent: InodeId,
    name: &[u8],
    read_only: bool,
) -> Result<TreeId> {
    let core = files.engine();
    let source = core.tree(source)?;
    let parent = inodes.get(parent)?;
    check_place(&parent, name)?;
    // Until the snapshot is made: it must not share data that still changes.
    let _stopped = core.stop_in_place(source.id());
    // Space is found while handles come and go.
    let uuid = core.env().uuid();
    preload::making(core, &parent, name, &uuid);
    let handle = files.start(Reserve::items(ITEMS))?;
    must_hold(&parent, core, name)?;
    let checked = core.has_canary(Canary::SubvolumeCheckedEarly);
    drop(handle);
    core.env().reached(Point::SubvolumeAsked);
    preload::copying(core, &source, &parent, name);
    let (id, generation) = {
        let stopped = core.stop_handles()?;
        let handle = stopped.handle();
        // Until now others could delete the source and the directory, and take the name.
        if source.is_deleted() && !checked {
            return Err(Error::refused(Errno::ENOENT, "the subvolume was deleted"));
        }
        must_hold(&parent, core, name)?;
        let id = core.trees.next_id()?;
        core.dirty_inodes.record_all(handle)?;
        // Blocks up to this generation count as the source's when the snapshot is dropped. Within a transaction of
        // several operations it may get blocks of its own in the generation that it is made in.
        let created = handle.generation().0 - u64::from(core.is_together());
        copy(handle, &source, &parent, name, read_only, (id, uuid, created))
            .inspect_err(|error| handle.failed(error))?;
        (id, handle.generation())
    };
    core.commit_operation(generation)?;
    Ok(id)
}

fn copy(
    handle: &Handle,
    source: &Arc<Tree>,
    parent: &Arc<Inode>,
    name: &[u8],
    read_only: bool,
    (id, uuid, created): (TreeId, [u8; 16], u64),
) -> Result<()> {
    let core = handle.core();
    let (generation, now) = (handle.generation().0, core.env().now());
    let mut item = source.root_item();
    let flags = item.flags.get() & !RootItem::RDONLY | if read_only { RootItem::RDONLY } else { 0 };
    item.inode.flags = (item.inode.flags.get() | inode_flags::ROOT_ITEM_INIT).into();
    item.last_snapshot = generation.into();
    item.flags = flags.into();
    item.parent_uuid = item.uuid;
    item.uuid = uuid;
    item.otransid = generation.into();
    item.otime = timespec(now);
    item.reserved = [0.into(); 8];
    if !read_only {
        item.received_uuid = [0; 16];
        (item.stransid, item.rtransid) = (0.into(), 0.into());
        (item.stime, item.rtime) = Default::default();
    }
    let tree = Arc::new(source.snapshot(handle, (id, created), item)?);
    make_known(handle, tree)?;
    uuid_tree::add(handle, UuidKind::Subvolume, &item.uuid, id)?;
    match uuid_tree::add(handle, UuidKind::Received, &item.received_uuid, id) {
        Err(error) if error.is(Errno::EOVERFLOW) => {}
        other => other?,
    }
    enter(handle, parent, name, Key::new(id.0, KeyType::ROOT_ITEM, u64::MAX), now)
}

/// Refuses a directory that cannot get a subvolume of this name.
fn must_hold(parent: &Inode, core: &Core, name: &[u8]) -> Result<()> {
    if !parent.is_directory() {
        return Err(Error::refused(Errno::ENOTDIR, "not a directory"));
    }
    parent.must_take_entries()?;
    directory::plan_addition(core, &parent.tree, parent.ino, name, None)
}
