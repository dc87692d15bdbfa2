//! First stage: the inodes of the log come into being or get their new attributes; extended attributes and directory
//! entries that the log says are gone go; files are cut at their new size.
//!
//! An inode is logged in one of two forms. The *real* one is the inode's item. The other, with generation 0, only makes
//! an inode exist: of an inode that the subvolume has already it tells nothing but the size of a file.

use super::booking::Booking;
use super::subvolume::{Subvolume, parse_inode};
use crate::error::Result;
use crate::extent::TreeItems;
use crate::file::extents::FileContext;
use crate::file_extent::ExtentKind;
use crate::inode::attr::mode::{S_IFDIR, S_IFMT, S_IFREG};
use crate::inode::cache::item_key;
use crate::inode::directory::index_key;
use crate::inode::entry;
use crate::tree_log::{range_end, range_key};
use butterfs_ondisk::features::incompat;
use butterfs_ondisk::items::InodeItem;
use butterfs_ondisk::{Ino, Key, KeyType};
use std::ops::ControlFlow;
use zerocopy::IntoBytes;

impl Subvolume<'_> {
    pub fn replay_inodes(&mut self) -> Result<()> {
        let log = self.log;
        log.items.scan(self.core, Key::MIN, Key::MAX, &mut |key, payload| {
            if key.kind == KeyType::INODE_ITEM {
                self.replay_inode(key, payload)?;
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    fn replay_inode(&mut self, key: Key, payload: &[u8]) -> Result<()> {
        let ino = Ino(key.objectid);
        let logged = parse_inode(payload).ok_or_else(|| self.bad(key, "wrong size"))?;
        if !(Ino::FIRST_FREE..=Ino::LAST_FREE).contains(&ino) {
            return Err(self.bad(key, "the number is none of an inode"));
        }
        self.logged.insert(ino.0, logged.nlink.get());
        if logged.nlink == 0 {
            return Ok(());
        }
        let old = self.inode(ino)?;
        let kind = logged.mode.get() & S_IFMT;
        if let Some(old) = old.as_ref().filter(|old| old.mode.get() & S_IFMT != kind) {
            let rule = format!("its mode is {:#o}, the subvolume has {:#o}", logged.mode.get(), old.mode.get());
            return Err(self.bad(key, &rule));
        }
        if kind == S_IFREG && i64::try_from(logged.size.get()).is_err() {
            return Err(self.bad(key, &format!("{} bytes are more than a file can have", logged.size.get())));
        }
        if old.is_some() {
            self.delete_attributes(ino)?;
        }
        if kind == S_IFDIR {
            self.delete_entries(ino, old.is_some())?;
        }
        let size = self.write_inode(ino, &logged, old.as_ref())?;
        if kind == S_IFREG && old.is_some() {
            // Of a file that is merely to exist the log does not have what is preallocated behind the end.
            self.cut(ino, size, logged.generation == 0)?;
        }
        self.noted.insert(ino.0);
        Ok(())
    }

    /// Removes the extended attributes that the log does not have: it has all that there are. Those whose names have
    /// one hash share an item, which is replaced as a whole later.
    fn delete_attributes(&mut self, ino: Ino) -> Result<()> {
        let key = |offset| Key::new(ino.0, KeyType::XATTR_ITEM, offset);
        for key in self.keys(key(0), key(u64::MAX))? {
            if self.log.items.get(self.core, key)?.is_none() {
                self.tree.remove(self.handle, key)?;
            }
        }
        Ok(())
    }

    fn keys(&self, from: Key, to: Key) -> Result<Vec<Key>> {
        let mut keys = Vec::new();
        self.tree.scan(self.core, from, to, &mut |key, _| {
            keys.push(key);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(keys)
    }

    /// Removes the entries in the ranges of a directory that the log does not have.
    fn delete_entries(&mut self, directory: Ino, exists: bool) -> Result<()> {
        let mut ranges = Vec::new();
        let log = self.log;
        log.items.scan(self.core, range_key(directory, 0), range_key(directory, u64::MAX), &mut |key, payload| {
            let end = range_end(payload).filter(|end| *end >= key.offset);
            let end = end.ok_or_else(|| self.bad(key, "the range ends before it begins"))?;
            ranges.push((key.offset, end));
            Ok(ControlFlow::Continue(()))
        })?;
        if ranges.is_empty() {
            return Ok(());
        }
        self.ranged.insert(directory.0, ());
        let mut from = 0;
        for (first, last) in ranges {
            // Ranges may overlap.
            if exists && last >= from {
                self.delete_range(directory, first.max(from), last)?;
            }
            from = from.max(last.saturating_add(1));
        }
        Ok(())
    }

    fn delete_range(&mut self, directory: Ino, first: u64, last: u64) -> Result<()> {
        let mut gone = Vec::new();
        let (log, core) = (self.log, self.core);
        self.tree.scan(core, index_key(directory, first), index_key(directory, last), &mut |key, payload| {
            let logged = log.items.get(core, key)?;
            for found in entry::entries(payload) {
                let (_, entry) = found?;
                let stays = match &logged {
                    Some(logged) => entry::find(logged, entry.name)?.is_some(),
                    None => false,
                };
                if !stays {
                    gone.push((entry.name.to_vec(), entry.location));
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        gone.iter().try_for_each(|(name, location)| self.unlink(directory, name, *location))
    }

    /// Writes the item, and returns the size that the inode has now.
    fn write_inode(&mut self, ino: Ino, logged: &InodeItem, old: Option<&InodeItem>) -> Result<u64> {
        let generation = self.handle.generation().0;
        let exists_only = logged.generation == 0;
        let (is_directory, is_file) = (logged.mode.get() & S_IFMT == S_IFDIR, logged.mode.get() & S_IFMT == S_IFREG);
        let Some(old) = old else {
            // The log's count of bytes means nothing; entries and extents bring theirs.
            let mut item = InodeItem { nbytes: 0.into(), transid: generation.into(), ..*logged };
            item.size = if is_directory { 0.into() } else { item.size };
            item.generation = if exists_only { generation.into() } else { item.generation };
            self.tree.insert(self.handle, item_key(ino), item.as_bytes())?;
            self.remember_mode(ino, item.mode.get());
            return Ok(item.size.get());
        };
        let mut item = InodeItem { nbytes: old.nbytes, block_group: old.block_group, ..*logged };
        if is_directory {
            item.size = old.size;
        }
        if exists_only {
            let size = if is_file && logged.size != 0 { logged.size } else { old.size };
            item = InodeItem { size, ..*old };
        }
        if item.as_bytes() != old.as_bytes() {
            self.change_inode(ino, |stored| *stored = item)?;
            self.remember_mode(ino, item.mode.get());
        }
        Ok(item.size.get())
    }

    /// Drops the extents behind the end of a file, all of them or but those that are preallocated.
    fn cut(&mut self, ino: Ino, size: u64, keep_prealloc: bool) -> Result<()> {
        let context = self.file(ino);
        let sector = context.sectorsize;
        let from = size.next_multiple_of(sector);
        let behind = from..(u64::MAX - (sector - 1));
        let mut items = TreeItems::editing(self.handle, &self.tree);
        let found = context.list(&items, &behind, usize::MAX)?;
        let mut booking = Booking { handle: self.handle, tree: self.log.id, ino: ino.0, changes: &mut self.changes };
        for extent in found.iter().filter(|extent| !(keep_prealloc && extent.kind == ExtentKind::Prealloc)) {
            let gone = extent.start.max(from)..extent.end();
            context.drop_range(&mut items, &gone, usize::MAX, &mut booking)?;
        }
        Ok(())
    }

    /// The context for editing a file's extents.
    pub fn file(&self, ino: Ino) -> FileContext {
        FileContext {
            ino: ino.0,
            sectorsize: u64::from(self.core.sectorsize()),
            no_holes: self.core.has_incompat(incompat::NO_HOLES),
            generation: self.handle.generation().0,
        }
    }
}
