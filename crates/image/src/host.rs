//! Folders of this machine by descriptors, for paths that are longer than the kernel takes.

use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Bytes of a path of a folder that is reached through a descriptor: the kernel takes 4095, and a name follows.
pub const LONG_PATH: usize = 2048;

/// A folder in another one. Symbolic links are not followed.
pub fn open_folder(above: &OwnedFd, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(above, OsStr::from_bytes(name), flags, Mode::empty())?)
}

/// A short path of an open folder.
pub fn through(folder: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()))
}
