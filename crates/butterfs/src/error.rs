//! The error of everything but streams: a kind to match on, an errno, the place on disk, one sentence, the cause.

use butterfs_fs::Error as EngineError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed.
///
/// Match on [`kind`](Error::kind); show the error to people with `{}`, which names the path and the rule. An `Error`
/// converts into an [`io::Error`] that keeps it as its source.
///
/// ```
/// # use butterfs::{Device, ErrorKind, Filesystem, Mkfs};
/// # let disk = Device::memory(128 << 20);
/// # Mkfs::new().device(disk.clone()).run()?;
/// # let filesystem = Filesystem::open(disk)?;
/// let error = filesystem.root().read("no/such/file").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// assert_eq!(error.errno().name(), "ENOENT");
/// assert_eq!(error.path(), Some("no/such/file".as_ref()));
/// # Ok::<(), butterfs::Error>(())
/// ```
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    errno: Errno,
    message: String,
    path: Option<PathBuf>,
    place: Place,
    source: Option<Source>,
}

/// The cause. Engine errors can be copied, errors of the system cannot and are shared.
#[derive(Clone)]
enum Source {
    Engine(Box<EngineError>),
    System(std::sync::Arc<io::Error>),
}

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A file, attribute, subvolume or device does not exist.
    NotFound,
    /// The name is taken, or the device contains something that would be overwritten.
    AlreadyExists,
    /// A component of the path is not a directory.
    NotADirectory,
    /// The operation needs something that is not a directory.
    IsADirectory,
    /// The directory is not empty.
    DirectoryNotEmpty,
    /// An argument breaks a rule.
    InvalidInput,
    /// A flag of the inode or the kind of object forbids it.
    PermissionDenied,
    /// The filesystem, the subvolume or the device is read-only.
    ReadOnly,
    /// There is no space left.
    NoSpace,
    /// Another process, another operation or the kernel uses it.
    Busy,
    /// This version of butterfs does not support it.
    Unsupported,
    /// Too many symbolic links, or a loop of them.
    TooManyLinks,
    /// A name or path is too long.
    NameTooLong,
    /// A size or an offset is too large.
    TooLarge,
    /// The file handle was not opened for this.
    BadHandle,
    /// Something on disk breaks a rule of the format.
    Corrupt,
    /// A device failed, or no copy of the data is good.
    Device,
    /// Devices of the filesystem are missing.
    MissingDevice,
    /// The filesystem stopped writing after an earlier error.
    Stopped,
    /// The progress callback, or another thread, cancelled the operation.
    Cancelled,
    /// Another reason; see the errno.
    Other,
    /// The filesystem was closed.
    Closed,
}

/// A Linux error number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

impl Errno {
    pub(crate) fn of(errno: butterfs_fs::Errno) -> Errno {
        Errno(errno.0)
    }

    /// The number, as in C's `errno`.
    pub const fn raw(self) -> i32 {
        self.0
    }

    /// The symbol, such as `ENOENT`; `errno` for a number without a known symbol.
    pub const fn name(self) -> &'static str {
        butterfs_fs::Errno(self.0).name()
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

/// The place of an error on disk, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The device's name.
    pub device: Option<String>,
    /// The byte offset on that device.
    pub physical: Option<u64>,
    /// The logical address.
    pub logical: Option<u64>,
    /// The id of the tree.
    pub tree: Option<u64>,
    /// The key of the item, as `(objectid type offset)`.
    pub key: Option<String>,
}

impl Error {
    /// The kind, for programs.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The errno that a mount would return.
    pub fn errno(&self) -> Errno {
        self.0.errno
    }

    /// The place on disk.
    pub fn place(&self) -> &Place {
        &self.0.place
    }

    /// The path inside the filesystem that the operation was given.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// The sentence without the path.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    pub(crate) fn new(kind: ErrorKind, errno: butterfs_fs::Errno, message: impl Into<String>) -> Error {
        let errno = Errno::of(errno);
        let message = message.into();
        Error(Box::new(Inner { kind, errno, message, path: None, place: Place::default(), source: None }))
    }

    pub(crate) fn refused(errno: butterfs_fs::Errno, message: impl Into<String>) -> Error {
        Error::new(kind_of(errno), errno, message)
    }

    /// Names the path, unless an inner operation has already named one.
    pub(crate) fn at(mut self, path: impl AsRef<Path>) -> Error {
        self.0.path.get_or_insert_with(|| path.as_ref().to_owned());
        self
    }

    /// Names the device in the place, not in the sentence.
    pub(crate) fn on_device(mut self, name: impl Into<String>) -> Error {
        self.0.place.device.get_or_insert(name.into());
        self
    }

    pub(crate) fn system(error: io::Error) -> Error {
        let errno = error.raw_os_error().unwrap_or_else(|| errno_of(error.kind()));
        let mut made = Error::refused(butterfs_fs::Errno(errno), error.to_string());
        made.0.source = Some(Source::System(std::sync::Arc::new(error)));
        made
    }
}

