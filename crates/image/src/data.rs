//! Contents of files on their way into the image: packed by the pool, placed one behind the other, written, remembered.
//!
//! # Invariants
//! 1. Addresses ascend in the order in which sources give contents, whatever finishes first.
//! 2. No extent crosses the end of a chunk, or lies where a superblock copy does.
//! 3. Nothing is written behind the limit of the image.
//! 4. The logical address of data is its place on the device.

use crate::entry::Content;
use crate::error::{Error, ErrorKind, Result};
use crate::pool::{Encoding, Packed, Piece, Pool, SECTOR};
use crate::reflink::SharingFile;
use crate::spool::Spool;
use butterfs_device::BlockDevice;
use butterfs_fs::options::{Algorithm, Method};
use butterfs_ondisk::chunk::STRIPE_LEN;
use butterfs_ondisk::superblock::OFFSETS;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

/// Which content: a number of [`Data`].
pub type ContentId = u32;

/// Uncompressed bytes of a compressed extent.
const COMPRESSED_PIECE: usize = 128 << 10;
/// Bytes of a piece that is not going to be compressed.
const PLAIN_PIECE: usize = 1 << 20;
/// Bytes that are shared with a file at once.
const SHARED_PIECE: usize = 4 << 20;
/// Longest plain extent, as the kernel has it.
const MAX_EXTENT: u64 = 128 << 20;
/// Bytes that are written at once.
const WRITE_AT_ONCE: usize = 1 << 20;
/// Longest file.
pub const MAX_FILE_SIZE: u64 = i64::MAX as u64;
/// Bytes of memory that an extent takes, with the reference that is made of it.
const EXTENT_COST: usize = 2 * size_of::<Extent>();
/// Bytes of a data chunk.
pub const CHUNK_LEN: u64 = 1 << 30;

/// Where a content is.
#[derive(Clone, Debug, Default)]
pub enum Stored {
    /// There is none: nothing but a hole.
    #[default]
    Nowhere,
    /// In the item: where in the spool, how many bytes, before compression, and how compressed.
    Inline { at: u64, stored: u16, len: u16, compression: u8 },
    /// In extents, ascending by their place in the file.
    Extents(Vec<Extent>),
}

/// A part of a file in an extent of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins in the file.
    pub at: u64,
    /// Bytes of the file, in whole sectors.
    pub len: u64,
    /// Logical address.
    pub address: u64,
    /// Bytes on disk.
    pub stored: u64,
    /// `btrfs_file_extent_item`'s `compression`.
    pub compression: u8,
}

/// Checksums of neighbouring sectors.
#[derive(Debug)]
struct Checksums {
    address: u64,
    bytes: Vec<u8>,
}

/// See the [module](self).
pub struct Data {
    device: Arc<dyn BlockDevice>,
    pool: Pool,
    /// The first data chunk's address.
    start: u64,
    /// The next free address.
    next: u64,
    /// The address behind which nothing may be.
    end: u64,
    contents: Vec<Stored>,
    checksums: Vec<Checksums>,
    checksum_len: usize,
    /// Inline contents.
    spool: Spool,
    /// Features that the compressed contents need.
    incompat: u64,
    /// Bytes on their way to the device, and their address.
    buffer: (u64, Vec<u8>),
    /// The image, if contents are to share their place with files.
    sharing: Option<SharingFile>,
    /// Bytes of memory for contents, extents and checksums, about.
    memory: u64,
    /// Most of them.
    most_memory: u64,
}

/// How a content is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Storage {
    /// How to compress it.
    pub method: Option<Method>,
    /// To be overwritten in place: neither checksums nor compression.
    pub in_place: bool,
    /// Without checksums.
    pub without_checksums: bool,
}

/// Where data goes.
pub struct Room {
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// The first data chunk's first byte.
    pub start: u64,
    /// Behind the last byte that data may reach.
    pub end: u64,
    /// Most bytes of memory for places and checksums of contents.
    pub memory: u64,
}

