//! Names in the log: entries that are new or gone, the names that inodes know, and how many these are.

use super::{Item, Merge, all_of, inode_key};
use crate::block::Quality;
use crate::subvolume::TYPE_MASK;
use butterfs_fs::inode::directory::index_key;
use butterfs_fs::inode::entry::{self, DirItemEntry};
use butterfs_fs::inode::reference::{self, Reference};
use butterfs_ondisk::checksum::name_hash;
use butterfs_ondisk::items::{InodeItem, dir_type};
use butterfs_ondisk::{Generation, Ino, Key, KeyType};
use std::ops::ControlFlow;
use zerocopy::IntoBytes;

/// A name in a directory.
#[derive(Clone, PartialEq, Eq)]
struct Name {
    directory: u64,
    index: u64,
    name: Vec<u8>,
}

/// The names in an item, as far as they can be read.
fn names_in(key: Key, data: &[u8]) -> Vec<Name> {
    let own = |reference: Reference<'_>| Name {
        directory: reference.directory.0,
        index: reference.index,
        name: reference.name.to_vec(),
    };
    reference::names(key, data).map_while(Result::ok).map(|(_, reference)| own(reference)).collect()
}

/// The entries in an item that lead to inodes: name, inode and type.
fn entries_in(data: &[u8]) -> Vec<(Vec<u8>, u64, u8)> {
    let all = entry::entries(data).map_while(Result::ok).map(|(_, entry)| entry);
    let inodes = all.filter(|entry| entry.location.kind == KeyType::INODE_ITEM);
    inodes.map(|entry| (entry.name.to_vec(), entry.location.objectid, entry.kind)).collect()
}

fn hash_key(directory: u64, name: &[u8]) -> Key {
    Key::new(directory, KeyType::DIR_ITEM, name_hash(name))
}