/// Names the path of a failed operation.
pub(crate) trait AtPath<T> {
    fn at(self, path: impl AsRef<Path>) -> Result<T>;
}

impl<T, E: Into<Error>> AtPath<T> for std::result::Result<T, E> {
    fn at(self, path: impl AsRef<Path>) -> Result<T> {
        self.map_err(|error| error.into().at(path))
    }
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Error {
        let kind = match &error {
            EngineError::Device(_) => ErrorKind::Device,
            EngineError::Corrupt(_) => ErrorKind::Corrupt,
            EngineError::Incomplete(_) => ErrorKind::MissingDevice,
            EngineError::Aborted(_) => ErrorKind::Stopped,
            other => kind_of(other.errno()),
        };
        let mut made = Error::new(kind, error.errno(), error.to_string());
        if let Some(failure) = error.failure() {
            made.0.place = Place::of(failure.place());
            let has_cause = failure.source().is_some();
            made.0.source = has_cause.then(|| Source::Engine(Box::new(error)));
        }
        made
    }
}

impl Place {
    fn of(place: &butterfs_fs::error::Place) -> Place {
        Place {
            device: place.device.clone(),
            physical: place.physical.map(|at| at.get()),
            logical: place.logical.map(|at| at.get()),
            tree: place.tree.map(|tree| tree.get()),
            key: place.key.map(|key| key.to_string()),
        }
    }
}

fn kind_of(errno: butterfs_fs::Errno) -> ErrorKind {
    use butterfs_fs::Errno;
    match errno {
        Errno::ENOENT | Errno::ENODATA | Errno::ESTALE | Errno::ENXIO | Errno::ENODEV | Errno::ENOTCONN => {
            ErrorKind::NotFound
        }
        Errno::EEXIST => ErrorKind::AlreadyExists,
        Errno::ENOTDIR => ErrorKind::NotADirectory,
        Errno::EISDIR => ErrorKind::IsADirectory,
        Errno::ENOTEMPTY => ErrorKind::DirectoryNotEmpty,
        Errno::EINVAL | Errno::EXDEV => ErrorKind::InvalidInput,
        Errno::EPERM | Errno::EACCES => ErrorKind::PermissionDenied,
        Errno::EROFS => ErrorKind::ReadOnly,
        Errno::ENOSPC | Errno::EDQUOT => ErrorKind::NoSpace,
        Errno::EBUSY | Errno::ETXTBSY | Errno::EAGAIN | Errno::EINPROGRESS => ErrorKind::Busy,
        Errno::ECANCELED => ErrorKind::Cancelled,
        Errno::EOPNOTSUPP | Errno::ENOSYS => ErrorKind::Unsupported,
        Errno::ELOOP => ErrorKind::TooManyLinks,
        Errno::ENAMETOOLONG | Errno::ERANGE => ErrorKind::NameTooLong,
        Errno::EFBIG | Errno::E2BIG | Errno::EOVERFLOW | Errno::EMLINK => ErrorKind::TooLarge,
        Errno::EBADF => ErrorKind::BadHandle,
        Errno::EUCLEAN => ErrorKind::Corrupt,
        Errno::EIO => ErrorKind::Device,
        _ => ErrorKind::Other,
    }
}

/// The errno of an error of the standard library that carries none.
fn errno_of(kind: io::ErrorKind) -> i32 {
    use butterfs_fs::Errno;
    let errno = match kind {
        io::ErrorKind::NotFound => Errno::ENOENT,
        io::ErrorKind::AlreadyExists => Errno::EEXIST,
        io::ErrorKind::InvalidInput => Errno::EINVAL,
        io::ErrorKind::PermissionDenied => Errno::EACCES,
        io::ErrorKind::ReadOnlyFilesystem => Errno::EROFS,
        io::ErrorKind::ResourceBusy => Errno::EBUSY,
        io::ErrorKind::Unsupported => Errno::EOPNOTSUPP,
        _ => Errno::EIO,
    };
    errno.0
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = self.path() {
            // Names on a disk can contain control characters.
            write!(f, "'{}': ", path.to_string_lossy().escape_debug())?;
        }
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0;
        let mut shown = f.debug_struct("Error");
        shown.field("kind", &inner.kind).field("errno", &inner.errno).field("message", &inner.message);
        shown.field("path", &inner.path).field("place", &inner.place).finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.0.source.as_ref()? {
            Source::Engine(error) => error.failure()?.source().map(|cause| cause as _),
            Source::System(error) => Some(error.as_ref()),
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match error.kind() {
            ErrorKind::Corrupt => io::ErrorKind::InvalidData,
            _ => io::Error::from_raw_os_error(error.errno().raw()).kind(),
        };
        io::Error::new(kind, error)
    }
}
