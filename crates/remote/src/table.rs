//! The map of a volume: which piece of which segment has each block.
//!
//! ```text
//! shard = count:u32 run…
//! run   = start:u64 blocks:u32 piece
//! piece = segment:u64 at:u32 whole:u16 skip:u16 digest:16
//! table = "bfsvtab1" length:u64 next:u64 segments:u32 segment… shards:u32 shard-place… dead:u32 dead-segment…
//! segment      = number:u64 writer:u64 len:u32 live:u32
//! dead-segment = number:u64 writer:u64 since:i64
//! shard-place  = index:u32 segment:u64 at:u32 len:u32 digest:16
//! ```
//! Starts, blocks, `whole` and `skip` are in blocks of 4 KiB; `at`, `len`, `live` and `length` in bytes. A shard has
//! the blocks of one part of the device; a block without a run is zeros. Segments and shards stand in order. Dead
//! segments are those that the map does not need, since a second after 1970, and that an older map may need.

use crate::bytes_of::{DIGEST, Digest, Reader};
use crate::pieces::Stored;
use crate::ranges::{Part, Run};
use std::collections::BTreeMap;

/// Bytes of a block.
pub const BLOCK: u64 = 4096;
/// Blocks of the longest piece.
pub const PIECE_BLOCKS: u64 = 16;
/// Bytes of the longest segment.
pub const SEGMENT_BYTES: u64 = 8 << 20;
/// Blocks of the longest device: 8 EiB.
pub const MOST_BLOCKS: u64 = (8 << 60) / BLOCK;

const MAGIC: &[u8; 8] = b"bfsvtab1";
/// Shards of a volume, at most.
const MOST_SHARDS: u64 = 16384;
/// Blocks of the least shard.
const LEAST_SHARD: u64 = (64 << 20) / BLOCK;
const PIECE_BYTES: usize = 8 + 4 + 2 + 2 + DIGEST;

/// Blocks that were put together, or a part of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The number of its segment.
    pub segment: u64,
    /// Its offset in the segment, in bytes.
    pub at: u32,
    /// Its blocks.
    pub whole: u16,
    /// Blocks at its front that are not meant.
    pub skip: u16,
    /// Of all of its blocks.
    pub digest: Digest,
}

impl Part for Piece {
    fn part(&self, skip: u64) -> Piece {
        Piece { skip: self.skip + skip as u16, ..*self }
    }
}

impl Piece {
    /// Bytes of all of its blocks.
    pub fn bytes(&self) -> u64 {
        u64::from(self.whole) * BLOCK
    }

    /// Whether so many blocks of it can be, and in a segment of this length.
    pub fn is_sound(&self, blocks: u64, segment_len: u32) -> bool {
        let whole = u64::from(self.whole);
        let inside = u64::from(self.at) + self.bytes() <= u64::from(segment_len);
        whole <= PIECE_BLOCKS && u64::from(self.skip) + blocks <= whole && blocks > 0 && inside
    }

    /// Adds the piece to a record or shard.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.segment.to_le_bytes());
        out.extend(self.at.to_le_bytes());
        out.extend(self.whole.to_le_bytes());
        out.extend(self.skip.to_le_bytes());
        out.extend(self.digest);
    }

    /// Takes a piece from the front.
    pub fn decode(from: &mut Reader) -> Option<Piece> {
        let (segment, at, whole, skip) = (from.u64()?, from.u32()?, from.u16()?, from.u16()?);
        Some(Piece { segment, at, whole, skip, digest: from.array()? })
    }
}

/// The pieces of a part of the device, in order.
#[derive(Clone, Debug, Default)]
pub struct Shard {
    /// In the order of their blocks.
    pub runs: Vec<Run<Piece>>,
}

impl Shard {
    /// The pieces of these blocks, cut at both ends.
    pub fn over(&self, start: u64, blocks: u64) -> Vec<Run<Piece>> {
        let first = self.runs.partition_point(|run| run.end() <= start);
        let touched = self.runs[first..].iter().take_while(|run| run.start < start + blocks);
        touched.filter_map(|run| run.within(start, start + blocks)).collect()
    }

    /// Its bytes in a segment.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4 + self.runs.len() * (12 + PIECE_BYTES));
        out.extend((self.runs.len() as u32).to_le_bytes());
        for run in &self.runs {
            out.extend(run.start.to_le_bytes());
            out.extend((run.blocks as u32).to_le_bytes());
            run.value.encode(&mut out);
        }
        out
    }

    /// The shard of these bytes, whose blocks are `span`; `None` where they break a rule.
    pub fn decode(bytes: &[u8], span: (u64, u64), table: &Table) -> Option<Shard> {
        let mut from = Reader(bytes);
        let count = from.u32()? as usize;
        if from.0.len() != count.checked_mul(12 + PIECE_BYTES)? {
            return None;
        }
        let mut runs = Vec::with_capacity(count);
        let mut at = span.0;
        for _ in 0..count {
            let (start, blocks) = (from.u64()?, u64::from(from.u32()?));
            let run = Run { start, blocks, value: Piece::decode(&mut from)? };
            let segment = table.segments.get(&run.value.segment)?;
            if start < at || start >= span.1 || blocks > span.1 - start || !run.value.is_sound(blocks, segment.len) {
                return None;
            }
            at = run.end();
            runs.push(run);
        }
        Some(Shard { runs })
    }
}

/// The place of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    /// The number of its segment.
    pub segment: u64,
    /// Its offset in the segment, in bytes.
    pub at: u32,
    /// Its bytes.
    pub len: u32,
    /// Of its bytes.
    pub digest: Digest,
}

