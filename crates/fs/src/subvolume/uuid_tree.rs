//! The UUID tree: from a subvolume's UUID, or the UUID it was received as, to its id, in one descent.
//!
//! ```text
//! key (first half of the UUID, 251 or 252, second half); payload: subvolume ids, u64 each
//! ```
//!
//! # Invariants
//! 1. An entry changes in the transaction that changes what it describes.
//! 2. While the superblock's `uuid_tree_generation` equals its generation, the tree is complete and right.

use crate::error::{Errno, Error, Result};
use crate::transaction::{Core, Handle, Tree};
use butterfs_ondisk::header::{ITEM_LEN, leaf_data_size};
use butterfs_ondisk::items::RootItem;
use butterfs_ondisk::{Key, KeyType, TreeId};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Which UUID of a subvolume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UuidKind {
    /// Its own.
    Subvolume,
    /// The one it was received as.
    Received,
}

impl UuidKind {
    fn key_type(self) -> KeyType {
        match self {
            UuidKind::Subvolume => KeyType::UUID_KEY_SUBVOL,
            UuidKind::Received => KeyType::UUID_KEY_RECEIVED_SUBVOL,
        }
    }
}

/// The key of a UUID.
pub fn key_of(kind: UuidKind, uuid: &[u8; 16]) -> Key {
    let half = |from: usize| u64::from_le_bytes(uuid[from..from + 8].try_into().expect("eight bytes"));
    Key::new(half(0), kind.key_type(), half(8))
}

fn uuid_of(key: Key) -> [u8; 16] {
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&key.objectid.to_le_bytes());
    uuid[8..].copy_from_slice(&key.offset.to_le_bytes());
    uuid
}

