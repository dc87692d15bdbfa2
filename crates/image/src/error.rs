//! Errors of building an image: one sentence, and the kind of its subject.

use std::fmt;

/// The subject of an [`Error`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The options make no sense.
    Options,
    /// A source cannot be read.
    Source,
    /// A source holds what an image cannot, or what no sound source does.
    Content,
    /// The image has no room for the content.
    NoSpace,
    /// A source is larger than the limits allow.
    Limit,
    /// The image cannot be written.
    Output,
}

/// One sentence about what went wrong.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    sentence: String,
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of this kind; `sentence` names the place and the rule.
    pub fn new(kind: ErrorKind, sentence: impl Into<String>) -> Error {
        Error { kind, sentence: sentence.into() }
    }

    /// A source that cannot be read.
    pub fn source(sentence: impl Into<String>) -> Error {
        Error::new(ErrorKind::Source, sentence)
    }

    /// A source that holds what cannot be.
    pub fn content(sentence: impl Into<String>) -> Error {
        Error::new(ErrorKind::Content, sentence)
    }

    /// The subject.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The same error with the name of its source in front.
    pub fn of(self, name: &str) -> Error {
        match self.kind {
            ErrorKind::Source | ErrorKind::Content => Error { sentence: format!("{name}: {}", self.sentence), ..self },
            _ => self,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for Error {}

/// A path as messages show it.
pub fn shown(path: &[u8]) -> String {
    format!("/{}", path.escape_ascii())
}
