//! Buffered writing: into the inode's buffer, with space reserved, sectors made whole, size and times advanced.

use super::{Buffer, Files};
use crate::error::{Errno, Error, Result};
use crate::file_extent::ExtentKind;
use crate::inode::Inode;
use crate::inode::attr::mode;
use crate::transaction::{DataReservation, Reserve};
use butterfs_device::is_zero;
use butterfs_ondisk::items::inode_flags;
use std::ops::Range;
use std::sync::Arc;

/// The largest file size (`MAX_LFS_FILESIZE`).
pub const MAX_FILE_SIZE: u64 = i64::MAX as u64;

/// A sector that must be in the buffer before a write touches a part of it.
struct Whole {
    at: u64,
    content: Vec<u8>,
}

/// Space for a write; none when all of it can be written in place.
pub(super) struct WriteReservation(Option<DataReservation>);

/// The data to write, its reservation, and the rest of the sectors that it covers in part.
struct Prepared<'a> {
    offset: u64,
    data: &'a [u8],
    reserved: Option<DataReservation>,
    wholes: Vec<Whole>,
    /// The version of the extents when that was read, and the size.
    version: u64,
    size: u64,
}

impl Prepared<'_> {
    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.data.len() as u64
    }
}

impl Files {
    /// Writes `data` at `offset`. With `kill` the file loses its capabilities, and with `Some(true)` its set-id bits.
    /// What is written reaches the disk with write-back.
    pub fn write(&self, inode: &Arc<Inode>, offset: u64, data: &[u8], kill: Option<bool>) -> Result<usize> {
        self.must_be_writable(inode)?;
        // Who reads the rest of a sector is not overtaken by other writers.
        let is_whole = offset.is_multiple_of(self.sector()) && (data.len() as u64).is_multiple_of(self.sector());
        let _others = is_whole.then(|| inode.data.whole.read());
        let _alone = (!is_whole).then(|| inode.data.whole.write());
        self.write_locked(inode, offset, data, kill)?;
        Ok(data.len())
    }

    /// Writes `data` at the end of the file and returns its new size. No other write comes between.
    pub fn append(&self, inode: &Arc<Inode>, data: &[u8], kill: Option<bool>) -> Result<u64> {
        self.must_be_writable(inode)?;
        let _alone = inode.data.whole.write();
        let offset = inode.size();
        self.write_locked(inode, offset, data, kill)?;
        Ok(offset + data.len() as u64)
    }

    /// The lock of whole sectors is held.
    fn write_locked(&self, inode: &Arc<Inode>, offset: u64, data: &[u8], kill: Option<bool>) -> Result<()> {
        self.must_fit(offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(());
        }
        self.make_room(inode, data.len() as u64)?;
        let reservation = self.reserve_for_write(inode, offset, data.len() as u64)?;
        self.put(inode, offset, data, reservation, kill)
    }

    /// Refuses what is not a regular file that may be changed.
    pub(super) fn must_be_writable(&self, inode: &Inode) -> Result<()> {
        let (kind, immutable) =
            inode.with(|state| (state.mode() & mode::S_IFMT, state.has(inode_flags::IMMUTABLE | inode_flags::VERITY)));
        if inode.size() > MAX_FILE_SIZE {
            return Err(Error::corrupt(format!(
                "inode {} of tree {}: the size is impossible",
                inode.ino,
                inode.tree_id()
            )));
        }
        match kind {
            mode::S_IFREG if immutable => Err(Error::refused(Errno::EPERM, "the file is immutable")),
            mode::S_IFREG if inode.tree.is_readonly() => {
                Err(Error::refused(Errno::EROFS, "the subvolume is read-only"))
            }
            mode::S_IFREG => self.engine.aborted().map_or(Ok(()), Err),
            mode::S_IFDIR => Err(Error::refused(Errno::EISDIR, "a directory has no content to write")),
            _ => Err(Error::refused(Errno::EINVAL, "only regular files have content to write")),
        }
    }

