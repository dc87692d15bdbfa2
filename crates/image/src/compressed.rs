//! An image compressed with zstd: frames that are decoded each alone, and behind them the table of the seekable form.
//! Any decoder of zstd makes the image of it.
//!
//! # Invariants
//! 1. The bytes do not depend on the number of threads: each frame is compressed alone.
//! 2. Holes of the image are not read.

use crate::container::{FRAME_BYTES, MAX_FRAMES, SEEKABLE_MAGIC, TABLE_MAGIC};
use crate::error::{Error, ErrorKind, Result};
use crate::output::ImageFile;
use butterfs_device::BlockDevice;
use std::io;
use zstd::bulk::Compressor;
use zstd::zstd_safe::CParameter;

/// Frames that a thread compresses before they are written.
const FRAMES_PER_THREAD: usize = 4;

/// Writes the compressed form of an image into a new file.
pub fn write(image: &ImageFile, out: &ImageFile, level: i32, threads: usize) -> Result<()> {
    let failed = |error: io::Error| {
        Error::new(ErrorKind::Output, format!("cannot write the compressed image {}: {error}", out.name()))
    };
    let len = image.len();
    let count = len.div_ceil(FRAME_BYTES as u64);
    if count > u64::from(MAX_FRAMES) {
        return Err(Error::new(ErrorKind::Limit, format!("an image of {len} bytes is too large to be compressed")));
    }
    let starts: Vec<u64> = (0..count).map(|frame| frame * FRAME_BYTES as u64).collect();
    let hole = frame(&mut compressor(level).map_err(failed)?, &vec![0; FRAME_BYTES]).map_err(failed)?;
    let threads = threads.max(1);
    let mut at = 0;
    let mut table = Vec::new();
    for starts in starts.chunks(threads * FRAMES_PER_THREAD) {
        for (start, frame) in starts.iter().zip(frames(image, starts, &hole, level, threads).map_err(failed)?) {
            out.write_at(at, &frame).map_err(failed)?;
            at += frame.len() as u64;
            table.extend_from_slice(&(frame.len() as u32).to_le_bytes());
            table.extend_from_slice(&(frame_len(len, *start) as u32).to_le_bytes());
        }
    }
    let table = seek_table(table, count as u32);
    out.write_at(at, &table).map_err(failed)?;
    out.set_len(at + table.len() as u64).map_err(failed)
}

/// Bytes of the image in the frame that begins at `start`.
fn frame_len(len: u64, start: u64) -> usize {
    (len - start).min(FRAME_BYTES as u64) as usize
}

fn compressor(level: i32) -> io::Result<Compressor<'static>> {
    let mut compressor = Compressor::new(level)?;
    compressor.set_parameter(CParameter::ChecksumFlag(true))?;
    Ok(compressor)
}

fn frame(compressor: &mut Compressor<'_>, bytes: &[u8]) -> io::Result<Vec<u8>> {
    compressor.compress(bytes)
}

/// The frames that begin at these places.
fn frames(image: &ImageFile, starts: &[u64], hole: &[u8], level: i32, threads: usize) -> io::Result<Vec<Vec<u8>>> {
    let work = |starts: &[u64]| -> io::Result<Vec<Vec<u8>>> {
        let mut compressor = compressor(level)?;
        let mut bytes = vec![0; FRAME_BYTES];
        let one = |start: &u64| {
            let len = frame_len(image.len(), *start);
            if len == FRAME_BYTES && !image.has_data(*start..*start + len as u64) {
                return Ok(hole.to_vec());
            }
            image.read_at(*start, &mut bytes[..len])?;
            frame(&mut compressor, &bytes[..len])
        };
        starts.iter().map(one).collect()
    };
    let share = starts.len().div_ceil(threads);
    std::thread::scope(|scope| {
        let workers: Vec<_> = starts.chunks(share).map(|starts| scope.spawn(move || work(starts))).collect();
        let mut all = Vec::new();
        for worker in workers {
            all.extend(worker.join().map_err(|_| io::Error::other("a thread that compresses has panicked"))??);
        }
        Ok(all)
    })
}

/// A frame that decoders pass over, with the sizes of all others.
fn seek_table(entries: Vec<u8>, count: u32) -> Vec<u8> {
    let mut table = TABLE_MAGIC.to_le_bytes().to_vec();
    table.extend_from_slice(&(entries.len() as u32 + 9).to_le_bytes());
    table.extend(entries);
    table.extend_from_slice(&count.to_le_bytes());
    // No checksums in the table: each frame has its own.
    table.push(0);
    table.extend_from_slice(&SEEKABLE_MAGIC.to_le_bytes());
    table
}
