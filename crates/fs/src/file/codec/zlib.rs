//! zlib extents: one RFC 1950 stream, a two-byte header, deflate data and an Adler-32 that no reader checks.

use super::{CodecError, error};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

const HEADER_LEN: usize = 2;

/// Decodes into `out`; returns the bytes produced.
pub fn decompress(stream: &[u8], out: &mut [u8]) -> Result<usize, CodecError> {
    let mut inflate = Decompress::new(false);
    let mut input = deflate_data(stream)?;
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

/// What follows the header. The checksum at the end is left in place: decoding stops before it.
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
pub struct Encoder(Option<(u32, Compress)>);

impl Encoder {
    /// Encodes `input`, or `None` when the result would be longer than `limit`.
    pub fn compress(&mut self, input: &[u8], level: i32, limit: usize) -> Option<Vec<u8>> {
        let level = level.clamp(1, 9) as u32;
        let made = self.0.take().filter(|(made, _)| *made == level);
        let (_, deflate) = self.0.insert(made.unwrap_or_else(|| (level, Compress::new(Compression::new(level), true))));
        deflate.reset();
        let mut out = vec![0; limit];
        match deflate.compress(input, &mut out, FlushCompress::Finish) {
            Ok(Status::StreamEnd) => {
                out.truncate(deflate.total_out() as usize);
                Some(out)
            }
            _ => None,
        }
    }
}
