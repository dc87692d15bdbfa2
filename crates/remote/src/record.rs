//! A record of the log: the changes of one flush.
//!
//! ```text
//! record  = "bfsvlog1" volume:16 epoch:u64 sequence:u64 before:16 writer:u64 kind:u8 body digest:16
//! body    = segments:u32 segment… changes:u32 change… data          kind 0, changes
//!         | nothing                                                 kind 1, the epoch has ended
//! segment = number:u64 len:u32
//! change  = start:u64 blocks:u32 what:u8 (nothing | piece)          0 zeros, 1 a piece, 2 the next blocks of data
//! ```
//! `before` is the digest of the record before, zeros in the first one, and where an epoch is ended ahead of its
//! writer; `digest` is of all bytes in front of it.

use crate::bytes_of::{DIGEST, Digest, Reader, digest};
use crate::ranges::Run;
use crate::table::{BLOCK, MOST_BLOCKS, Piece};
use bytes::Bytes;

const MAGIC: &[u8; 8] = b"bfsvlog1";
/// No record is longer.
pub const MOST_BYTES: u64 = 256 << 20;

/// The content of a range after a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// Zeros.
    Zeros,
    /// A piece of a segment.
    Piece(Piece),
    /// These bytes.
    Data(Bytes),
}

/// See the [module](self).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The UUID of the volume.
    pub volume: [u8; 16],
    /// The mount that wrote it, by count.
    pub epoch: u64,
    /// Its number in the epoch, from 1.
    pub sequence: u64,
    /// The digest of the record before.
    pub before: Digest,
    /// The mount that wrote it, by a random number.
    pub writer: u64,
    /// The changes; `None` when the epoch ends here.
    pub body: Option<Body>,
}

/// The changes of a flush.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Body {
    /// Segments that are new: number and bytes.
    pub segments: Vec<(u64, u32)>,
    /// The changes, which do not overlap.
    pub changes: Vec<Run<Content>>,
}

/// The key of a record. A volume that was removed cannot meet the log of a later one with its name.
pub fn record_key(name: &str, volume: &[u8; 16], epoch: u64, sequence: u64) -> String {
    format!("volumes/{name}/log/{}-{epoch:016x}/{sequence:016x}", hex::encode(&volume[..4]))
}

impl Record {
    /// Bytes of a record that ends an epoch.
    pub const END_BYTES: u64 = (8 + 16 + 8 + 8 + DIGEST + 8 + 1 + DIGEST) as u64;

    /// Its object, and the digest of that.
    pub fn encode(&self) -> (Vec<u8>, Digest) {
        let mut out = MAGIC.to_vec();
        out.extend(self.volume);
        out.extend(self.epoch.to_le_bytes());
        out.extend(self.sequence.to_le_bytes());
        out.extend(self.before);
        out.extend(self.writer.to_le_bytes());
        out.push(u8::from(self.body.is_none()));
        if let Some(body) = &self.body {
            out.extend((body.segments.len() as u32).to_le_bytes());
            for (number, len) in &body.segments {
                out.extend(number.to_le_bytes());
                out.extend(len.to_le_bytes());
            }
            out.extend((body.changes.len() as u32).to_le_bytes());
            for change in &body.changes {
                out.extend(change.start.to_le_bytes());
                out.extend((change.blocks as u32).to_le_bytes());
                match &change.value {
                    Content::Zeros => out.push(0),
                    Content::Piece(piece) => {
                        out.push(1);
                        piece.encode(&mut out);
                    }
                    Content::Data(_) => out.push(2),
                }
            }
            for change in &body.changes {
                if let Content::Data(data) = &change.value {
                    out.extend(data);
                }
            }
        }
        let digest = digest(&out);
        out.extend(digest);
        (out, digest)
    }

    /// The record of these bytes, and their digest; the rule that they break otherwise.
    pub fn decode(bytes: &Bytes) -> Result<(Record, Digest), &'static str> {
        let len = bytes.len().checked_sub(DIGEST).ok_or("it is cut off")?;
        let told: Digest = bytes[len..].try_into().expect("just cut there");
        if digest(&bytes[..len]) != told {
            return Err("its digest is another");
        }
        let record = Record::parse(bytes.slice(..len)).ok_or("it is no record of a log")?;
        Ok((record, told))
    }

    fn parse(bytes: Bytes) -> Option<Record> {
        let mut from = Reader(&bytes);
        if from.array()? != *MAGIC {
            return None;
        }
        let (volume, epoch, sequence, before) = (from.array()?, from.u64()?, from.u64()?, from.array()?);
        let (writer, kind) = (from.u64()?, from.u8()?);
        let body = match kind {
            0 => Some(Body::parse(&mut from, &bytes)?),
            1 => None,
            _ => return None,
        };
        from.0.is_empty().then_some(Record { volume, epoch, sequence, before, writer, body })
    }
}

impl Body {
    fn parse(from: &mut Reader, all: &Bytes) -> Option<Body> {
        let mut body = Body::default();
        for _ in 0..from.u32()? {
            body.segments.push((from.u64()?, from.u32()?));
        }
        for _ in 0..from.u32()? {
            let (start, blocks) = (from.u64()?, u64::from(from.u32()?));
            let value = match from.u8()? {
                0 => Content::Zeros,
                1 => Content::Piece(Piece::decode(from)?),
                2 => Content::Data(Bytes::new()),
                _ => return None,
            };
            if blocks == 0 || start > MOST_BLOCKS {
                return None;
            }
            body.changes.push(Run { start, blocks, value });
        }
        for change in &mut body.changes {
            if let Content::Data(data) = &mut change.value {
                let taken = from.take(usize::try_from(change.blocks.checked_mul(BLOCK)?).ok()?)?;
                *data = all.slice_ref(taken);
            }
        }
        Some(body)
    }
}
