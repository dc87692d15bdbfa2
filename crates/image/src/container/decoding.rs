//! Compressed pieces of containers, and the last ones that were decoded.

use super::damaged;
use butterfs_device::BlockDevice;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

/// Most bytes of a piece, decoded; a compressed one may have a little more.
pub const MAX_PIECE: u64 = 64 << 20;
/// Most bytes of all decoded pieces that are kept; one piece is kept whatever its size.
const KEPT_BYTES: usize = 32 << 20;
/// Largest window of a zstd frame, as a power of two.
const ZSTD_WINDOW: u32 = 27;

/// How a piece is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// Deflate without a header.
    Deflate,
    /// Deflate with the header of zlib.
    Zlib,
    /// One frame of zstd.
    Zstd,
}

/// A compressed piece, and the byte of it that is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Its position in the file.
    pub at: u64,
    /// Bytes there, or more: the decoder stops when it has enough.
    pub len: u64,
    /// Bytes that it has when it is decoded.
    pub decoded: u64,
    /// Decoded bytes before the first one that is meant.
    pub skip: u64,
    /// How it is compressed.
    pub codec: Codec,
}

type Kept = VecDeque<(u64, Arc<Vec<u8>>)>;

/// The last pieces, by their place in the file.
#[derive(Debug, Default)]
pub struct Decoded(Mutex<Kept>);

impl Decoded {
    /// Reads a part of a piece.
    pub fn read(&self, file: &dyn BlockDevice, packed: Packed, out: &mut [u8]) -> io::Result<()> {
        let piece = match self.kept(packed.at) {
            Some(piece) => piece,
            None => self.keep(packed.at, decode(file, packed)?),
        };
        let part = usize::try_from(packed.skip).ok().and_then(|skip| piece.get(skip..)?.get(..out.len()));
        out.copy_from_slice(part.ok_or_else(|| damaged("a compressed piece is too short", packed.at))?);
        Ok(())
    }

    fn kept(&self, at: u64) -> Option<Arc<Vec<u8>>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let index = kept.iter().position(|(place, _)| *place == at)?;
        let found = kept.remove(index)?;
        kept.push_back(found.clone());
        Some(found.1)
    }

    fn keep(&self, at: u64, piece: Vec<u8>) -> Arc<Vec<u8>> {
        let piece = Arc::new(piece);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back((at, piece.clone()));
        let mut bytes: usize = kept.iter().map(|(_, piece)| piece.len()).sum();
        while bytes > KEPT_BYTES && kept.len() > 1 {
            bytes -= kept.pop_front().map_or(0, |(_, piece)| piece.len());
        }
        piece
    }
}

fn decode(file: &dyn BlockDevice, packed: Packed) -> io::Result<Vec<u8>> {
    let Packed { at, len, decoded, codec, .. } = packed;
    if decoded > MAX_PIECE {
        let what = format_args!("a compressed piece has {decoded} bytes, at most {MAX_PIECE} are possible");
        return Err(damaged(what, at));
    }
    // No codec makes much more of a piece than it was.
    let len = len.min(file.len().saturating_sub(at)).min(decoded + decoded / 4 + (64 << 10));
    let mut stored = vec![0; len as usize];
    file.read_at(at, &mut stored)?;
    let mut out = vec![0; decoded as usize];
    let done = match codec {
        Codec::Deflate => flate2::read::DeflateDecoder::new(stored.as_slice()).read_exact(&mut out),
        Codec::Zlib => flate2::read::ZlibDecoder::new(stored.as_slice()).read_exact(&mut out),
        Codec::Zstd => zstd_frame(&stored, &mut out),
    };
    done.map_err(|error| damaged(format_args!("a compressed piece at {at} cannot be decoded ({error})"), at))?;
    Ok(out)
}

fn zstd_frame(stored: &[u8], out: &mut [u8]) -> io::Result<()> {
    let mut decoder = zstd::Decoder::with_buffer(stored)?.single_frame();
    decoder.window_log_max(ZSTD_WINDOW)?;
    decoder.read_exact(out)
}
