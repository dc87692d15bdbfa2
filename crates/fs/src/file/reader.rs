//! Reading: the buffer over the extents, every sector verified. Compressed extents of one read are decompressed on all
//! cores. What comes next on the devices is read ahead.

use super::Files;
use super::codec::{self, Algorithm};
use crate::error::{Error, Result};
use crate::extent::TreeItems;
use crate::extent::checksums::{self, Checksums};
use crate::file_extent::{ExtentKind, FileExtent, INLINE_HEAD};
use crate::inode::Inode;
use crate::options::Canary;
use crate::transaction::{BlockSource, HeldData, without_waiting};
use butterfs_ondisk::Logical;
use butterfs_ondisk::items::inode_flags;
use butterfs_sync::Mutex;
use butterfs_volume::{Caching, MIRROR_TURN, VolumeError};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// A compressed extent that claims more, on disk or in memory, is not believed.
const LARGEST_COMPRESSED: u64 = 1 << 20;

/// Which content of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    /// The content that users see.
    Now,
    /// The content on disk.
    OnDisk,
}

/// The result of a read.
struct Seen {
    span: Range<u64>,
    /// The size of the file.
    size: u64,
}

/// The part of a file that is on disk.
#[derive(PartialEq)]
struct Parts {
    extents: Vec<FileExtent>,
    /// Every sector has a checksum.
    verified: bool,
}

impl Files {
    /// Reads up to `len` bytes at `offset` into `out`, which holds nothing else afterwards. Fewer only at the end
    /// of the file.
    pub fn read(&self, inode: &Inode, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<usize> {
        let wanted = offset..offset.saturating_add(len as u64);
        let seen = self.see(inode, &|size| wanted.start..wanted.end.min(size), Content::Now, out);
        let Seen { span, size, .. } = seen.inspect_err(|_| out.clear())?;
        let end = wanted.end.min(size);
        if span.is_empty() {
            return Ok(0);
        }
        out.truncate((end - span.start) as usize);
        out.drain(..(offset - span.start) as usize);
        Ok(out.len())
    }

    /// The sectors of `span` as they are now, zero beyond the end of the file.
    pub(super) fn sectors(&self, inode: &Inode, span: &Range<u64>) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let Seen { size, .. } = self.see(inode, &|_| span.clone(), Content::Now, &mut out)?;
        let end = size.clamp(span.start, span.end);
        out[(end - span.start) as usize..].fill(0);
        Ok(out)
    }

