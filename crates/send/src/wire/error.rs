//! Errors in a stream, with their position.

use super::attribute::{self, WrongValue};
use super::{MAX_COMMAND_LEN, command};
use std::fmt;
use std::io;

/// The fault.
#[derive(Debug)]
pub enum ErrorKind {
    /// The stream cannot be read.
    Io(io::Error),
    /// Neither the beginning of a stream nor the end of the input.
    NoMagic,
    /// A version that is not known.
    Version(u32),
    /// The input ends inside a header or a command.
    Truncated,
    /// The input ends without END.
    NoEnd,
    /// A command is longer than [`MAX_COMMAND_LEN`].
    TooLong(u64),
    /// The checksum of a command does not match.
    Checksum,
    /// An attribute reaches behind the end of its command.
    TruncatedCommand,
    /// An attribute that no version of the stream has.
    UnknownAttribute(u16),
    /// The command needs an attribute that it does not have.
    MissingAttribute(u16),
    /// An attribute whose value is none.
    WrongValue {
        /// The number of the attribute.
        attribute: u16,
        /// The fault.
        why: WrongValue,
    },
}

/// Something wrong at a place in the stream.
#[derive(Debug)]
pub struct Error {
    /// Bytes from the beginning of the input to the header or the command.
    pub offset: u64,
    /// The number of the command, where it is about one.
    pub command: Option<u16>,
    /// The fault.
    pub kind: ErrorKind,
}

impl Error {
    /// Whether the commands behind this one can still be read.
    pub fn is_passable(&self) -> bool {
        !matches!(
            self.kind,
            ErrorKind::Io(_)
                | ErrorKind::NoMagic
                | ErrorKind::Version(_)
                | ErrorKind::Truncated
                | ErrorKind::NoEnd
                | ErrorKind::TooLong(_)
        )
    }
}

/// An attribute by name and number.
struct Named(u16);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match attribute::name(self.0) {
            Some(name) => write!(f, "attribute {} ({name})", self.0),
            None => write!(f, "attribute {}", self.0),
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorKind::Io(error) => write!(f, "cannot read the stream: {error}"),
            ErrorKind::NoMagic => f.write_str("unexpected header, this is no send stream"),
            ErrorKind::Version(version) => write!(f, "stream version {version} not supported, known are 1, 2 and 3"),
            ErrorKind::Truncated => f.write_str("send stream is truncated"),
            ErrorKind::NoEnd => f.write_str("unexpected EOF in stream, it has no end command"),
            ErrorKind::TooLong(len) => write!(f, "{len} bytes are too long, a command has at most {MAX_COMMAND_LEN}"),
            ErrorKind::Checksum => f.write_str("crc32 mismatch in command"),
            ErrorKind::TruncatedCommand => f.write_str("an attribute reaches behind the end of the command"),
            ErrorKind::UnknownAttribute(number) => write!(f, "{} is not known", Named(*number)),
            ErrorKind::MissingAttribute(number) => write!(f, "{} requested but not present", Named(*number)),
            ErrorKind::WrongValue { attribute, why } => write!(f, "{}: {why}", Named(*attribute)),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.command {
            Some(number) => match command::name(number) {
                Some(name) => write!(f, "{name} at byte {} of the stream: {}", self.offset, self.kind),
                None => write!(f, "command {number} at byte {} of the stream: {}", self.offset, self.kind),
            },
            None => write!(f, "byte {} of the stream: {}", self.offset, self.kind),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            ErrorKind::Io(error) => Some(error),
            _ => None,
        }
    }
}
