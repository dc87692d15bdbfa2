//! Writing extents that arrive compressed, as a send stream carries them.
//!
//! # Invariants
//! 1. Nothing is recorded that does not decode: whoever reads the file later gets what the sender had.
//! 2. What the format cannot hold as it is (a window that is not made of sectors, another sector size, a file without
//!    checksums, more than one compressed extent may have) is decoded and written like any data.

use super::Files;
use super::codec::{self, Algorithm, MAX_COMPRESSED, MAX_UNCOMPRESSED};
use super::placement::Chunk;
use super::recording::Booking;
use crate::error::{Errno, Error, Result};
use crate::extent::TreeItems;
use crate::extent::checksums;
use crate::extent::rows;
use crate::file_extent::{ExtentKind, FileExtent};
use crate::inode::Inode;
use butterfs_ondisk::Logical;
use butterfs_ondisk::items::inode_flags;
use butterfs_volume::Caching;
use std::ops::Range;
use std::sync::Arc;

/// The largest amount that is decoded at once: eight times what an extent holds.
const LARGEST: u64 = 1 << 20;
/// Old extents that one step of recording drops.
const DROPPED_PER_STEP: usize = 16;

/// A compressed extent, and the window of it that a file gets.
#[derive(Clone, Copy, Debug)]
pub struct Encoded<'a> {
    /// How it is compressed.
    pub algorithm: Algorithm,
    /// The sector size that the compressor worked with; LZO depends on it.
    pub sectorsize: u32,
    /// The compressed bytes.
    pub data: &'a [u8],
    /// The decoded length of all of it, in bytes.
    pub unencoded_len: u64,
    /// The position at which the window begins in that.
    pub unencoded_offset: u64,
    /// Bytes of the window.
    pub file_len: u64,
}

impl Encoded<'_> {
    /// Everything it decodes to; what the stream does not reach is zero.
    pub fn decode(&self) -> Result<Vec<u8>> {
        let inside = self.unencoded_offset.checked_add(self.file_len).is_some_and(|end| end <= self.unencoded_len);
        if !inside || self.unencoded_len > LARGEST || self.data.len() as u64 > LARGEST {
            return Err(Error::refused(Errno::EINVAL, "the lengths of the encoded data make no sense"));
        }
        let mut content = vec![0; self.unencoded_len as usize];
        codec::decompress(self.algorithm, self.data, &mut content, self.sectorsize)
            .map_err(|error| Error::refused_at(Errno::EIO, format!("the encoded data does not decode: {error}")))?;
        Ok(content)
    }

    /// The bytes that the file gets, of all that was decoded.
    pub fn window<'c>(&self, content: &'c [u8]) -> &'c [u8] {
        &content[self.unencoded_offset as usize..(self.unencoded_offset + self.file_len) as usize]
    }
}

impl Files {
    /// Writes the window of `encoded` at `offset`; with `keep` as it is, where that is possible. The file loses its
    /// capabilities.
    pub fn write_encoded(&self, inode: &Arc<Inode>, offset: u64, encoded: &Encoded<'_>, keep: bool) -> Result<()> {
        self.must_be_writable(inode)?;
        self.must_fit(offset, encoded.file_len)?;
        let content = encoded.decode()?;
        if keep && self.can_hold(inode, offset, encoded) && self.store(inode, offset, encoded)? {
            return Ok(());
        }
        self.write(inode, offset, encoded.window(&content), Some(false)).map(drop)
    }

    /// Whether an extent of this form may be in the file at this place.
    fn can_hold(&self, inode: &Inode, offset: u64, encoded: &Encoded<'_>) -> bool {
        let sector = self.sector();
        let disk_len = (encoded.data.len() as u64).next_multiple_of(sector);
        let no_sums = inode_flags::NODATASUM | inode_flags::NODATACOW;
        offset.is_multiple_of(sector)
            && encoded.unencoded_offset.is_multiple_of(sector)
            && encoded.file_len > 0
            && (1..=MAX_COMPRESSED).contains(&encoded.data.len())
            && encoded.unencoded_len <= MAX_UNCOMPRESSED as u64
            && disk_len < encoded.unencoded_len
            && (encoded.algorithm != Algorithm::Lzo || u64::from(encoded.sectorsize) == sector)
            && !inode.with(|state| state.has(no_sums))
    }