impl Data {
    /// Nothing yet.
    pub fn new(room: Room, threads: usize, encoding: Encoding, spool: Spool) -> Data {
        Data {
            device: room.device,
            pool: Pool::new(threads, encoding),
            start: room.start,
            next: room.start,
            end: room.end,
            contents: Vec::new(),
            checksums: Vec::new(),
            checksum_len: encoding.checksum.len(),
            spool,
            incompat: 0,
            buffer: (0, Vec::new()),
            sharing: None,
            memory: 0,
            most_memory: room.memory,
        }
    }

    fn take_memory(&mut self, bytes: usize) -> Result<()> {
        self.memory += bytes as u64;
        if self.memory > self.most_memory {
            let most = self.most_memory;
            let sentence =
                format!("places and checksums of contents take more than {most} bytes of memory, which is the limit");
            return Err(Error::new(ErrorKind::Limit, sentence));
        }
        Ok(())
    }

    /// Takes a content in.
    pub fn add(&mut self, content: Content<'_>, storage: Storage) -> Result<ContentId> {
        let Content { size, data, reader, file } = content;
        check_ranges(size, &data)?;
        let owner =
            ContentId::try_from(self.contents.len()).map_err(|_| Error::new(ErrorKind::Limit, "too many files"))?;
        self.take_memory(size_of::<Stored>())?;
        self.contents.push(Stored::Nowhere);
        let method = storage.method.filter(|_| !storage.in_place);
        if let Some(file) = file.filter(|_| self.sharing.is_some() && method.is_none() && size > SECTOR as u64) {
            self.share(owner, file, runs(size, &data), storage)?;
            return Ok(owner);
        }
        let piece_len = if method.is_some() { COMPRESSED_PIECE } else { PLAIN_PIECE };
        let runs = runs(size, &data);
        let whole = runs.len() == 1 && runs[0] == (0..size);
        let template = |at, bytes: Vec<u8>| Piece {
            owner,
            at,
            may_be_inline: whole && at == 0 && bytes.len() as u64 == size && !storage.in_place,
            bytes,
            method,
            checksums: !storage.in_place && !storage.without_checksums,
        };
        let mut source = Bytes::new(data, reader);
        for run in runs {
            for at in run.clone().step_by(piece_len) {
                let mut bytes = vec![0; piece_len.min((run.end - at) as usize)];
                source.fill(at, &mut bytes)?;
                for packed in self.pool.put(template(at, bytes)) {
                    self.place(packed)?;
                }
            }
        }
        Ok(owner)
    }

    /// Waits until everything is placed and written.
    pub fn finish(&mut self) -> Result<()> {
        for packed in self.pool.finish() {
            self.place(packed)?;
        }
        self.write_out()
    }

    /// Where a content is; known after [`finish`](Self::finish).
    pub fn stored(&self, id: ContentId) -> &Stored {
        &self.contents[id as usize]
    }

    /// An inline content.
    pub fn inline(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.spool.read(at, out)
    }

    /// All addresses that data has had.
    pub fn used(&self) -> Range<u64> {
        self.start..self.next
    }

    /// Checksums of the sectors from `address` on, as many as there are in one piece, at most `sectors`.
    pub fn checksums(&self, address: u64, sectors: usize) -> Option<&[u8]> {
        let index = self.checksums.partition_point(|it| it.address <= address).checked_sub(1)?;
        let run = &self.checksums[index];
        let from = (address - run.address) as usize / SECTOR * self.checksum_len;
        let rest = run.bytes.get(from..)?;
        Some(&rest[..rest.len().min(sectors * self.checksum_len)]).filter(|rest| !rest.is_empty())
    }

    /// `incompat` features that the contents need.
    pub fn incompat(&self) -> u64 {
        self.incompat
    }

    /// From now on, contents that are not compressed share their place on the host with the files that they come from.
    pub fn share_with(&mut self, image: SharingFile) {
        self.sharing = Some(image);
    }

