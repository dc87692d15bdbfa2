//! Internal to butterfs: this crate promises no stability. Depend on the crate `butterfs` instead.
//!
//! The three compressions of file data: streams as they lie in an extent or an inline item, and back.
//!
//! # Invariants
//! 1. Any bytes may come in: the answer is content or a [`CodecError`], in time and memory bounded by the two
//!    buffers the caller passes.
//! 2. [`decompress`] defines every byte of its output: what the stream does not reach is zero, what would go beyond
//!    is cut, and bytes after the end of the stream are ignored. A stream that stops before its own end without
//!    having filled the output is an error.
//! 3. [`Encoder::compress`] answers only when the result saves at least one sector.
//!
//! Not here: which extents are compressed, checksums of the stored bytes, caching of decompressed extents.

#![forbid(unsafe_code)]

mod lzo;
mod lzo1x;
mod method;
mod zlib;
mod zstd;

pub use method::{Algorithm, Method};

use butterfs_ondisk::packing;
use std::fmt;

/// The most uncompressed bytes that one compressed extent holds.
pub const MAX_UNCOMPRESSED: usize = packing::LARGEST as usize;

/// The most bytes that one compressed extent takes on disk.
pub const MAX_COMPRESSED: usize = 128 << 10;

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

/// Compresses; keeps what is costly to make from one call to the next. For one thread at a time.
#[derive(Default)]
pub struct Encoder {
    zlib: zlib::Encoder,
    lzo: lzo1x::Matcher,
    zstd: zstd::Encoder,
}

impl Encoder {
    /// Encodes `input`, at most [`MAX_UNCOMPRESSED`] bytes, for a regular extent. `None` when it would not save a
    /// sector. The caller pads the result with zeros to a whole sector.
    pub fn compress(&mut self, method: Method, input: &[u8], sectorsize: u32) -> Option<Vec<u8>> {
        let sector = sectorsize as usize;
        let limit = input.len().next_multiple_of(sector).checked_sub(sector)?;
        if limit == 0 || input.len() > MAX_UNCOMPRESSED {
            return None;
        }
        self.encode(method, input, limit, sector)
    }

    /// Encodes `input`, at most one sector, for an inline extent of at most `limit_bytes`. `None` when it is too large,
    /// or not smaller than the input.
    pub fn compress_inline(
        &mut self,
        method: Method,
        input: &[u8],
        limit_bytes: usize,
        sectorsize: u32,
    ) -> Option<Vec<u8>> {
        let sector = sectorsize as usize;
        if input.len() > sector {
            return None;
        }
        self.encode(method, input, limit_bytes.min(input.len().saturating_sub(1)), sector)
    }

    fn encode(&mut self, method: Method, input: &[u8], limit: usize, sector: usize) -> Option<Vec<u8>> {
        let stream = match method.algorithm {
            Algorithm::Zlib => self.zlib.compress(input, method.level, limit)?,
            Algorithm::Lzo => lzo::compress(&mut self.lzo, input, limit, sector)?,
            Algorithm::Zstd => self.zstd.compress(input, method.level, limit)?,
        };
        (stream.len() <= limit).then_some(stream)
    }
}

#[cfg(test)]
mod tests;
