//! The present paths of directories, while names are being changed at the receiver.
//!
//! Invariant: a directory of the old snapshot is where that snapshot has it until it is moved here; one of the new
//! snapshot exists from when it is put somewhere here.

use super::changes::{Object, ROOT};
use super::error::{Error, Result};
use super::paths::{DEEPEST, first_name, push_name, too_deep};
use butterfs_fs::SnapshotReader;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Directories above one another, of which no path need be made; more are a loop.
const LONGEST_WAY: usize = 1 << 16;

/// A directory's directory and its name there.
pub type ParentAndName = (Object, Arc<[u8]>);

/// See the [module](self).
pub struct DirectoryPaths<'a> {
    old: Option<&'a SnapshotReader>,
    moved: FxHashMap<Object, ParentAndName>,
    /// Names in the old snapshot that were looked up.
    unmoved: FxHashMap<u64, ParentAndName>,
    /// Paths, each with the count of moves at which it was right.
    paths: FxHashMap<Object, (u64, Arc<[u8]>)>,
    moves: u64,
    remember: bool,
}

impl<'a> DirectoryPaths<'a> {
    pub fn new(old: Option<&'a SnapshotReader>, remember: bool) -> DirectoryPaths<'a> {
        let (moved, unmoved, paths) = Default::default();
        DirectoryPaths { old, moved, unmoved, paths, moves: 0, remember }
    }

    /// A directory was made or moved.
    pub fn put(&mut self, directory: Object, parent: Object, name: &[u8]) {
        let before = self.moved.insert(directory, (parent, name.into()));
        if before.is_some() || !directory.fresh {
            self.moves += 1;
        }
    }

    /// Whether a directory is there.
    pub fn exists(&self, directory: Object) -> bool {
        !directory.fresh || self.moved.contains_key(&directory)
    }

    /// The path of a directory.
    pub fn of(&mut self, directory: Object) -> Result<ParentAndName> {
        if let Some(found) = self.moved.get(&directory) {
            return Ok(found.clone());
        }
        if let Some(found) = self.unmoved.get(&directory.ino) {
            return Ok(found.clone());
        }
        let lost = || Error::corrupt(format!("directory {} has no place", directory.ino));
        let old = self.old.filter(|_| !directory.fresh).ok_or_else(lost)?;
        let (parent, name) = first_name(old, directory.ino)?.ok_or_else(lost)?;
        let found = (Object { ino: parent, fresh: false }, name.into());
        if self.remember {
            self.unmoved.insert(directory.ino, ParentAndName::clone(&found));
        }
        Ok(found)
    }

    /// The path of a directory; empty for the root directory.
    pub fn path(&mut self, directory: Object) -> Result<Arc<[u8]>> {
        let mut names: Vec<(Object, Arc<[u8]>)> = Vec::new();
        let mut at = directory;
        let mut path = loop {
            if at == ROOT {
                break Vec::new();
            }
            if let Some((moves, path)) = self.paths.get(&at)
                && *moves == self.moves
            {
                if names.is_empty() {
                    return Ok(Arc::clone(path));
                }
                break path.to_vec();
            }
            if names.len() == DEEPEST {
                return Err(too_deep(directory.ino));
            }
            let (parent, name) = self.of(at)?;
            names.push((at, name));
            at = parent;
        };
        for (at, name) in names.iter().rev() {
            push_name(&mut path, name)?;
            if self.remember {
                self.paths.insert(*at, (self.moves, path.as_slice().into()));
            }
        }
        Ok(path.into())
    }

    /// The path of a name in a directory.
    pub fn path_of(&mut self, directory: Object, name: &[u8]) -> Result<Vec<u8>> {
        let mut path = self.path(directory)?.to_vec();
        push_name(&mut path, name)?;
        Ok(path)
    }

    /// The directories from `from` up to `above`, without it, nearest first; none when `from` is not below it.
    pub fn between(&mut self, from: Object, above: Object) -> Result<Option<Vec<Object>>> {
        let mut way = Vec::new();
        let mut at = from;
        while at != above {
            if at == ROOT {
                return Ok(None);
            }
            if way.len() == LONGEST_WAY {
                return Err(Error::corrupt(format!("directory {} lies in a loop", from.ino)));
            }
            way.push(at);
            at = self.of(at)?.0;
        }
        Ok(Some(way))
    }
}
