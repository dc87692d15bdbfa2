//! Where subvolumes, directories and inodes are, as paths, found from their back references.
//!
//! Back references come from disk and may form a loop: every walk has a limit and ends in an error.
//! Paths have no slash at their ends.

use super::info;
use crate::error::{Error, Result};
use crate::inode::reference;
use crate::transaction::Core;
use butterfs_ondisk::{Ino, Key, KeyType, TreeId};
use std::ops::ControlFlow;

/// More directories than any path can have.
const DEEPEST: usize = 1 << 16;

/// The path of a directory inside its subvolume; empty for the root directory.
pub fn of_directory(core: &Core, tree: TreeId, directory: Ino) -> Result<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut at = directory;
    while at != Ino::ROOT_DIR {
        let first = names_of(core, tree, at, true)?.pop();
        let (parent, name) =
            first.ok_or_else(|| Error::corrupt(format!("directory {at} of tree {tree} has no name")))?;
        if names.len() == DEEPEST {
            return Err(Error::corrupt(format!("directory {directory} of tree {tree} lies in a loop")));
        }
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
    let mut path = Vec::new();
    let mut at = id;
    for _ in 0..DEEPEST {
        if at == TreeId::FS {
            return Ok(path);
        }
        let Some((parent, directory, name)) = info::info(core, at)?.place else {
            return Err(Error::corrupt(format!("subvolume {at} has no place")));
        };
        let own = joined(of_directory(core, parent, directory)?, &name);
        path = if path.is_empty() { own } else { joined(own, &path) };
        at = parent;
    }
    Err(Error::corrupt(format!("subvolume {id} lies in a loop")))
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
