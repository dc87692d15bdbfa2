//! The three compressions of file data: streams as they lie in an extent or an inline item, and back.
//!
//! # Invariants
//! 1. Any bytes may come in: the answer is content or a [`CodecError`], in time and memory bounded by the two
//!    buffers the caller passes.
//! 2. [`decompress`] defines every byte of its output: what the stream does not reach is zero, what would go beyond
//!    is cut, and bytes after the end of the stream are ignored. A stream that stops before its own end without
//!    having filled the output is an error.
//! 3. [`compress`] answers only when the result saves at least one sector.
//!
//! Not here: which extents are compressed, checksums of the stored bytes, caching of decompressed extents.

mod lzo;
mod lzo1x;
mod zlib;
mod zstd;

use butterfs_ondisk::items::compression;
use std::fmt;

/// The most uncompressed bytes that one compressed extent holds.
pub const MAX_UNCOMPRESSED: usize = 128 << 10;
/// The most bytes that one compressed extent takes on disk.
pub const MAX_COMPRESSED: usize = 128 << 10;

/// How an extent's bytes are encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Algorithm {
    /// RFC 1950.
    Zlib,
    /// LZO1X in segments of one sector.
    Lzo,
    /// One zstd frame.
    Zstd,
}

impl Algorithm {
    /// The algorithm of a file extent's `compression` field; `None` for none and for unknown values.
    pub const fn from_raw(raw: u8) -> Option<Algorithm> {
        match raw {
            compression::ZLIB => Some(Algorithm::Zlib),
            compression::LZO => Some(Algorithm::Lzo),
            compression::ZSTD => Some(Algorithm::Zstd),
            _ => None,
        }
    }

    /// The value of a file extent's `compression` field.
    pub const fn raw(self) -> u8 {
        match self {
            Algorithm::Zlib => compression::ZLIB,
            Algorithm::Lzo => compression::LZO,
            Algorithm::Zstd => compression::ZSTD,
        }
    }

    /// The level that the kernel uses when none is asked for.
    pub const fn default_level(self) -> i32 {
        match self {
            Algorithm::Zlib | Algorithm::Zstd => 3,
            Algorithm::Lzo => 0,
        }
    }
}

/// Why a stream cannot be decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CodecError(pub String);

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CodecError {}

fn error<T>(text: impl Into<String>) -> Result<T, CodecError> {
    Err(CodecError(text.into()))
}

/// Decodes `stream` into `out`, whose length is the extent's `ram_bytes`. Returns how many bytes the stream itself
/// gave; the rest of `out` is zero.
pub fn decompress(algorithm: Algorithm, stream: &[u8], out: &mut [u8], sectorsize: u32) -> Result<usize, CodecError> {
    let produced = match algorithm {
        Algorithm::Zlib => zlib::decompress(stream, out)?,
        Algorithm::Lzo => lzo::decompress(stream, out, sectorsize as usize)?,
        Algorithm::Zstd => zstd::decompress(stream, out)?,
    };
    out[produced..].fill(0);
    Ok(produced)
}

/// Encodes `input`, at most [`MAX_UNCOMPRESSED`] bytes, for a regular extent. `None` when it would not save a sector.
/// The caller pads the result with zeros to a whole sector.
pub fn compress(algorithm: Algorithm, level: i32, input: &[u8], sectorsize: u32) -> Option<Vec<u8>> {
    let sector = sectorsize as usize;
    let limit = input.len().next_multiple_of(sector).checked_sub(sector)?;
    if limit == 0 || input.len() > MAX_UNCOMPRESSED {
        return None;
    }
    encode(algorithm, level, input, limit, sector)
}

/// Encodes `input`, at most one sector, for an inline extent of at most `limit_bytes`. `None` when it is too large.
pub fn compress_inline(
    algorithm: Algorithm,
    level: i32,
    input: &[u8],
    limit_bytes: usize,
    sectorsize: u32,
) -> Option<Vec<u8>> {
    let sector = sectorsize as usize;
    if input.len() > sector {
        return None;
    }
    encode(algorithm, level, input, limit_bytes.min(input.len().saturating_sub(1)), sector)
}

fn encode(algorithm: Algorithm, level: i32, input: &[u8], limit: usize, sector: usize) -> Option<Vec<u8>> {
    let stream = match algorithm {
        Algorithm::Zlib => zlib::compress(input, level, limit)?,
        Algorithm::Lzo => lzo::compress(input, limit, sector)?,
        Algorithm::Zstd => zstd::compress(input, level, limit)?,
    };
    (stream.len() <= limit).then_some(stream)
}

#[cfg(test)]
mod tests;