    pub(super) fn must_fit(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= MAX_FILE_SIZE => Ok(()),
            _ => Err(Error::refused(Errno::EFBIG, "the file would become too large")),
        }
    }

    /// Space for a write of `len` bytes at `offset`.
    pub(super) fn reserve_for_write(&self, inode: &Inode, offset: u64, len: u64) -> Result<WriteReservation> {
        let span = self.sectors_of(&(offset..offset + len));
        let tail = self.separate_tail(inode.size(), offset).is_some();
        let needed = span.end - span.start + if tail { self.sector() } else { 0 };
        self.reserve(inode, &span, needed).map(WriteReservation)
    }

    /// Puts `data` into the buffer. The mapping lock may be held, no other. With `kill` the file loses privileges.
    pub(super) fn put(
        &self,
        inode: &Arc<Inode>,
        offset: u64,
        data: &[u8],
        reservation: WriteReservation,
        kill: Option<bool>,
    ) -> Result<()> {
        let mut reservation = Some(reservation);
        loop {
            let WriteReservation(reserved) = match reservation.take() {
                Some(reservation) => reservation,
                None => self.reserve_for_write(inode, offset, data.len() as u64)?,
            };
            let (version, size) = (inode.data.version(), inode.size());
            let mut prepared = Prepared { offset, data, reserved, wholes: Vec::new(), version, size };
            self.read_edges(inode, &mut prepared)?;
            let privileged = kill.map_or(Ok(false), |set_id| inode.has_privileges(&self.engine, set_id))?;
            let items = if privileged { 3 } else { 1 };
            // Space that a file has already never fails for data: for want of other space, the reserve serves.
            let in_place = prepared.reserved.is_none();
            let handle = if in_place { self.start_surely(items)? } else { self.start(Reserve::items(items))? };
            let _guard = inode.lock_exclusive()?;
            if !self.put_locked(inode, &mut prepared) {
                continue;
            }
            if let Some(set_id) = kill {
                inode.kill_privileges(&handle, set_id).inspect_err(|error| handle.failed(error))?;
            }
            let now = self.engine.env().now();
            inode.change(|state| {
                state.size = state.size.max(offset + data.len() as u64);
                state.touch_content(now);
            });
            break;
        }
        self.await_write_back(inode);
        Ok(())
    }

    /// The sector of the end of the file, when a write at `offset` begins beyond that sector: its tail becomes
    /// visible.
    fn separate_tail(&self, size: u64, offset: u64) -> Option<u64> {
        let sector = self.round_down(size);
        (size > sector && offset >= sector + self.sector()).then_some(sector)
    }

    /// Reads what must be in the buffer before the write touches a part of it. No lock is held.
    fn read_edges(&self, inode: &Inode, prepared: &mut Prepared<'_>) -> Result<()> {
        let size = prepared.size;
        if let Some(sector) = self.separate_tail(size, prepared.offset)
            && let Some(content) = self.tail_to_rewrite(inode, size)?
        {
            prepared.wholes.push(Whole { at: sector, content });
        }
        let range = prepared.range();
        let missing = inode.data.with(|buffer| self.missing_edges(buffer, &prepared.wholes, &range));
        for at in missing {
            let content = self.edge(inode, at, &range, size)?;
            prepared.wholes.push(Whole { at, content });
        }
        Ok(())
    }

    /// False when the edges are others than those that were read, or the reservation does not cover what turned out to
    /// be needed. Other writes into the buffer change no edge: what was read goes below them.
    fn put_locked(&self, inode: &Inode, prepared: &mut Prepared<'_>) -> bool {
        let range = prepared.range();
        let (size, has_tail) = (inode.size(), self.separate_tail(inode.size(), prepared.offset).is_some());
        let is_other = inode.data.version() != prepared.version;
        let is_old = is_other && (has_tail || !prepared.wholes.is_empty()) || has_tail && size != prepared.size;
        !is_old
            && inode.data.with(|buffer| {
                self.missing_edges(buffer, &prepared.wholes, &range).is_empty() && self.put_buffered(buffer, prepared)
            })
    }

    /// Sectors that the write covers in part and that neither the buffer nor `wholes` has.
    fn missing_edges(&self, buffer: &Buffer, wholes: &[Whole], range: &Range<u64>) -> Vec<u64> {
        let mut edges = Vec::new();
        if range.start != self.round_down(range.start) {
            edges.push(self.round_down(range.start));
        }
        if range.end != self.round_down(range.end) {
            edges.push(self.round_down(range.end));
        }
        edges.dedup();
        edges.retain(|&at| !buffer.dirty.contains(at) && !wholes.iter().any(|whole| whole.at == at));
        edges
    }

    /// A sector that the write covers in part. Nothing is read when nothing of it stays.
    fn edge(&self, inode: &Inode, at: u64, range: &Range<u64>, size: u64) -> Result<Vec<u8>> {
        let stays = at < range.start.min(size) || range.end < size.min(at + self.sector());
        if stays { self.sectors(inode, &(at..at + self.sector())) } else { Ok(vec![0; self.sector() as usize]) }
    }

    /// False when the reservation is too small.
    fn put_buffered(&self, buffer: &mut Buffer, prepared: &mut Prepared<'_>) -> bool {
        let span = self.sectors_of(&prepared.range());
        let wholes = &prepared.wholes;
        let is_new = |at: u64| !buffer.dirty.contains(at) && !span.contains(&at);
        let outside = wholes.iter().filter(|whole| is_new(whole.at)).count() as u64 * self.sector();
        let added: u64 = buffer.dirty.gaps(span).iter().map(|gap| gap.end - gap.start).sum::<u64>() + outside;
        if let Some(mut reserved) = prepared.reserved.take() {
            if reserved.bytes() < added {
                return false;
            }
            reserved.shrink(reserved.bytes() - added);
            buffer.reserve(reserved);
        }
        for whole in wholes {
            buffer.dirty.write_below(whole.at, &whole.content);
        }
        buffer.dirty.write(prepared.offset, prepared.data);
        buffer.counted.total.get_or_insert_with(|| Arc::clone(&self.buffered_bytes));
        true
    }

    /// The last sector of a file of this size with its tail zeroed, when what is on disk behind the end of the file is
    /// not zero, or is inline. It holds as long as the file does not change.
    pub(super) fn tail_to_rewrite(&self, inode: &Inode, size: u64) -> Result<Option<Vec<u8>>> {
        let start = self.round_down(size);
        if start == size {
            return Ok(None);
        }
        let sector = start..start + self.sector();
        let buffered = inode.data.overlay(&sector, &mut vec![0; self.sector() as usize]).is_empty();
        let (context, items) = self.extents(inode);
        let found = context.list(&items, &sector, 1)?;
        let Some(extent) = found.first().filter(|_| !buffered) else { return Ok(None) };
        let inline = extent.kind == ExtentKind::Inline;
        if !inline && (extent.kind == ExtentKind::Prealloc || extent.is_hole()) {
            return Ok(None);
        }
        let mut content = self.sectors_on_disk(inode, &sector)?;
        let tail = &mut content[(size - start) as usize..];
        let stale = !is_zero(tail);
        tail.fill(0);
        Ok((stale || inline).then_some(content))
    }

    /// Space for `bytes` of new data in `span`: `None` when there is none, but all of it lies in preallocated space.
    fn reserve(&self, inode: &Inode, span: &Range<u64>, bytes: u64) -> Result<Option<DataReservation>> {
        self.engine.await_turn();
        if let Some(reserved) = self.engine.try_reserve_data(bytes, false)? {
            return Ok(Some(reserved));
        }
        let unbuffered = inode.data.with(|buffer| buffer.dirty.gaps(span.clone()));
        if self.all_in_place(inode, &unbuffered)? {
            return Ok(None);
        }
        self.reserve_data(bytes).map(Some)
    }
}
