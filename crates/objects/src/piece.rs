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
use std::io::Read;

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
    keys.map_or_else(|| Digest::of(raw), |keys| keys.digest(raw))
}

/// Appends a piece as it is stored: compressed where that is shorter. Returns how many bytes that are.
pub fn store(raw: &[u8], level: i32, keys: Option<&Keys>, out: &mut Vec<u8>) -> u32 {
    let begin = out.len();
    let compressed = if level == 0 { None } else { zstd::bulk::compress(raw, level).ok() };
    let (codec, bytes) = match &compressed {
        Some(compressed) if compressed.len() < raw.len() => (1, &compressed[..]),
        _ => (0, raw),
    };
    match keys {
        None => {
            out.push(codec);
            out.extend_from_slice(bytes);
        }
        Some(keys) => {
            out.push(codec + 2);
            keys.seal(bytes, out);
        }
    }
    (out.len() - begin) as u32
}

/// The raw bytes of a stored piece; the rule that it breaks, if any. Memory is bounded by [`MAX_PIECE`].
pub fn load(stored: &[u8], expected: &PieceRef, keys: Option<&Keys>) -> Result<Vec<u8>, &'static str> {
    let (codec, bytes) = stored.split_first().ok_or("the piece is empty")?;
    let opened;
    let (codec, bytes) = match (codec, keys) {
        (0 | 1, None) => (*codec, bytes),
        (2 | 3, Some(keys)) => {
            opened = keys.open(bytes).ok_or("the piece was not sealed with the key of the repository")?;
            (codec - 2, &opened[..])
        }
        (2 | 3, None) => return Err("the piece is encrypted, and the repository is not"),
        (0 | 1, Some(_)) => return Err("the piece is not encrypted, and the repository is"),
        _ => return Err("the piece has an unknown codec"),
    };
    let raw = match codec {
        0 => bytes.to_vec(),
        _ => decompressed(bytes, expected.raw as usize).ok_or("the piece is no zstd frame of its length")?,
    };
    if raw.len() != expected.raw as usize || digest(&raw, keys) != expected.digest {
        return Err("the digest of the piece is not the one that it was stored with");
    }
    Ok(raw)
}

fn decompressed(bytes: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut raw = Vec::with_capacity(len);
    let decoder = zstd::stream::read::Decoder::with_buffer(bytes).ok()?;
    decoder.single_frame().take(len as u64 + 1).read_to_end(&mut raw).ok()?;
    (raw.len() == len).then_some(raw)
}
