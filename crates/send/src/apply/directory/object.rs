//! An inode that was opened without being used, so that its names do not matter any more: others may exchange them
//! meanwhile, and what is read, set and opened here concerns the inode that was found.

use super::super::{Failure, Outcome};
use super::permission;
use super::system;
use super::tree::PathAt;
use butterfs_fs::Errno;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, chmodat, fstat, openat};
use rustix::io::Errno as Number;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Device and number of an inode.
pub(super) type Identity = (u64, u64);

/// The identity of an inode.
pub(super) fn identity(stat: &Stat) -> Identity {
    (stat.st_dev, stat.st_ino)
}

/// A path that leads to what a descriptor is about, whatever it was opened for.
pub(super) fn path_of(descriptor: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

/// See the [module](self).
pub(super) struct Object {
    descriptor: OwnedFd,
    pub stat: Stat,
}

impl Object {
    /// The object that a name refers to; a symbolic link is not followed.
    pub fn find(directory: impl AsFd, name: &[u8]) -> Result<Object, Number> {
        let descriptor = openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let stat = fstat(&descriptor)?;
        Ok(Object { descriptor, stat })
    }

    /// The same, where permissions may be in the way.
    pub fn at(path_at: &PathAt<'_>) -> Result<Object, Failure> {
        path_at.within(|| Object::find(&*path_at.directory, path_at.name)).map_err(system)
    }

    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    pub fn identity(&self) -> Identity {
        identity(&self.stat)
    }

    /// Opens it: a regular file or a directory, because opening anything else has effects elsewhere.
    pub fn open(&self, access: OFlags) -> Result<OwnedFd, Failure> {
        match self.kind() {
            FileType::RegularFile | FileType::Directory => {}
            FileType::Symlink => {
                return Err(Failure::new(Errno::ELOOP, "it is a symbolic link, which is not followed"));
            }
            _ => return Err(Failure::new(Errno::EINVAL, "it is not a regular file")),
        }
        let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let open = || openat(CWD, path_of(self.as_fd()), flags, Mode::empty());
        match permission::of_object(self, open) {
            Err(Number::NOENT) => Err(Failure::new(Errno::ENOENT, "/proc is needed, and not mounted here")),
            other => other.map_err(system),
        }
    }

    /// Sets the permissions.
    pub fn set_mode(&self, mode: u32) -> Outcome {
        if self.kind() == FileType::Symlink {
            return Err(Failure::new(Errno::ELOOP, "it is a symbolic link, which has no permissions"));
        }
        let mode = Mode::from_raw_mode(mode & 0o7777);
        chmodat(CWD, path_of(self.as_fd()), mode, AtFlags::empty()).map_err(system)
    }
}

impl AsFd for Object {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
