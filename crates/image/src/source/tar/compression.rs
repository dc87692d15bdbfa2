//! Archives that are compressed, recognised by their first bytes.

use crate::error::{Error, Result};
use std::io::{self, Chain, Cursor, Read};

/// Most memory that a decoder of xz takes: the dictionary of its highest level needs 64 MiB.
const XZ_MEMORY: u64 = 256 << 20;
/// Largest window of a zstd frame, as a power of two: what `zstd --long` makes.
const ZSTD_WINDOW: u32 = 27;

type Raw<'a> = Chain<Cursor<Vec<u8>>, Box<dyn Read + 'a>>;

/// The bytes that a stream of bytes stands for: itself, or what it decodes to.
pub fn decoded<'a>(mut reader: Box<dyn Read + 'a>) -> Result<Box<dyn Read + 'a>> {
    let mut head = vec![0; 6];
    let mut filled = 0;
    while filled < head.len() {
        match reader.read(&mut head[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::source(format!("cannot read the archive: {error}"))),
        }
    }
    head.truncate(filled);
    let raw: Raw<'a> = Cursor::new(head.clone()).chain(reader);
    let failed = |error: io::Error| Error::source(format!("cannot decode the archive: {error}"));
    Ok(match head.as_slice() {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(raw)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
            let mut decoder = zstd::Decoder::new(raw).map_err(failed)?;
            decoder.window_log_max(ZSTD_WINDOW).map_err(failed)?;
            Box::new(decoder)
        }
        [0xfd, b'7', b'z', b'X', b'Z', 0] => {
            let flags = liblzma::stream::CONCATENATED;
            let stream = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY, flags)
                .map_err(|error| Error::source(format!("cannot decode the archive: {error}")))?;
            Box::new(liblzma::read::XzDecoder::new_stream(raw, stream))
        }
        [b'B', b'Z', b'h', ..] => {
            return Err(Error::source("the archive is compressed with bzip2; known are gzip, zstd and xz"));
        }
        _ => Box::new(raw),
    })
}
