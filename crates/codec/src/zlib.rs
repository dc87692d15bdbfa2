//! zlib extents: one RFC 1950 stream, a two-byte header, deflate data and an Adler-32 that no reader checks.

use super::{CodecError, error};
use flate2::{Decompress, FlushDecompress, Status};
use libdeflater::{CompressionLvl, Compressor, Decompressor};

const HEADER_LEN: usize = 2;

/// Decodes into `out`; returns the bytes produced.
pub fn decompress(stream: &[u8], out: &mut [u8]) -> Result<usize, CodecError> {
    let data = deflate_data(stream)?;
    match Decompressor::new().deflate_decompress(data, out) {
        Ok(produced) => Ok(produced),
        Err(_) => decompress_in_steps(data, out),
    }
}

/// The same for what does not decode as a whole: it holds more than `out`, lacks its end, or is damaged.
fn decompress_in_steps(mut input: &[u8], out: &mut [u8]) -> Result<usize, CodecError> {
    let mut inflate = Decompress::new(false);
    let mut produced = 0;
    while produced < out.len() {
        let (consumed_before, produced_before) = (inflate.total_in(), inflate.total_out());
        let status = inflate
            .decompress(input, &mut out[produced..], FlushDecompress::None)
            .map_err(|e| CodecError(format!("zlib: {e}")))?;
        input = &input[(inflate.total_in() - consumed_before) as usize..];
        produced = inflate.total_out() as usize;
        let stuck = inflate.total_in() == consumed_before && inflate.total_out() == produced_before;
        match status {
            Status::StreamEnd => break,
            _ if stuck => return error("zlib: the stream ends early"),
            _ => {}
        }
    }
    Ok(produced)
}

/// The data behind the header. The checksum at the end is left in place: decoding stops before it.
fn deflate_data(stream: &[u8]) -> Result<&[u8], CodecError> {
    let Some((&[method, flags], data)) = stream.split_first_chunk::<HEADER_LEN>() else {
        return error("zlib: no room for a header");
    };
    let check = u16::from_be_bytes([method, flags]);
    let (is_deflate, has_dictionary) = (method & 0x0f == 8 && method >> 4 <= 7, flags & 0x20 != 0);
    if !is_deflate || has_dictionary || !check.is_multiple_of(31) {
        return error(format!("zlib: header {method:#04x} {flags:#04x}"));
    }
    Ok(data)
}

/// Compresses; its memory is that of the last level asked for.
#[derive(Default)]
pub struct Encoder(Option<(i32, Compressor)>);

impl Encoder {
    /// Encodes `input`, or `None` when the result would be longer than `limit`.
    pub fn compress(&mut self, input: &[u8], level: i32, limit: usize) -> Option<Vec<u8>> {
        let level = level.clamp(1, 9);
        let made = self.0.take().filter(|(made, _)| *made == level);
        let new = || (level, Compressor::new(CompressionLvl::new(level).expect("1 to 9 are levels")));
        let (_, deflate) = self.0.insert(made.unwrap_or_else(new));
        let mut out = vec![0; limit];
        let len = deflate.zlib_compress(input, &mut out).ok()?;
        out.truncate(len);
        Some(out)
    }
}