    /// Takes a content in that shares its place with a file. Contents before it are placed before it.
    fn share(&mut self, owner: ContentId, file: &File, runs: Vec<Range<u64>>, storage: Storage) -> Result<()> {
        for packed in self.pool.finish() {
            self.place(packed)?;
        }
        for run in runs {
            for at in run.clone().step_by(SHARED_PIECE) {
                let len = SHARED_PIECE.min((run.end - at) as usize);
                let stored = len.next_multiple_of(SECTOR) as u64;
                let address = self.allocate(stored)?;
                let image = self.sharing.as_ref().expect("the caller has looked");
                let bytes = image.share(file, at, len, address)?;
                let has_checksums = !storage.in_place && !storage.without_checksums;
                self.note_checksums(address, has_checksums.then(|| self.pool.checksum(&bytes)))?;
                self.note_extent(owner, Extent { at, len: stored, address, stored, compression: 0 })?;
            }
        }
        Ok(())
    }

    fn place(&mut self, packed: Packed) -> Result<()> {
        self.incompat |= Algorithm::from_raw(packed.compression).map_or(0, Algorithm::incompat);
        if packed.is_inline {
            let at = self.spool.append(&packed.stored)?;
            let (stored, len, compression) = (packed.stored.len() as u16, packed.len as u16, packed.compression);
            self.contents[packed.owner as usize] = Stored::Inline { at, stored, len, compression };
            return Ok(());
        }
        let stored = packed.stored.len() as u64;
        let address = self.allocate(stored)?;
        self.note_checksums(address, packed.checksums)?;
        let extent = Extent {
            at: packed.at,
            len: u64::from(packed.len).next_multiple_of(SECTOR as u64),
            address,
            stored,
            compression: packed.compression,
        };
        self.note_extent(packed.owner, extent)?;
        self.write(address, &packed.stored)
    }

    /// The next place for so many bytes.
    fn allocate(&mut self, len: u64) -> Result<u64> {
        let mut at = self.next;
        loop {
            let chunk_end = at - (at - self.start) % CHUNK_LEN + CHUNK_LEN;
            let hit = OFFSETS.iter().map(|it| it.0..it.0 + STRIPE_LEN).find(|it| it.start < at + len && at < it.end);
            at = match hit {
                _ if at + len > chunk_end => chunk_end,
                Some(hit) => hit.end,
                None => break,
            };
        }
        if at + len > self.end {
            let sentence = format!("the content does not fit into {} bytes", self.end);
            return Err(Error::new(ErrorKind::NoSpace, sentence));
        }
        self.next = at + len;
        Ok(at)
    }

    fn note_checksums(&mut self, address: u64, checksums: Option<Vec<u8>>) -> Result<()> {
        let Some(new) = checksums else { return Ok(()) };
        self.take_memory(new.len())?;
        let (sector, len) = (SECTOR as u64, self.checksum_len as u64);
        match self.checksums.last_mut() {
            // Runs are bounded, so that growing one does not copy all of them.
            Some(last)
                if last.address + last.bytes.len() as u64 / len * sector == address && last.bytes.len() < 1 << 20 =>
            {
                last.bytes.extend_from_slice(&new);
            }
            _ => self.checksums.push(Checksums { address, bytes: new }),
        }
        Ok(())
    }

    /// Adds an extent to its file; plain ones that are neighbours in the file and on disk become one.
    fn note_extent(&mut self, owner: ContentId, new: Extent) -> Result<()> {
        let stored = &mut self.contents[owner as usize];
        let Stored::Extents(extents) = stored else {
            *stored = Stored::Extents(vec![new]);
            return self.take_memory(EXTENT_COST);
        };
        let in_one_chunk = |a: u64, b: u64| (a - self.start) / CHUNK_LEN == (b - self.start) / CHUNK_LEN;
        match extents.last_mut() {
            Some(last)
                if last.compression == 0
                    && new.compression == 0
                    && last.at + last.len == new.at
                    && last.address + last.stored == new.address
                    && last.len + new.len <= MAX_EXTENT
                    && in_one_chunk(last.address, new.address) =>
            {
                last.len += new.len;
                last.stored += new.stored;
                Ok(())
            }
            _ => {
                extents.push(new);
                self.take_memory(EXTENT_COST)
            }
        }
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        let (start, buffer) = &mut self.buffer;
        if *start + buffer.len() as u64 != address || buffer.len() + bytes.len() > WRITE_AT_ONCE {
            self.write_out()?;
            self.buffer.0 = address;
        }
        self.buffer.1.extend_from_slice(bytes);
        Ok(())
    }

