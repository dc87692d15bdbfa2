//! Which names came and went between two snapshots: the first of the two passes over what differs.
//!
//! # Invariants
//! 1. Only what the plan of the namespace needs is kept: names that are gone, new names of directories and of inodes
//!    that existed before. Names of new files are not: they are free once the plan is carried out.
//! 2. An inode is the same one in both snapshots when number, generation and type agree; one without links does not
//!    exist. The root directory is always the same.
//! 3. Entries that lead to subvolumes do not exist: nothing is sent for them.

use super::error::{Error, Result};
use butterfs_fs::inode::attr::mode;
use butterfs_fs::inode::entry;
use butterfs_fs::{Difference, SnapshotReader};
use butterfs_ondisk::items::{InodeItem, dir_type};
use butterfs_ondisk::{Ino, Key, KeyType};
use rustc_hash::FxHashMap;
use std::ops::ControlFlow;
use zerocopy::FromBytes;

/// An inode of one of the two snapshots.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Object {
    /// Its number.
    pub ino: u64,
    /// Whether it is only in the new snapshot.
    pub fresh: bool,
}

/// The root directory.
pub const ROOT: Object = Object { ino: Ino::ROOT_DIR.0, fresh: false };

/// A directory entry.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry {
    /// The directory.
    pub directory: u64,
    /// The target.
    pub ino: u64,
    name_at: u64,
    name_len: u16,
    /// Whether that is a directory.
    pub is_directory: bool,
}

/// The outcome of an inode number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InodeChange {
    /// The old snapshot's inode is not in the new one.
    Gone,
    /// The new snapshot's inode was not in the old one.
    Fresh,
    /// One inode went, another one has its number.
    Replaced,
}

/// See the [module](self).
#[derive(Default)]
pub struct Changes {
    names: Vec<u8>,
    /// Entries of the old snapshot that are not in the new one, by directory and name.
    pub removed: Vec<DirEntry>,
    /// Entries of the new snapshot that the old one does not have, see the invariants; by directory and index.
    pub added: Vec<DirEntry>,
    /// Numbers whose inodes are not the same; without those above `highest`, which are all fresh.
    inode_changes: FxHashMap<u64, InodeChange>,
    /// The highest inode number of the old snapshot.
    highest: u64,
}

impl Changes {
    /// Compares two snapshots; everything is new when there is no old one.
    pub fn collect(old: Option<&SnapshotReader>, new: &SnapshotReader) -> Result<Changes> {
        let mut changes = Changes { highest: highest_ino(old)?, ..Changes::default() };
        let mut replaced = Vec::new();
        let mut skipped = 0;
        new.diff::<Error>(old, &mut |key, difference| {
            if !is_inode(key) {
                return Ok(ControlFlow::Continue(()));
            }
            match key.kind {
                // Of a number that was used again, all entries are of other directories.
                KeyType::INODE_ITEM if changes.note_inode(key.objectid, difference)? => {
                    skipped = key.objectid;
                    replaced.push(key.objectid);
                }
                KeyType::DIR_INDEX if key.objectid != skipped => changes.note_entry(key.objectid, difference)?,
                _ => {}
            }
            Ok(ControlFlow::Continue(()))
        })?;
        for ino in replaced {
            if let Some(old) = old {
                each_entry(old, ino, &mut |payload| changes.note_entry(ino, Difference::Removed(payload)))?;
            }
            each_entry(new, ino, &mut |payload| changes.note_entry(ino, Difference::Added(payload)))?;
        }
        changes.finish();
        Ok(changes)
    }

    /// True when one inode was replaced by another.
    fn note_inode(&mut self, ino: u64, difference: Difference<'_>) -> Result<bool> {
        let (old, new) = match difference {
            Difference::Removed(old) => (living(old)?, None),
            Difference::Added(new) => (None, living(new)?),
            Difference::Changed(old, new) => (living(old)?, living(new)?),
        };
        let change = match (old, new) {
            (None, None) => return Ok(false),
            (Some(_), None) => InodeChange::Gone,
            (None, Some(_)) => InodeChange::Fresh,
            (Some(old), Some(new)) if is_same(ino, &old, &new) => return Ok(false),
            (Some(_), Some(_)) => InodeChange::Replaced,
        };
        if change != InodeChange::Fresh || ino <= self.highest {
            self.inode_changes.insert(ino, change);
        }
        Ok(change == InodeChange::Replaced)
    }

    fn note_entry(&mut self, directory: u64, difference: Difference<'_>) -> Result<()> {
        let (old, new) = match difference {
            Difference::Removed(old) => (Some(old), None),
            Difference::Added(new) => (None, Some(new)),
            Difference::Changed(old, new) => (Some(old), Some(new)),
        };
        if let Some((ino, is_directory, name)) = old.map(parse).transpose()?.flatten() {
            let entry = self.entry(directory, ino, is_directory, name);
            self.removed.push(entry);
        }
        if let Some((ino, is_directory, name)) = new.map(parse).transpose()?.flatten()
            && (is_directory || ino <= self.highest)
        {
            let entry = self.entry(directory, ino, is_directory, name);
            self.added.push(entry);
        }
        Ok(())
    }

