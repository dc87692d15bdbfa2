//! A subvolume while its log is replayed: its tree, the log, and what has been found out so far.

use super::booking::Changes;
use super::logs::Log;
use crate::error::{Error, Result};
use crate::inode::attr::mode::{S_IFDIR, S_IFMT};
use crate::inode::cache::{item_key, read_item};
use crate::inode::reference;
use crate::transaction::{Core, Handle, Tree};
use butterfs_ondisk::items::InodeItem;
use butterfs_ondisk::{Ino, Key, KeyType};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use zerocopy::FromBytes;

/// A name in a directory: the directory, the index there, the name.
pub(super) type Name = (Ino, u64, Vec<u8>);

/// See the [module](self).
pub(super) struct Subvolume<'a> {
    pub core: &'a Core,
    pub handle: &'a Handle,
    /// The tree that is changed.
    pub tree: Arc<Tree>,
    pub log: &'a Log,
    /// Modes of inodes that were looked for; `None`: there is none.
    modes: FxHashMap<u64, Option<u32>>,
    /// Inodes of the log, with their link counts there.
    pub logged: FxHashMap<u64, u32>,
    /// Directories with a range in the log: it knows which of their names are gone.
    pub ranged: FxHashMap<u64, ()>,
    /// Inodes whose names may have changed.
    pub noted: BTreeSet<u64>,
    /// Names that were taken from an inode of which the log may just not speak: where the inode was found last.
    pub displaced: BTreeMap<u64, Name>,
    /// Directories that got a name in another one.
    pub moved: BTreeSet<u64>,
    pub changes: Changes,
}

impl<'a> Subvolume<'a> {
    pub fn new(handle: &'a Handle, log: &'a Log) -> Result<Subvolume<'a>> {
        let core = handle.core();
        Ok(Subvolume {
            core,
            handle,
            tree: core.tree(log.id)?,
            log,
            modes: FxHashMap::default(),
            logged: FxHashMap::default(),
            ranged: FxHashMap::default(),
            noted: BTreeSet::new(),
            displaced: BTreeMap::new(),
            moved: BTreeSet::new(),
            changes: Changes::default(),
        })
    }

    /// An error about the log of this subvolume.
    pub fn bad(&self, key: Key, rule: &str) -> Error {
        Error::corrupt(format!("log of subvolume {}: item {key}: {rule}", self.log.id))
    }

    /// The mode of an inode of the subvolume as it is now.
    pub fn mode(&mut self, ino: Ino) -> Result<Option<u32>> {
        if let Some(&known) = self.modes.get(&ino.0) {
            return Ok(known);
        }
        let mode = self.inode(ino)?.map(|item| item.mode.get());
        self.modes.insert(ino.0, mode);
        Ok(mode)
    }

    /// The item of an inode, without changes that are not booked yet.
    pub fn inode(&self, ino: Ino) -> Result<Option<InodeItem>> {
        match self.tree.get(self.core, item_key(ino))? {
            Some(_) => read_item(self.core, &self.tree, ino).map(Some),
            None => Ok(None),
        }
    }

    /// Says that an inode exists from now on.
    pub fn remember_mode(&mut self, ino: Ino, mode: u32) {
        self.modes.insert(ino.0, Some(mode));
    }

    /// Whether there is such a directory; an error when it is something else.
    pub fn is_directory(&mut self, ino: Ino, key: Key) -> Result<bool> {
        match self.mode(ino)? {
            None => Ok(false),
            Some(mode) if mode & S_IFMT == S_IFDIR => Ok(true),
            Some(_) => Err(self.bad(key, &format!("inode {ino} is no directory"))),
        }
    }

    /// Shows the log's items of the kinds from `from` to `to`, of inodes that are to be replayed.
    pub fn each_logged(
        &mut self,
        from: KeyType,
        to: KeyType,
        visit: &mut dyn FnMut(&mut Subvolume<'a>, Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let log = self.log;
        log.items.scan(self.core, Key::MIN, Key::MAX, &mut |key, payload| {
            let wanted = (from..=to).contains(&key.kind) && Ino::FIRST_FREE.0 <= key.objectid;
            // Inodes without a link are in the log only so that nobody takes them for unlogged.
            if wanted && key.objectid <= Ino::LAST_FREE.0 && self.logged.get(&key.objectid) != Some(&0) {
                visit(self, key, payload)?;
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    /// All names of an inode in `tree`.
    pub fn names_in(&self, tree: &Tree, ino: Ino) -> Result<Vec<(Key, Name)>> {
        let mut names = Vec::new();
        let (from, to) = (Key::new(ino.0, KeyType::INODE_REF, 0), Key::new(ino.0, KeyType::INODE_EXTREF, u64::MAX));
        tree.scan(self.core, from, to, &mut |key, payload| {
            for found in reference::names(key, payload) {
                let (_, name) = found?;
                names.push((key, (name.directory, name.index, name.name.to_vec())));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(names)
    }
}

/// The inode item in a payload of the log; the tree checker has seen its size.
pub(super) fn parse_inode(payload: &[u8]) -> Option<InodeItem> {
    InodeItem::read_from_bytes(payload).ok()
}