/// The tree, if the filesystem has one.
pub fn tree(core: &Core) -> Result<Option<Arc<Tree>>> {
    match core.tree(TreeId::UUID) {
        Ok(tree) => Ok(Some(tree)),
        Err(error) if error.is(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

fn ids(payload: &[u8]) -> impl Iterator<Item = u64> + '_ {
    payload.chunks_exact(8).map(|id| u64::from_le_bytes(id.try_into().expect("eight bytes")))
}

/// Has in memory what says which subvolumes have this UUID.
pub(super) fn preload(core: &Core, kind: UuidKind, uuid: &[u8; 16]) {
    if let Ok(Some(tree)) = tree(core) {
        tree.preload(core, &[key_of(kind, uuid)]);
    }
}

/// The subvolumes with this UUID, oldest entry first.
pub fn lookup(core: &Core, kind: UuidKind, uuid: &[u8; 16]) -> Result<Vec<TreeId>> {
    let Some(tree) = tree(core)? else { return Ok(Vec::new()) };
    let item = tree.get(core, key_of(kind, uuid))?;
    Ok(item.map_or(Vec::new(), |item| ids(&item).map(TreeId).collect()))
}

/// Adds an entry; one that is there already stays. `EOVERFLOW` when the item has no room for another id.
pub fn add(handle: &Handle, kind: UuidKind, uuid: &[u8; 16], id: TreeId) -> Result<()> {
    let core = handle.core();
    let Some(tree) = tree(core)?.filter(|_| *uuid != [0; 16]) else { return Ok(()) };
    let key = key_of(kind, uuid);
    let Some(item) = tree.get(core, key)? else {
        tree.insert(handle, key, &id.0.to_le_bytes())?;
        return Ok(());
    };
    if ids(&item).any(|existing| existing == id.0) {
        return Ok(());
    }
    if ITEM_LEN + item.len() + 8 > leaf_data_size(core.nodesize()) {
        return Err(Error::refused(Errno::EOVERFLOW, "too many subvolumes were received with one UUID"));
    }
    let mut longer = item.to_vec();
    longer.extend_from_slice(&id.0.to_le_bytes());
    tree.replace(handle, key, &longer)?;
    Ok(())
}

/// Removes an entry; a missing one is no error.
pub fn remove(handle: &Handle, kind: UuidKind, uuid: &[u8; 16], id: TreeId) -> Result<()> {
    let core = handle.core();
    let Some(tree) = tree(core)?.filter(|_| *uuid != [0; 16]) else { return Ok(()) };
    let key = key_of(kind, uuid);
    let Some(item) = tree.get(core, key)? else { return Ok(()) };
    let left: Vec<u8> = ids(&item).filter(|existing| *existing != id.0).flat_map(u64::to_le_bytes).collect();
    if left.len() == item.len() {
        return Ok(());
    }
    if left.is_empty() {
        tree.remove(handle, key)?;
    } else {
        tree.replace(handle, key, &left)?;
    }
    Ok(())
}

/// One thing that is wrong in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// An entry that no existing subvolume confirms.
    Stale(UuidKind, [u8; 16], TreeId),
    /// A living subvolume's UUID that is not there.
    Missing(UuidKind, [u8; 16], TreeId),
    /// An item that is not an entry at all.
    Nonsense(Key),
}

/// Flaws found in one stretch of a tree, and where the next stretch begins; `None` at the end.
pub type Stretch = (Vec<Flaw>, Option<Key>);

/// Entries of the tree, from the key `from` on, that no subvolume confirms. At most about `limit` flaws.
pub fn stale_entries(core: &Core, from: Key, limit: usize) -> Result<Stretch> {
    let (mut found, mut next) = (Vec::new(), None);
    let Some(tree) = tree(core)? else { return Ok((found, next)) };
    tree.scan(core, from, Key::MAX, &mut |key, payload| {
        if found.len() >= limit {
            next = Some(key);
            return Ok(ControlFlow::Break(()));
        }
        look_at(core, key, payload, &mut found)?;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((found, next))
}

fn look_at(core: &Core, key: Key, payload: &[u8], found: &mut Vec<Flaw>) -> Result<()> {
    let kind = match key.kind {
        KeyType::UUID_KEY_SUBVOL => UuidKind::Subvolume,
        KeyType::UUID_KEY_RECEIVED_SUBVOL => UuidKind::Received,
        _ => {
            return {
                found.push(Flaw::Nonsense(key));
                Ok(())
            };
        }
    };
    let mut seen: Vec<u64> = ids(payload).collect();
    seen.sort_unstable();
    let repeated = seen.windows(2).any(|pair| pair[0] == pair[1]);
    let uuid = uuid_of(key);
    if seen.is_empty() || !payload.len().is_multiple_of(8) || repeated || uuid == [0; 16] {
        return {
            found.push(Flaw::Nonsense(key));
            Ok(())
        };
    }
    for id in seen.into_iter().map(TreeId) {
        if !bears(core, kind, &uuid, id)? {
            found.push(Flaw::Stale(kind, uuid, id));
        }
    }
    Ok(())
}

/// UUIDs of living subvolumes that the tree does not have, from the root item at `from` on.
pub fn missing_entries(core: &Core, from: Key, limit: usize) -> Result<Stretch> {
    let (mut found, mut next) = (Vec::new(), None);
    core.globals().root.scan(core, from, Key::MAX, &mut |key, payload| {
        let id = TreeId(key.objectid);
        if key.kind != KeyType::ROOT_ITEM || !id.is_subvolume() {
            return Ok(ControlFlow::Continue(()));
        }
        if found.len() >= limit {
            next = Some(key);
            return Ok(ControlFlow::Break(()));
        }
        let item = RootItem::parse(payload).map(|item| core.trees.current_root_item(id, item));
        let Some(item) = item.filter(|item| item.refs.get() > 0) else {
            return Ok(ControlFlow::Continue(()));
        };
        for (kind, uuid) in [(UuidKind::Subvolume, item.uuid), (UuidKind::Received, item.received_uuid)] {
            if uuid != [0; 16] && !lookup(core, kind, &uuid)?.contains(&id) {
                found.push(Flaw::Missing(kind, uuid, id));
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((found, next))
}

fn bears(core: &Core, kind: UuidKind, uuid: &[u8; 16], id: TreeId) -> Result<bool> {
    if !id.is_subvolume() {
        return Ok(false);
    }
    match core.tree(id) {
        Ok(tree) => {
            let item = tree.root_item();
            let own = if kind == UuidKind::Subvolume { item.uuid } else { item.received_uuid };
            Ok(item.refs.get() > 0 && own == *uuid)
        }
        Err(error) if error.is(Errno::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Repairs one flaw, if it still is one. False where nothing was done: it is none any more, a second root item of the
/// same number has it, or an entry has no room.
pub fn repair(handle: &Handle, flaw: Flaw) -> Result<bool> {
    let core = handle.core();
    match flaw {
        Flaw::Stale(kind, uuid, id) if !bears(core, kind, &uuid, id)? => remove(handle, kind, &uuid, id)?,
        Flaw::Missing(kind, uuid, id) if bears(core, kind, &uuid, id)? => match add(handle, kind, &uuid, id) {
            // The kernel leaves such an entry out too.
            Err(error) if error.is(Errno::EOVERFLOW) && kind == UuidKind::Received => return Ok(false),
            other => other?,
        },
        Flaw::Nonsense(key) => {
            if let Some(tree) = tree(core)? {
                tree.remove(handle, key)?;
            }
        }
        Flaw::Stale(..) | Flaw::Missing(..) => return Ok(false),
    }
    Ok(true)
}
