//! Third stage, names: the records of names that the log has of an inode (INODE_REF, INODE_EXTREF) become the
//! subvolume's, with their entries.
//!
//! An item of the log speaks for its own key: one directory, or one hash. Names under other keys are not touched.
//!
//! # Where this is more careful than the kernel
//! - An inode whose names in the log are fewer than before, and none of them new, while the log does not know the
//!   directory: a rename of another file has overwritten the missing name. That file may not be in the log, and then
//!   the name would lead nowhere. It stays with its old owner. (A removed name has its directory in the log.)
//! - A name that a new link takes over: see [`Subvolume::replay_names`].

use super::subvolume::{Name, Subvolume};
use crate::error::Result;
use crate::inode::attr::mode::{S_IFDIR, S_IFMT};
use crate::inode::directory::EntryTarget;
use crate::inode::entry;
use crate::inode::reference::{self, Reference};
use butterfs_ondisk::checksum::name_hash;
use butterfs_ondisk::{Ino, Key, KeyType};
use std::collections::BTreeSet;
use std::ops::Range;

impl Subvolume<'_> {
    /// Brings in one item with names of an inode.
    ///
    /// Writers look whether the last commit has each name for another inode, and log that one too. Linux 6.18 stops in
    /// an item at the first name that the last commit knows. A later name may so be taken from an inode that has a new
    /// name of which the log does not tell; should it end up without a name, it is found again beside the old one.
    pub fn replay_names(&mut self, key: Key, payload: &[u8]) -> Result<()> {
        let ino = Ino(key.objectid);
        let Some(mode) = self.mode(ino)? else { return Ok(()) };
        let mut names = self.parse_names(key, payload)?;
        if key.kind == KeyType::INODE_REF {
            let directory = Ino(key.offset);
            // The root directory is its own parent.
            if directory == ino || !self.is_directory(directory, key)? {
                return Ok(());
            }
        } else {
            let mut kept = Vec::new();
            for (range, name) in names {
                if self.is_directory(name.0, key)? {
                    kept.push((range, name));
                }
            }
            names = kept;
        }
        let before = self.names_at(key)?;
        self.take_places(ino, &names)?;
        let is_directory = mode & S_IFMT == S_IFDIR;
        let kept = self.drop_stale(ino, key, &names, &before, is_directory)?;
        let mut record: Vec<u8> = names.iter().flat_map(|(range, _)| payload[range.clone()].iter().copied()).collect();
        record.extend(kept);
        for (_, (directory, index, name)) in &names {
            if self.find(*directory, name)?.is_none() {
                self.add_entry(*directory, *index, name, ino)?;
            }
        }
        if record.is_empty() {
            return self.tree.remove(self.handle, key).map(drop);
        }
        self.tree.put(self.handle, key, &record)
    }

    /// The names in an item of the log, each with the bytes that it takes.
    fn parse_names(&self, key: Key, payload: &[u8]) -> Result<Vec<(Range<usize>, Name)>> {
        let mut names = Vec::new();
        let (mut by_name, mut by_index) = (BTreeSet::new(), BTreeSet::new());
        for found in reference::names(key, payload) {
            let (range, name) = found?;
            if name.directory.0 != key.objectid {
                self.check_name(key, name.index, name.name)?;
            }
            let twice = !by_name.insert((name.directory, name.name)) || !by_index.insert((name.directory, name.index));
            if twice {
                return Err(self.bad(key, "a name or an index occurs twice"));
            }
            names.push((range, (name.directory, name.index, name.name.to_vec())));
        }
        Ok(names)
    }

    /// The names that the subvolume has under `key` now.
    fn names_at(&self, key: Key) -> Result<Vec<Name>> {
        let Some(payload) = self.tree.get(self.core, key)? else { return Ok(Vec::new()) };
        let names = reference::names(key, &payload).map(|found| found.map(|(_, name)| name));
        names.map(|name| name.map(|name| (name.directory, name.index, name.name.to_vec()))).collect()
    }

    /// Makes room for all names of an item.
    fn take_places(&mut self, ino: Ino, names: &[(Range<usize>, Name)]) -> Result<()> {
        // Whether the writer may have stopped looking for other owners of the names.
        let mut blind = false;
        for (_, (directory, index, name)) in names {
            for (other, at, lost) in self.clear(*directory, *index, name, ino)? {
                if blind && !self.logged.contains_key(&other.0) {
                    self.displaced.insert(other.0, (*directory, at, lost));
                }
            }
            blind |= self.was_taken(*directory, name)?;
        }
        Ok(())
    }

    /// Whether the last commit has this name.
    fn was_taken(&self, directory: Ino, name: &[u8]) -> Result<bool> {
        let key = Key::new(directory.0, KeyType::DIR_ITEM, name_hash(name));
        let Some(payload) = self.log.committed.get(self.core, key)? else { return Ok(false) };
        Ok(entry::find(&payload, name)?.is_some())
    }

    /// Removes the names that the subvolume has under `key` and the log does not. Returns the records of those that
    /// stay.
    fn drop_stale(
        &mut self,
        ino: Ino,
        key: Key,
        names: &[(Range<usize>, Name)],
        before: &[Name],
        is_directory: bool,
    ) -> Result<Vec<u8>> {
        let nothing_new = names.iter().all(|(_, name)| before.contains(name));
        let mut kept = Vec::new();
        let now = self.names_at(key)?;
        for stale in now.iter().filter(|name| !names.iter().any(|(_, logged)| logged == *name)) {
            let (directory, index, name) = stale;
            if nothing_new && !is_directory && !self.ranged.contains_key(&directory.0) {
                let stays = Reference { directory: *directory, index: *index, name };
                kept.extend(reference::record(key.kind, &stays));
                continue;
            }
            self.unlink(*directory, name, EntryTarget::Inode(ino).location())?;
        }
        Ok(kept)
    }
}
