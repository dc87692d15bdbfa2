//! [`OpenOptions`]: options for opening a file.

use crate::types::{Access, Mode};

/// Whether opening creates a missing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Create {
    /// Fail with [`ErrorKind::NotFound`](crate::ErrorKind::NotFound).
    #[default]
    Never,
    /// Make it.
    IfMissing,
    /// Make it, and fail with [`ErrorKind::AlreadyExists`](crate::ErrorKind::AlreadyExists) if it exists.
    New,
}

/// Options for [`Dir::open_with`](crate::Dir::open_with).
///
/// ```
/// # use butterfs::{Device, Filesystem, Mkfs};
/// use butterfs::{Create, OpenOptions};
/// use std::io::Write;
///
/// # let disk = Device::memory(128 << 20);
/// # Mkfs::new().device(disk.clone()).run()?;
/// # let root = Filesystem::open(disk)?.root();
/// let append = OpenOptions::read_write().create(Create::IfMissing).append();
/// writeln!(root.open_with("log", &append)?, "first")?;
/// writeln!(root.open_with("log", &append)?, "second")?;
/// assert_eq!(root.read("log")?, b"first\nsecond\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct OpenOptions {
    pub(crate) access: Access,
    pub(crate) create: Create,
    pub(crate) start: Start,
    pub(crate) mode: Mode,
}

/// The treatment of existing content, and the position at which writing begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    Keep,
    Truncate,
    Append,
}

impl OpenOptions {
    /// For reading.
    pub const fn read_only() -> OpenOptions {
        OpenOptions { access: Access::ReadOnly, create: Create::Never, start: Start::Keep, mode: Mode::FILE }
    }

    /// For reading and writing.
    pub const fn read_write() -> OpenOptions {
        OpenOptions { access: Access::ReadWrite, ..OpenOptions::read_only() }
    }

    /// Sets whether a missing file is created. A file is created even if it is opened for reading only.
    pub const fn create(self, create: Create) -> OpenOptions {
        OpenOptions { create, ..self }
    }

    /// Removes the content that is there. Needs [`read_write`](OpenOptions::read_write).
    pub const fn truncate(self) -> OpenOptions {
        OpenOptions { start: Start::Truncate, ..self }
    }

    /// Every write goes to the end of the file.
    pub const fn append(self) -> OpenOptions {
        OpenOptions { start: Start::Append, ..self }
    }

    /// Permissions of a file that is made; [`Mode::FILE`] by default.
    pub const fn mode(self, mode: Mode) -> OpenOptions {
        OpenOptions { mode, ..self }
    }
}
