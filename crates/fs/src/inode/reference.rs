//! The names of an inode, seen from the inode: INODE_REF, and INODE_EXTREF for those that found no room.
//!
//! ```text
//! INODE_REF    (ino, 12, directory)               { index u64, name_len u16, name }*
//! INODE_EXTREF (ino, 13, hash(directory, name))   { directory u64, index u64, name_len u16, name }*
//! ```
//! # Invariants
//! 1. A name is in an INODE_REF whenever it found room there; both kinds may exist side by side.
//! 2. [`plan_addition`] finds out whether a name can be added before anything is changed.
//!
//! The caller holds the inode's operation lock.

use crate::error::{Errno, Error, Result};
use crate::inode::entry::without;
use crate::transaction::{Core, Handle, Tree};
use butterfs_ondisk::checksum::extref_hash;
use butterfs_ondisk::features::incompat;
use butterfs_ondisk::items::{InodeExtref, InodeRef};
use butterfs_ondisk::{Ino, Key, KeyType};
use std::ops::{ControlFlow, Range};
use zerocopy::{FromBytes, IntoBytes};

/// One name of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference<'a> {
    /// The directory.
    pub directory: Ino,
    /// Index of the entry there.
    pub index: u64,
    /// The name.
    pub name: &'a [u8],
}

impl Reference<'_> {
    fn in_ref(&self) -> Vec<u8> {
        let head = InodeRef { index: self.index.into(), name_len: (self.name.len() as u16).into() };
        [head.as_bytes(), self.name].concat()
    }

    fn in_extref(&self) -> Vec<u8> {
        let name_len = (self.name.len() as u16).into();
        let head = InodeExtref { parent: self.directory.0.into(), index: self.index.into(), name_len };
        [head.as_bytes(), self.name].concat()
    }
}

/// The key and payload of a first name, in an INODE_REF of its own.
pub fn first(ino: Ino, reference: &Reference<'_>) -> (Key, Vec<u8>) {
    (ref_key(ino, reference.directory), reference.in_ref())
}

/// The record of one name as it lies in an item of `kind`.
pub fn record(kind: KeyType, reference: &Reference<'_>) -> Vec<u8> {
    if kind == KeyType::INODE_REF { reference.in_ref() } else { reference.in_extref() }
}

fn ref_key(ino: Ino, directory: Ino) -> Key {
    Key::new(ino.0, KeyType::INODE_REF, directory.0)
}

fn extref_key(ino: Ino, directory: Ino, name: &[u8]) -> Key {
    Key::new(ino.0, KeyType::INODE_EXTREF, extref_hash(directory.0, name))
}

/// The items that may record a name.
pub fn keys(ino: Ino, directory: Ino, name: &[u8]) -> [Key; 2] {
    [ref_key(ino, directory), extref_key(ino, directory, name)]
}

/// Splits the first name off `payload`; `None` when it does not lie in it whole.
fn split(key: &Key, payload: &[u8]) -> Option<(usize, Ino, u64, usize)> {
    if key.kind == KeyType::INODE_REF {
        let (head, _) = InodeRef::ref_from_prefix(payload).ok()?;
        let len = usize::from(head.name_len.get());
        Some((InodeRef::LEN, Ino(key.offset), head.index.get(), len))
    } else {
        let (head, _) = InodeExtref::ref_from_prefix(payload).ok()?;
        let len = usize::from(head.name_len.get());
        Some((InodeExtref::LEN, Ino(head.parent.get()), head.index.get(), len))
    }
}

/// Walks the names in an INODE_REF or INODE_EXTREF.
pub fn names<'a>(key: Key, payload: &'a [u8]) -> impl Iterator<Item = Result<(Range<usize>, Reference<'a>)>> + 'a {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= payload.len() {
            return None;
        }
        let start = at;
        let parsed = split(&key, &payload[start..]).and_then(|(head, directory, index, len)| {
            let name = payload.get(start + head..start + head + len)?;
            Some((start..start + head + len, Reference { directory, index, name }))
        });
        at = parsed.as_ref().map_or(payload.len(), |(range, _)| range.end);
        Some(parsed.ok_or_else(|| Error::corrupt(format!("item {key}: a name at byte {start} leaves the item"))))
    })
}

/// The place of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameRecord {
    /// Index of the entry in the directory.
    pub index: u64,
    key: Key,
    range: Range<usize>,
    item_len: usize,
}

fn find_in(key: Key, payload: &[u8], directory: Ino, name: &[u8]) -> Result<Option<NameRecord>> {
    for found in names(key, payload) {
        let (range, reference) = found?;
        if reference.name == name && reference.directory == directory {
            return Ok(Some(NameRecord { index: reference.index, key, range, item_len: payload.len() }));
        }
    }
    Ok(None)
}

/// Finds the record of a name.
pub fn find(core: &Core, tree: &Tree, ino: Ino, directory: Ino, name: &[u8]) -> Result<Option<NameRecord>> {
    for key in keys(ino, directory, name) {
        if let Some(payload) = tree.get(core, key)?
            && let Some(found) = find_in(key, &payload, directory, name)?
        {
            return Ok(Some(found));
        }
        if !core.has_incompat(incompat::EXTENDED_IREF) {
            break;
        }
    }
    Ok(None)
}

