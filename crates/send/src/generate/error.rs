//! Why a stream could not be made.

use crate::wire::Unencodable;
use butterfs_fs::Error as FsError;
use std::fmt;
use std::io;

/// See the [module](self).
#[derive(Debug)]
pub enum Error {
    /// The snapshot cannot be read.
    Filesystem(FsError),
    /// The stream cannot be written.
    Output(io::Error),
    /// A value that the stream has no room for.
    Unencodable(Unencodable),
    /// The progress callback asked to stop.
    Stopped,
}

/// A result of making a stream.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(super) fn corrupt(what: impl Into<String>) -> Error {
        Error::Filesystem(FsError::corrupt(what))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Filesystem(error) => error.fmt(f),
            Error::Output(error) => write!(f, "cannot write the stream: {error}"),
            Error::Unencodable(error) => error.fmt(f),
            Error::Stopped => f.write_str("stopped"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Filesystem(error) => Some(error),
            Error::Output(error) => Some(error),
            Error::Unencodable(error) => Some(error),
            Error::Stopped => None,
        }
    }
}

impl From<FsError> for Error {
    fn from(error: FsError) -> Error {
        Error::Filesystem(error)
    }
}

impl From<Unencodable> for Error {
    fn from(error: Unencodable) -> Error {
        Error::Unencodable(error)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Output(error)
    }
}
