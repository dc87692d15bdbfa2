//! Names of inodes, from the inode's side and from the directory's.
//!
//! Sums of hashes say whether both sides are alike; [`explain`] finds the names that differ, with 8 bytes for each name
//! of the subvolume, and only when the sums differ.

use crate::finding::{Finding, Tree};
use crate::mix;
use crate::roots::Root;
use crate::session::Session;
use crate::walk::items;
use butterfs_ondisk::checksum::extref_hash;
use butterfs_ondisk::items::{DirItem, InodeExtref, InodeRef};
use butterfs_ondisk::{Ino, Key, KeyType};
use std::collections::HashSet;
use zerocopy::FromBytes;

/// Whether a directory can have an entry of this name. A kernel that finds another name fails to list the directory, or
/// never finds the inode.
pub fn is_possible_name(name: &[u8]) -> bool {
    let has_odd_byte = name.iter().any(|byte| [0, b'/'].contains(byte));
    !name.is_empty() && name != b"." && name != b".." && !has_odd_byte
}

/// Sums over a subvolume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NameSums {
    pub references: u64,
    pub entries: u64,
}

/// One name as one side has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NameOf<'a> {
    pub directory: u64,
    pub inode: u64,
    pub index: u64,
    pub name: &'a [u8],
    /// Entry type.
    pub kind: u8,
    /// The target: an inode item, or a root item.
    pub target: KeyType,
    /// The rest of the key that it leads to.
    pub target_offset: u64,
}

impl NameOf<'_> {
    /// A hash of everything but the entry type.
    pub fn plain(&self, seed: u64) -> u64 {
        mix::numbers(seed, &[self.directory, self.inode, self.index, mix::bytes(seed, self.name)])
    }

    /// A hash of everything.
    pub fn digest(&self, seed: u64) -> u64 {
        let odd_target = if self.target == KeyType::INODE_ITEM { 0 } else { self.target.0.into() };
        self.plain(seed).wrapping_mul(type_factor(self.kind)).wrapping_add(odd_target)
    }

    /// A hash of everything but the index.
    pub fn digest_without_index(&self, seed: u64) -> u64 {
        let kind = u64::from(self.kind) << 8 | u64::from(self.target.0);
        mix::numbers(!seed, &[self.directory, self.inode, kind, self.target_offset, mix::bytes(seed, self.name)])
    }

    /// Adds the name, as people see it, if no directory can have such a name.
    pub fn note_impossible(&self, impossible: &mut Vec<String>) {
        if !is_possible_name(self.name) {
            impossible.push(String::from_utf8_lossy(self.name).escape_debug().to_string());
        }
    }

    pub fn is_subvolume(&self) -> bool {
        self.target == KeyType::ROOT_ITEM
    }

    /// The root directory is its own parent and has no entry.
    pub fn is_root_dir(&self) -> bool {
        self.directory == self.inode && self.index == 0 && self.name == b".."
    }
}

