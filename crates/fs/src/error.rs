//! Errors of the engine: what was refused, which device failed, what is corrupt, why the filesystem stopped.
//!
//! Every error is one sentence that names place and rule, and has an errno for the user.

use butterfs_ondisk::Logical;
use butterfs_tree::NodePtr;
use butterfs_volume::VolumeError;
use std::borrow::Cow;
use std::fmt;

/// A Linux error number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident = $value:literal;)*) => {
        #[allow(missing_docs)]
        impl Errno {
            $(pub const $name: Errno = Errno($value);)*

            /// The symbol of a number that the engine uses.
            pub const fn name(self) -> &'static str {
                match self.0 { $($value => stringify!($name),)* _ => "errno" }
            }
        }
    };
}

errnos! {
    EPERM = 1; ENOENT = 2; EINTR = 4; EIO = 5; ENXIO = 6; E2BIG = 7; EBADF = 9; EAGAIN = 11; ENOMEM = 12; EACCES = 13;
    EBUSY = 16; EEXIST = 17; EXDEV = 18; ENODEV = 19; ENOTDIR = 20; EISDIR = 21; EINVAL = 22; ENFILE = 23;
    ENOTTY = 25; ETXTBSY = 26; EFBIG = 27; ENOSPC = 28; ESPIPE = 29; EROFS = 30; EMLINK = 31; EPIPE = 32; ERANGE = 34;
    ENAMETOOLONG = 36; ENOSYS = 38; ENOTEMPTY = 39; ELOOP = 40; ENODATA = 61; EOVERFLOW = 75; EOPNOTSUPP = 95;
    ENOTCONN = 107; ETIMEDOUT = 110; EINPROGRESS = 115; ESTALE = 116; EUCLEAN = 117; EDQUOT = 122;
    ECANCELED = 125;
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

/// What can go wrong in the engine.
#[derive(Clone, Debug)]
pub enum Error {
    /// The request cannot be done; nothing was changed.
    Refused {
        /// What the caller sees.
        errno: Errno,
        /// Why, in one sentence.
        what: Cow<'static, str>,
    },
    /// A device failed.
    Device(Box<str>),
    /// Devices of the filesystem are missing, and nobody said that it may be opened without them.
    Incomplete(Box<str>),
    /// Something on disk breaks a rule of the format.
    Corrupt(Box<str>),
    /// The filesystem stopped writing after an earlier error.
    Aborted(Box<str>),
    /// A node that is not in memory. Never leaves the engine: the caller reads the node and tries again.
    Missing(Box<NodePtr>),
    /// A block group whose free space is not in memory. Never leaves the engine: the caller loads it and tries again.
    Unloaded(Logical),
    /// No room for a tree block. Leaves the engine only when no chunk can be allocated either, as `ENOSPC`.
    NoNode {
        /// In a system block group.
        system: bool,
    },
}

/// A result of the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A refusal without a place to name.
    pub const fn refused(errno: Errno, what: &'static str) -> Error {
        Error::Refused { errno, what: Cow::Borrowed(what) }
    }

    /// A refusal that names a place.
    pub fn refused_at(errno: Errno, what: String) -> Error {
        Error::Refused { errno, what: Cow::Owned(what) }
    }

    /// Something on disk is wrong.
    pub fn corrupt(what: impl Into<String>) -> Error {
        Error::Corrupt(what.into().into_boxed_str())
    }

    /// The errno that the user of a mount sees.
    pub fn errno(&self) -> Errno {
        match self {
            Error::Refused { errno, .. } => *errno,
            Error::Device(_) | Error::Missing(_) | Error::Unloaded(_) => Errno::EIO,
            Error::NoNode { .. } => Errno::ENOSPC,
            // As the kernel's mount.
            Error::Incomplete(_) => Errno::ENOENT,
            Error::Corrupt(_) => Errno::EIO,
            Error::Aborted(_) => Errno::EROFS,
        }
    }

    /// Whether this is the refusal `errno`.
    pub fn is(&self, errno: Errno) -> bool {
        matches!(self, Error::Refused { errno: own, .. } if *own == errno)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused { what, .. } => f.write_str(what),
            Error::Device(what) | Error::Corrupt(what) | Error::Incomplete(what) => f.write_str(what),
            Error::Aborted(what) => write!(f, "the filesystem stopped writing: {what}"),
            Error::Missing(ptr) => write!(f, "tree block {} of tree {} is not in memory", ptr.at, ptr.tree),
            Error::Unloaded(start) => write!(f, "the free space of block group {start} is not in memory"),
            Error::NoNode { system } => {
                write!(f, "no room for a tree block in {} block groups", if *system { "system" } else { "metadata" })
            }
        }
    }
}

impl std::error::Error for Error {}

impl From<butterfs_tree::Corrupt> for Error {
    fn from(error: butterfs_tree::Corrupt) -> Error {
        Error::corrupt(error.to_string())
    }
}

impl From<VolumeError> for Error {
    fn from(error: VolumeError) -> Error {
        match error {
            VolumeError::Incomplete { .. } => Error::Incomplete(error.to_string().into_boxed_str()),
            VolumeError::Refused { sentence, hint: Some(hint) } => {
                Error::Device(format!("{sentence} ({hint})").into_boxed_str())
            }
            _ => Error::Device(error.to_string().into_boxed_str()),
        }
    }
}
