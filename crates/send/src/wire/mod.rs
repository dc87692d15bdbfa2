//! The stream: versions 1, 2 and 3, bytes to commands and commands to bytes.
//!
//! ```text
//! stream   = header command… END           several may follow each other
//! header   = "btrfs-stream\0" version:u32
//! command  = len:u32 number:u16 crc:u32 attribute…          len counts the attributes
//! attribute= number:u16 len:u16 value      in version 2 and later DATA has no len and takes all that is left
//! ```
//!
//! All integers are little-endian, nothing is aligned. The checksum is CRC-32C from 0 without inversion, over the
//! command with a zero checksum field.
//!
//! 1. One table of attributes ([`attribute`]) and one of commands ([`command`]) say everything that is particular to
//!    one; encoding, decoding and the text of a dump follow from them.
//! 2. Decoding is total: any bytes give commands or an [`Error`] that names the command and its offset, in memory that
//!    is bounded by [`MAX_COMMAND_LEN`].
//! 3. Encoding appends to a buffer that the caller keeps, and allocates nothing else.
//!
//! Not here: the meaning of commands, the safety of paths, the order of commands.

pub mod attribute;
pub mod command;
mod decoder;
pub mod dump;
mod encoder;
mod error;

pub use attribute::{Timespec, Uuid};
pub use command::Command;
pub use decoder::{Decoder, Event, StreamPosition};
pub use encoder::{Unencodable, encode, encode_filled, encode_header, encode_write_head};
pub use error::{Error, ErrorKind};

/// The first bytes of every stream.
pub const MAGIC: [u8; 13] = *b"btrfs-stream\0";
/// Bytes of the stream's header: magic and version.
pub const STREAM_HEADER_LEN: usize = MAGIC.len() + 4;
/// Bytes of a command's header.
pub const COMMAND_HEADER_LEN: usize = 10;
/// The longest command that is decoded, header included: a hundred times what the kernel makes.
pub const MAX_COMMAND_LEN: usize = 16 << 20;

/// A stream's version. The commands of a later one are executed in an earlier one as well; it decides how data is
/// framed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Version {
    /// Every kernel; plain data only. Version 0 is read as this one.
    #[default]
    V1 = 1,
    /// Encoded writes, `fallocate`, file attributes, data without a length field.
    V2 = 2,
    /// fs-verity.
    V3 = 3,
}

impl Version {
    /// The version of a header.
    pub const fn from_raw(raw: u32) -> Option<Version> {
        match raw {
            0 | 1 => Some(Version::V1),
            2 => Some(Version::V2),
            3 => Some(Version::V3),
            _ => None,
        }
    }

    /// The number in a header.
    pub const fn raw(self) -> u32 {
        self as u32
    }

    /// The longest data that the kernel puts into one command.
    pub const fn usual_data_len(self) -> usize {
        match self {
            Version::V1 => 48 << 10,
            Version::V2 | Version::V3 => 128 << 10,
        }
    }

    /// Whether data is framed by the end of its command.
    pub const fn has_open_data(self) -> bool {
        !matches!(self, Version::V1)
    }
}

#[cfg(test)]
mod tests;
