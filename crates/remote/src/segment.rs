//! The bytes of a segment: pieces, and a list of them at the end.
//!
//! ```text
//! segment = piece… listed… count:u32 "bfsvseg1"
//! listed  = start:u64 at:u32 blocks:u16          its block on the device, its place here, its blocks
//! ```
//! The list serves the move of a segment's last pieces; nothing else reads it. Segments of the map have no pieces.

use crate::bytes_of::{Reader, digest};
use crate::ranges::Run;
use crate::table::{BLOCK, PIECE_BLOCKS, Piece};
use bytes::Bytes;

const MAGIC: &[u8; 8] = b"bfsvseg1";
const LISTED: usize = 14;
/// Bytes of the longest list: a segment of pieces of one block.
pub const MOST_LIST: u64 = 64 << 10;

/// Collects pieces for a segment.
pub struct Builder {
    number: u64,
    bytes: Vec<u8>,
    pieces: Vec<Run<Piece>>,
}

impl Builder {
    /// For the segment with this number.
    pub fn new(number: u64) -> Builder {
        Builder { number, bytes: Vec::new(), pieces: Vec::new() }
    }

    /// The number of the segment.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Bytes of pieces.
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Adds blocks; returns their pieces.
    pub fn add(&mut self, start: u64, blocks: &[u8]) -> Vec<Piece> {
        let first = self.pieces.len();
        let mut start = start;
        for bytes in blocks.chunks((PIECE_BLOCKS * BLOCK) as usize) {
            let whole = (bytes.len() as u64 / BLOCK) as u16;
            let at = self.bytes.len() as u32;
            let value = Piece { segment: self.number, at, whole, skip: 0, digest: digest(bytes) };
            self.pieces.push(Run { start, blocks: u64::from(whole), value });
            self.bytes.extend_from_slice(bytes);
            start += u64::from(whole);
        }
        self.pieces[first..].iter().map(|run| run.value).collect()
    }

    /// Adds bytes of the map; returns where they begin.
    pub fn add_map(&mut self, bytes: &[u8]) -> u32 {
        let at = self.bytes.len() as u32;
        self.bytes.extend_from_slice(bytes);
        at
    }

    /// The object, and its pieces with the blocks that they are of.
    pub fn finish(self) -> (Bytes, Vec<Run<Piece>>) {
        let Builder { mut bytes, pieces, .. } = self;
        for run in &pieces {
            bytes.extend(run.start.to_le_bytes());
            bytes.extend(run.value.at.to_le_bytes());
            bytes.extend(run.value.whole.to_le_bytes());
        }
        bytes.extend((pieces.len() as u32).to_le_bytes());
        bytes.extend(MAGIC);
        (bytes.into(), pieces)
    }
}

/// The pieces that the end of a segment lists: block of the device, place in the segment, blocks.
pub fn listed(end: &[u8]) -> Option<Vec<(u64, u32, u16)>> {
    let body = end.strip_suffix(MAGIC)?;
    let (list, count) = body.split_last_chunk::<4>()?;
    let len = (u32::from_le_bytes(*count) as usize).checked_mul(LISTED)?;
    let mut from = Reader(list.get(list.len().checked_sub(len)?..)?);
    let mut pieces = Vec::with_capacity(len / LISTED);
    while !from.0.is_empty() {
        pieces.push((from.u64()?, from.u32()?, from.u16()?));
    }
    Some(pieces)
}
