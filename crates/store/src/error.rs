//! Errors: one sentence with the store, the key and the rule; a kind; an errno.

use std::fmt;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of a failure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// There is no such object, bucket or folder.
    NotFound,
    /// [`create`](crate::Store::create): the object is there already, with other bytes.
    Exists,
    /// [`replace`](crate::Store::replace): another writer replaced the object since.
    Conflict,
    /// The store knows the caller, or not, and does not allow it.
    Permission,
    /// The store cannot do this, such as a put by HTTP.
    Unsupported,
    /// The URL, a key or a setting makes no sense.
    Invalid,
    /// An object is longer or shorter than it must be.
    Length,
    /// The bytes of an object are not those that were put, or break a rule of their format.
    Damaged,
    /// The reader of what is written is gone.
    Broken,
    /// The store did not answer, or not well, until the time was up.
    Unreachable,
    /// Nobody wants the answer any more: [`Cancel`](crate::Cancel).
    Cancelled,
}

impl Kind {
    /// The errno that stands for it.
    pub const fn errno(self) -> i32 {
        use rustix::io::Errno;
        let errno = match self {
            Kind::NotFound => Errno::NOENT,
            Kind::Exists => Errno::EXIST,
            Kind::Conflict => Errno::STALE,
            Kind::Permission => Errno::ACCESS,
            Kind::Unsupported => Errno::OPNOTSUPP,
            Kind::Invalid => Errno::INVAL,
            Kind::Damaged => Errno::UCLEAN,
            Kind::Broken => Errno::PIPE,
            Kind::Cancelled => Errno::CANCELED,
            Kind::Length | Kind::Unreachable => Errno::IO,
        };
        errno.raw_os_error()
    }
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Error {
    kind: Kind,
    sentence: String,
}

impl Error {
    /// An error with its sentence.
    pub fn new(kind: Kind, sentence: impl Into<String>) -> Error {
        Error { kind, sentence: sentence.into() }
    }

    /// The kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The errno.
    pub fn errno(&self) -> i32 {
        self.kind.errno()
    }

    /// The failure of one call for one object, from the client's error.
    pub(crate) fn of(doing: &str, object: &str, error: &object_store::Error) -> Error {
        let (kind, rule) = match error {
            object_store::Error::NotFound { .. } => (Kind::NotFound, "there is no such object".to_owned()),
            object_store::Error::AlreadyExists { .. } => (Kind::Exists, "the object exists already".to_owned()),
            object_store::Error::Precondition { .. } | object_store::Error::NotModified { .. } => {
                (Kind::Conflict, "another writer replaced the object".to_owned())
            }
            object_store::Error::PermissionDenied { .. } => {
                (Kind::Permission, "the store does not allow it to these credentials".to_owned())
            }
            object_store::Error::Unauthenticated { .. } => {
                (Kind::Permission, "the store does not accept the credentials".to_owned())
            }
            object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. } => {
                (Kind::Unsupported, "a store of this kind cannot do that".to_owned())
            }
            object_store::Error::InvalidPath { .. } | object_store::Error::UnknownConfigurationKey { .. } => {
                (Kind::Invalid, innermost(error))
            }
            _ => (Kind::Unreachable, innermost(error)),
        };
        Error::new(kind, format!("cannot {doing} {object}: {rule}"))
    }
}

/// The client's words, from the outer to the inner, in one line and not longer than a sentence should be.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    let (outer, inner) = (error.to_string(), deepest.to_string());
    let words = if outer.contains(&inner) { outer } else { format!("{outer}: {inner}") };
    let line: Vec<&str> = words.split_whitespace().collect();
    line.join(" ").chars().take(400).collect()
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for Error {}