    /// The sectors of `span` on disk, whatever is buffered; beyond the end of the file too.
    pub(super) fn sectors_on_disk(&self, inode: &Inode, span: &Range<u64>) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.see(inode, &|_| span.clone(), Content::OnDisk, &mut out)?;
        Ok(out)
    }

    /// Reads the sectors of a part of the file, as they were at one moment, into `out`; beyond the end of the file they
    /// hold whatever is on disk. `part` is given the size. No lock is held while a device reads: what the file has
    /// where is found out with the inode locked, and its data held.
    fn see(
        &self,
        inode: &Inode,
        part: &dyn Fn(u64) -> Range<u64>,
        content: Content,
        out: &mut Vec<u8>,
    ) -> Result<Seen> {
        let mut doubted: Option<Parts> = None;
        loop {
            let moves = self.engine.moved.count();
            let found = without_waiting(self.engine.core(), &inode.tree, |source| {
                out.clear();
                let _guard = inode.lock_shared()?;
                let size = inode.size();
                let part = part(size);
                let span = if part.is_empty() { 0..0 } else { self.sectors_of(&part) };
                out.resize((span.end - span.start) as usize, 0);
                let gaps = match content {
                    Content::Now => inode.data.overlay(&span, out),
                    Content::OnDisk => vec![span.clone()],
                };
                let parts = self.parts_of(inode, (&span, &gaps), out, source)?;
                Ok((Seen { span, size }, self.hold(&parts), parts))
            });
            let (seen, _held, parts) = found.map_err(|error| in_file(inode, error))?;
            // A relocation locks no inode: what it moved between the look and the hold may have been freed already.
            if self.engine.moved.count() != moves && !parts.extents.is_empty() {
                continue;
            }
            match self.read_parts(&parts, &seen.span, out) {
                Ok(()) => return Ok(seen),
                // Space that was freed since has no checksums any more.
                Err(_) if doubted.as_ref() != Some(&parts) => doubted = Some(parts),
                // Moved while it was read.
                Err(_) if self.engine.moved.count() != moves => {}
                Err(error) => return Err(in_file(inode, error)),
            }
        }
    }

    /// Keeps the data of `parts` from being used again.
    fn hold(&self, parts: &Parts) -> Option<HeldData> {
        let mut extents: Vec<(Logical, u64)> = parts.extents.iter().map(|part| (part.at, part.disk_len)).collect();
        extents.dedup();
        (!extents.is_empty()).then(|| self.engine.core().hold_data(extents))
    }

    /// The part of the `gaps` in `span` that is on disk; what items hold goes to `out`. The inode is locked.
    fn parts_of(
        &self,
        inode: &Inode,
        (span, gaps): (&Range<u64>, &[Range<u64>]),
        out: &mut [u8],
        source: BlockSource<'_>,
    ) -> Result<Parts> {
        let context = self.context(inode, self.engine.generation());
        let items = TreeItems::reading(source, &inode.tree);
        let mut extents = Vec::new();
        for gap in gaps {
            context.overlapping(&items, gap, &mut |extent, payload| {
                let inside = extent.start.max(gap.start)..extent.end().min(gap.end);
                match extent.kind {
                    ExtentKind::Inline => {
                        let data = self.inline_data(&extent, &payload[INLINE_HEAD..])?;
                        let part = &data[inside.start as usize..inside.end as usize];
                        let from = (inside.start - span.start) as usize;
                        out[from..from + part.len()].copy_from_slice(part);
                    }
                    ExtentKind::Regular if extent.is_on_disk() => extents.push(extent.part(&inside)),
                    ExtentKind::Regular | ExtentKind::Prealloc => {}
                }
                Ok(ControlFlow::Continue(()))
            })?;
        }
        let verified = !inode.with(|state| state.has(inode_flags::NODATASUM));
        Ok(Parts { extents, verified })
    }

    /// Reads `parts`, which lie in `span`, to their places in `out`.
    fn read_parts(&self, parts: &Parts, span: &Range<u64>, out: &mut [u8]) -> Result<()> {
        if parts.extents.is_empty() {
            return Ok(());
        }
        let verified = parts.verified;
        let adjoins = |a: &FileExtent, b: &FileExtent| {
            a.compression == 0 && b.compression == 0 && a.end() == b.start && disk_end(a) == disk_start(b)
        };
        let (mut rest, mut at) = (out, span.start);
        let mut packed: Vec<(&FileExtent, Mutex<&mut [u8]>)> = Vec::new();
        for run in parts.extents.chunk_by(adjoins) {
            let (first, last) = (&run[0], &run[run.len() - 1]);
            let (into, behind) = rest.split_at_mut((last.end() - at) as usize);
            let into = &mut into[(first.start - at) as usize..];
            (rest, at) = (behind, last.end());
            if first.compression == 0 {
                self.read_data(disk_start(first), into, verified)?;
            } else {
                packed.push((first, Mutex::new(into)));
            }
        }
        let unpack = |index: usize| {
            let (part, into): &(&FileExtent, Mutex<&mut [u8]>) = &packed[index];
            self.unpack_part(part, verified, &mut into.lock())
        };
        self.helpers.map(self.engine.env(), packed.len(), || (), |(), index| unpack(index)).into_iter().collect()
    }

    /// Inline data as one sector, zero behind its end.
    pub(super) fn inline_data(&self, extent: &FileExtent, stored: &[u8]) -> Result<Vec<u8>> {
        let mut data = vec![0; self.sector() as usize];
        let len = extent.ram_bytes.min(self.sector()) as usize;
        if extent.compression == 0 {
            let len = len.min(stored.len());
            data[..len].copy_from_slice(&stored[..len]);
        } else {
            self.decompress(extent, stored, &mut data[..len])?;
        }
        Ok(data)
    }

    /// The content of an extent as its item says, from `from` bytes behind its start on, into `out`: whole sectors that
    /// lie inside it. `payload` is the item. Zero for holes and what is preallocated. For readers of trees that do not
    /// change.
    pub(crate) fn extent_content(
        &self,
        extent: &FileExtent,
        payload: &[u8],
        verified: bool,
        from: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let part = extent.start + from..extent.start + from + out.len() as u64;
        match extent.kind {
            ExtentKind::Inline => {
                let data = self.inline_data(extent, payload.get(INLINE_HEAD..).unwrap_or_default())?;
                out.copy_from_slice(&data[from as usize..from as usize + out.len()]);
            }
            ExtentKind::Regular if extent.is_on_disk() && extent.compression == 0 => {
                self.read_data(disk_start(&extent.part(&part)), out, verified)?;
            }
            ExtentKind::Regular if extent.is_on_disk() => {
                self.unpack_part(&extent.part(&part), verified, out)?;
            }
            ExtentKind::Regular | ExtentKind::Prealloc => out.fill(0),
        }
        Ok(())
    }

    /// The bytes of a whole extent as they lie on disk, compressed or not.
    pub(crate) fn stored_content(&self, extent: &FileExtent, verified: bool, out: &mut [u8]) -> Result<()> {
        self.read_data(extent.at, out, verified)
    }

    fn decompress(&self, extent: &FileExtent, stream: &[u8], out: &mut [u8]) -> Result<()> {
        let algorithm = Algorithm::from_raw(extent.compression)
            .ok_or_else(|| Error::corrupt(format!("extent at {}: unknown compression", extent.start)))?;
        codec::decompress(algorithm, stream, out, self.engine.sectorsize())
            .map_err(|error| Error::corrupt(format!("extent at {} (data at {}): {error}", extent.start, extent.at)))?;
        Ok(())
    }

    /// Decodes the bytes of a compressed extent that `part` uses. All of it is decompressed right into `out`; of an
    /// extent that is used in parts the whole is kept, because the next read is likely to want another one.
    fn unpack_part(&self, part: &FileExtent, verified: bool, out: &mut [u8]) -> Result<()> {
        if part.offset == 0 && out.len() as u64 == part.ram_bytes {
            return self.unpack_into(part, verified, out);
        }
        let moves = self.engine.moved.count();
        let known = self.unpacked.lock().get(part, verified, moves);
        let content = match known {
            Some(content) => content,
            None => {
                let mut content = vec![0; believable(part)?.ram_bytes as usize];
                self.unpack_into(part, verified, &mut content)?;
                let content: Arc<[u8]> = content.into();
                self.unpacked.lock().put(part, verified, moves, Arc::clone(&content));
                content
            }
        };
        let from = part.offset as usize;
        out.copy_from_slice(&content[from..from + out.len()]);
        Ok(())
    }

    /// The whole content of a compressed extent.
    fn unpack_into(&self, extent: &FileExtent, verified: bool, out: &mut [u8]) -> Result<()> {
        let mut stream = vec![0; believable(extent)?.disk_len as usize];
        self.read_data(extent.at, &mut stream, verified)?;
        self.decompress(extent, &stream, out)
    }

    /// Reads data as it lies on disk. With `verified`, every sector has a checksum and agrees with it.
    fn read_data(&self, at: Logical, out: &mut [u8], verified: bool) -> Result<()> {
        // Above a mount the kernel keeps what is read, and has read ahead when it asks for much at once.
        let caching = match self.engine.options().readers_keep {
            true => self.engine.volume().caching_of_read(at, out.len()),
            false => Caching::Kept,
        };
        if caching == Caching::Kept {
            self.ahead.note(at, out.len() as u64);
        }
        let (mut at, mut rest) = (at, out);
        while !rest.is_empty() {
            let turn = (MIRROR_TURN - at.0 % MIRROR_TURN).min(rest.len() as u64);
            let part = rest.split_off_mut(..turn as usize).expect("not longer than it");
            self.read_turn(at, part, verified, caching)?;
            at = at.plus(turn);
        }
        Ok(())
    }

    /// The same for bytes that one mirror is asked for.
    fn read_turn(&self, at: Logical, out: &mut [u8], verified: bool, caching: Caching) -> Result<()> {
        let volume = self.engine.volume();
        // The reader sees no more than EIO.
        let report = |error: &VolumeError| volume.report(Some(at), error.to_string());
        if !verified || self.ignores_checksums() {
            return Ok(volume.read_unverified_as(at, out, caching).inspect_err(report)?);
        }
        let csum_tree = TreeItems::reading(self.engine.core(), &self.engine.globals().csum);
        let sums = checksums::lookup(&csum_tree, self.layout(), at, out.len() as u64)?;
        let sector = self.sector() as usize;
        if let Some(missing) = (0..sums.len()).find(|&index| sums.get(index).is_none()) {
            let at = at.plus((missing * sector) as u64);
            return Err(Error::corrupt(format!("the data at {at} has no checksum")));
        }
        if volume.read_as(at, out, caching, &mut |data| self.agrees(at, data, &sums, 0)).is_ok() {
            return Ok(());
        }
        // No copy is good as a whole; perhaps every sector is good in one of them.
        for (index, into) in out.chunks_mut(sector).enumerate() {
            let at = at.plus((index * sector) as u64);
            let read = volume.read(at, into, &mut |data| self.agrees(at, data, &sums, index));
            read.inspect_err(|error| volume.report(Some(at), error.to_string()))?;
            if volume.is_writable() && !self.engine.is_read_only() {
                // Copies behind the first good one have not been looked at. Repairing is not what was asked for.
                (0..volume.copies(at)).for_each(|copy| drop(volume.rewrite(at, copy, into)));
            }
        }
        Ok(())
    }

    /// Whether checksums of data do not count: because it was asked for, or because the tree that has them cannot be
    /// read.
    fn ignores_checksums(&self) -> bool {
        let rescue = self.engine.options().rescue;
        let is_unreadable = || self.engine.core().nodes.load(&self.engine.globals().csum.root()).is_err();
        rescue.ignore_data_checksums || rescue.ignore_bad_roots && is_unreadable()
    }

    /// Whether `data`, whose first sector is number `first` of `sums`, has the right checksums.
    fn agrees(&self, at: Logical, data: &[u8], sums: &Checksums, first: usize) -> Result<(), String> {
        match sums.first_differing(data, first) {
            Some(index) if !self.engine.has_canary(Canary::ChecksumIgnored) => {
                let at = at.plus(index as u64 * self.sector());
                Err(format!("the data at {at} does not match its {}", self.engine.checksum_kind().name()))
            }
            _ => Ok(()),
        }
    }
}

/// A compressed extent that is not too large to be true.
fn believable(extent: &FileExtent) -> Result<&FileExtent> {
    if extent.ram_bytes <= LARGEST_COMPRESSED && extent.disk_len <= LARGEST_COMPRESSED {
        return Ok(extent);
    }
    let FileExtent { start, disk_len, ram_bytes, .. } = extent;
    Err(Error::corrupt(format!("compressed extent at {start}: {disk_len} bytes on disk for {ram_bytes}")))
}

/// The error with the file's name in front.
fn in_file(inode: &Inode, error: Error) -> Error {
    let named = |what: &str| format!("inode {} of tree {}: {what}", inode.ino, inode.tree_id());
    match error {
        Error::Device(failure) => Error::Device(Box::new(failure.reworded(named))),
        Error::Corrupt(failure) => Error::Corrupt(Box::new(failure.reworded(named))),
        other => other,
    }
}

/// The position at which an uncompressed part starts on disk.
fn disk_start(part: &FileExtent) -> Logical {
    part.at.plus(part.offset)
}

fn disk_end(part: &FileExtent) -> Logical {
    part.at.plus(part.offset + part.len)
}
