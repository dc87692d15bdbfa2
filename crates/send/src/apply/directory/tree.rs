//! Paths below a directory, resolved without ever leaving it.
//!
//! 1. Every component but the last is a directory and no symbolic link; the last is never followed.
//! 2. Only regular files are opened: opening a device that a stream has made would have effects elsewhere.
//! 3. Descriptors that are kept are dropped when a name changes.
//! 4. Where permissions are in the owner's way, they are [lent](super::permission).

use super::super::{Failure, paths};
use super::object::Object;
use super::permission::{self, Lent, Needs};
use super::system;
use butterfs_fs::Errno;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, openat, openat2, statat};
use rustix::io::Errno as Number;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory, and what was opened below it lately.
pub(super) struct Tree {
    root: Rc<OwnedFd>,
    parent: Option<(Vec<u8>, Rc<OwnedFd>)>,
    file: Option<(Vec<u8>, Rc<OwnedFd>)>,
}

/// A directory and a name in it, as the `*at` system calls take them.
pub(super) struct PathAt<'p> {
    pub directory: Rc<OwnedFd>,
    pub name: &'p [u8],
}

impl PathAt<'_> {
    /// The attributes at a path; a symbolic link is not followed.
    pub fn stat(&self) -> Result<Stat, Failure> {
        self.within(|| statat(&*self.directory, self.name, AtFlags::SYMLINK_NOFOLLOW)).map_err(system)
    }

    /// Does something that the directory's permissions may be in the way of.
    pub fn within<R>(&self, call: impl Fn() -> Result<R, Number>) -> Result<R, Number> {
        permission::at(&[(self, Needs::Directory)], call)
    }

    /// Does something that the directory's permissions, or those of what is there, may be in the way of.
    pub fn with_object<R>(&self, call: impl Fn() -> Result<R, Number>) -> Result<R, Number> {
        permission::at(&[(self, Needs::Object)], call)
    }

    pub fn kind(&self) -> Result<FileType, Failure> {
        Ok(FileType::from_raw_mode(self.stat()?.st_mode))
    }

    /// A path for system calls that take no descriptor of a directory.
    pub fn proc_path(&self) -> Vec<u8> {
        use std::os::fd::AsRawFd;
        let mut path = format!("/proc/self/fd/{}/", self.directory.as_raw_fd()).into_bytes();
        path.extend_from_slice(self.name);
        path
    }
}

impl Tree {
    pub fn new(root: OwnedFd) -> Tree {
        Tree { root: Rc::new(root), parent: None, file: None }
    }

    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// The parent directory and the name of a checked path; those of the root are the root itself and `.`.
    pub fn resolve<'p>(&mut self, path: &'p [u8]) -> Result<PathAt<'p>, Failure> {
        match paths::split(path) {
            None => Ok(PathAt { directory: Rc::clone(&self.root), name: b"." }),
            Some((directory, name)) => Ok(PathAt { directory: self.directory(directory)?, name }),
        }
    }

    fn directory(&mut self, path: &[u8]) -> Result<Rc<OwnedFd>, Failure> {
        if path.is_empty() {
            return Ok(Rc::clone(&self.root));
        }
        if let Some((known, descriptor)) = &self.parent
            && known == path
        {
            return Ok(Rc::clone(descriptor));
        }
        let descriptor = Rc::new(self.open_directory(path)?);
        self.parent = Some((path.to_vec(), Rc::clone(&descriptor)));
        Ok(descriptor)
    }

    fn open_directory(&self, path: &[u8]) -> Result<OwnedFd, Failure> {
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if path.len() < 4096 {
            match openat2(&*self.root, path, flags, Mode::empty(), beneath) {
                // Not there, forbidden to those who confine this process, or in need of permissions.
                Err(Number::NOSYS | Number::PERM | Number::ACCESS) => {}
                Err(Number::LOOP) => return Err(through_link()),
                other => return other.map_err(system),
            }
        }
        let mut at: Option<OwnedFd> = None;
        for name in paths::components(path) {
            let from = at.as_ref().map_or(self.root.as_fd(), AsFd::as_fd);
            let open = || openat(from, name, DIRECTORY | OFlags::PATH, Mode::empty());
            let opened = match open() {
                Err(Number::ACCESS) => {
                    let _lent = Lent::of(from);
                    open()
                }
                opened => opened,
            };
            at = Some(opened.map_err(|error| match error {
                Number::LOOP => through_link(),
                other => system(other),
            })?);
        }
        at.ok_or_else(|| Failure::new(Errno::EINVAL, "the path is empty"))
    }

    /// The regular file at a path, open for reading and writing.
    pub fn file(&mut self, path: &[u8]) -> Result<Rc<OwnedFd>, Failure> {
        if let Some((known, descriptor)) = &self.file
            && known == path
        {
            return Ok(Rc::clone(descriptor));
        }
        let path_at = self.resolve(path)?;
        let descriptor = Rc::new(open_regular(&path_at, OFlags::RDWR)?);
        self.file = Some((path.to_vec(), Rc::clone(&descriptor)));
        Ok(descriptor)
    }

    /// Forgets what was opened, because a name has changed.
    pub fn forget(&mut self) {
        (self.parent, self.file) = (None, None);
    }
}

/// Opens a regular file and nothing else.
pub(super) fn open_regular(path_at: &PathAt<'_>, access: OFlags) -> Result<OwnedFd, Failure> {
    let object = Object::at(path_at)?;
    if object.kind() == FileType::Directory {
        return Err(Failure::new(Errno::EINVAL, "it is not a regular file"));
    }
    object.open(access)
}

fn through_link() -> Failure {
    Failure::new(Errno::ELOOP, "the path leads through a symbolic link")
}
