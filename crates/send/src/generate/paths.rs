//! Paths inside one snapshot, found from the names that inodes record, and remembered for directories.
//!
//! Names come from disk and may form a loop: every walk has a limit and ends in an error. So does a path that is longer
//! than streams can have them. What is remembered is
//! forgotten when it becomes more than `MOST_BYTES`.

use super::error::{Error, Result};
use butterfs_fs::inode::reference;
use butterfs_fs::{Errno, SnapshotReader};
use butterfs_ondisk::{Ino, Key, KeyType};
use rustc_hash::FxHashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The longest path that a stream can have: no other receiver takes a longer one, and the kernel sends none.
pub const PATH_MAX: usize = 4095;
/// More directories than any path can have.
pub const DEEPEST: usize = PATH_MAX / 2 + 1;
/// Bytes of a path that an error shows, of its beginning and of its end.
const SHOWN: usize = 40;
/// Bytes of paths that are remembered.
const MOST_BYTES: usize = 16 << 20;

/// See the [module](self).
pub struct Paths<'a> {
    reader: &'a SnapshotReader,
    known: FxHashMap<u64, Arc<[u8]>>,
    bytes: usize,
    remember: bool,
}

impl<'a> Paths<'a> {
    pub fn new(reader: &'a SnapshotReader, remember: bool) -> Paths<'a> {
        Paths { reader, known: FxHashMap::default(), bytes: 0, remember }
    }

    /// The path of a directory; empty for the root directory.
    pub fn directory(&mut self, ino: u64) -> Result<Arc<[u8]>> {
        let mut names: Vec<(u64, Vec<u8>)> = Vec::new();
        let mut at = ino;
        let mut path = loop {
            if at == Ino::ROOT_DIR.0 {
                break Vec::new();
            }
            if let Some(path) = self.known.get(&at) {
                break path.to_vec();
            }
            let first = first_name(self.reader, at)?;
            let (parent, name) = first.ok_or_else(|| Error::corrupt(format!("directory {at} has no name")))?;
            if names.len() == DEEPEST {
                return Err(too_deep(ino));
            }
            names.push((at, name));
            at = parent;
        };
        if names.is_empty()
            && let Some(path) = self.known.get(&ino)
        {
            return Ok(Arc::clone(path));
        }
        for (at, name) in names.iter().rev() {
            push_name(&mut path, name)?;
            self.put(*at, &path);
        }
        Ok(path.into())
    }

    fn put(&mut self, ino: u64, path: &[u8]) {
        if !self.remember {
            return;
        }
        if self.bytes > MOST_BYTES {
            self.known.clear();
            self.bytes = 0;
        }
        self.bytes += path.len() + 64;
        self.known.insert(ino, path.into());
    }

    /// The path of an inode by its first name.
    pub fn first(&mut self, ino: u64) -> Result<Option<Vec<u8>>> {
        let Some((directory, name)) = first_name(self.reader, ino)? else { return Ok(None) };
        let mut path = self.directory(directory)?.to_vec();
        push_name(&mut path, &name)?;
        Ok(Some(path))
    }
}

/// Appends a name to a path, which must not become too long.
pub fn push_name(path: &mut Vec<u8>, name: &[u8]) -> Result<()> {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    if path.len() > PATH_MAX { Err(too_long(path)) } else { Ok(()) }
}

fn refused(sentence: String) -> Error {
    Error::Filesystem(butterfs_fs::Error::refused_at(Errno::ENAMETOOLONG, sentence))
}

/// The refusal of a path.
fn too_long(path: &[u8]) -> Error {
    let (begin, end) = (&path[..SHOWN], &path[path.len() - SHOWN..]);
    let [begin, end] = [begin, end].map(|part| String::from_utf8_lossy(part).into_owned());
    refused(format!("a stream has paths of at most {PATH_MAX} bytes, and this one is longer: {begin}…{end}"))
}

/// The refusal of a directory that has more others above it than a path can have.
pub fn too_deep(ino: u64) -> Error {
    refused(format!("a stream has paths of at most {PATH_MAX} bytes, and directory {ino} lies deeper, or in a loop"))
}

/// The directory and the name that an inode records first.
pub fn first_name(reader: &SnapshotReader, ino: u64) -> Result<Option<(u64, Vec<u8>)>> {
    let (from, to) = (Key::new(ino, KeyType::INODE_REF, 0), Key::new(ino, KeyType::INODE_EXTREF, u64::MAX));
    let mut found = None;
    reader.scan::<Error>(from, to, &mut |key, payload| {
        let Some(name) = reference::names(key, payload).next().transpose()? else {
            return Ok(ControlFlow::Continue(()));
        };
        found = Some((name.1.directory.0, name.1.name.to_vec()));
        Ok(ControlFlow::Break(()))
    })?;
    Ok(found)
}
