//! Messages as bytes, and replies on a stream.

use crate::{QUESTION_BYTES, REPLY_BYTES, Record, Refusal, Report};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};
use std::io::{self, Read};

/// One message of either side.
pub trait Message: Serialize + DeserializeOwned {
    /// Its name in error messages.
    const KIND: &'static str;
    /// The names of its variants, in order.
    const VARIANTS: &'static [&'static str];
    /// The most bytes.
    const MOST_BYTES: usize;
}

/// The server's answer to a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// A piece of the answer.
    Record(Record),
    /// The progress of the work.
    Report(Report),
    /// The end of the answer.
    Done,
    /// The end, and why there is no more.
    Refused(Refusal),
}

impl Message for Reply {
    const KIND: &'static str = "reply";
    const VARIANTS: &'static [&'static str] = &["Record", "Report", "Done", "Refused"];
    const MOST_BYTES: usize = REPLY_BYTES;
}

/// A message that has more bytes than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    /// The kind.
    pub kind: &'static str,
    /// Its bytes.
    pub bytes: usize,
    /// How many it may have.
    pub most_bytes: usize,
}

impl Display for TooLong {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let TooLong { kind, bytes, most_bytes } = self;
        write!(formatter, "a {kind} of {bytes} bytes is too long, {most_bytes} are possible")
    }
}

impl std::error::Error for TooLong {}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// A variant of a later table.
    Unknown {
        /// The kind.
        kind: &'static str,
        /// The number of the variant.
        variant: u32,
        /// The number of variants that are known.
        known: usize,
    },
    /// It ends before the end.
    TrailingBytes {
        /// The variant's name.
        variant: &'static str,
        /// Bytes after its end.
        bytes: usize,
    },
    /// It ends too early, or a value in it is out of range.
    Malformed {
        /// The variant's name; that of the kind where not even that is known.
        variant: &'static str,
    },
    /// It has more bytes than it may.
    TooLong(TooLong),
}

impl Display for DecodeError {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Unknown { kind, variant, known } => {
                write!(formatter, "{kind} number {variant} is not known, only those below {known}")
            }
            DecodeError::TrailingBytes { variant, bytes } => {
                write!(formatter, "{bytes} bytes come after the end of '{variant}'")
            }
            DecodeError::Malformed { variant } => {
                write!(formatter, "'{variant}' ends too early or has a value that is out of range")
            }
            DecodeError::TooLong(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for DecodeError {}

/// The bytes of a message.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, TooLong> {
    let bytes = postcard::to_allocvec(message).expect("messages have no value that has no bytes");
    if bytes.len() > M::MOST_BYTES {
        return Err(TooLong { kind: M::KIND, bytes: bytes.len(), most_bytes: M::MOST_BYTES });
    }
    Ok(bytes)
}

/// The message that the bytes are, from anybody.
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, DecodeError> {
    if bytes.len() > M::MOST_BYTES {
        let error = TooLong { kind: M::KIND, bytes: bytes.len(), most_bytes: M::MOST_BYTES };
        return Err(DecodeError::TooLong(error));
    }
    let (number, _) =
        postcard::take_from_bytes::<u32>(bytes).map_err(|_| DecodeError::Malformed { variant: M::KIND })?;
    let variant = M::VARIANTS.get(number as usize).copied();
    let unknown = DecodeError::Unknown { kind: M::KIND, variant: number, known: M::VARIANTS.len() };
    let variant = variant.ok_or(unknown)?;
    let (message, rest) = postcard::take_from_bytes(bytes).map_err(|_| DecodeError::Malformed { variant })?;
    if !rest.is_empty() {
        return Err(DecodeError::TrailingBytes { variant, bytes: rest.len() });
    }
    Ok(message)
}

const LEN_BYTES: usize = size_of::<u32>();
const _: () = assert!(QUESTION_BYTES <= REPLY_BYTES && REPLY_BYTES <= u32::MAX as usize);

impl Reply {
    /// The reply as it is sent, with its length before it.
    pub fn frame(&self) -> Result<Vec<u8>, TooLong> {
        frame(self)
    }
}

/// A message as it is sent where its end has to be known, with its length before it.
pub fn frame<M: Message>(message: &M) -> Result<Vec<u8>, TooLong> {
    let bytes = encode(message)?;
    Ok([&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat())
}

/// The next reply of a stream.
pub fn read_reply(stream: &mut impl Read) -> io::Result<Reply> {
    read_framed(stream)
}

/// The next message of a stream that has its length before it.
pub fn read_framed<M: Message>(stream: &mut impl Read) -> io::Result<M> {
    let invalid = |error: DecodeError| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut len = [0; LEN_BYTES];
    stream.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > M::MOST_BYTES {
        let error = TooLong { kind: M::KIND, bytes: len, most_bytes: M::MOST_BYTES };
        return Err(invalid(DecodeError::TooLong(error)));
    }
    let mut bytes = Vec::new();
    if stream.take(len as u64).read_to_end(&mut bytes)? < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    decode(&bytes).map_err(invalid)
}
