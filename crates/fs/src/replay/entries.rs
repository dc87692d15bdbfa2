//! Directory entries: removing and adding single names, and the second stage, in which the entries of logged
//! directories come in.

use super::subvolume::Subvolume;
use crate::error::{Error, Result};
use crate::inode::attr::dir_type_of;
use crate::inode::directory::{self, EntryTarget, FIRST_INDEX, index_key, item_room};
use crate::inode::entry::{self, DirItemEntry};
use crate::inode::reference::{self, Reference};
use butterfs_ondisk::checksum::name_hash;
use butterfs_ondisk::{Ino, Key, KeyType};

fn hash_key(directory: Ino, name: &[u8]) -> Key {
    Key::new(directory.0, KeyType::DIR_ITEM, name_hash(name))
}

impl Subvolume<'_> {
    /// Refuses what cannot be a name, or the place of one.
    pub fn check_name(&self, key: Key, index: u64, name: &[u8]) -> Result<()> {
        directory::check_name(name).map_err(|error| self.bad(key, &error.to_string()))?;
        if !(FIRST_INDEX..u64::MAX).contains(&index) {
            return Err(self.bad(key, &format!("{index} is not the index of an entry")));
        }
        Ok(())
    }

    /// The target of a name.
    pub fn find(&self, directory: Ino, name: &[u8]) -> Result<Option<Key>> {
        let Some(payload) = self.tree.get(self.core, hash_key(directory, name))? else { return Ok(None) };
        Ok(entry::find(&payload, name)?.map(|(_, entry)| entry.location))
    }

    /// The name at an index, and where it leads.
    pub fn find_index(&self, directory: Ino, index: u64) -> Result<Option<(Vec<u8>, Key)>> {
        let Some(payload) = self.tree.get(self.core, index_key(directory, index))? else { return Ok(None) };
        let first = entry::entries(&payload).next().transpose()?;
        Ok(first.map(|(_, entry)| (entry.name.to_vec(), entry.location)))
    }

    /// Removes a name that leads to `location`: both entries and the inode's own record.
    pub fn unlink(&mut self, directory: Ino, name: &[u8], location: Key) -> Result<()> {
        let id = self.log.id;
        let ino = match EntryTarget::of(location)? {
            EntryTarget::Inode(ino) => ino,
            EntryTarget::Subvolume(tree) => {
                let name = name.escape_ascii();
                return Err(Error::corrupt(format!(
                    "log of subvolume {id}: it removes '{name}' from directory {directory}, which is subvolume {tree}"
                )));
            }
        };
        let record = reference::find(self.core, &self.tree, ino, directory, name)?;
        let index = match &record {
            Some(record) => Some(record.index),
            None => directory::search_index(self.core, &self.tree, directory, name)?,
        };
        self.remove_hashed(directory, name)?;
        if let Some(index) = index {
            self.tree.remove(self.handle, index_key(directory, index))?;
        }
        if let Some(record) = record {
            reference::remove(self.handle, &self.tree, &record)?;
        }
        self.changes.name(directory, name.len(), -1);
        self.noted.insert(ino.0);
        Ok(())
    }

    fn remove_hashed(&self, directory: Ino, name: &[u8]) -> Result<()> {
        let key = hash_key(directory, name);
        let Some(payload) = self.tree.get(self.core, key)? else { return Ok(()) };
        let Some((range, _)) = entry::find(&payload, name)? else { return Ok(()) };
        let rest = entry::without(&payload, &range);
        drop(payload);
        if rest.is_empty() {
            self.tree.remove(self.handle, key)?
        } else {
            self.tree.replace(self.handle, key, &rest)?
        };
        Ok(())
    }

    /// Makes both entries of a name at a place that is free; the inode's own record is the caller's.
    pub fn add_entry(&mut self, directory: Ino, index: u64, name: &[u8], ino: Ino) -> Result<()> {
        let id = self.log.id;
        let fault = |what: &str| {
            let name = name.escape_ascii();
            Error::corrupt(format!("log of subvolume {id}: the name '{name}' in directory {directory}: {what}"))
        };
        let kind = self.mode(ino)?.and_then(dir_type_of).ok_or_else(|| fault("it leads to no inode"))?;
        let location = EntryTarget::Inode(ino).location();
        let bytes = DirItemEntry::of_directory(location, self.handle.generation(), kind, name).to_bytes();
        let key = hash_key(directory, name);
        if !self.tree.insert(self.handle, key, &bytes)? {
            let payload = self.tree.get(self.core, key)?.ok_or_else(|| fault("its item vanished"))?;
            let longer = [&payload, bytes.as_slice()].concat();
            drop(payload);
            if longer.len() > item_room(self.core) {
                return Err(fault("too many names in the directory have the same hash"));
            }
            self.tree.replace(self.handle, key, &longer)?;
        }
        if !self.tree.insert(self.handle, index_key(directory, index), &bytes)? {
            return Err(fault("its index is taken"));
        }
        self.changes.name(directory, name.len(), 1);
        self.noted.insert(ino.0);
        if kind == butterfs_ondisk::items::dir_type::DIR {
            self.moved.insert(ino.0);
        }
        Ok(())
    }

    /// Brings in the entries of the log's directories.
    pub fn replay_entries(&mut self) -> Result<()> {
        self.each_logged(KeyType::DIR_INDEX, KeyType::DIR_INDEX, &mut |this, key, payload| {
            this.replay_entry(key, payload)
        })
    }

    fn replay_entry(&mut self, key: Key, payload: &[u8]) -> Result<()> {
        let (directory, index) = (Ino(key.objectid), key.offset);
        let found = entry::entries(payload).next().transpose()?.filter(|(range, _)| range.len() == payload.len());
        let (_, entry) = found.ok_or_else(|| self.bad(key, "it is not one entry"))?;
        self.check_name(key, index, entry.name)?;
        let EntryTarget::Inode(ino) = EntryTarget::of(entry.location)? else {
            // Whoever makes or removes a subvolume commits; the entry of an old one is in the subvolume already.
            return Ok(());
        };
        if !self.is_directory(directory, key)? {
            return Ok(());
        }
        let Some(mode) = self.mode(ino)? else { return Ok(()) };
        if dir_type_of(mode) != Some(entry.kind) {
            return Err(self.bad(key, &format!("type {} for an inode of mode {mode:#o}", entry.kind)));
        }
        self.clear(directory, index, entry.name, ino)?;
        let (by_name, by_index) = (self.find(directory, entry.name)?, self.find_index(directory, index)?);
        if by_name.is_some() && by_index.is_some() {
            return Ok(());
        }
        if self.has_record_in_log(ino, directory, entry.name)? {
            return Ok(());
        }
        let new = Reference { directory, index, name: entry.name };
        let slot = reference::plan_addition(self.core, &self.tree, ino, directory, entry.name, None)?;
        self.add_entry(directory, index, entry.name, ino)?;
        reference::add(self.handle, &self.tree, slot, &new)
    }

    /// Removes what stands in the way of the name `name` at `index` that leads to `ino`. What is left is the whole
    /// name, or nothing of it. Says which inodes lost a name.
    pub fn clear(&mut self, directory: Ino, index: u64, name: &[u8], ino: Ino) -> Result<Vec<(Ino, u64, Vec<u8>)>> {
        let location = EntryTarget::Inode(ino).location();
        let at_index = self.find_index(directory, index)?;
        let by_name = self.find(directory, name)?;
        let same = at_index.as_ref().is_some_and(|(own, to)| own == name && *to == location);
        if same && by_name == Some(location) {
            return Ok(Vec::new());
        }
        let mut lost = Vec::new();
        if let Some((other, to)) = at_index {
            self.unlink(directory, &other, to)?;
            lost.push((Ino(to.objectid), index, other));
        }
        if let Some(to) = self.find(directory, name)? {
            self.unlink(directory, name, to)?;
            lost.push((Ino(to.objectid), index, name.to_vec()));
        }
        lost.retain(|(other, ..)| *other != ino);
        Ok(lost)
    }

    /// Whether the log has the record of this name: then it comes in with that.
    fn has_record_in_log(&self, ino: Ino, directory: Ino, name: &[u8]) -> Result<bool> {
        Ok(reference::find(self.core, &self.log.items, ino, directory, name)?.is_some())
    }
}