/// Removes the record of a name.
pub fn remove(handle: &Handle, tree: &Tree, found: &NameRecord) -> Result<()> {
    if found.range.len() == found.item_len {
        return match tree.remove(handle, found.key)? {
            true => Ok(()),
            false => Err(vanished(found.key)),
        };
    }
    let payload = tree.get(handle.core(), found.key)?.ok_or_else(|| vanished(found.key))?;
    let rest = without(&payload, &found.range);
    drop(payload);
    tree.replace(handle, found.key, &rest).map(drop)
}

fn vanished(key: Key) -> Error {
    Error::corrupt(format!("item {key} vanished while its inode was locked"))
}

/// The item that will take a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    key: Key,
    exists: bool,
}

/// Finds the item that can take a name in addition to those of the inode, once `leaving` has been removed;
/// `EMLINK` if there is none.
pub fn plan_addition(
    core: &Core,
    tree: &Tree,
    ino: Ino,
    directory: Ino,
    name: &[u8],
    leaving: Option<&NameRecord>,
) -> Result<Slot> {
    let room = core.nodesize() as usize - 101 - 25;
    let len_of = |key: Key| -> Result<usize> {
        let len = tree.get(core, key)?.map_or(0, |payload| payload.len());
        let freed = leaving.filter(|found| found.key == key).map_or(0, |found| found.range.len());
        Ok(len.saturating_sub(freed))
    };
    let key = ref_key(ino, directory);
    let len = len_of(key)?;
    if len + InodeRef::LEN + name.len() <= room {
        return Ok(Slot { key, exists: len > 0 });
    }
    if core.has_incompat(incompat::EXTENDED_IREF) {
        let key = extref_key(ino, directory, name);
        let len = len_of(key)?;
        if len + InodeExtref::LEN + name.len() <= room {
            return Ok(Slot { key, exists: len > 0 });
        }
    }
    Err(Error::refused(Errno::EMLINK, "the inode's items have no room for another name in this directory"))
}

/// Adds a name where [`plan_addition`] found room.
pub fn add(handle: &Handle, tree: &Tree, slot: Slot, reference: &Reference<'_>) -> Result<()> {
    let added = record(slot.key.kind, reference);
    if !slot.exists {
        return match tree.insert(handle, slot.key, &added)? {
            true => Ok(()),
            false => Err(Error::corrupt(format!("item {} appeared while its inode was locked", slot.key))),
        };
    }
    let payload = tree.get(handle.core(), slot.key)?.ok_or_else(|| vanished(slot.key))?;
    let longer = [&payload, added.as_slice()].concat();
    drop(payload);
    tree.replace(handle, slot.key, &longer).map(drop)
}

/// Replaces the record of a name by that of another, where [`plan_addition`] found room with the first one leaving.
pub fn replace(handle: &Handle, tree: &Tree, found: &NameRecord, slot: Slot, reference: &Reference<'_>) -> Result<()> {
    let alone = found.range.len() == found.item_len;
    if alone && found.key == slot.key && slot.key.kind == KeyType::INODE_REF {
        return match tree.replace(handle, slot.key, &reference.in_ref())? {
            true => Ok(()),
            false => Err(vanished(slot.key)),
        };
    }
    remove(handle, tree, found)?;
    add(handle, tree, slot, reference)
}

/// The directory of the inode's first name: of a directory's only one. `None` for a root directory, whose record
/// names itself, and for an inode without names.
pub fn parent(core: &Core, tree: &Tree, ino: Ino) -> Result<Option<Ino>> {
    let mut parent = None;
    let last = Key::new(ino.0, KeyType::INODE_EXTREF, u64::MAX);
    tree.scan(
        core,
        Key::new(ino.0, KeyType::INODE_REF, 0),
        last,
        &mut |key, payload| match names(key, payload).next() {
            Some(found) => {
                parent = Some(found?.1.directory);
                Ok(ControlFlow::Break(()))
            }
            None => Ok(ControlFlow::Continue(())),
        },
    )?;
    Ok(parent.filter(|parent| *parent != ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read_back() {
        let ours = Reference { directory: Ino(300), index: 9, name: b"name" };
        let other = Reference { directory: Ino(300), index: 4, name: b"longer name" };
        for (key, payload) in [
            (ref_key(Ino(257), Ino(300)), [other.in_ref(), ours.in_ref()].concat()),
            (extref_key(Ino(257), Ino(300), b"name"), [other.in_extref(), ours.in_extref()].concat()),
        ] {
            let all: Vec<_> = names(key, &payload).map(|found| found.unwrap().1).collect();
            assert_eq!(all, [other, ours]);
            let found = find_in(key, &payload, Ino(300), b"name").unwrap().unwrap();
            assert_eq!((found.index, found.range.end, found.item_len), (9, payload.len(), payload.len()));
            assert_eq!(find_in(key, &payload, Ino(300), b"nam").unwrap(), None);
            assert!(names(key, &payload[..payload.len() - 1]).last().unwrap().is_err());
        }
    }

    #[test]
    fn an_extended_record_counts_only_for_its_own_directory() {
        let key = extref_key(Ino(257), Ino(300), b"name");
        let payload = Reference { directory: Ino(301), index: 9, name: b"name" }.in_extref();
        assert_eq!(find_in(key, &payload, Ino(300), b"name").unwrap(), None);
        assert!(find_in(key, &payload, Ino(301), b"name").unwrap().is_some());
    }
}
