//! The content of a file: what was written, shared, punched, preallocated, cut off.
//!
//! Of a new file the extents come one by one. Of one that existed, the ranges come in which items differ; both
//! snapshots' extents there are compared, so that what is the same content is not sent whatever the items look like.
//!
//! # Invariants
//! 1. Nothing is written behind the end of the file.
//! 2. `FileData::size` is the file's size at the receiver after the commands so far.
//! 3. Adjoining plain content is one command, up to the longest that there is.

use super::clones::{Source, Wanted};
use super::contents::{Contents, File};
use super::error::Result;
use super::extents::{Extent, last_end, overlapping};
use crate::wire::{Command, Version};
use butterfs_fs::file_extent::{ExtentKind, INLINE_HEAD};
use butterfs_fs::{Difference, inode_flags};
use butterfs_ondisk::Key;
use butterfs_ondisk::items::{InodeItem, compression};
use std::ops::Range;

/// `fallocate(2)`: allocate, and leave the size.
const ALLOCATE: u32 = 1;
/// `fallocate(2)`: make a hole, and leave the size.
const PUNCH: u32 = 3;
/// Items of one range that are compared at once.
const MOST_ITEMS: usize = 256;

/// A part of an extent that will be written.
struct Piece {
    extent: Extent,
    start: u64,
    len: u64,
}

/// The state of the content of a file.
pub struct FileData {
    size: u64,
    /// Behind this the receiver has neither data nor space.
    old_limit: u64,
    begun: bool,
    /// The range that is compared next, and its number of items.
    dirty: Range<u64>,
    dirty_items: usize,
    pieces: Vec<Piece>,
    pieces_len: u64,
    /// Space behind the end of the file.
    beyond: Vec<Range<u64>>,
}

impl FileData {
    pub fn new(old: Option<&InodeItem>) -> FileData {
        let size = old.map_or(0, |old| old.size.get());
        FileData {
            size,
            old_limit: u64::MAX,
            begun: false,
            dirty: 0..0,
            dirty_items: 0,
            pieces: Vec::new(),
            pieces_len: 0,
            beyond: Vec::new(),
        }
    }
}