impl Merge<'_> {
    /// Drops the entries of a directory that the log says are gone: those in its ranges that it does not have.
    pub(super) fn drop_entries(&mut self, directory: u64) {
        let (first, last) = all_of(directory, KeyType::DIR_INDEX);
        if self.may_lack(first, last) {
            return;
        }
        let (from, to) = all_of(directory, KeyType::DIR_LOG_INDEX);
        let end = |data: &[u8]| Some(u64::from_le_bytes(data.get(..8)?.try_into().ok()?));
        let ranges = self.log.range(from..=to).filter_map(|(key, (data, _))| Some((key.offset, end(data)?)));
        let ranges: Vec<(u64, u64)> = ranges.collect();
        for (first, last) in ranges.into_iter().filter(|(first, last)| first <= last) {
            let key = |index| index_key(Ino(directory), index);
            for (key, (data, _)) in self.committed(key(first), key(last)) {
                let kept = self.log.get(&key).map(|(data, _)| entries_in(data)).unwrap_or_default();
                for (name, ino, _) in entries_in(&data) {
                    if !kept.iter().any(|(known, ..)| *known == name) {
                        self.unlink(&Name { directory, index: key.offset, name }, ino);
                    }
                }
            }
        }
    }

    /// An entry of the log. One that leads nowhere is left out; one that its inode knows is added with that name.
    pub(super) fn entry(&mut self, key: Key, data: &[u8], quality: Quality) {
        for (name, ino, kind) in entries_in(data) {
            let name = Name { directory: key.objectid, index: key.offset, name };
            if !self.exists(ino) || self.is_there(&name, ino) {
                continue;
            }
            self.make_way(&name, ino);
            let keys = reference::keys(Ino(ino), Ino(name.directory), &name.name);
            let has = |key: Key| self.log.get(&key).is_some_and(|(data, _)| names_in(key, data).contains(&name));
            if !keys.into_iter().any(has) {
                self.add(&name, ino, kind, quality);
                let [key, _] = keys;
                let known = self.get(key).map(|(data, _)| data).unwrap_or_default();
                let own = Reference { directory: Ino(name.directory), index: name.index, name: &name.name };
                self.put(key, [known, reference::record(KeyType::INODE_REF, &own)].concat(), quality);
            }
        }
    }

    /// The names of an inode in one directory, as the log has them: others that the last commit has there are gone.
    pub(super) fn names(&mut self, key: Key, (data, quality): Item) {
        let (ino, logged) = (key.objectid, names_in(key, &data));
        let is_known = |name: &Name| name.directory != ino && self.exists(name.directory);
        if !self.exists(ino) || !logged.iter().any(is_known) {
            return;
        }
        let before = self.get(key).map(|(data, _)| names_in(key, &data)).unwrap_or_default();
        for gone in before.iter().filter(|name| !logged.contains(name)) {
            self.unlink(gone, ino);
        }
        for name in logged.iter().filter(|name| name.directory != ino) {
            if self.exists(name.directory) && !self.is_there(name, ino) {
                self.make_way(name, ino);
                self.add(name, ino, self.kind_of(name, ino), quality);
            }
        }
        self.put(key, data, quality);
        self.renamed.insert(ino);
    }

    /// The type of an inode, by itself or by its entry in the log; 0: nothing says it.
    fn kind_of(&self, name: &Name, ino: u64) -> u8 {
        let kind = |item: InodeItem| match item.mode.get() & TYPE_MASK {
            0o040000 => dir_type::DIR,
            0o120000 => dir_type::SYMLINK,
            0o020000 => dir_type::CHRDEV,
            0o060000 => dir_type::BLKDEV,
            0o010000 => dir_type::FIFO,
            0o140000 => dir_type::SOCK,
            _ => dir_type::REG_FILE,
        };
        let logged = || {
            let (data, _) = self.log.get(&index_key(Ino(name.directory), name.index))?;
            entries_in(data).into_iter().find(|(own, ..)| *own == name.name).map(|(.., kind)| kind)
        };
        self.inode_item(ino).map(|(item, _)| kind(item)).or_else(logged).unwrap_or(0)
    }

    /// Whether both items of a directory have a name, and lead to an inode.
    fn is_there(&self, name: &Name, ino: u64) -> bool {
        let leads = |key: Key| {
            let entries = self.get(key).map(|(data, _)| entries_in(&data)).unwrap_or_default();
            entries.iter().any(|(own, target, _)| *own == name.name && *target == ino)
        };
        leads(index_key(Ino(name.directory), name.index)) && leads(hash_key(name.directory, &name.name))
    }

    /// Removes entries that have the index or the name.
    fn make_way(&mut self, name: &Name, ino: u64) {
        let at_index = self.get(index_key(Ino(name.directory), name.index));
        for (own, target, _) in at_index.map(|(data, _)| entries_in(&data)).unwrap_or_default() {
            if own != name.name || target != ino {
                self.unlink(&Name { name: own, ..name.clone() }, target);
            }
        }
        let by_name = self.get(hash_key(name.directory, &name.name));
        for (own, target, _) in by_name.map(|(data, _)| entries_in(&data)).unwrap_or_default() {
            if own == name.name {
                let index = self.index_of(name, target).unwrap_or(name.index);
                self.unlink(&Name { index, ..name.clone() }, target);
            }
        }
    }

    /// The index of an entry, as the inode that it leads to knows it, else by the directory.
    fn index_of(&self, name: &Name, ino: u64) -> Option<u64> {
        let is_it = |other: &Name| other.directory == name.directory && other.name == name.name;
        for key in reference::keys(Ino(ino), Ino(name.directory), &name.name) {
            let names = self.get(key).map(|(data, _)| names_in(key, &data)).unwrap_or_default();
            if let Some(own) = names.into_iter().find(is_it) {
                return Some(own.index);
            }
        }
        let (first, last) = all_of(name.directory, KeyType::DIR_INDEX);
        let has = |data: &[u8]| entries_in(data).iter().any(|(own, target, _)| *own == name.name && *target == ino);
        self.committed(first, last).into_iter().find(|(_, (data, _))| has(data)).map(|(key, _)| key.offset)
    }

    /// Removes a name: both entries, and the record of the inode.
    fn unlink(&mut self, name: &Name, ino: u64) {
        for key in [index_key(Ino(name.directory), name.index), hash_key(name.directory, &name.name)] {
            let Some((data, quality)) = self.get(key) else { continue };
            if let Ok(Some((range, _))) = entry::find(&data, &name.name) {
                self.put_rest(key, entry::without(&data, &range), quality);
            }
        }
        for key in reference::keys(Ino(ino), Ino(name.directory), &name.name) {
            let Some((data, quality)) = self.get(key) else { continue };
            let is_it = |own: &Reference<'_>| own.directory.0 == name.directory && own.name == name.name;
            let found = reference::names(key, &data).map_while(Result::ok).find(|(_, own)| is_it(own));
            if let Some((range, _)) = found {
                self.put_rest(key, entry::without(&data, &range), quality);
            }
        }
        self.renamed.insert(ino);
    }

    fn put_rest(&mut self, key: Key, rest: Vec<u8>, quality: Quality) {
        if rest.is_empty() { self.drop(key) } else { self.put(key, rest, quality) }
    }

    /// Adds both entries of a name.
    fn add(&mut self, name: &Name, ino: u64, kind: u8, quality: Quality) {
        let location = inode_key(ino);
        let bytes = DirItemEntry::of_directory(location, Generation(self.generation), kind, &name.name).to_bytes();
        let key = hash_key(name.directory, &name.name);
        let others = self.get(key).map(|(data, _)| data).unwrap_or_default();
        let others = match entry::find(&others, &name.name) {
            Ok(Some((range, _))) => entry::without(&others, &range),
            _ => others,
        };
        self.put(key, [others, bytes.clone()].concat(), quality);
        self.put(index_key(Ino(name.directory), name.index), bytes, quality);
        self.renamed.insert(ino);
    }

    /// Gives the inodes whose names may have changed as many links as they have names. One without names is deleted,
    /// unless the log or the last commit may have lost some.
    pub(super) fn count_names(&mut self) {
        for ino in std::mem::take(&mut self.renamed) {
            let Some((item, quality)) = self.inode_item(ino) else { continue };
            let (first, last) = (all_of(ino, KeyType::INODE_REF).0, all_of(ino, KeyType::INODE_EXTREF).1);
            let mut keys = Vec::new();
            let losses = self.committed.scan_committed(inode_key(ino), last, &mut |key, _, _| {
                keys.push(key);
                ControlFlow::Continue(())
            });
            let is_new = keys.is_empty();
            keys.retain(|key| first <= *key);
            let has_lost = self.may_lack(first, last) || !losses.is_none() || (keys.is_empty() && !is_new);
            keys.extend(self.items.range(first..=last).map(|(key, _)| *key));
            keys.sort_unstable();
            keys.dedup();
            let count = |key: Key| self.get(key).map_or(0, |(data, _)| names_in(key, &data).len());
            let names: usize = keys.into_iter().map(count).sum();
            if names == 0 && has_lost {
                continue;
            }
            let item = InodeItem { nlink: u32::try_from(names).unwrap_or(u32::MAX).into(), ..item };
            self.put(inode_key(ino), item.as_bytes().to_vec(), quality);
        }
    }
}
