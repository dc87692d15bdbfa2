//! The names of inodes as their items record them, and the entries that directories have for them.

use crate::error::{Error, Result};
use crate::transaction::{BlockSource, Committed, Tree};
use butterfs_ondisk::checksum::name_hash;
use butterfs_ondisk::items::{DirItem, InodeExtref, InodeRef};
use butterfs_ondisk::{Ino, Key, KeyType};
use rustc_hash::FxHashSet;
use std::ops::ControlFlow;
use zerocopy::FromBytes;

/// One name of an inode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Name {
    /// The item that records it.
    pub key: Key,
    pub directory: Ino,
    pub index: u64,
    pub name: Vec<u8>,
}

/// The target of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameOwner {
    Inode(Ino),
    Subvolume,
}

/// Looks at items of one of the two states of a subvolume, or of its log.
pub(super) type VisitItem<'a> = dyn FnMut(Key, &[u8]) -> Result<ControlFlow<()>> + 'a;

fn malformed(key: Key) -> Error {
    Error::corrupt(format!("item {key}: a name leaves the item"))
}

/// Appends the names that an INODE_REF or INODE_EXTREF records.
pub(super) fn names_in(key: Key, payload: &[u8], names: &mut Vec<Name>) -> Result<()> {
    let mut rest = payload;
    while !rest.is_empty() {
        let (directory, index, len, tail) = if key.kind == KeyType::INODE_REF {
            let (head, tail) = InodeRef::ref_from_prefix(rest).map_err(|_| malformed(key))?;
            (key.offset, head.index.get(), head.name_len.get(), tail)
        } else {
            let (head, tail) = InodeExtref::ref_from_prefix(rest).map_err(|_| malformed(key))?;
            (head.parent.get(), head.index.get(), head.name_len.get(), tail)
        };
        let name = tail.get(..usize::from(len)).ok_or_else(|| malformed(key))?.to_vec();
        rest = &tail[usize::from(len)..];
        names.push(Name { key, directory: Ino(directory), index, name });
    }
    Ok(())
}

/// The keys between which an inode's names are recorded.
pub(super) fn name_keys(ino: Ino) -> (Key, Key) {
    (Key::new(ino.0, KeyType::INODE_REF, 0), Key::new(ino.0, KeyType::INODE_EXTREF, u64::MAX))
}

/// The names of an inode, which `scan` shows the items of. The entry of a root directory for itself is none.
pub(super) fn names_of(ino: Ino, scan: impl FnOnce(Key, Key, &mut VisitItem<'_>) -> Result<()>) -> Result<Vec<Name>> {
    let (from, to) = name_keys(ino);
    let mut names = Vec::new();
    scan(from, to, &mut |key, payload| {
        names_in(key, payload, &mut names)?;
        Ok(ControlFlow::Continue(()))
    })?;
    names.retain(|name| name.directory != ino);
    Ok(names)
}

/// Those of `names` that are not among `others`, in their order. An inode can have 65,535 names.
pub(super) fn missing_in<'a>(names: &'a [Name], others: &[Name]) -> Vec<&'a Name> {
    if names == others {
        return Vec::new();
    }
    let others: FxHashSet<&Name> = others.iter().collect();
    names.iter().filter(|name| !others.contains(name)).collect()
}

/// The target of the entry at a DIR_INDEX, and its name.
pub(super) fn entry_of(key: Key, payload: &[u8]) -> Result<(NameOwner, &[u8])> {
    let mut found = None;
    entries(key, payload, &mut |target, name| found = found.or(Some((target, name))))?;
    found.ok_or_else(|| malformed(key))
}

fn entries<'a>(key: Key, payload: &'a [u8], each: &mut dyn FnMut(NameOwner, &'a [u8])) -> Result<()> {
    let mut rest = payload;
    while !rest.is_empty() {
        let (head, tail) = DirItem::ref_from_prefix(rest).map_err(|_| malformed(key))?;
        let (name_len, data_len) = (usize::from(head.name_len.get()), usize::from(head.data_len.get()));
        let name = tail.get(..name_len).ok_or_else(|| malformed(key))?;
        rest = tail.get(name_len + data_len..).ok_or_else(|| malformed(key))?;
        let location = Key::from(head.location);
        let inode = location.kind == KeyType::INODE_ITEM;
        each(if inode { NameOwner::Inode(Ino(location.objectid)) } else { NameOwner::Subvolume }, name);
    }
    Ok(())
}

fn owner_in(key: Key, payload: &[u8], name: &[u8]) -> Result<Option<NameOwner>> {
    let mut owner = None;
    entries(key, payload, &mut |target, found| {
        if found == name {
            owner = Some(target);
        }
    })?;
    Ok(owner)
}

/// The key of the entries whose names hash like this one.
pub(super) fn hash_key(directory: Ino, name: &[u8]) -> Key {
    Key::new(directory.0, KeyType::DIR_ITEM, name_hash(name))
}

/// The target of a name in the running transaction.
pub(super) fn current_owner(
    source: BlockSource<'_>,
    tree: &Tree,
    directory: Ino,
    name: &[u8],
) -> Result<Option<NameOwner>> {
    let key = hash_key(directory, name);
    tree.get(source, key)?.map_or(Ok(None), |payload| owner_in(key, &payload, name))
}

/// The target of a name in the committed tree.
pub(super) fn committed_owner(committed: &Committed<'_>, directory: Ino, name: &[u8]) -> Result<Option<NameOwner>> {
    let key = hash_key(directory, name);
    committed.get(key, |payload| owner_in(key, payload, name))?.unwrap_or(Ok(None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_entries_that_leave_their_item_are_corrupt() {
        let key = Key::new(257, KeyType::INODE_REF, 256);
        let item =
            [&5u64.to_le_bytes()[..], &3u16.to_le_bytes(), b"abc", &6u64.to_le_bytes(), &1u16.to_le_bytes(), b"d"];
        let payload = item.concat();
        let mut names = Vec::new();
        names_in(key, &payload, &mut names).unwrap();
        let short: Vec<_> = names.iter().map(|name| (name.index, name.name.as_slice())).collect();
        assert_eq!(short, [(5, &b"abc"[..]), (6, b"d")]);
        for len in 1..payload.len() {
            let whole = len == 13;
            assert_eq!(names_in(key, &payload[..len], &mut Vec::new()).is_ok(), whole, "{len}");
        }
        let entry = Key::new(257, KeyType::DIR_INDEX, 2);
        assert!(entry_of(entry, b"").is_err());
        assert!(entry_of(entry, &[0; 29]).is_err());
    }
}
