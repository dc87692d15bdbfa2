//! Pieces: runs of bytes that are stored once, inside a segment, plain or compressed.
//!
//! ```text
//! stored piece = codec:u8 bytes        codec 0: the bytes themselves; 1: a zstd frame; +2: sealed
//! reference    = segment:32 offset:u32 stored:u32 raw:u32 digest:32       76 bytes, little-endian
//! ```
//! The digest is that of the raw bytes, keyed where the repository is encrypted ([`crate::keys`]). A segment of 32 zero
//! bytes is the one that the reference itself is in.

use crate::digest::Digest;
use crate::keys::{Keys, SEAL_BYTES};
use bytes::Bytes;
use std::io::Read;
use zstd::bulk::Compressor;

/// The most raw bytes of a piece.
pub const MAX_PIECE: usize = 1 << 20;

/// The place of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PieceRef {
    /// The segment.
    pub segment: Digest,
    /// In the segment, in bytes.
    pub offset: u32,
    /// Bytes in the segment.
    pub stored: u32,
    /// Bytes when decoded.
    pub raw: u32,
    /// Of the raw bytes.
    pub digest: Digest,
}

impl PieceRef {
    /// Bytes of a reference.
    pub const LEN: usize = 76;

    /// The bytes of the reference.
    pub fn to_bytes(self) -> [u8; PieceRef::LEN] {
        let mut bytes = [0; PieceRef::LEN];
        bytes[..32].copy_from_slice(&self.segment.0);
        bytes[32..36].copy_from_slice(&self.offset.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.stored.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.raw.to_le_bytes());
        bytes[44..].copy_from_slice(&self.digest.0);
        bytes
    }

    /// The reference of these bytes; `None` where they are none.
    pub fn from_bytes(bytes: &[u8]) -> Option<PieceRef> {
        let bytes: &[u8; PieceRef::LEN] = bytes.try_into().ok()?;
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let digest = |at: usize| Digest(bytes[at..at + 32].try_into().expect("32 bytes"));
        let found = PieceRef {
            segment: digest(0),
            offset: number(32),
            stored: number(36),
            raw: number(40),
            digest: digest(44),
        };
        let is_sane =
            found.raw as usize <= MAX_PIECE && found.stored as usize <= MAX_PIECE + 1 + SEAL_BYTES && found.stored > 0;
        is_sane.then_some(found)
    }
}

/// The digest of the raw bytes of a piece.
pub fn digest(raw: &[u8], keys: Option<&Keys>) -> Digest {
    keys.map_or_else(|| Digest::of(raw), |keys| Digest::keyed(keys.of_digests(), raw))
}

/// Bytes that a stored piece has at most besides its raw ones.
pub fn most_added(keys: Option<&Keys>) -> usize {
    1 + if keys.is_some() { SEAL_BYTES } else { 0 }
}

/// Places in a piece from which a sample is taken, and the bytes from each.
const SAMPLES: usize = 8;
const SAMPLE_BYTES: usize = 1 << 10;

/// Makes stored pieces, with memory that is used again.
pub struct Encoder {
    /// For the pieces, and for samples; `None` does not compress.
    compressors: Option<(Compressor<'static>, Compressor<'static>)>,
    sample: Vec<u8>,
    compressed: Vec<u8>,
    stored: Vec<u8>,
}

impl Encoder {
    /// An encoder of this zstd level; 0 does not compress.
    pub fn new(level: i32) -> Encoder {
        let compressors = || Some((Compressor::new(level).ok()?, Compressor::new(1).ok()?));
        Encoder {
            compressors: if level == 0 { None } else { compressors() },
            sample: Vec::new(),
            compressed: Vec::new(),
            stored: Vec::new(),
        }
    }