    fn write_out(&mut self) -> Result<()> {
        let (start, buffer) = &mut self.buffer;
        if !buffer.is_empty() {
            let at = *start;
            self.device.write_at(at, buffer).map_err(|error| {
                let name = self.device.name();
                Error::new(ErrorKind::Output, format!("cannot write {} bytes at {at} of {name}: {error}", buffer.len()))
            })?;
            buffer.clear();
        }
        Ok(())
    }
}

fn check_ranges(size: u64, data: &[Range<u64>]) -> Result<()> {
    if size > MAX_FILE_SIZE {
        return Err(Error::content(format!("a file of {size} bytes is larger than any filesystem can have")));
    }
    let mut end = 0;
    for range in data {
        if range.start < end || range.end <= range.start || range.end > size {
            let (start, stop) = (range.start, range.end);
            return Err(Error::content(format!(
                "data from {start} to {stop} does not fit into a file of {size} bytes"
            )));
        }
        end = range.end;
    }
    Ok(())
}

/// The sectors in which data is, as few ranges as possible; the last one ends with the file.
fn runs(size: u64, data: &[Range<u64>]) -> Vec<Range<u64>> {
    let sector = SECTOR as u64;
    let mut out: Vec<Range<u64>> = Vec::new();
    for range in data {
        let (start, end) = (range.start / sector * sector, range.end.next_multiple_of(sector).min(size));
        match out.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max(end),
            _ => out.push(start..end),
        }
    }
    out
}

/// The bytes of a file where it has data.
pub struct Bytes<'a> {
    /// The ranges that have not been read yet.
    ranges: std::iter::Peekable<std::vec::IntoIter<Range<u64>>>,
    reader: &'a mut dyn Read,
}

impl<'a> Bytes<'a> {
    /// The bytes that `reader` gives for these ranges.
    pub fn new(ranges: Vec<Range<u64>>, reader: &'a mut dyn Read) -> Bytes<'a> {
        Bytes { ranges: ranges.into_iter().peekable(), reader }
    }

    /// Fills `out`, which is zero and lies at `at` in the file, with the data there. Calls ascend.
    pub fn fill(&mut self, at: u64, out: &mut [u8]) -> Result<()> {
        let end = at + out.len() as u64;
        while let Some(range) = self.ranges.peek_mut().filter(|range| range.start < end) {
            let to = range.end.min(end);
            let part = &mut out[(range.start - at) as usize..(to - at) as usize];
            self.reader.read_exact(part).map_err(read_error)?;
            range.start = to;
            if range.start == range.end {
                self.ranges.next();
            }
        }
        Ok(())
    }
}

fn read_error(error: std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => Error::source("the content ends early"),
        _ => Error::source(format!("cannot read the content: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_inside_of_sectors_becomes_runs_and_is_read_where_it_belongs() {
        let data = vec![100..200, 3000..5000, 20000..20001, 40000..41000];
        assert_eq!(runs(41000, &data), [0..8192, 16384..20480, 36864..41000]);
        let source: Vec<u8> = (0..3101u32).map(|n| n as u8 | 1).collect();
        let mut reader = source.as_slice();
        let mut bytes = Bytes::new(data.clone(), &mut reader);
        let mut file = vec![0; 41000];
        for run in runs(41000, &data) {
            for at in run.clone().step_by(4096) {
                let end = run.end.min(at + 4096);
                bytes.fill(at, &mut file[at as usize..end as usize]).unwrap();
            }
        }
        let mut want = vec![0; 41000];
        let mut taken = 0;
        for range in data {
            let len = (range.end - range.start) as usize;
            want[range.start as usize..range.end as usize].copy_from_slice(&source[taken..taken + len]);
            taken += len;
        }
        assert!(file == want);
    }
}
