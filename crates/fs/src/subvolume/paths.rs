//! Where subvolumes, directories and inodes are, as paths, found from their back references.
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
        let first = names_of(core, tree, at, true)?.pop();
        // It was removed, also while somebody has it open, or stands in for a subvolume.
        let removed = || Error::refused_at(Errno::ENOENT, format!("directory {at} of tree {tree} has no name"));
        let (parent, name) = first.ok_or_else(removed)?;
        names.push(name);
        at = parent;
    }
    names.reverse();
    Ok(names.join(&b'/'))
}

/// The paths of an inode inside its subvolume, one for each name; at most `most`.
pub fn of_inode(core: &Core, tree: TreeId, ino: Ino, most: usize) -> Result<Vec<Vec<u8>>> {
    if ino == Ino::ROOT_DIR {
        return Ok(vec![Vec::new()]);
    }
    let names = names_of(core, tree, ino, most == 1)?;
    names.into_iter().take(most).map(|(parent, name)| Ok(joined(of_directory(core, tree, parent)?, &name))).collect()
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
    if let Some(place) = info::info(core, id)?.place {
        return Ok(place);
    }
    // Somebody who holds the table may be in the midst of deleting it.
    let _table = core.subvolume_table.lock();
    let place = info::info(core, id)?.place;
    place.ok_or_else(|| Error::corrupt(format!("subvolume {id} has no place")))
}

/// A path and what comes after it.
pub fn joined(mut path: Vec<u8>, name: &[u8]) -> Vec<u8> {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

fn names_of(core: &Core, tree: TreeId, ino: Ino, only_first: bool) -> Result<Vec<(Ino, Vec<u8>)>> {
    let tree = core.tree(tree)?;
    let mut found = Vec::new();
    let (from, to) = (Key::new(ino.0, KeyType::INODE_REF, 0), Key::new(ino.0, KeyType::INODE_EXTREF, u64::MAX));
    tree.scan(core, from, to, &mut |key, payload| {
        for name in reference::names(key, payload) {
            let (_, name) = name?;
            found.push((name.directory, name.name.to_vec()));
            if only_first {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(found)
}
