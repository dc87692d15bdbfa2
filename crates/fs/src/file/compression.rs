//! Compression on write: which data, by which method, and the compressing itself, on all cores and without a lock.
//!
//! Data that is written back together is cut into chunks of 128 KiB. One that becomes smaller by at least a sector is
//! stored as a compressed extent, the others as ordinary data. As in the kernel, a file of which a chunk did not become
//! smaller is not tried again (`NOCOMPRESS`), unless its property or `compress-force` asks for it.
//!
//! Not here: the streams ([`codec`](super::codec)), places on disk ([`placement`](super::placement)), small files in
//! their items ([`inline`](super::inline)).

use super::Files;
use super::codec::{Encoder, MAX_UNCOMPRESSED};
use crate::error::Result;
use crate::file_buffer::DirtyRuns;
use crate::inode::Inode;
use crate::inode::property::Compression;
use crate::options::{Algorithm, Method};
use butterfs_ondisk::items::inode_flags;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that are compressed before the first of them is written.
pub(super) const BATCH_BYTES: u64 = 8 << 20;
/// Bytes that are looked at to guess whether data becomes smaller.
const SAMPLE_BYTES: usize = 8 << 10;
/// Bytes that are looked at in one place.
const SAMPLE_PIECE: usize = 16;
/// Data with more information per byte is not worth trying. Noise has 7.98 in a sample of this size.
const HOPELESS_BITS: f64 = 7.7;

/// How data of a file is to be compressed.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompressionRequest {
    pub method: Method,
    /// Try everything.
    forced: bool,
    /// Go on after a failure.
    stubborn: bool,
}

impl CompressionRequest {
    /// To compress data once by a method, whatever the file's own request is.
    pub fn of(method: Method) -> CompressionRequest {
        CompressionRequest { method, forced: false, stubborn: true }
    }
}

/// Data as it will lie on disk.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub algorithm: Algorithm,
    /// The stream, padded to whole sectors.
    pub bytes: Vec<u8>,
}

/// A range of the file that becomes one extent; an uncompressed one may become several.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub file: Range<u64>,
    pub stored: Option<Stored>,
}

impl Piece {
    pub fn plain(file: Range<u64>) -> Piece {
        Piece { file, stored: None }
    }

    /// Bytes that it takes on disk.
    pub fn disk_len(&self) -> u64 {
        self.stored.as_ref().map_or(self.file.end - self.file.start, |stored| stored.bytes.len() as u64)
    }
}

/// The outcome of a chunk.
enum Outcome {
    Compressed(Stored),
    /// Not tried.
    Skipped,
    /// Tried in vain.
    Incompressible,
}

impl Files {
    /// Whether and how new data of the file is compressed.
    pub(super) fn compression_request(&self, inode: &Inode) -> Result<Option<CompressionRequest>> {
        let flags = inode.with(|state| state.flags());
        let policy = self.engine.data_policy();
        if flags & (inode_flags::NODATACOW | inode_flags::NODATASUM) != 0 {
            return Ok(None);
        }
        let asked = policy.compress.is_some() || flags & inode_flags::COMPRESS != 0;
        if !asked || !policy.force && flags & inode_flags::NOCOMPRESS != 0 {
            return Ok(None);
        }
        let property = inode.compression(&self.engine)?;
        let property = property.and_then(|value| Compression::parse(&value).ok()).and_then(Compression::method);
        let method = property.or(policy.compress).unwrap_or(Algorithm::Zlib.into());
        Ok(Some(CompressionRequest { method, forced: policy.force, stubborn: policy.force || property.is_some() }))
    }

    /// An extent of this algorithm is about to be recorded.
    pub(super) fn announce(&self, algorithm: Algorithm) {
        let needed = algorithm.incompat();
        if needed != 0 && !self.engine.has_incompat(needed) {
            self.engine.set_incompat(needed);
        }
    }

    pub(super) fn encoder(&self) -> Lent<'_> {
        let encoder = self.encoders.lock().pop().unwrap_or_default();
        Lent { files: self, encoder: Some(encoder) }
    }

    /// Cuts `ranges` into pieces, compressed as far as that is worth it.
    pub(super) fn compress(
        &self,
        inode: &Arc<Inode>,
        runs: &DirtyRuns,
        ranges: &[Range<u64>],
        request: CompressionRequest,
    ) -> Result<Vec<Piece>> {
        let chunks: Vec<Range<u64>> = ranges.iter().flat_map(chunks_of).collect();
        let outcomes = self.helpers.map(
            self.engine.env(),
            chunks.len(),
            || self.encoder(),
            |encoder, index| self.try_chunk(encoder.get(), &gathered(runs, &chunks[index]), request),
        );
        if !request.stubborn && outcomes.iter().any(|outcome| matches!(outcome, Outcome::Incompressible)) {
            // Nothing freezes meanwhile, so that the inode is written with a transaction.
            let _handle = self.engine.join()?;
            inode.change_uncounted(|state| state.set_flags(inode_flags::NOCOMPRESS));
        }
        let mut pieces: Vec<Piece> = Vec::new();
        for (file, outcome) in chunks.into_iter().zip(outcomes) {
            match (outcome, pieces.last_mut()) {
                (Outcome::Compressed(stored), _) => {
                    self.announce(stored.algorithm);
                    pieces.push(Piece { file, stored: Some(stored) });
                }
                (_, Some(last)) if last.stored.is_none() && last.file.end == file.start => last.file.end = file.end,
                _ => pieces.push(Piece::plain(file)),
            }
        }
        Ok(pieces)
    }

    fn try_chunk(&self, encoder: &mut Encoder, data: &[u8], request: CompressionRequest) -> Outcome {
        if data.len() as u64 <= self.sector() || !request.forced && !seems_compressible(data) {
            return Outcome::Skipped;
        }
        match encoder.compress(request.method, data, self.engine.sectorsize()) {
            None => Outcome::Incompressible,
            Some(mut bytes) => {
                bytes.resize(bytes.len().next_multiple_of(self.sector() as usize), 0);
                Outcome::Compressed(Stored { algorithm: request.method.algorithm, bytes })
            }
        }
    }
}

