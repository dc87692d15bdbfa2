//! The entries of a directory: a DIR_ITEM by the hash of the name, and a DIR_INDEX that gives it its place in the
//! order of readdir. Both say the same.
//!
//! ```text
//! DIR_ITEM   (directory, 84, hash of the name)   every entry whose name has this hash
//! DIR_INDEX  (directory, 96, index)              the one entry
//! ```
//! # Invariants
//! 1. An index is used once while the directory is in memory; the first is 2.
//! 2. A directory's size is twice the length of all its names.
//! 3. Each function finds out what refuses it before its first change.
//!
//! A thread that changes entries holds the directory's operation lock exclusively.

use crate::error::{Errno, Error, Result};
use crate::inode::Inode;
use crate::inode::entry::{self, DirItemEntry, NAME_MAX};
use crate::transaction::{BlockSource, Core, Handle, Tree};
use butterfs_ondisk::checksum::name_hash;
use butterfs_ondisk::items::DirItem;
use butterfs_ondisk::{Ino, Key, KeyType, TreeId};
use std::ops::ControlFlow;

/// The first index that a directory hands out.
pub const FIRST_INDEX: u64 = 2;

/// The target of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryTarget {
    /// An inode of the same tree.
    Inode(Ino),
    /// The root directory of a subvolume, if the subvolume's own records agree.
    Subvolume(TreeId),
}

impl EntryTarget {
    /// The target in a location key.
    pub fn of(location: Key) -> Result<EntryTarget> {
        match location.kind {
            KeyType::INODE_ITEM => Ok(EntryTarget::Inode(Ino(location.objectid))),
            KeyType::ROOT_ITEM => Ok(EntryTarget::Subvolume(TreeId(location.objectid))),
            _ => Err(Error::corrupt(format!("a directory entry leads to the key {location}"))),
        }
    }

    /// The location key of a new entry.
    pub fn location(self) -> Key {
        match self {
            EntryTarget::Inode(ino) => Key::new(ino.0, KeyType::INODE_ITEM, 0),
            EntryTarget::Subvolume(tree) => Key::new(tree.0, KeyType::ROOT_ITEM, u64::MAX),
        }
    }
}

/// An entry that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The target.
    pub target: EntryTarget,
    /// Its type on disk.
    pub kind: u8,
    /// No other name shares its DIR_ITEM.
    alone: bool,
}

/// Refuses what cannot be a name in a directory.
pub fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" => Err(Error::refused(Errno::ENOENT, "a name cannot be empty")),
        b"." | b".." => Err(Error::refused(Errno::EINVAL, "\".\" and \"..\" cannot be made or removed")),
        _ if name.len() > NAME_MAX => Err(Error::refused(Errno::ENAMETOOLONG, "a name has at most 255 bytes")),
        _ if name.iter().any(|byte| matches!(byte, 0 | b'/')) => {
            Err(Error::refused(Errno::EINVAL, "a name contains neither a slash nor a zero byte"))
        }
        _ => Ok(()),
    }
}

pub(crate) fn hash_key(directory: Ino, name: &[u8]) -> Key {
    Key::new(directory.0, KeyType::DIR_ITEM, name_hash(name))
}

/// The key of the entry at an index.
pub fn index_key(directory: Ino, index: u64) -> Key {
    Key::new(directory.0, KeyType::DIR_INDEX, index)
}

/// Finds the entry of a name.
pub fn find<'a>(source: impl Into<BlockSource<'a>>, tree: &Tree, directory: Ino, name: &[u8]) -> Result<Option<Found>> {
    let Some(payload) = tree.get(source, hash_key(directory, name))? else { return Ok(None) };
    let Some((range, entry)) = entry::find(&payload, name)? else { return Ok(None) };
    Ok(Some(Found { target: EntryTarget::of(entry.location)?, kind: entry.kind, alone: range.len() == payload.len() }))
}

/// Finds out whether an entry of this name can be made, once the entry `leaving` of the same directory is gone:
/// `EEXIST` when the name is taken, `EOVERFLOW` when too many names with the same hash exist.
pub fn plan_addition(core: &Core, tree: &Tree, directory: Ino, name: &[u8], leaving: Option<&[u8]>) -> Result<()> {
    let Some(payload) = tree.get(core, hash_key(directory, name))? else { return Ok(()) };
    let mut len = payload.len();
    for found in entry::entries(&payload) {
        let (range, entry) = found?;
        if leaving == Some(entry.name) {
            len -= range.len();
        } else if entry.name == name {
            return Err(Error::refused(Errno::EEXIST, "the name exists"));
        }
    }
    if len + DirItem::LEN + name.len() > item_room(core) {
        return Err(Error::refused(Errno::EOVERFLOW, "too many names in the directory have the same hash"));
    }
    Ok(())
}

/// The largest payload of an item.
pub fn item_room(core: &Core) -> usize {
    core.nodesize() as usize - 101 - 25
}

