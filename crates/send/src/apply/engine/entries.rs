//! Paths to inodes: what was found of directories, kept.
//!
//! 1. Every step leads to an entry of a directory of the same subvolume: neither symbolic links nor entries of other
//!    subvolumes are followed.
//! 2. What is kept is right as long as all changes of names pass through here. A directory that moves takes what is
//!    known of it along, because entries are kept by directory and not by path.
//! 3. What is kept is bounded.

use super::super::{Failure, Outcome, paths};
use butterfs_fs::inode::attr::mode;
use butterfs_fs::{Attr, Errno, Filesystem, InodeId};
use rustc_hash::FxHashMap;

/// Entries that are kept.
const MOST: usize = 1 << 17;

/// An inode that a path leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Found {
    pub id: InodeId,
    /// Type bits of the mode.
    pub kind: u32,
}

impl Found {
    fn of(attr: &Attr) -> Found {
        Found { id: attr.id, kind: attr.kind() }
    }

    pub fn is_directory(&self) -> bool {
        self.kind == mode::S_IFDIR
    }
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Entries {
    known: FxHashMap<InodeId, FxHashMap<Box<[u8]>, Found>>,
    count: usize,
    /// The directory that the last path led through, because the next one often does.
    last: Option<(InodeId, Vec<u8>, InodeId)>,
}

impl Entries {
    /// The inode that a checked path below `root` leads to.
    pub fn find(&mut self, filesystem: &Filesystem, root: InodeId, path: &[u8]) -> Result<Found, Failure> {
        match paths::split(path) {
            None => Ok(Found { id: root, kind: mode::S_IFDIR }),
            Some((directory, name)) => {
                let directory = self.directory(filesystem, root, directory)?;
                self.entry(filesystem, directory, name)
            }
        }
    }

    /// The directory that a path ends in, and the name there.
    pub fn resolve<'p>(
        &mut self,
        filesystem: &Filesystem,
        root: InodeId,
        path: &'p [u8],
    ) -> Result<(InodeId, &'p [u8]), Failure> {
        let Some((directory, name)) = paths::split(path) else {
            return Err(Failure::new(Errno::EINVAL, "this cannot be done to the root of the subvolume"));
        };
        Ok((self.directory(filesystem, root, directory)?, name))
    }

    fn directory(&mut self, filesystem: &Filesystem, root: InodeId, path: &[u8]) -> Result<InodeId, Failure> {
        if let Some((of, known, id)) = &self.last
            && *of == root
            && known == path
        {
            return Ok(*id);
        }
        let mut at = root;
        for name in paths::components(path) {
            let found = self.entry(filesystem, at, name)?;
            if !found.is_directory() {
                let what = if found.kind == mode::S_IFLNK { "a symbolic link" } else { "no directory" };
                return Err(Failure::new(Errno::ENOTDIR, format!("the path leads through {what}")));
            }
            at = found.id;
        }
        self.last = Some((root, path.to_vec(), at));
        Ok(at)
    }

    fn entry(&mut self, filesystem: &Filesystem, directory: InodeId, name: &[u8]) -> Result<Found, Failure> {
        if let Some(found) = self.known.get(&directory).and_then(|names| names.get(name)) {
            return Ok(*found);
        }
        let attr = filesystem.lookup(directory, name)?;
        filesystem.forget(attr.id, 1);
        if attr.id.tree != directory.tree {
            return Err(Failure::new(Errno::EXDEV, "the path leads into another subvolume"));
        }
        if attr.id.is_placeholder() {
            return Err(Failure::new(Errno::EPERM, "the path leads to what stands for another subvolume"));
        }
        let found = Found::of(&attr);
        self.learn(directory, name, found);
        Ok(found)
    }

    /// A name has come to be.
    pub fn learn(&mut self, directory: InodeId, name: &[u8], found: Found) {
        if self.count >= MOST {
            self.clear();
        }
        let names = self.known.entry(directory).or_default();
        self.count += usize::from(names.insert(name.into(), found).is_none());
    }

    /// A name has gone, or leads elsewhere.
    pub fn forget(&mut self, directory: InodeId, name: &[u8]) -> Option<Found> {
        self.last = None;
        let gone = self.known.get_mut(&directory)?.remove(name)?;
        self.count -= 1;
        Some(gone)
    }

    /// A directory is gone.
    pub fn forget_directory(&mut self, id: InodeId) {
        if let Some(names) = self.known.remove(&id) {
            self.count -= names.len();
        }
    }

    /// Everything may have changed.
    pub fn clear(&mut self) {
        *self = Entries::default();
    }

    /// Forgets a name and what is known of the directory that it referred to.
    pub fn forget_removed(&mut self, directory: InodeId, name: &[u8]) -> Outcome {
        if let Some(gone) = self.forget(directory, name)
            && gone.is_directory()
        {
            self.forget_directory(gone.id);
        }
        Ok(())
    }
}
