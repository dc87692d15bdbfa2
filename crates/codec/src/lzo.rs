//! lzo extents: LZO1X blocks of one sector of input each, in a frame of btrfs's own.
//!
//! ```text
//! total u32                     bytes of the frame, these four and all padding included
//! { length u32, block }…        each block decodes to one sector, the last one to at most that
//! ```
//!
//! A length never crosses a sector boundary of the frame: where fewer than four bytes remain in the sector, they are
//! zero and the next length starts with the next sector. Blocks cross boundaries freely.

use super::{CodecError, error, lzo1x};

const LENGTH_LEN: usize = 4;

/// The longest block that a writer makes of one sector.
const fn longest_block(sector: usize) -> usize {
    sector + sector / 16 + 67
}

/// The position of the next length, given that the frame has `at` bytes so far.
const fn next_length(at: usize, sector: usize) -> usize {
    let rest = at.next_multiple_of(sector) - at;
    if rest < LENGTH_LEN { at + rest } else { at }
}

fn length_at(frame: &[u8], at: usize) -> Option<usize> {
    let bytes = frame.get(at..)?.first_chunk::<LENGTH_LEN>()?;
    Some(u32::from_le_bytes(*bytes) as usize)
}

/// Decodes into `out`; returns the bytes produced.
pub fn decompress(stream: &[u8], out: &mut [u8], sector: usize) -> Result<usize, CodecError> {
    let total = length_at(stream, 0).unwrap_or(0);
    if total < 2 * LENGTH_LEN || total > stream.len() || total.next_multiple_of(sector) < stream.len() {
        return error(format!("lzo: {} bytes hold a frame of {total}", stream.len()));
    }
    let frame = &stream[..total];
    let (mut at, mut produced) = (LENGTH_LEN, 0);
    while produced < out.len() {
        at = next_length(at, sector);
        if at >= total {
            break;
        }
        let (block, end) = block_at(frame, at, sector)?;
        let window = out.len().min(produced + sector);
        let got = lzo1x::decompress(block, &mut out[produced..window])
            .map_err(|e| CodecError(format!("lzo: block at byte {at} of the frame: {e}")))?;
        produced += got;
        at = end;
        if got < sector {
            break;
        }
    }
    Ok(produced)
}

/// The block whose length stands at `at`, and where it ends.
fn block_at(frame: &[u8], at: usize, sector: usize) -> Result<(&[u8], usize), CodecError> {
    let Some(len) = length_at(frame, at) else {
        return error(format!("lzo: the frame of {} bytes ends inside a length", frame.len()));
    };
    let start = at + LENGTH_LEN;
    if len == 0 || len > longest_block(sector) || len > frame.len() - start {
        return error(format!("lzo: a block of {len} bytes at byte {at} of a frame of {}", frame.len()));
    }
    Ok((&frame[start..start + len], start + len))
}

/// Encodes `input`, or `None` when the result would be longer than `limit`.
pub fn compress(matcher: &mut lzo1x::Matcher, input: &[u8], limit: usize, sector: usize) -> Option<Vec<u8>> {
    let mut frame = Vec::with_capacity(limit + longest_block(sector));
    frame.resize(LENGTH_LEN, 0);
    for piece in input.chunks(sector) {
        frame.resize(next_length(frame.len(), sector), 0);
        let length_at = frame.len();
        frame.extend_from_slice(&[0; LENGTH_LEN]);
        matcher.compress(piece, &mut frame);
        let len = (frame.len() - length_at - LENGTH_LEN) as u32;
        frame[length_at..length_at + LENGTH_LEN].copy_from_slice(&len.to_le_bytes());
        if frame.len() > limit {
            return None;
        }
    }
    if next_length(frame.len(), sector) <= limit && input.len() > sector {
        frame.resize(next_length(frame.len(), sector), 0);
    }
    let total = (frame.len() as u32).to_le_bytes();
    frame[..LENGTH_LEN].copy_from_slice(&total);
    Some(frame)
}