    /// Stores the extent as it is; false when there is no place for it.
    fn store(&self, inode: &Arc<Inode>, offset: u64, encoded: &Encoded<'_>) -> Result<bool> {
        // No write may move the end of the file meanwhile.
        let _whole = inode.data.whole.write();
        let _mapping = inode.data.lock_mapping();
        self.write_back_locked(inode)?;
        let end = offset + encoded.file_len;
        if !end.is_multiple_of(self.sector()) && end < inode.size() {
            return Ok(false);
        }
        if offset > 0 && (offset > inode.size() || self.is_inline(inode)?) {
            self.rewrite_tail(inode)?;
        }
        let disk_len = self.round_up(encoded.data.len() as u64);
        let mut chunk = match self.allocate((disk_len, disk_len), Files::stream_of(inode), &mut None) {
            Ok(chunk) => chunk,
            Err(error) if error.is(Errno::ENOSPC) => return Ok(false),
            Err(error) => return Err(error),
        };
        let mut padded = encoded.data.to_vec();
        padded.resize(disk_len as usize, 0);
        rows::write(&self.engine, chunk.at, &padded, Caching::Kept)?;
        chunk.written();
        let digests = self.layout().digests(&padded);
        self.record_encoded(inode, offset..end, encoded, &digests, &mut chunk)?;
        Ok(true)
    }

    /// Puts the extent at the start of `chunk` into the trees, in the place of what the file has there.
    fn record_encoded(
        &self,
        inode: &Arc<Inode>,
        bytes: Range<u64>,
        encoded: &Encoded<'_>,
        digests: &[u8],
        chunk: &mut Chunk<'_>,
    ) -> Result<()> {
        let range = bytes.start..self.round_up(bytes.end);
        let at: Logical = chunk.at;
        let extent = FileExtent {
            ram_bytes: self.round_up(encoded.unencoded_len),
            compression: encoded.algorithm.raw(),
            disk_len: chunk.len,
            offset: encoded.unencoded_offset,
            ..FileExtent::new(ExtentKind::Regular, range.start, at, range.end - range.start, 0)
        };
        let items = DROPPED_PER_STEP as u64 + 8 + digests.len() as u64 / (u64::from(self.engine.nodesize()) / 2);
        let mut done = range.start;
        while done < range.end {
            self.preload_extents(inode, &(done..range.end));
            self.preload_checksums(at, chunk.len);
            let handle = self.start_recording(items)?;
            let _guard = inode.lock_extents()?;
            let first = done == range.start;
            let mut step = || -> Result<u64> {
                let context = self.context(inode, handle.generation());
                let mut items = TreeItems::editing(&handle, &inode.tree);
                let mut booking = Booking::new(&handle, inode);
                if first {
                    self.announce(encoded.algorithm);
                    let mut csums = TreeItems::editing(&handle, &self.engine.globals().csum);
                    checksums::insert(&mut csums, self.layout(), at, digests)?;
                    inode.kill_privileges(&handle, false)?;
                }
                let stopped = context.drop_range(&mut items, &(done..range.end), DROPPED_PER_STEP, &mut booking)?;
                let part = FileExtent { generation: context.generation, ..extent.part(&(done..stopped)) };
                context.insert(&mut items, &part, first, &mut booking)?;
                if first {
                    chunk.recorded(chunk.len);
                }
                let now = self.engine.env().now();
                let seen = stopped.min(bytes.end);
                inode.change(|state| {
                    state.size = state.size.max(seen);
                    state.touch_content(now);
                });
                self.advance_size(inode, &context, &mut items, seen, |state| booking.apply(state))?;
                Ok(stopped)
            };
            done = step().inspect_err(|error| handle.failed(error))?;
        }
        Ok(())
    }
}
