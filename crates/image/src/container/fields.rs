//! Numbers at fixed places of headers and tables.

use crate::error::{Error, Result};
use butterfs_device::BlockDevice;
use std::io;

/// So many bytes of the file from a place on.
pub fn bytes<const LEN: usize>(file: &dyn BlockDevice, at: u64) -> io::Result<[u8; LEN]> {
    let mut out = [0; LEN];
    file.read_at(at, &mut out)?;
    Ok(out)
}

/// The same while a container is opened.
pub fn header<const LEN: usize>(file: &dyn BlockDevice, at: u64) -> Result<[u8; LEN]> {
    bytes(file, at).map_err(|error| Error::content(format!("the header cannot be read: {error}")))
}

macro_rules! number {
    ($($name:ident $kind:ident $from:ident,)*) => {$(
        /// The number at this place of a header, which has it.
        pub fn $name(bytes: &[u8], at: usize) -> $kind {
            $kind::$from(bytes[at..at + size_of::<$kind>()].try_into().expect("the range has this length"))
        }
    )*};
}

number! {
    le_u16 u16 from_le_bytes,
    le_u32 u32 from_le_bytes,
    le_u64 u64 from_le_bytes,
    be_u16 u16 from_be_bytes,
    be_u32 u32 from_be_bytes,
    be_u64 u64 from_be_bytes,
}
