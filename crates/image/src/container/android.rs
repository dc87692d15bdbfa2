//! Android's sparse images: chunks one behind the other, of data, of four bytes again and again, or of nothing.

use super::fields::{header, le_u16, le_u32};
use super::{Layout, Part, Place};
use crate::error::{Error, Result};
use butterfs_device::BlockDevice;
use std::io;

/// The first bytes of a file.
pub const MAGIC: [u8; 4] = 0xed26_ff3au32.to_le_bytes();
/// Most chunks.
const MAX_CHUNKS: u32 = 4 << 20;

const RAW: u16 = 0xcac1;
const FILL: u16 = 0xcac2;
const NOTHING: u16 = 0xcac3;
const CHECKSUM: u16 = 0xcac4;

/// Chunks by the byte of the disk at which each begins.
#[derive(Debug)]
struct Sparse {
    len: u64,
    chunks: Vec<(u64, Chunk)>,
}

/// The content of a chunk. There may be many, so that this is small.
#[derive(Clone, Copy, Debug)]
enum Chunk {
    Nothing,
    Fill([u8; 4]),
    At(u64),
}

/// Reads the header and those of all chunks.
pub fn open(file: &dyn BlockDevice) -> Result<Box<dyn Layout>> {
    let head: [u8; 28] = header(file, 0)?;
    let (major, head_len, chunk_head_len) = (le_u16(&head, 4), le_u16(&head, 8), le_u16(&head, 10));
    let (block, blocks, count) = (u64::from(le_u32(&head, 12)), u64::from(le_u32(&head, 16)), le_u32(&head, 20));
    if major != 1 {
        return Err(Error::content(format!("version {major} is not known")));
    }
    if head_len < 28 || chunk_head_len < 12 || block == 0 || !block.is_multiple_of(4) {
        return Err(Error::content("the sizes in its header are impossible"));
    }
    if count > MAX_CHUNKS {
        return Err(Error::content(format!("it has {count} chunks, at most {MAX_CHUNKS} are possible")));
    }
    // A header of 12 bytes for each.
    let mut chunks = Vec::with_capacity(u64::from(count).min(file.len() / 12) as usize);
    let (mut at, mut disk_at) = (u64::from(head_len), 0u64);
    for number in 0..count {
        let about = |what: &str| Error::content(format!("its chunk {number} {what}"));
        let chunk: [u8; 12] = header(file, at)?;
        let (kind, len) = (le_u16(&chunk, 0), u64::from(le_u32(&chunk, 4)) * block);
        let data = u64::from(le_u32(&chunk, 8)).checked_sub(u64::from(chunk_head_len));
        let data = data.ok_or_else(|| about("is shorter than its header"))?;
        let content = at + u64::from(chunk_head_len);
        let (stored, wanted) = match kind {
            RAW => (Chunk::At(content), len),
            FILL => (Chunk::Fill(header(file, content)?), 4),
            NOTHING => (Chunk::Nothing, 0),
            CHECKSUM => (Chunk::Nothing, data),
            _ => return Err(about(&format!("has the type {kind:#x}, which is not known"))),
        };
        if data != wanted || kind == CHECKSUM && len != 0 {
            return Err(about("has another length than its type"));
        }
        if len > 0 {
            chunks.push((disk_at, stored));
        }
        let end = disk_at.checked_add(len).filter(|end| *end <= blocks * block);
        (at, disk_at) = (content + data, end.ok_or_else(|| about("reaches behind the end of the disk"))?);
    }
    let len = blocks * block;
    if disk_at != len {
        return Err(Error::content(format!("its chunks have {disk_at} bytes, but the disk has {len}")));
    }
    Ok(Box::new(Sparse { len, chunks }))
}

impl Layout for Sparse {
    fn len(&self) -> u64 {
        self.len
    }

    fn find(&self, _: &dyn BlockDevice, at: u64) -> io::Result<Part> {
        let index = self.chunks.partition_point(|(start, _)| *start <= at) - 1;
        let (start, stored) = self.chunks[index];
        let end = self.chunks.get(index + 1).map_or(self.len, |(next, _)| *next);
        let place = match stored {
            Chunk::Nothing => Place::Zeros,
            Chunk::Fill(bytes) => Place::Fill(bytes),
            Chunk::At(place) => Place::At(place + (at - start)),
        };
        Ok(Part { len: end - at, place })
    }
}