/// An encoder that goes back when dropped.
pub(super) struct Lent<'a> {
    files: &'a Files,
    encoder: Option<Encoder>,
}

impl Lent<'_> {
    pub fn get(&mut self) -> &mut Encoder {
        self.encoder.get_or_insert_default()
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut idle = self.files.encoders.lock();
        if idle.len() < self.files.engine.env().threads() {
            idle.extend(self.encoder.take());
        }
    }
}

fn chunks_of(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let end = range.end;
    range.clone().step_by(MAX_UNCOMPRESSED).map(move |start| start..end.min(start + MAX_UNCOMPRESSED as u64))
}

/// The first ranges of `ranges`, with at most `most` bytes; they are taken out.
pub(super) fn take_batch(ranges: &mut Vec<Range<u64>>, most: u64) -> Vec<Range<u64>> {
    let (mut batch, mut room) = (Vec::new(), most);
    ranges.retain_mut(|range| {
        let taken = range.start..range.end.min(range.start + room);
        room -= taken.end - taken.start;
        range.start = taken.end;
        if !taken.is_empty() {
            batch.push(taken);
        }
        !range.is_empty()
    });
    batch
}

/// The buffered data of a range that runs cover.
fn gathered<'a>(runs: &'a DirtyRuns, range: &Range<u64>) -> Cow<'a, [u8]> {
    let mut pieces = runs.pieces(range.clone());
    let first = pieces.next().map_or(&[][..], |(_, piece)| piece);
    if first.len() as u64 == range.end - range.start {
        return Cow::Borrowed(first);
    }
    let mut whole = Vec::with_capacity((range.end - range.start) as usize);
    whole.extend_from_slice(first);
    pieces.for_each(|(_, piece)| whole.extend_from_slice(piece));
    Cow::Owned(whole)
}

/// A guess from a sample: how evenly byte values are spread, and whether the sample repeats itself.
fn seems_compressible(data: &[u8]) -> bool {
    let mut counts = [0u32; 256];
    let stride = (data.len() * SAMPLE_PIECE / SAMPLE_BYTES).max(SAMPLE_PIECE);
    let mut total = 0u32;
    for piece in data.chunks(stride).map(|piece| &piece[..piece.len().min(SAMPLE_PIECE)]) {
        piece.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
        total += piece.len() as u32;
    }
    let share = |count: u32| f64::from(count) / f64::from(total.max(1));
    let bits: f64 = counts.iter().filter(|&&count| count > 0).map(|&count| -share(count) * share(count).log2()).sum();
    bits < HOPELESS_BITS || repeats(data)
}

/// Whether the second half of the data is the first one again, as far as a few places tell.
fn repeats(data: &[u8]) -> bool {
    let (first, second) = data.split_at(data.len() / 2);
    let stride = (first.len() / 64).max(SAMPLE_PIECE);
    let mut samples = (0..first.len() - first.len().min(SAMPLE_PIECE)).step_by(stride);
    !first.is_empty() && samples.all(|at| first[at..at + SAMPLE_PIECE] == second[at..at + SAMPLE_PIECE])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        butterfs_testkit::rng::Rng::new(7).fill(&mut bytes);
        bytes
    }

    #[test]
    fn noise_is_told_from_what_compresses() {
        for len in [8192, 12288, 65536, 131_072] {
            assert!(!seems_compressible(&noise(len)), "{len}");
            assert!(seems_compressible(&noise(len / 2).repeat(2)), "{len}");
            assert!(seems_compressible(&vec![0; len]), "{len}");
            let text: Vec<u8> = (0..len as u32).flat_map(|i| i.to_string().into_bytes()).take(len).collect();
            assert!(seems_compressible(&text), "{len}");
        }
    }

    #[test]
    fn chunks_and_batches_cover_what_they_are_cut_from() {
        let chunks: Vec<_> = chunks_of(&(4096..4096 + 300_000)).collect();
        assert_eq!(chunks, [4096..135_168, 135_168..266_240, 266_240..304_096]);
        let mut ranges = vec![0..10, 20..50, 60..70];
        assert_eq!(take_batch(&mut ranges, 25), [0..10, 20..35]);
        assert_eq!(ranges, [35..50, 60..70]);
        assert_eq!(take_batch(&mut ranges, 100), [35..50, 60..70]);
        assert!(ranges.is_empty());
    }
}