    /// A piece as it is stored: compressed where that is shorter. `None` for codec 0 and the raw bytes.
    pub fn encode(&mut self, raw: &[u8], keys: Option<&Keys>) -> Option<&[u8]> {
        let is_shorter = self.compress(raw).is_some();
        let bytes = if is_shorter { &self.compressed[..] } else { raw };
        self.stored.clear();
        match keys {
            None if !is_shorter => return None,
            None => {
                self.stored.push(1);
                self.stored.extend_from_slice(bytes);
            }
            Some(keys) => {
                self.stored.push(2 + u8::from(is_shorter));
                keys.seal(bytes, &mut self.stored);
            }
        }
        Some(&self.stored)
    }

    /// Appends a piece as it is stored. Returns how many bytes that are.
    pub fn append(&mut self, raw: &[u8], keys: Option<&Keys>, out: &mut Vec<u8>) -> u32 {
        let begin = out.len();
        match self.encode(raw, keys) {
            Some(stored) => out.extend_from_slice(stored),
            None => {
                out.push(0);
                out.extend_from_slice(raw);
            }
        }
        (out.len() - begin) as u32
    }

    /// Compresses, if that makes the bytes fewer. Long pieces only where a sample shrinks.
    fn compress(&mut self, raw: &[u8]) -> Option<()> {
        let (compressor, fast) = self.compressors.as_mut()?;
        if raw.len() >= 4 * SAMPLES * SAMPLE_BYTES {
            self.sample.clear();
            raw.chunks(raw.len() / SAMPLES).for_each(|part| {
                self.sample.extend_from_slice(&part[..part.len().min(SAMPLE_BYTES)]);
            });
            shorter(fast, &self.sample, &mut self.compressed)?;
        }
        shorter(compressor, raw, &mut self.compressed)
    }
}

/// Compresses, if the outcome is shorter.
fn shorter(compressor: &mut Compressor<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
    out.clear();
    out.reserve(zstd::zstd_safe::compress_bound(bytes.len()));
    let len = compressor.compress_to_buffer(bytes, out).ok()?;
    (len < bytes.len()).then_some(())
}

/// The raw bytes of a stored piece, or the rule that it breaks. Memory is bounded by [`MAX_PIECE`]; the bytes of a
/// piece that is neither compressed nor sealed are not copied.
pub fn load(stored: Bytes, expected: &PieceRef, keys: Option<&Keys>) -> Result<Bytes, &'static str> {
    let raw = decode(stored, expected, keys)?;
    let is_same = digest(&raw, keys) == expected.digest;
    is_same.then_some(raw).ok_or("the digest of the piece is not the one that it was stored with")
}

/// The raw bytes of a stored piece, which have the expected length.
fn decode(stored: Bytes, expected: &PieceRef, keys: Option<&Keys>) -> Result<Bytes, &'static str> {
    let codec = *stored.first().ok_or("the piece is empty")?;
    let bytes = stored.slice(1..);
    let (codec, bytes) = match (codec, keys) {
        (0 | 1, None) => (codec, bytes),
        (2 | 3, Some(keys)) => {
            let opened = keys.open(&bytes).ok_or("the piece was not sealed with the key of the repository")?;
            (codec - 2, opened.into())
        }
        (2 | 3, None) => return Err("the piece is encrypted, and the repository is not"),
        (0 | 1, Some(_)) => return Err("the piece is not encrypted, and the repository is"),
        _ => return Err("the piece has an unknown codec"),
    };
    let len = expected.raw as usize;
    match codec {
        0 if bytes.len() == len => Ok(bytes),
        0 => Err("the piece has another length than it was stored with"),
        _ => decompressed(&bytes, len).map(Bytes::from).ok_or("the piece is no zstd frame of its length"),
    }
}

fn decompressed(bytes: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut raw = Vec::with_capacity(len);
    let decoder = zstd::stream::read::Decoder::with_buffer(bytes).ok()?;
    decoder.single_frame().take(len as u64 + 1).read_to_end(&mut raw).ok()?;
    (raw.len() == len).then_some(raw)
}
