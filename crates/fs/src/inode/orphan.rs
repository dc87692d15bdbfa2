//! Inodes without a name: their orphan items, and their deletion.
//!
//! An inode that loses its last name while it is open lives on; an orphan item, in the tree by the time the
//! transaction is committed, tells the next mount to delete it. So an inode that is deleted in the transaction in
//! which it lost its name never gets one.
//!
//! # Invariants
//! 1. A deletion that does not fit one handle happens under the orphan item: extents from the end, size and bytes
//!    following, then everything else, the inode item and the orphan item in the last step.
//! 2. Whatever a crash leaves behind, the next mount's [`clean_up`] finishes.
//! 3. A read-only subvolume loses its orphans too, as under the kernel: those that a snapshot took over from its
//!    source, and files that are still open when the subvolume becomes read-only. While it is being sent it does not
//!    change; then the orphan items stay for the next mount.

use crate::commit::Engine;
use crate::error::{Errno, Error, Result};
use crate::inode::cache::{InodeCache, item_key, read_item};
use crate::inode::{Inode, InodeId, Orphan, number};
use crate::transaction::{Core, DataRef, Handle, Reserve, Tree};
use butterfs_ondisk::items::{FileExtent, FileExtentHead, file_extent_type};
use butterfs_ondisk::{Ino, Key, KeyType, Logical, TreeId};
use std::ops::ControlFlow;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Extents up to which an inode is deleted in one step.
const FEW_EXTENTS: u64 = 16;
/// Leaves that one step removes items from.
const LEAVES_PER_STEP: u64 = 8;

pub use crate::transaction::orphan_key as key;

/// Deletes an inode that has neither name nor user. No lock and no handle is held.
pub(super) fn delete(inodes: &InodeCache, inode: &Arc<Inode>) -> Result<()> {
    {
        let _guard = inode.lock.write();
        let is_deletable = inode.remember(|state| {
            let is_deletable = state.item.nlink.get() == 0 && !state.deleted;
            state.deleted |= is_deletable;
            is_deletable
        });
        if !is_deletable {
            return Ok(());
        }
        inode.data.discard();
    }
    let core = inodes.engine();
    number::begin(core, &inode.tree)?;
    let sectorsize = u64::from(core.sectorsize());
    if inode.with(|state| state.item.nbytes.get()) > FEW_EXTENTS * sectorsize {
        remove_extents(core, inode)?;
    }
    preload_rest(core, inode);
    let handle = core.start(Reserve::removal(4))?;
    let _turn = core.maintain(&inode.tree)?;
    remove_rest(&handle, inode).inspect_err(|error| handle.failed(error))?;
    inodes.discard(inode.id());
    Ok(())
}

/// The leaves that a step of [`remove_extents`] changes.
fn preload_extents(core: &Core, inode: &Inode) {
    let key = |offset| Key::new(inode.ino.0, KeyType::EXTENT_DATA, offset);
    inode.tree.preload(core, &[self::key(inode.ino)]);
    inode.tree.preload_end_of_range(core, key(0), key(u64::MAX), LEAVES_PER_STEP as usize + 1);
}

/// The leaves with the rest of an inode.
fn preload_rest(core: &Core, inode: &Inode) {
    let (from, to) = keys_of(inode.ino);
    inode.tree.preload(core, &[key(inode.ino)]);
    inode.tree.preload_range(core, from, to, usize::MAX);
}

/// Removes all file extents, from the end, in as many handles as it takes.
fn remove_extents(core: &Engine, inode: &Arc<Inode>) -> Result<()> {
    loop {
        preload_extents(core, inode);
        let handle = core.start(Reserve::removal(LEAVES_PER_STEP + 1))?;
        let _turn = core.maintain(&inode.tree)?;
        let more = remove_some_extents(&handle, inode).inspect_err(|error| handle.failed(error))?;
        if !more {
            return Ok(());
        }
    }
}

