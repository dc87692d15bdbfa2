//! Extended attributes as items: XATTR_ITEM by the hash of the full name, names with one hash in one item.
//!
//! Each function changes at most one item, so that it is done whole or not at all. What an attribute means (ACLs,
//! properties, capabilities) is not known here. Who calls holds the inode's operation lock.

use crate::error::{Errno, Error, Result};
use crate::inode::directory::item_room;
use crate::inode::entry::{self, DirItemEntry, NAME_MAX};
use crate::transaction::{Core, Handle, Tree};
use butterfs_ondisk::checksum::name_hash;
use butterfs_ondisk::items::{DirItem, dir_type};
use butterfs_ondisk::{Generation, Ino, Key, KeyType};
use std::ops::ControlFlow;

/// The attribute with a file's capabilities.
pub const CAPABILITY: &[u8] = b"security.capability";

/// The precondition for setting an attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Demand {
    /// Nothing.
    #[default]
    Any,
    /// It must not exist (`XATTR_CREATE`).
    Create,
    /// It must exist (`XATTR_REPLACE`).
    Replace,
}

impl Demand {
    /// From the flags of `setxattr`.
    pub fn of_flags(flags: u32) -> Result<Demand> {
        match flags {
            0 => Ok(Demand::Any),
            1 => Ok(Demand::Create),
            2 => Ok(Demand::Replace),
            _ => Err(Error::refused(Errno::EINVAL, "an attribute cannot be both created and replaced")),
        }
    }
}

pub(crate) fn key(ino: Ino, name: &[u8]) -> Key {
    Key::new(ino.0, KeyType::XATTR_ITEM, name_hash(name))
}

/// Refuses what cannot be the name of an attribute.
pub fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() {
        return Err(Error::refused(Errno::EINVAL, "the attribute's name is empty"));
    }
    if name.len() > NAME_MAX {
        return Err(Error::refused(Errno::ERANGE, "an attribute's name has at most 255 bytes"));
    }
    Ok(())
}

/// The item of an inode's only attribute with its hash.
pub fn item(ino: Ino, made_in: Generation, name: &[u8], value: &[u8]) -> (Key, Vec<u8>) {
    (key(ino, name), entry_of(made_in, name, value).to_bytes())
}

fn entry_of<'a>(made_in: Generation, name: &'a [u8], value: &'a [u8]) -> DirItemEntry<'a> {
    DirItemEntry { location: Key::MIN, transid: made_in.0, kind: dir_type::XATTR, name, value }
}

/// Refuses a value that no item can hold.
pub fn check_size(core: &Core, name: &[u8], value: &[u8]) -> Result<()> {
    if name.len() + value.len() > item_room(core) - DirItem::LEN {
        return Err(Error::refused(Errno::ENOSPC, "the attribute is larger than an item can be"));
    }
    Ok(())
}

/// The value of an attribute.
pub fn get(core: &Core, tree: &Tree, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let Some(payload) = tree.get(core, key(ino, name))? else { return Ok(None) };
    Ok(entry::find(&payload, name)?.map(|(_, entry)| entry.value.to_vec()))
}

/// The names of all attributes, each followed by a zero byte.
pub fn list(core: &Core, tree: &Tree, ino: Ino) -> Result<Vec<u8>> {
    let mut names = Vec::new();
    let (from, to) = (Key::new(ino.0, KeyType::XATTR_ITEM, 0), Key::new(ino.0, KeyType::XATTR_ITEM, u64::MAX));
    tree.scan(core, from, to, &mut |_, payload| {
        for found in entry::entries(payload) {
            names.extend_from_slice(found?.1.name);
            names.push(0);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(names)
}

fn exists() -> Error {
    Error::refused(Errno::EEXIST, "the attribute exists")
}

fn missing() -> Error {
    Error::refused(Errno::ENODATA, "there is no such attribute")
}

/// Sets an attribute.
pub fn set(handle: &Handle, tree: &Tree, ino: Ino, name: &[u8], value: &[u8], demand: Demand) -> Result<()> {
    let core = handle.core();
    check_size(core, name, value)?;
    let mut new = entry_of(handle.generation(), name, value);
    let key = key(ino, name);
    let Some(payload) = tree.get(core, key)? else {
        if demand == Demand::Replace {
            return Err(missing());
        }
        return tree.insert(handle, key, &new.to_bytes()).map(drop);
    };
    let mut whole = match entry::find(&payload, name)? {
        Some(_) if demand == Demand::Create => return Err(exists()),
        None if demand == Demand::Replace => return Err(missing()),
        Some((range, old)) => {
            if range.len() == payload.len() {
                new.transid = old.transid;
            }
            entry::without(&payload, &range)
        }
        None => payload.to_vec(),
    };
    drop(payload);
    if whole.len() + new.len() > item_room(core) {
        return Err(Error::refused(Errno::EOVERFLOW, "too many attributes have names with the same hash"));
    }
    new.encode(&mut whole);
    tree.replace(handle, key, &whole).map(drop)
}

/// Removes an attribute; `ENODATA` when there is none.
pub fn remove(handle: &Handle, tree: &Tree, ino: Ino, name: &[u8]) -> Result<()> {
    let key = key(ino, name);
    let payload = tree.get(handle.core(), key)?.ok_or_else(missing)?;
    let (range, _) = entry::find(&payload, name)?.ok_or_else(missing)?;
    let rest = entry::without(&payload, &range);
    drop(payload);
    if rest.is_empty() { tree.remove(handle, key).map(drop) } else { tree.replace(handle, key, &rest).map(drop) }
}
