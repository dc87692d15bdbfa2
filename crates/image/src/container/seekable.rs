//! zstd in the seekable form: frames that are compressed each alone, and behind them a frame that decoders pass over,
//! with the sizes of all.

use super::decoding::{Codec, MAX_PIECE, Packed};
use super::fields::{header, le_u32};
use super::{Layout, Part, Place};
use crate::error::{Error, Result};
use butterfs_device::BlockDevice;
use std::io;

/// The first four bytes of a frame.
pub const FRAME: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The last four bytes of a file.
pub const MAGIC: u32 = 0x8f92_eab1;
/// The first four bytes of the table.
pub const TABLE_MAGIC: u32 = 0x184d_2a5e;
/// Bytes of the disk in a frame of an image that is written here.
pub const FRAME_BYTES: usize = 1 << 20;

/// Bytes behind the entries.
const FOOT_LEN: u64 = 9;
/// Most frames: their sizes take 16 bytes of memory each.
pub const MAX_FRAMES: u32 = 8 << 20;
const HAS_CHECKSUMS: u8 = 0x80;
/// Entries that are read at once.
const AT_ONCE: usize = 8192;

/// The first byte of each frame, on the disk and in the file; the last pair is the end of both.
#[derive(Debug)]
struct Seekable {
    frames: Vec<(u64, u64)>,
}

/// Whether a file begins as zstd does.
pub fn begins(head: &[u8]) -> bool {
    head.starts_with(&FRAME)
}

/// Reads the table.
pub fn open(file: &dyn BlockDevice) -> Result<Box<dyn Layout>> {
    let foot: [u8; FOOT_LEN as usize] = header(file, file.len().saturating_sub(FOOT_LEN))?;
    if le_u32(&foot, 5) != MAGIC {
        return Err(Error::content("it has no table of frames at its end: it must be decompressed first ('zstd -d')"));
    }
    let (count, flags) = (le_u32(&foot, 0), foot[4]);
    if count > MAX_FRAMES {
        return Err(Error::content(format!("it has {count} frames, at most {MAX_FRAMES} are possible")));
    }
    let entry_len = if flags & HAS_CHECKSUMS != 0 { 12 } else { 8 };
    let table_len = u64::from(count) * entry_len + FOOT_LEN;
    let misplaced = || Error::content("its table of frames is not where its size says");
    let table = file.len().checked_sub(table_len + 8).ok_or_else(misplaced)?;
    let head: [u8; 8] = header(file, table)?;
    if le_u32(&head, 0) != TABLE_MAGIC || u64::from(le_u32(&head, 4)) != table_len {
        return Err(misplaced());
    }
    let frames = frames(file, table + 8, count as usize, entry_len as usize)?;
    match frames.last() {
        Some((_, end)) if *end == table => Ok(Box::new(Seekable { frames })),
        _ => Err(Error::content("its frames have other sizes than its table says")),
    }
}

fn frames(file: &dyn BlockDevice, mut at: u64, count: usize, entry_len: usize) -> Result<Vec<(u64, u64)>> {
    let mut frames = Vec::with_capacity(count + 1);
    frames.push((0, 0));
    let (mut disk_at, mut file_at) = (0u64, 0u64);
    let mut left = count;
    while left > 0 {
        let mut entries = vec![0; left.min(AT_ONCE) * entry_len];
        let failed = |error| Error::content(format!("its table of frames cannot be read: {error}"));
        file.read_at(at, &mut entries).map_err(failed)?;
        for entry in entries.chunks_exact(entry_len) {
            let (stored, decoded) = (u64::from(le_u32(entry, 0)), u64::from(le_u32(entry, 4)));
            if decoded > MAX_PIECE {
                let sentence = format!("a frame has {decoded} bytes, at most {MAX_PIECE} are possible");
                return Err(Error::content(sentence));
            }
            (disk_at, file_at) = (disk_at + decoded, file_at + stored);
            frames.push((disk_at, file_at));
        }
        at += entries.len() as u64;
        left -= entries.len() / entry_len;
    }
    Ok(frames)
}

impl Layout for Seekable {
    fn len(&self) -> u64 {
        self.frames.last().map_or(0, |(end, _)| *end)
    }

    fn find(&self, _: &dyn BlockDevice, at: u64) -> io::Result<Part> {
        // Frames without content share their beginning with the next one; the last of them is the one that is meant.
        let index = self.frames.partition_point(|(start, _)| *start <= at) - 1;
        let ((start, place), (end, place_end)) = (self.frames[index], self.frames[index + 1]);
        let packed =
            Packed { at: place, len: place_end - place, decoded: end - start, skip: at - start, codec: Codec::Zstd };
        Ok(Part { len: end - at, place: Place::Packed(packed) })
    }
}