fn remove_some_extents(handle: &Handle, inode: &Arc<Inode>) -> Result<bool> {
    record(handle, inode)?;
    for _ in 0..LEAVES_PER_STEP {
        if !remove_last_extents(handle, inode)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Puts the orphan item into the tree, before a deletion that other transactions may go on with.
fn record(handle: &Handle, inode: &Arc<Inode>) -> Result<()> {
    let due = inode.remember(|state| {
        let due = state.orphan == Orphan::Due;
        if due {
            state.orphan = Orphan::Recorded;
        }
        due
    });
    if due {
        inode.tree.insert(handle, key(inode.ino), &[])?;
    }
    Ok(())
}

/// Removes extents near the end of the file, of about one leaf; false when there were none.
fn remove_last_extents(handle: &Handle, inode: &Arc<Inode>) -> Result<bool> {
    let (core, tree) = (handle.core(), &inode.tree);
    let Some(from) = nearby_extent(core, tree, inode.ino)? else { return Ok(false) };
    let to = Key::new(inode.ino.0, KeyType::EXTENT_DATA, u64::MAX);
    let mut freed = 0;
    while tree.remove_range(handle, from, to, &mut |key, payload| {
        freed += drop_extent(handle, tree.id(), key, payload)?;
        Ok(())
    })? {}
    inode.change(|state| {
        state.sub_nbytes(freed);
        state.size = state.size.min(from.offset);
        state.item.size = state.item.size.get().min(from.offset).into();
    });
    Ok(true)
}

/// The key of an extent some way before the last one.
fn nearby_extent(core: &Core, tree: &Tree, ino: Ino) -> Result<Option<Key>> {
    let mut first = None;
    let mut before = Key::new(ino.0, KeyType(KeyType::EXTENT_DATA.0 + 1), 0);
    for _ in 0..64 {
        let Some((key, _)) = tree.last_before(core, before)? else { break };
        if key.objectid != ino.0 || key.kind != KeyType::EXTENT_DATA {
            break;
        }
        (first, before) = (Some(key), key);
    }
    Ok(first)
}

/// Gives up what a file extent item refers to; returns the bytes that it counted for.
fn drop_extent(handle: &Handle, tree: TreeId, key: Key, payload: &[u8]) -> Result<u64> {
    let malformed = || Error::corrupt(format!("tree {tree}: file extent {key} has {} bytes", payload.len()));
    let (head, _) = FileExtentHead::ref_from_prefix(payload).map_err(|_| malformed())?;
    if head.kind == file_extent_type::INLINE {
        return Ok(head.ram_bytes.get());
    }
    let (extent, _) = FileExtent::ref_from_prefix(payload).map_err(|_| malformed())?;
    if extent.body.disk_bytenr == 0 {
        return Ok(0);
    }
    handle.drop_data_ref(DataRef {
        at: Logical(extent.body.disk_bytenr.get()),
        len: extent.body.disk_num_bytes.get(),
        tree,
        ino: key.objectid,
        offset: key.offset.wrapping_sub(extent.body.offset.get()),
    });
    Ok(extent.body.num_bytes.get())
}

fn keys_of(ino: Ino) -> (Key, Key) {
    (Key::new(ino.0, KeyType(0), 0), Key::new(ino.0, KeyType(u8::MAX), u64::MAX))
}

/// Removes all items of the inode, and its orphan item.
fn remove_rest(handle: &Handle, inode: &Arc<Inode>) -> Result<()> {
    let (from, to) = keys_of(inode.ino);
    let tree = &inode.tree;
    while tree.remove_range(handle, from, to, &mut |key, payload| {
        if key.kind == KeyType::EXTENT_DATA {
            drop_extent(handle, tree.id(), key, payload)?;
        }
        Ok(())
    })? {}
    let recorded = inode.remember(|state| std::mem::take(&mut state.orphan) == Orphan::Recorded);
    if recorded {
        tree.remove(handle, key(inode.ino))?;
    }
    Ok(())
}

/// Deletes what an earlier mount left behind in a subvolume, or what a snapshot took over from its source; what is open
/// goes when it is closed. False when the subvolume is being sent, so that nothing may change.
pub fn clean_up(inodes: &InodeCache, tree: &Arc<Tree>) -> Result<bool> {
    for ino in recorded(inodes.engine(), tree)? {
        match clean_up_one(inodes, tree, ino) {
            Err(error) if error.is(Errno::EPERM) => return Ok(false),
            other => other?,
        }
    }
    Ok(true)
}

fn clean_up_one(inodes: &InodeCache, tree: &Arc<Tree>, ino: Ino) -> Result<()> {
    let core = inodes.engine();
    match read_item(core, tree, ino) {
        Ok(item) if item.nlink == 0 => inodes.dispose_recorded(InodeId::new(tree.id(), ino)),
        Err(error) if !error.is(Errno::ENOENT) => Err(error),
        _ => {
            let handle = core.start(Reserve::removal(1))?;
            let _turn = core.maintain(tree)?;
            tree.remove(&handle, key(ino)).map(|_| ())
        }
    }
}

fn recorded(core: &Core, tree: &Tree) -> Result<Vec<Ino>> {
    let mut found = Vec::new();
    tree.scan(core, key(Ino(0)), key(Ino(u64::MAX)), &mut |key, _| {
        found.push(Ino(key.offset));
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(found)
}

/// Whether an inode has an item in its tree; for tests and checks.
pub fn exists(core: &Core, tree: &Tree, ino: Ino) -> Result<bool> {
    Ok(tree.get(core, item_key(ino))?.is_some())
}