    fn entry(&mut self, directory: u64, ino: u64, is_directory: bool, name: &[u8]) -> DirEntry {
        let name_at = self.names.len() as u64;
        self.names.extend_from_slice(name);
        DirEntry { directory, ino, name_at, name_len: name.len() as u16, is_directory }
    }

    /// Drops new names of new files, and entries that only changed their index; sorts.
    fn finish(&mut self) {
        let mut added = std::mem::take(&mut self.added);
        added.retain(|entry| entry.is_directory || !self.new_object(entry.ino).fresh);
        added.sort_by_key(|entry| entry.directory);
        let mut removed = std::mem::take(&mut self.removed);
        removed.sort_by(|a, b| (a.directory, self.name(a)).cmp(&(b.directory, self.name(b))));
        self.removed = removed;
        let mut back = Vec::new();
        added.retain(|entry| {
            let old = self.removed_at(self.new_object(entry.directory), self.name(entry));
            let same = old.filter(|&old| {
                let old = &self.removed[old];
                old.ino == entry.ino && !self.is_gone(old.ino)
            });
            back.extend(same);
            same.is_none()
        });
        back.sort_unstable();
        let mut index = 0;
        self.removed.retain(|_| {
            index += 1;
            back.binary_search(&(index - 1)).is_err()
        });
        self.added = added;
    }

    /// The name of an entry.
    pub fn name(&self, entry: &DirEntry) -> &[u8] {
        let at = entry.name_at as usize;
        &self.names[at..at + usize::from(entry.name_len)]
    }

    /// Whether the old snapshot's inode with this number is not in the new one.
    pub fn is_gone(&self, ino: u64) -> bool {
        matches!(self.inode_changes.get(&ino), Some(InodeChange::Gone | InodeChange::Replaced))
    }

    /// The new snapshot's inode with this number.
    pub fn new_object(&self, ino: u64) -> Object {
        let fresh = ino > self.highest
            || matches!(self.inode_changes.get(&ino), Some(InodeChange::Fresh | InodeChange::Replaced));
        Object { ino, fresh: fresh && ino != ROOT.ino }
    }

    /// The removed entry of this name in a directory.
    pub fn removed_at(&self, directory: Object, name: &[u8]) -> Option<usize> {
        if directory.fresh {
            return None;
        }
        let wanted = (directory.ino, name);
        let order = |entry: &DirEntry| (entry.directory, self.name(entry)).cmp(&wanted);
        self.removed.binary_search_by(order).ok()
    }

    /// The removed entries of a directory of the old snapshot.
    pub fn removed_in(&self, directory: u64) -> std::ops::Range<usize> {
        let start = self.removed.partition_point(|entry| entry.directory < directory);
        let end = self.removed.partition_point(|entry| entry.directory <= directory);
        start..end
    }
}

/// Whether a key belongs to an inode that users see.
pub fn is_inode(key: Key) -> bool {
    (Ino::ROOT_DIR.0..=Ino::LAST_FREE.0).contains(&key.objectid)
}

/// An inode item, unless the inode has no links.
pub fn living(payload: &[u8]) -> Result<Option<InodeItem>> {
    let item = inode_item(payload)?;
    Ok((item.nlink.get() > 0).then_some(item))
}

/// An inode item.
pub fn inode_item(payload: &[u8]) -> Result<InodeItem> {
    let parsed = InodeItem::read_from_prefix(payload).map(|(item, _)| item);
    parsed.map_err(|_| Error::corrupt(format!("an inode item has {} bytes", payload.len())))
}

/// Whether two inodes with one number are one inode.
pub fn is_same(ino: u64, old: &InodeItem, new: &InodeItem) -> bool {
    let kind = |item: &InodeItem| (item.mode.get() & mode::S_IFMT, item.rdev);
    ino == ROOT.ino || (old.generation == new.generation && kind(old) == kind(new))
}

/// The living inode of this number.
pub fn living_inode(reader: &SnapshotReader, ino: u64) -> Result<Option<InodeItem>> {
    let at = reader.search(Key::new(ino, KeyType::INODE_ITEM, 0))?;
    if at.found { living(at.leaf.item(at.slot)) } else { Ok(None) }
}

/// The number, whether it is a directory, and the name; nothing for what leads to a subvolume.
fn parse(payload: &[u8]) -> Result<Option<(u64, bool, &[u8])>> {
    let Some((_, entry)) = entry::entries(payload).next().transpose()? else { return Ok(None) };
    if entry.location.kind != KeyType::INODE_ITEM {
        return Ok(None);
    }
    Ok(Some((entry.location.objectid, entry.kind == dir_type::DIR, entry.name)))
}

fn each_entry(reader: &SnapshotReader, ino: u64, show: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let (from, to) = (Key::new(ino, KeyType::DIR_INDEX, 0), Key::new(ino, KeyType::DIR_INDEX, u64::MAX));
    reader.scan::<Error>(from, to, &mut |_, payload| show(payload).map(ControlFlow::Continue))
}

fn highest_ino(reader: Option<&SnapshotReader>) -> Result<u64> {
    let Some(reader) = reader else { return Ok(0) };
    let behind = Key::new(Ino::LAST_FREE.0 + 1, KeyType(0), 0);
    Ok(reader.last_before(behind)?.map_or(0, |(key, _)| key.objectid))
}
