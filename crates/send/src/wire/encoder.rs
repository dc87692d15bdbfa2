//! Commands to bytes, appended to a buffer.
//!
//! Invariant: what fails has appended nothing.

use super::attribute::Attribute as _;
use super::command::Attributes;
use super::{COMMAND_HEADER_LEN, Command, MAGIC, Version, attribute};
use butterfs_ondisk::checksum::crc32c_raw;
use std::fmt;

/// An attribute whose value does not fit into its length field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unencodable {
    /// The command.
    pub command: &'static str,
    /// The number of the attribute; 0 where the whole command is too long.
    pub attribute: u16,
}

impl fmt::Display for Unencodable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match attribute::name(self.attribute) {
            Some(name) => write!(f, "{}: {name} is too long for the stream", self.command),
            None => write!(f, "{} is too long for the stream", self.command),
        }
    }
}

impl std::error::Error for Unencodable {}

/// Appends the header of a stream.
pub fn encode_header(version: Version, out: &mut Vec<u8>) {
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&version.raw().to_le_bytes());
}

/// Appends a command.
pub fn encode(command: &Command<'_>, version: Version, out: &mut Vec<u8>) -> Result<(), Unencodable> {
    all_or_nothing(out, |start, out| {
        put(command, version, out)?;
        seal(command, start, &[], out)
    })
}

/// Appends a command whose last attribute is data, and which `command` holds none of: `fill` appends it to the buffer,
/// so that content needs no buffer of its own. What `fill` returns as its error is returned, and nothing appended.
///
/// # Panics
/// When the command's last attribute is not data, or data was given, or `fill` takes something away.
pub fn encode_filled<E: From<Unencodable>>(
    command: &Command<'_>,
    version: Version,
    out: &mut Vec<u8>,
    fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let empty = matches!(command, Command::Write { data: [], .. } | Command::EncodedWrite { data: [], .. });
    assert!(empty, "{} is not filled with data", command.name());
    all_or_nothing(out, |start, out| {
        put(command, version, out)?;
        let data = out.len();
        fill(out)?;
        assert!(out.len() >= data, "fill has taken bytes away");
        set_data_len(command, version, out.len() - data, &mut out[..data])?;
        Ok(seal(command, start, &[], out)?)
    })
}

/// Appends a WRITE without its data, which must follow in the stream; so content that is somewhere else need not be
/// copied.
pub fn encode_write_head(
    path: &[u8],
    offset: u64,
    data: &[u8],
    version: Version,
    out: &mut Vec<u8>,
) -> Result<(), Unencodable> {
    let command = Command::Write { path, offset, data: &[] };
    all_or_nothing(out, |start, out| {
        put(&command, version, out)?;
        set_data_len(&command, version, data.len(), out)?;
        seal(&command, start, data, out)
    })
}

/// Appends what `append` does, which gets the end of the bytes before; nothing when it fails.
fn all_or_nothing<E>(out: &mut Vec<u8>, append: impl FnOnce(usize, &mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
    let start = out.len();
    append(start, out).inspect_err(|_| out.truncate(start))
}

/// Sets the length of data that follows these bytes, in versions whose data has one.
fn set_data_len(command: &Command<'_>, version: Version, len: usize, before: &mut [u8]) -> Result<(), Unencodable> {
    if !version.has_open_data() {
        let len = u16::try_from(len).map_err(|_| too_long(command, attribute::Data::NUMBER))?;
        let end = before.len();
        before[end - 2..].copy_from_slice(&len.to_le_bytes());
    }
    Ok(())
}

fn too_long(command: &Command<'_>, attribute: u16) -> Unencodable {
    Unencodable { command: command.name(), attribute }
}

/// Appends a command with an empty length and checksum.
fn put(command: &Command<'_>, version: Version, out: &mut Vec<u8>) -> Result<(), Unencodable> {
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&command.number().to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    let mut attributes = Attributes { out, version, too_long: None };
    command.put_attributes(&mut attributes);
    attributes.too_long.map_or(Ok(()), |attribute| Err(too_long(command, attribute)))
}

/// Fills in the length and the checksum of the command at `start`, which ends with `behind`.
fn seal(command: &Command<'_>, start: usize, behind: &[u8], out: &mut [u8]) -> Result<(), Unencodable> {
    let len = u32::try_from(out.len() + behind.len() - start - COMMAND_HEADER_LEN).map_err(|_| too_long(command, 0))?;
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    let crc = crc32c_raw(crc32c_raw(0, &out[start..]), behind);
    out[start + 6..start + 10].copy_from_slice(&crc.to_le_bytes());
    Ok(())
}
