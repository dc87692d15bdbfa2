//! Errors of the engine: what was refused, which device failed, what is corrupt, why the filesystem stopped.
//!
//! Every error is one sentence that names place and rule, and has an errno for the user.

use butterfs_ondisk::{Key, Logical, Physical, TreeId};
use butterfs_tree::NodePtr;
use butterfs_volume::VolumeError;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

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
    ENOTCONN = 107; ETIMEDOUT = 110; EINPROGRESS = 115; ESTALE = 116; EUCLEAN = 117; EDQUOT = 122; ECANCELED = 125;
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

/// The place of a failure on disk, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The name of the device.
    pub device: Option<String>,
    /// The byte offset on that device.
    pub physical: Option<Physical>,
    /// The logical address.
    pub logical: Option<Logical>,
    /// The tree that was being read or written.
    pub tree: Option<TreeId>,
    /// The key of the item.
    pub key: Option<Key>,
}

/// One sentence about something that failed below the engine, its place, and its cause.
#[derive(Clone, Debug)]
pub struct Failure {
    text: Box<str>,
    place: Place,
    source: Option<Arc<VolumeError>>,
}

impl Failure {
    /// The place on disk.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The error of the device, if a device failed.
    pub fn source(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        match self.source.as_deref() {
            Some(VolumeError::Write { error, .. } | VolumeError::Flush { error, .. }) => Some(error),
            _ => None,
        }
    }

    /// The same failure with another sentence.
    pub(crate) fn reworded(self, words: impl FnOnce(&str) -> String) -> Failure {
        Failure { text: words(&self.text).into_boxed_str(), ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<String> for Box<Failure> {
    fn from(text: String) -> Box<Failure> {
        Box::new(Failure { text: text.into_boxed_str(), place: Place::default(), source: None })
    }
}

impl From<&str> for Box<Failure> {
    fn from(text: &str) -> Box<Failure> {
        text.to_owned().into()
    }
}

/// An error of the engine.
#[derive(Clone, Debug)]
pub enum Error {
    /// The request cannot be done; nothing was changed.
    Refused {
        /// The errno for the caller.
        errno: Errno,
        /// Why, in one sentence.
        what: Cow<'static, str>,
    },
    /// A device failed.
    Device(Box<Failure>),
    /// Devices of the filesystem are missing, and nobody said that it may be opened without them.
    Incomplete(Box<str>),
    /// Something on disk breaks a rule of the format.
    Corrupt(Box<Failure>),
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
        Error::Corrupt(what.into().into())
    }

    /// The device, address, tree and key of a failure below the engine.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Error::Device(failure) | Error::Corrupt(failure) => Some(failure),
            _ => None,
        }
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
            Error::Device(failure) | Error::Corrupt(failure) => failure.fmt(f),
            Error::Incomplete(what) => f.write_str(what),
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
        let tree = (error.tree.0 != 0).then_some(error.tree);
        let place = Place { logical: Some(error.at), tree, key: error.key, ..Place::default() };
        Error::Corrupt(Box::new(Failure { text: error.to_string().into_boxed_str(), place, source: None }))
    }
}

impl From<VolumeError> for Error {
    fn from(error: VolumeError) -> Error {
        let text = match &error {
            VolumeError::Incomplete { .. } => return Error::Incomplete(error.to_string().into_boxed_str()),
            VolumeError::Refused { sentence, hint: Some(hint) } => format!("{sentence} ({hint})"),
            _ => error.to_string(),
        };
        let failure = Failure { text: text.into_boxed_str(), place: place_of(&error), source: Some(Arc::new(error)) };
        Error::Device(Box::new(failure))
    }
}

fn place_of(error: &VolumeError) -> Place {
    match error {
        VolumeError::Unmapped { at, .. } | VolumeError::RowInconsistent { row: at } => {
            Place { logical: Some(*at), ..Place::default() }
        }
        VolumeError::NoGoodCopy { at, failures, .. } => Place {
            logical: Some(*at),
            device: failures.first().map(|failure| failure.name.clone()),
            physical: failures.first().map(|failure| failure.physical),
            ..Place::default()
        },
        VolumeError::Write { at, device, physical, .. } => {
            Place { logical: *at, device: Some(device.clone()), physical: Some(*physical), ..Place::default() }
        }
        VolumeError::Flush { device, .. } | VolumeError::ReadOnly { device } => {
            Place { device: Some(device.clone()), ..Place::default() }
        }
        VolumeError::Incomplete { .. } | VolumeError::Refused { .. } => Place::default(),
    }
}
