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
use butterfs_store::{PutPayload, PutPayloadMut};
use bytes::Bytes;

const MAGIC: &[u8; 8] = b"bfsvseg1";
const LISTED: usize = 14;
/// Bytes of the longest list: a segment of pieces of one block.
pub const MOST_LIST: u64 = 64 << 10;

/// Writes that have fewer bytes are copied into parts of so many.
const SMALL_PARTS: usize = 64 << 10;

/// Collects pieces for a segment.
pub struct Builder {
    number: u64,
    content: PutPayloadMut,
    pieces: Vec<Run<Piece>>,
}

impl Builder {
    /// For the segment with this number.
    pub fn new(number: u64) -> Builder {
        Builder { number, content: PutPayloadMut::new().with_block_size(SMALL_PARTS), pieces: Vec::new() }
    }

    /// The number of the segment.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Bytes of pieces.
    pub fn len(&self) -> u64 {
        self.content.content_length() as u64
    }

    /// Adds blocks; returns their pieces.
    pub fn add(&mut self, start: u64, blocks: Bytes) -> Vec<Piece> {
        let first = self.pieces.len();
        let (mut start, mut at) = (start, self.content.content_length() as u32);
        for bytes in blocks.chunks((PIECE_BLOCKS * BLOCK) as usize) {
            let whole = (bytes.len() as u64 / BLOCK) as u16;
            let value = Piece { segment: self.number, at, whole, skip: 0, digest: digest(bytes) };
            self.pieces.push(Run { start, blocks: u64::from(whole), value });
            start += u64::from(whole);
            at += bytes.len() as u32;
        }
        if blocks.len() >= SMALL_PARTS {
            self.content.push(blocks)
        } else {
            self.content.extend_from_slice(&blocks)
        }
        self.pieces[first..].iter().map(|run| run.value).collect()
    }

    /// Adds bytes of the map; returns where they begin.
    pub fn add_map(&mut self, bytes: &[u8]) -> u32 {
        let at = self.content.content_length() as u32;
        self.content.extend_from_slice(bytes);
        at
    }

    /// The object, and its pieces with the blocks that they are of.
    pub fn finish(self) -> (PutPayload, Vec<Run<Piece>>) {
        let Builder { mut content, pieces, .. } = self;
        let mut end = Vec::with_capacity(pieces.len() * LISTED + 12);
        for run in &pieces {
            end.extend(run.start.to_le_bytes());
            end.extend(run.value.at.to_le_bytes());
            end.extend(run.value.whole.to_le_bytes());
        }
        end.extend((pieces.len() as u32).to_le_bytes());
        end.extend(MAGIC);
        content.extend_from_slice(&end);
        (content.freeze(), pieces)
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