/// The content of an item.
pub(crate) enum NameItem<'a> {
    /// INODE_REF, or INODE_EXTREF with the hash that its key should have.
    Reference { name: NameOf<'a>, hash: Option<u64> },
    /// DIR_ITEM.
    ByHash { name: NameOf<'a> },
    /// DIR_INDEX.
    ByIndex { name: NameOf<'a> },
}

/// The factor for the hash of a name, by its entry type. So the references of an inode can be added up before
/// its type is known.
pub(crate) fn type_factor(kind: u8) -> u64 {
    (u64::from(kind) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// The entry type that an inode of this mode has.
pub(crate) fn kind_of_mode(mode: u32) -> u8 {
    match mode >> 12 {
        0o10 => 1,
        0o4 => 2,
        0o2 => 3,
        0o6 => 4,
        0o1 => 5,
        0o14 => 6,
        0o12 => 7,
        _ => 0,
    }
}

/// Calls `with` for every name in an item.
pub(crate) fn each(key: Key, data: &[u8], mode: u32, with: &mut dyn FnMut(NameItem<'_>)) {
    match key.kind {
        KeyType::INODE_REF => each_ref(key, data, mode, with),
        KeyType::INODE_EXTREF => each_extref(key, data, mode, with),
        KeyType::DIR_ITEM | KeyType::DIR_INDEX => each_entry(key, data, with),
        _ => {}
    }
}

fn each_ref(key: Key, mut data: &[u8], mode: u32, with: &mut dyn FnMut(NameItem<'_>)) {
    while let Ok((head, rest)) = InodeRef::read_from_prefix(data) {
        let Some((name, rest)) = rest.split_at_checked(head.name_len.get().into()) else { return };
        let (directory, inode, index) = (key.offset, key.objectid, head.index.get());
        let name = NameOf {
            directory,
            inode,
            index,
            name,
            kind: kind_of_mode(mode),
            target: KeyType::INODE_ITEM,
            target_offset: 0,
        };
        with(NameItem::Reference { name, hash: None });
        data = rest;
    }
}

fn each_extref(key: Key, mut data: &[u8], mode: u32, with: &mut dyn FnMut(NameItem<'_>)) {
    while let Ok((head, rest)) = InodeExtref::read_from_prefix(data) {
        let Some((name, rest)) = rest.split_at_checked(head.name_len.get().into()) else { return };
        let (directory, inode, index) = (head.parent.get(), key.objectid, head.index.get());
        let hash = Some(extref_hash(directory, name));
        let name = NameOf {
            directory,
            inode,
            index,
            name,
            kind: kind_of_mode(mode),
            target: KeyType::INODE_ITEM,
            target_offset: 0,
        };
        with(NameItem::Reference { name, hash });
        data = rest;
    }
}

fn each_entry(key: Key, mut data: &[u8], with: &mut dyn FnMut(NameItem<'_>)) {
    while let Ok((head, rest)) = DirItem::read_from_prefix(data) {
        let Some((name, rest)) = rest.split_at_checked(head.name_len.get().into()) else { return };
        let location = Key::from(head.location);
        let name = NameOf {
            directory: key.objectid,
            inode: location.objectid,
            index: key.offset,
            name,
            kind: head.kind,
            target: location.kind,
            target_offset: location.offset,
        };
        with(if key.kind == KeyType::DIR_INDEX { NameItem::ByIndex { name } } else { NameItem::ByHash { name } });
        data = rest.get(head.data_len.get().into()..).unwrap_or_default();
    }
}

/// Reports the names that only one side has.
pub(crate) fn explain(session: &Session<'_>, root: &Root) {
    let (mut references, mut entries) = (Vec::new(), Vec::new());
    each_name(session, root, &mut |name, is_entry| {
        if is_entry { &mut entries } else { &mut references }.push(name.digest(session.options.seed));
    });
    let references: HashSet<u64> = references.into_iter().collect();
    let entries: HashSet<u64> = entries.into_iter().collect();
    let tree = Tree(root.id);
    each_name(session, root, &mut |name, is_entry| {
        let other = if is_entry { &references } else { &entries };
        if other.contains(&name.digest(session.options.seed)) {
            return;
        }
        let (directory, inode, index) = (Ino(name.directory), Ino(name.inode), name.index);
        let name = String::from_utf8_lossy(name.name).escape_debug().to_string();
        session.report(if is_entry {
            Finding::EntryWithoutRef { tree, directory, index, inode, name }
        } else {
            Finding::RefWithoutEntry { tree, directory, index, inode, name }
        });
    });
}

fn each_name(session: &Session<'_>, root: &Root, with: &mut dyn FnMut(&NameOf<'_>, bool)) {
    let mut mode = (0, 0);
    items(session, root.ptr(), &mut |key, data| {
        if key.kind == KeyType::INODE_ITEM {
            let item = butterfs_ondisk::items::InodeItem::read_from_bytes(data);
            mode = (key.objectid, item.map_or(0, |item| item.mode.get()));
        }
        let mode = if mode.0 == key.objectid { mode.1 } else { 0 };
        each(key, data, mode, &mut |item| match item {
            NameItem::Reference { name, .. } if !name.is_root_dir() => with(&name, false),
            NameItem::ByIndex { name } if !name.is_subvolume() => with(&name, true),
            _ => {}
        });
    });
}
