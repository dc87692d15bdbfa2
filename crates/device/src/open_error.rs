//! Why a file or block device could not be opened: one sentence, and what to do about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A device that could not be opened. `Display` is one sentence without a full stop.
#[derive(Debug)]
pub struct OpenError {
    /// The path that was to be opened.
    pub path: PathBuf,
    /// Why not.
    pub kind: OpenErrorKind,
}

/// The reasons that a caller may want to tell apart.
#[derive(Debug)]
pub enum OpenErrorKind {
    /// There is no such file.
    NotFound,
    /// [`FileDevice::create`](crate::FileDevice::create) found a file.
    Exists,
    /// The caller may not open it that way.
    PermissionDenied,
    /// A block device that refuses to be written (`blockdev --setro`, a switch on the card), or a file on a read-only
    /// filesystem.
    WriteProtected,
    /// Neither a regular file nor a block device.
    NotStorage {
        /// The type of the file: `a directory`.
        found: &'static str,
    },
    /// Another process holds the lock, or the claim on the block device.
    InUse {
        /// Whether it was to be opened for writing.
        for_writing: bool,
    },
    /// The kernel has it, or a loop device over it, in use.
    UsedByKernel {
        /// The use: `mounted at /mnt`, `used as swap`; with the loop device's name where there is one.
        usage: String,
    },
    /// The filesystem that the file is on has no locks.
    CannotLock(io::Error),
    /// Anything else.
    Io(io::Error),
}

impl OpenError {
    pub(crate) fn new(path: &Path, kind: OpenErrorKind) -> OpenError {
        OpenError { path: path.to_owned(), kind }
    }

    pub(crate) fn from_io(path: &Path, error: io::Error) -> OpenError {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => OpenErrorKind::NotFound,
            io::ErrorKind::AlreadyExists => OpenErrorKind::Exists,
            io::ErrorKind::PermissionDenied => OpenErrorKind::PermissionDenied,
            io::ErrorKind::ReadOnlyFilesystem => OpenErrorKind::WriteProtected,
            _ => OpenErrorKind::Io(error),
        };
        OpenError::new(path, kind)
    }

    /// Advice to the user, if there is any.
    pub fn hint(&self) -> Option<&'static str> {
        match &self.kind {
            OpenErrorKind::InUse { for_writing: true } => {
                Some("unmount it, or end the program that uses it; only one at a time may write")
            }
            OpenErrorKind::InUse { for_writing: false } => Some("unmount it, or end the program that writes to it"),
            OpenErrorKind::UsedByKernel { .. } => Some("unmount it first"),
            OpenErrorKind::PermissionDenied => Some("check the permissions, or open it read-only"),
            OpenErrorKind::WriteProtected => Some("open it read-only"),
            OpenErrorKind::CannotLock(_) => Some("copy it to a local filesystem, or open it read-only"),
            OpenErrorKind::NotStorage { .. } => Some("give an image file or a block device"),
            OpenErrorKind::NotFound | OpenErrorKind::Exists | OpenErrorKind::Io(_) => None,
        }
    }

    /// Whether waiting for another process may help.
    pub fn is_in_use(&self) -> bool {
        matches!(self.kind, OpenErrorKind::InUse { .. })
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.kind {
            OpenErrorKind::NotFound => write!(f, "{path} does not exist"),
            OpenErrorKind::Exists => write!(f, "{path} already exists"),
            OpenErrorKind::PermissionDenied => write!(f, "no permission to open {path}"),
            OpenErrorKind::WriteProtected => write!(f, "{path} is write-protected"),
            OpenErrorKind::NotStorage { found } => write!(f, "{path} is {found}, not a file or block device"),
            OpenErrorKind::InUse { .. } => write!(f, "{path} is in use by another process"),
            OpenErrorKind::UsedByKernel { usage } => write!(f, "{path} is {usage}"),
            OpenErrorKind::CannotLock(error) => write!(f, "cannot lock {path}: {error}"),
            OpenErrorKind::Io(error) => write!(f, "cannot open {path}: {error}"),
        }
    }
}

impl std::error::Error for OpenError {}