/// Makes an entry and returns its index. `EEXIST` and `EOVERFLOW` as [`plan_addition`] says, before anything is
/// changed. The directory's size is the caller's to change.
pub fn add(handle: &Handle, directory: &Inode, entry: &DirItemEntry<'_>) -> Result<u64> {
    let (tree, bytes) = (&directory.tree, entry.to_bytes());
    let index = directory.next_index(handle.core())?;
    let key = hash_key(directory.ino, entry.name);
    if !tree.insert(handle, key, &bytes)? {
        plan_addition(handle.core(), tree, directory.ino, entry.name, None)?;
        let payload = tree.get(handle.core(), key)?.ok_or_else(|| vanished(key))?;
        let longer = [&payload, bytes.as_slice()].concat();
        drop(payload);
        tree.replace(handle, key, &longer)?;
    }
    let key = index_key(directory.ino, index);
    if !tree.insert(handle, key, &bytes)? {
        return Err(Error::corrupt(format!("directory index {key} is taken although it is the next free one")));
    }
    directory.remember(|state| state.next_index = index + 1);
    Ok(index)
}

/// Removes the entry of a name whose place is known. Both records were seen while the directory was locked.
pub fn remove(handle: &Handle, directory: &Inode, name: &[u8], found: &Found, index: u64) -> Result<()> {
    let tree = &directory.tree;
    let key = hash_key(directory.ino, name);
    let rest = if found.alone { Vec::new() } else { others(handle.core(), tree, key, name)? };
    let removed = if rest.is_empty() { tree.remove(handle, key)? } else { tree.replace(handle, key, &rest)? };
    if !removed || !tree.remove(handle, index_key(directory.ino, index))? {
        return Err(Error::corrupt(format!("directory {}: an entry vanished while it was locked", directory.ino)));
    }
    Ok(())
}

fn others(core: &Core, tree: &Tree, key: Key, name: &[u8]) -> Result<Vec<u8>> {
    let payload = tree.get(core, key)?.ok_or_else(|| vanished(key))?;
    let (range, _) = entry::find(&payload, name)?.ok_or_else(|| vanished(key))?;
    Ok(entry::without(&payload, &range))
}

fn vanished(key: Key) -> Error {
    Error::corrupt(format!("item {key} vanished while its directory was locked"))
}

/// Checks that the DIR_INDEX at `index` is of this name, as the inode's own record says.
pub fn check_index(
    core: &Core,
    tree: &Tree,
    directory: Ino,
    index: u64,
    name: &[u8],
    target: EntryTarget,
) -> Result<()> {
    let key = index_key(directory, index);
    let Some(payload) = tree.get(core, key)? else {
        return Err(Error::corrupt(format!("tree {}: directory entry {key} is missing", tree.id())));
    };
    match entry::find(&payload, name)? {
        Some((_, entry)) if EntryTarget::of(entry.location)? == target => Ok(()),
        _ => Err(Error::corrupt(format!("tree {}: directory entry {key} is of another name", tree.id()))),
    }
}

/// The index of a name, searched through the whole directory: for entries of which nothing else records it.
pub fn search_index(core: &Core, tree: &Tree, directory: Ino, name: &[u8]) -> Result<Option<u64>> {
    let mut index = None;
    tree.scan(core, index_key(directory, 0), index_key(directory, u64::MAX), &mut |key, payload| {
        if entry::find(payload, name)?.is_some() {
            index = Some(key.offset);
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(index)
}

/// The highest index in use; [`FIRST_INDEX`]` - 1` in an empty directory.
pub fn last_index(core: &Core, tree: &Tree, directory: Ino) -> Result<u64> {
    let behind = Key::new(directory.0, KeyType(KeyType::DIR_INDEX.0 + 1), 0);
    let last = tree.last_before(core, behind)?.map(|(key, _)| key);
    let own = last.filter(|key| key.objectid == directory.0 && key.kind == KeyType::DIR_INDEX);
    Ok(own.map_or(FIRST_INDEX - 1, |key| key.offset.max(FIRST_INDEX - 1)))
}

impl Inode {
    /// The index that the next entry will have. The operation lock is held exclusively.
    fn next_index(&self, core: &Core) -> Result<u64> {
        let known = self.with(|state| state.next_index);
        let next = match known {
            0 => last_index(core, &self.tree, self.ino)?.saturating_add(1),
            known => known,
        };
        if next == u64::MAX {
            return Err(Error::refused(Errno::EOVERFLOW, "the directory has no free index"));
        }
        self.remember(|state| state.next_index = next);
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bytes_within_limits() {
        for (name, errno) in [
            (&b"a"[..], None),
            (b"\xff\xfe", None),
            (b"...", None),
            (&[b'x'; 255], None),
            (&[b'x'; 256], Some(Errno::ENAMETOOLONG)),
            (b"", Some(Errno::ENOENT)),
            (b".", Some(Errno::EINVAL)),
            (b"..", Some(Errno::EINVAL)),
            (b"a/b", Some(Errno::EINVAL)),
            (b"a\0", Some(Errno::EINVAL)),
        ] {
            assert_eq!(check_name(name).err().map(|error| error.errno()), errno, "{name:?}");
        }
    }

    #[test]
    fn locations_are_kept() {
        for target in [EntryTarget::Inode(Ino(257)), EntryTarget::Subvolume(TreeId(300))] {
            assert_eq!(EntryTarget::of(target.location()).unwrap(), target);
        }
        assert!(EntryTarget::of(Key::new(257, KeyType::EXTENT_DATA, 0)).is_err());
    }
}