impl Contents<'_, '_, '_, '_, '_> {
    /// An item of a file's content differs.
    pub(super) fn extent(&mut self, file: &mut File, key: Key, difference: Difference<'_>) -> Result<()> {
        if file.is_fresh() {
            let Difference::Added(payload) = difference else { return Ok(()) };
            let extent = Extent::parse(key, payload, self.sector)?;
            let range = extent.extent.start..extent.extent.end();
            return self.send_extent(file, range, None, Some(&extent));
        }
        let (old, new) = match difference {
            Difference::Removed(old) => (Some(old), None),
            Difference::Added(new) => (None, Some(new)),
            Difference::Changed(old, new) => (Some(old), Some(new)),
        };
        for payload in [old, new].into_iter().flatten() {
            let item = Extent::parse(key, payload, self.sector)?.extent;
            if file.data.dirty_items >= MOST_ITEMS || item.start > file.data.dirty.end {
                self.compare(file)?;
                file.data.dirty = item.start..item.start;
            }
            if file.data.dirty.is_empty() {
                // What was compared already is not compared again.
                file.data.dirty.start = item.start.max(file.data.dirty.end);
            }
            file.data.dirty.end = item.end().max(file.data.dirty.end);
            file.data.dirty_items += 1;
        }
        Ok(())
    }

    /// Compares and sends the range that is noted.
    fn compare(&mut self, file: &mut File) -> Result<()> {
        let range = file.data.dirty.clone();
        file.data.dirty = range.end..range.end;
        file.data.dirty_items = 0;
        let Some(old) = self.old.filter(|_| !range.is_empty()) else { return Ok(()) };
        self.begin_data(file)?;
        let (before, after) = (overlapping(old, file.ino, &range)?, overlapping(self.new, file.ino, &range)?);
        let mut borders: Vec<u64> = vec![range.start, range.end];
        for extent in before.iter().chain(&after) {
            borders.extend([extent.extent.start, extent.extent.end()].into_iter().filter(|at| range.contains(at)));
        }
        borders.sort_unstable();
        borders.dedup();
        let (mut before, mut after) = (before.iter().peekable(), after.iter().peekable());
        for part in borders.windows(2) {
            let at = part[0];
            while before.next_if(|extent| extent.extent.end() <= at).is_some() {}
            while after.next_if(|extent| extent.extent.end() <= at).is_some() {}
            let old = before.peek().copied().filter(|extent| extent.extent.start <= at);
            let new = after.peek().copied().filter(|extent| extent.extent.start <= at);
            let old = old.filter(|_| at < file.data.old_limit);
            if !matches!((old, new), (Some(old), Some(new)) if old.is_same(new, at)) {
                self.send_extent(file, at..part[1], old, new)?;
            }
        }
        Ok(())
    }

    /// Cuts off what the new file does not have at its end, before anything is written.
    fn begin_data(&mut self, file: &mut File) -> Result<()> {
        let (Some(old), false) = (self.old, file.data.begun) else { return Ok(()) };
        file.data.begun = true;
        let (old_size, new_size) = (file.data.size, file.new.size.get());
        let keeps_space = self.keeps_space();
        let sector = self.sector;
        let counts = |extent: &Extent| extent.is_data() || (keeps_space && extent.is_prealloc());
        let old_end = old_size.next_multiple_of(sector);
        let had = last_end(old, file.ino, |extent| {
            counts(extent) && (extent.is_prealloc() || extent.extent.start < old_end)
        })?;
        let has = last_end(self.new, file.ino, counts)?;
        let had_more = had > has.min(new_size).next_multiple_of(sector);
        let cut = if had_more { has.min(new_size).min(old_size) } else { new_size.min(old_size) };
        if had_more || new_size < old_size {
            self.know_path(file)?;
            self.out.put(&Command::Truncate { path: &file.path, size: cut })?;
            file.content_changed();
            file.data.size = cut;
            file.data.old_limit = cut.next_multiple_of(sector);
        }
        Ok(())
    }

    /// Whether space without data travels.
    fn keeps_space(&self) -> bool {
        self.out.version() >= Version::V2 && !self.options.no_data
    }

    /// Sends what `new` has in `range`, where `old` has something else; none is a hole.
    fn send_extent(
        &mut self,
        file: &mut File,
        range: Range<u64>,
        old: Option<&Extent>,
        new: Option<&Extent>,
    ) -> Result<()> {
        let size = file.new.size.get();
        let inside = range.start..range.end.min(size).max(range.start);
        match new.filter(|extent| !extent.extent.is_hole()) {
            Some(extent) if extent.is_data() => {
                if inside.is_empty() {
                    return Ok(());
                }
                self.send_data(file, inside, extent)
            }
            Some(_) if old.is_some_and(Extent::is_prealloc) => Ok(()),
            space => {
                let has_data =
                    old.is_some_and(|old| old.is_data() && range.start < file.data.size.next_multiple_of(self.sector));
                if has_data && !inside.is_empty() {
                    self.make_hole(file, range.start..range.end.min(size.next_multiple_of(self.sector)))?;
                } else if space.is_none() && self.keeps_space() && old.is_some_and(Extent::is_prealloc) {
                    self.make_hole(file, range.clone())?;
                }
                if space.is_some() && self.keeps_space() {
                    self.reserve(file, range)?;
                }
                Ok(())
            }
        }
    }

    /// Space without data; behind the end of the file it waits until the size is set.
    fn reserve(&mut self, file: &mut File, range: Range<u64>) -> Result<()> {
        let end = file.new.size.get().next_multiple_of(self.sector);
        if range.start < end {
            self.allocate(file, range.start..range.end.min(end), ALLOCATE)?;
        }
        if range.end > end {
            file.data.beyond.push(range.start.max(end)..range.end);
        }
        Ok(())
    }

    fn allocate(&mut self, file: &mut File, range: Range<u64>, mode: u32) -> Result<()> {
        self.write_pieces(file)?;
        self.know_path(file)?;
        let (offset, len) = (range.start, range.end - range.start);
        self.out.put(&Command::Fallocate { path: &file.path, mode, offset, len })?;
        file.content_changed();
        Ok(())
    }

    fn make_hole(&mut self, file: &mut File, range: Range<u64>) -> Result<()> {
        if self.options.no_data {
            return self.tell(file, range.start..range.end.min(file.new.size.get()));
        }
        if self.out.version() >= Version::V2 {
            return self.allocate(file, range, PUNCH);
        }
        self.write_pieces(file)?;
        self.know_path(file)?;
        let (mut at, end) = (range.start, range.end.min(file.new.size.get()));
        let zeros = vec![0; (end - at).min(self.out.version().usual_data_len() as u64) as usize];
        while at < end {
            let len = (end - at).min(zeros.len() as u64);
            self.out.put(&Command::Write { path: &file.path, offset: at, data: &zeros[..len as usize] })?;
            self.wrote(file, at + len);
            at += len;
        }
        Ok(())
    }

    fn wrote(&mut self, file: &mut File, end: u64) {
        file.data.size = file.data.size.max(end);
        file.content_changed();
    }

    /// In a stream without content: that it changed.
    fn tell(&mut self, file: &mut File, range: Range<u64>) -> Result<()> {
        self.know_path(file)?;
        let (offset, len) = (range.start, range.end - range.start);
        self.out.put(&Command::UpdateExtent { path: &file.path, offset, len })?;
        self.wrote(file, range.end);
        Ok(())
    }

    /// Sends content that lies in one extent: shared, encoded or plain.
    fn send_data(&mut self, file: &mut File, range: Range<u64>, extent: &Extent) -> Result<()> {
        // Inline data of a new file ends where it ends; what follows is zero anyway.
        let end = match extent.extent.kind {
            ExtentKind::Inline if file.is_fresh() => range.end.min(extent.extent.ram_bytes),
            _ => range.end,
        };
        if self.options.no_data {
            return self.tell(file, range.start..end);
        }
        let mut at = range.start;
        while at < end {
            let (ino, size) = (file.ino, file.new.size.get());
            let wanted = Wanted { ino, start: at, len: end - at, size, extent: &extent.extent };
            let (source, shared) = self.clones.find(&wanted, self.paths, self.new)?;
            let len = source.as_ref().map_or(end - at, |source| source.len);
            match source {
                Some(source) => self.send_clone(file, at, &source)?,
                None if self.goes_encoded(extent, at, end - at) => self.send_encoded(file, at..end, extent)?,
                None => self.send_plain(file, at..end, extent)?,
            }
            if shared {
                self.clones.remember(&Wanted { len, ..wanted });
            }
            at += len;
        }
        Ok(())
    }

    fn send_clone(&mut self, file: &mut File, offset: u64, source: &Source) -> Result<()> {
        self.write_pieces(file)?;
        self.know_path(file)?;
        let end = offset + source.len;
        let (source_uuid, source_transid) = source.subvolume.unwrap_or_else(|| super::identity(self.new));
        self.out.put(&Command::Clone {
            offset,
            len: source.len,
            path: &file.path,
            source_uuid,
            source_transid,
            source: &source.path,
            source_offset: source.offset,
        })?;
        self.wrote(file, end);
        Ok(())
    }

    fn goes_encoded(&self, extent: &Extent, start: u64, len: u64) -> bool {
        let stored = match extent.extent.kind {
            ExtentKind::Inline => (extent.payload.len() - INLINE_HEAD) as u64,
            _ => extent.extent.disk_len,
        };
        let most = Version::V2.usual_data_len() as u64;
        self.options.compressed_data
            && self.out.version() >= Version::V2
            && wire_compression(extent.extent.compression, self.sector).is_some()
            && stored
                <= len.max(1).next_multiple_of(if extent.extent.kind == ExtentKind::Inline { 1 } else { self.sector })
            && stored <= most
            && extent.extent.ram_bytes <= most
            && extent.extent.offset + (start - extent.extent.start) + len <= extent.extent.ram_bytes
    }

    fn send_encoded(&mut self, file: &mut File, range: Range<u64>, extent: &Extent) -> Result<()> {
        self.write_pieces(file)?;
        self.know_path(file)?;
        let item = &extent.extent;
        let command = Command::EncodedWrite {
            path: &file.path,
            offset: range.start,
            unencoded_file_len: range.end - range.start,
            unencoded_len: item.ram_bytes,
            unencoded_offset: item.offset + (range.start - item.start),
            compression: wire_compression(item.compression, self.sector).unwrap_or(0),
            encryption: 0,
            data: &[],
        };
        let (new, verified) = (self.new, is_verified(file));
        self.out.put_filled(&command, |out| {
            if item.kind == ExtentKind::Inline {
                out.extend_from_slice(&extent.payload[INLINE_HEAD..]);
                return Ok(());
            }
            let start = out.len();
            out.resize(start + item.disk_len as usize, 0);
            Ok(new.stored_content(item, verified, &mut out[start..])?)
        })?;
        self.wrote(file, range.end);
        Ok(())
    }

    /// Adds plain content to what will be written in one command.
    fn send_plain(&mut self, file: &mut File, range: Range<u64>, extent: &Extent) -> Result<()> {
        let most = self.out.version().usual_data_len() as u64;
        let mut at = range.start;
        while at < range.end {
            let adjoins = file.data.pieces.last().is_some_and(|piece| piece.start + piece.len == at);
            if !file.data.pieces.is_empty() && (!adjoins || file.data.pieces_len >= most) {
                self.write_pieces(file)?;
            }
            let len = (range.end - at).min(most - file.data.pieces_len);
            file.data.pieces.push(Piece { extent: extent.clone(), start: at, len });
            file.data.pieces_len += len;
            at += len;
        }
        Ok(())
    }

    fn write_pieces(&mut self, file: &mut File) -> Result<()> {
        let pieces = std::mem::take(&mut file.data.pieces);
        file.data.pieces_len = 0;
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return Ok(()) };
        self.know_path(file)?;
        let command = Command::Write { path: &file.path, offset: first.start, data: &[] };
        let (new, verified, sector) = (self.new, is_verified(file), self.sector);
        self.out.put_filled(&command, |out| {
            for piece in &pieces {
                let from = piece.start - piece.extent.extent.start;
                let (head, start) = ((from % sector) as usize, out.len());
                out.resize(start + (head + piece.len as usize).next_multiple_of(sector as usize), 0);
                let into = &mut out[start..];
                new.extent_content(&piece.extent.extent, &piece.extent.payload, verified, from - head as u64, into)?;
                out.drain(start..start + head);
                out.truncate(start + piece.len as usize);
            }
            Ok(())
        })?;
        self.wrote(file, last.start + last.len);
        Ok(())
    }

    /// Sends what is left of a file's content and sets its size.
    pub(super) fn finish_data(&mut self, file: &mut File) -> Result<()> {
        self.compare(file)?;
        if file.old.is_some_and(|old| old.size != file.new.size) {
            self.begin_data(file)?;
        }
        self.write_pieces(file)?;
        if file.data.size != file.new.size.get() {
            self.know_path(file)?;
            self.out.put(&Command::Truncate { path: &file.path, size: file.new.size.get() })?;
            file.content_changed();
        }
        for range in std::mem::take(&mut file.data.beyond) {
            self.allocate(file, range, ALLOCATE)?;
        }
        Ok(())
    }
}

fn is_verified(file: &File) -> bool {
    file.new.flags.get() & inode_flags::NODATASUM == 0
}

/// The stream's number of a compression.
fn wire_compression(stored: u8, sector: u64) -> Option<u32> {
    match stored {
        compression::ZLIB => Some(1),
        compression::ZSTD => Some(2),
        compression::LZO if sector.is_power_of_two() && (4096..=65536).contains(&sector) => {
            Some(3 + sector.trailing_zeros() - 12)
        }
        _ => None,
    }
}
