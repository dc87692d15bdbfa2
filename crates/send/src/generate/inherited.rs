//! Attributes that new files and directories would inherit from their directory, and must not.
//!
//! A directory of the old snapshot may hand down a default ACL, a compression property, and by its set-group-id bit its
//! group. The first two are taken off the directory before something is made in it, and put back with the directory's
//! other attributes at the end; of the third, whoever makes something is told, and sets owner and mode.
//! The root directory of a full stream has owner and mode from the beginning, as the kernel sends it. Other directories
//! of the new snapshot get their attributes after their content, and hand down nothing.

use super::changes::{Object, ROOT};
use super::error::{Error, Result};
use super::output::Output;
use crate::wire::Command;
use butterfs_fs::SnapshotReader;
use butterfs_fs::inode::attr::mode;
use butterfs_fs::inode::entry;
use butterfs_ondisk::items::InodeItem;
use butterfs_ondisk::{Key, KeyType};
use rustc_hash::{FxHashMap, FxHashSet};
use std::ops::ControlFlow;

/// Attributes that are handed down.
const HANDED_DOWN: [&[u8]; 2] = [b"system.posix_acl_default", b"btrfs.compression"];

/// See the [module](self).
#[derive(Default)]
pub struct Inherited<'r> {
    old: Option<&'r SnapshotReader>,
    /// Directories that were looked at, and whether they hand down their group.
    seen: FxHashMap<u64, bool>,
    /// Attributes that were taken off.
    taken: FxHashMap<u64, Vec<Vec<u8>>>,
    /// New directories that got a group, and hand it down.
    marked: FxHashSet<u64>,
}

impl<'r> Inherited<'r> {
    /// `root` is the root directory as the receiver has it when the section begins.
    pub fn new(old: Option<&'r SnapshotReader>, root: &InodeItem) -> Inherited<'r> {
        let mut inherited = Inherited { old, ..Inherited::default() };
        if old.is_none() {
            inherited.seen.insert(ROOT.ino, root.mode.get() & mode::S_ISGID != 0);
        }
        inherited
    }

    /// Called before something is made in a directory that is at `path`. True when it gets the directory's group.
    pub fn prepare(&mut self, directory: Object, path: &[u8], out: &mut Output<'_, '_>) -> Result<bool> {
        if directory.fresh {
            return Ok(self.marked.contains(&directory.ino));
        }
        if let Some(&hands_down) = self.seen.get(&directory.ino) {
            return Ok(hands_down);
        }
        let Some(old) = self.old else { return Ok(false) };
        let item = super::changes::living_inode(old, directory.ino)?;
        let hands_down = item.is_some_and(|item| item.mode.get() & mode::S_ISGID != 0);
        self.seen.insert(directory.ino, hands_down);
        let found = xattrs(old, directory.ino)?;
        let names: Vec<_> = found.into_keys().filter(|name| HANDED_DOWN.contains(&name.as_slice())).collect();
        for name in &names {
            out.put(&Command::RemoveXattr { path, name })?;
        }
        if !names.is_empty() {
            self.taken.insert(directory.ino, names);
        }
        Ok(hands_down)
    }

    /// A new directory got a group.
    pub fn mark(&mut self, directory: Object) {
        self.marked.insert(directory.ino);
    }

    /// Whether a new directory got a group.
    pub fn is_marked(&self, ino: u64) -> bool {
        self.marked.contains(&ino)
    }

    /// Directories that lack attributes now.
    pub fn stripped(&self) -> impl Iterator<Item = u64> + '_ {
        self.taken.keys().copied()
    }

    /// The attributes that a directory lacks now.
    pub fn taken_from(&self, ino: u64) -> &[Vec<u8>] {
        self.taken.get(&ino).map_or(&[], Vec::as_slice)
    }
}

/// Extended attributes by name.
pub type Xattrs = std::collections::BTreeMap<Vec<u8>, Vec<u8>>;

/// The extended attributes of an inode.
pub fn xattrs(reader: &SnapshotReader, ino: u64) -> Result<Xattrs> {
    let mut found = Xattrs::new();
    let (from, to) = (Key::new(ino, KeyType::XATTR_ITEM, 0), Key::new(ino, KeyType::XATTR_ITEM, u64::MAX));
    reader.scan::<Error>(from, to, &mut |_, payload| {
        add_xattrs(payload, &mut found)?;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(found)
}

/// Adds those of an item.
pub fn add_xattrs(payload: &[u8], to: &mut Xattrs) -> Result<()> {
    for entry in entry::entries(payload) {
        let (_, entry) = entry?;
        to.insert(entry.name.to_vec(), entry.value.to_vec());
    }
    Ok(())
}
