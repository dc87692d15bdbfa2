//! The paths of subvolumes, directories and inodes, found from their back references.
//!
//! Back references come from disk and may form a loop: every walk remembers where it was, and ends in an error when it
//! comes there again.
//! Paths have no slash at their ends.

use super::info;
use crate::error::{Errno, Error, Result};
use crate::inode::reference;
use crate::transaction::Core;
use butterfs_ondisk::{Ino, Key, KeyType, TreeId};
use rustc_hash::FxHashSet;
use std::ops::ControlFlow;

/// The path of a directory inside its subvolume; empty for the root directory. `ENOENT` when it has no name.
pub fn of_directory(core: &Core, tree: TreeId, directory: Ino) -> Result<Vec<u8>> {
    let (mut names, mut seen) = (Vec::new(), FxHashSet::default());
    let mut at = directory;
    while at != Ino::ROOT_DIR {
        if !seen.insert(at) {
            return Err(Error::corrupt(format!("directory {directory} of tree {tree} lies in a loop")));
        }
        let first = Names::of(tree, at).next(core)?;
        // It was removed, also while somebody has it open, or stands in for a subvolume.
        let removed = || Error::refused_at(Errno::ENOENT, format!("directory {at} of tree {tree} has no name"));
        let (parent, name) = first.ok_or_else(removed)?;
        names.push(name);
        at = parent;
    }
    names.reverse();
    Ok(names.join(&b'/'))
}

/// The paths of an inode inside its subvolume, one for each name.
#[derive(Debug)]
pub struct PathsOf {
    names: Names,
    is_top: bool,
}

impl PathsOf {
    /// The root directory has an empty one.
    pub fn inode(tree: TreeId, ino: Ino) -> PathsOf {
        PathsOf { names: Names::of(tree, ino), is_top: ino == Ino::ROOT_DIR }
    }

    /// The next one.
    pub fn next(&mut self, core: &Core) -> Result<Option<Vec<u8>>> {
        if std::mem::take(&mut self.is_top) {
            self.names.next = None;
            return Ok(Some(Vec::new()));
        }
        let Some((parent, name)) = self.names.next(core)? else { return Ok(None) };
        Ok(Some(joined(of_directory(core, self.names.tree, parent)?, &name)))
    }
}

/// The path of a subvolume from the top level; empty for the top level itself.
pub fn of_subvolume(core: &Core, id: TreeId) -> Result<Vec<u8>> {
    let (mut parts, mut seen) = (Vec::new(), FxHashSet::default());
    let mut at = id;
    while at != TreeId::FS {
        if !seen.insert(at) {
            return Err(Error::corrupt(format!("subvolume {id} lies in a loop")));
        }
        let (parent, directory, name) = place_of(core, at)?;
        parts.push(joined(of_directory(core, parent, directory)?, &name));
        at = parent;
    }
    parts.reverse();
    Ok(parts.join(&b'/'))
}

/// The directory that holds a subvolume, and its name there.
fn place_of(core: &Core, id: TreeId) -> Result<(TreeId, Ino, Vec<u8>)> {
    if let Some(backref) = info::info(core, id)?.backref {
        return Ok(backref);
    }
    // Somebody who holds the table may be in the midst of deleting it.
    let _table = core.subvolume_table.lock();
    let backref = info::info(core, id)?.backref;
    backref.ok_or_else(|| Error::corrupt(format!("subvolume {id} has no place")))
}

/// The names of an inode, each with its directory.
pub fn names_of(core: &Core, tree: TreeId, ino: Ino) -> Result<Vec<(Ino, Vec<u8>)>> {
    let (mut names, mut found) = (Names::of(tree, ino), Vec::new());
    while let Some(name) = names.next(core)? {
        found.push(name);
    }
    Ok(found)
}

/// A path and what comes after it.
pub fn joined(mut path: Vec<u8>, name: &[u8]) -> Vec<u8> {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// The names of an inode, with the directories that they are in.
#[derive(Debug)]
struct Names {
    tree: TreeId,
    ino: Ino,
    /// The key at which the search continues.
    next: Option<Key>,
    /// The names of one item, the next one last.
    found: Vec<(Ino, Vec<u8>)>,
}

impl Names {
    fn of(tree: TreeId, ino: Ino) -> Names {
        Names { tree, ino, next: Some(Key::new(ino.0, KeyType::INODE_REF, 0)), found: Vec::new() }
    }

    fn next(&mut self, core: &Core) -> Result<Option<(Ino, Vec<u8>)>> {
        while self.found.is_empty() {
            let Some(from) = self.next.take() else { break };
            self.read_item(core, from)?;
        }
        Ok(self.found.pop())
    }

    fn read_item(&mut self, core: &Core, from: Key) -> Result<()> {
        let to = Key::new(self.ino.0, KeyType::INODE_EXTREF, u64::MAX);
        core.tree(self.tree)?.scan(core, from, to, &mut |key, payload| {
            self.next = Some(key.successor()).filter(|next| *next <= to);
            for name in reference::names(key, payload) {
                let (_, name) = name?;
                self.found.push((name.directory, name.name.to_vec()));
            }
            Ok(ControlFlow::Break(()))
        })?;
        self.found.reverse();
        Ok(())
    }
}