/// An object with content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The mount that put it.
    pub writer: u64,
    /// Its bytes.
    pub len: u32,
    /// Bytes that the map refers to.
    pub live: u32,
}

/// The key of a segment.
pub fn segment_key(writer: u64, number: u64) -> String {
    format!("segments/{writer:016x}-{number:016x}")
}

/// The writer and the number of a segment's key.
pub fn parse_segment_key(key: &str) -> Option<(u64, u64)> {
    let (writer, number) = key.strip_prefix("segments/")?.split_once('-')?;
    let number_of = |text: &str| (text.len() == 16).then(|| u64::from_str_radix(text, 16).ok()).flatten();
    Some((number_of(writer)?, number_of(number)?))
}

/// The head of the map: all segments, and where each shard is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    /// Bytes of the device.
    pub length: u64,
    /// The number of the next segment.
    pub next: u64,
    /// By number.
    pub segments: BTreeMap<u64, Segment>,
    /// By index; a shard without runs has no place.
    pub shards: BTreeMap<u32, Place>,
    /// Segments that only older maps need.
    pub dead: Vec<Dead>,
}

/// A segment that the map does not need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dead {
    /// Its number.
    pub number: u64,
    /// The mount that put it.
    pub writer: u64,
    /// Since when, in seconds since 1970.
    pub since: i64,
}

impl Table {
    /// Of a device of zeros.
    pub fn new(length: u64) -> Table {
        Table { length, next: 1, segments: BTreeMap::new(), shards: BTreeMap::new(), dead: Vec::new() }
    }

    /// A piece with the writer of its segment.
    pub fn stored(&self, piece: Piece) -> Stored {
        let writer = self.segments.get(&piece.segment).map(|segment| segment.writer);
        // A map that was read names no other segments than it has.
        Stored { piece, writer: writer.unwrap_or_default() }
    }

    /// Blocks of each shard.
    pub fn shard_blocks(&self) -> u64 {
        (self.length / BLOCK).div_ceil(MOST_SHARDS).next_power_of_two().max(LEAST_SHARD)
    }

    /// The blocks of a shard.
    pub fn span(&self, index: u32) -> (u64, u64) {
        let each = self.shard_blocks();
        let start = u64::from(index) * each;
        (start, (start + each).min(self.length / BLOCK))
    }

    /// Takes note that so many bytes of a segment are referred to from now on, or no more.
    pub fn count(&mut self, segment: u64, bytes: u64, more: bool) {
        if let Some(segment) = self.segments.get_mut(&segment) {
            let bytes = bytes as u32;
            segment.live = if more { segment.live.saturating_add(bytes) } else { segment.live.saturating_sub(bytes) };
        }
    }

    /// Its bytes in a segment.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(self.length.to_le_bytes());
        out.extend(self.next.to_le_bytes());
        out.extend((self.segments.len() as u32).to_le_bytes());
        for (number, segment) in &self.segments {
            out.extend(number.to_le_bytes());
            out.extend(segment.writer.to_le_bytes());
            out.extend(segment.len.to_le_bytes());
            out.extend(segment.live.to_le_bytes());
        }
        out.extend((self.shards.len() as u32).to_le_bytes());
        for (index, place) in &self.shards {
            out.extend(index.to_le_bytes());
            out.extend(place.segment.to_le_bytes());
            out.extend(place.at.to_le_bytes());
            out.extend(place.len.to_le_bytes());
            out.extend(place.digest);
        }
        out.extend((self.dead.len() as u32).to_le_bytes());
        for dead in &self.dead {
            out.extend(dead.number.to_le_bytes());
            out.extend(dead.writer.to_le_bytes());
            out.extend(dead.since.to_le_bytes());
        }
        out
    }

    /// The table of these bytes; `None` where they break a rule.
    pub fn decode(bytes: &[u8]) -> Option<Table> {
        let mut from = Reader(bytes);
        if from.array()? != *MAGIC {
            return None;
        }
        let mut table = Table::new(from.u64()?);
        table.next = from.u64()?;
        if !table.length.is_multiple_of(BLOCK) || table.length / BLOCK > MOST_BLOCKS {
            return None;
        }
        let in_order = |last: Option<u64>, number: u64| last.is_none_or(|last| last < number);
        for _ in 0..from.u32()? {
            let number = from.u64()?;
            let segment = Segment { writer: from.u64()?, len: from.u32()?, live: from.u32()? };
            let last = table.segments.last_key_value().map(|(last, _)| *last);
            if !in_order(last, number) || number >= table.next {
                return None;
            }
            table.segments.insert(number, segment);
        }
        for _ in 0..from.u32()? {
            let index = from.u32()?;
            let place = Place { segment: from.u64()?, at: from.u32()?, len: from.u32()?, digest: from.array()? };
            let last = table.shards.last_key_value().map(|(last, _)| u64::from(*last));
            let segment = table.segments.get(&place.segment)?;
            let inside = u64::from(place.at) + u64::from(place.len) <= u64::from(segment.len);
            let (start, end) = table.span(index);
            if !in_order(last, u64::from(index)) || !inside || start >= end {
                return None;
            }
            table.shards.insert(index, place);
        }
        for _ in 0..from.u32()? {
            table.dead.push(Dead { number: from.u64()?, writer: from.u64()?, since: from.u64()? as i64 });
        }
        from.0.is_empty().then_some(table)
    }
}
