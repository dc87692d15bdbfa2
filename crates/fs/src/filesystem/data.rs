//! Operations on the contents of files.

use super::Filesystem;
use crate::error::{Errno, Error, Result};
use crate::file::{Allocation, Defragment, MAX_FILE_SIZE, Whence};
use crate::file_extent::FileExtent;
use crate::inode::attr::mode;
use crate::inode::{Inode, InodeId};
use crate::options::DataPolicy;
use butterfs_ondisk::items::inode_flags;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that a copy moves at once.
const COPY_BYTES: usize = 1 << 20;

impl Filesystem {
    /// An inode that is a regular file.
    pub(super) fn regular(&self, id: InodeId) -> Result<Arc<Inode>> {
        let inode = self.0.inodes.get(id)?;
        match inode.with(|state| state.mode()) & mode::S_IFMT {
            mode::S_IFREG => Ok(inode),
            mode::S_IFDIR => Err(Error::refused(Errno::EISDIR, "a directory has no content")),
            _ => Err(Error::refused(Errno::EINVAL, "only regular files have content")),
        }
    }

    /// Reads up to `len` bytes at `offset` into `out`, which holds nothing else afterwards; fewer only at the end of
    /// the file. `EIO` when no copy of the data is good.
    pub fn read(&self, id: InodeId, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<usize> {
        let _operation = self.begin();
        let inode = self.regular(id)?;
        let read = self.0.files.read(&inode, offset, len, out)?;
        self.0.names.note_access(&inode);
        Ok(read)
    }

    /// As [`read`](Self::read), for whoever opened the file with `O_NOATIME`.
    pub fn read_unnoticed(&self, id: InodeId, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<usize> {
        let _operation = self.begin();
        let inode = self.regular(id)?;
        self.0.files.read(&inode, offset, len, out)
    }

    /// A file was opened to be read, perhaps from a cache that asks nothing: where the first access after a change
    /// moves the time of access, this one does. Says whether it moved.
    pub fn note_coming_access(&self, id: InodeId) -> Result<bool> {
        let _operation = self.begin();
        Ok(self.0.names.note_coming_access(&self.regular(id)?))
    }

    /// Writes `data` at `offset`. With `kill_suidgid` the file loses its set-id bits, as for an unprivileged writer. A
    /// file with the flag `SYNC` is durable then.
    pub fn write(&self, id: InodeId, offset: u64, data: &[u8], kill_suidgid: bool) -> Result<usize> {
        let _operation = self.begin();
        self.write_as(id, offset, data, Some(kill_suidgid))
    }

    /// Writes what somebody wrote through a mapping: the file keeps its set-id bits and capabilities, as in the
    /// kernel's btrfs.
    pub fn write_mapped(&self, id: InodeId, offset: u64, data: &[u8]) -> Result<usize> {
        let _operation = self.begin();
        self.write_as(id, offset, data, None)
    }

    fn write_as(&self, id: InodeId, offset: u64, data: &[u8], kill: Option<bool>) -> Result<usize> {
        let _operation = self.begin();
        let inode = self.regular(id)?;
        self.0.inodes.relieve()?;
        let written = self.0.files.write(&inode, offset, data, kill)?;
        if inode.with(|state| state.has(inode_flags::SYNC)) {
            self.fsync(id, false)?;
        }
        Ok(written)
    }

    /// Writes `data` at the end of the file (`O_APPEND`) and returns its new size; of two appends at the same time, one
    /// comes after the other.
    pub fn append(&self, id: InodeId, data: &[u8], kill_suidgid: bool) -> Result<u64> {
        let _operation = self.begin();
        let inode = self.regular(id)?;
        self.0.inodes.relieve()?;
        let size = self.0.files.append(&inode, data, Some(kill_suidgid))?;
        if inode.with(|state| state.has(inode_flags::SYNC)) {
            self.fsync(id, false)?;
        }
        Ok(size)
    }

    /// `fallocate(2)` with its `mode`; `EOPNOTSUPP` for modes that btrfs does not have.
    pub fn fallocate(&self, id: InodeId, mode: u32, offset: u64, len: u64, kill_suidgid: bool) -> Result<()> {
        let _operation = self.begin();
        let what = Allocation::from_mode(mode)?;
        let inode = self.regular(id)?;
        let Some(end) = offset.checked_add(len) else {
            return Err(Error::refused(Errno::EFBIG, "the range ends behind the largest file size"));
        };
        self.0.files.allocate_range(&inode, what, offset..end, kill_suidgid)
    }

    /// The next data or hole at or behind `offset`; `ENXIO` when there is none.
    pub fn seek(&self, id: InodeId, offset: u64, whence: Whence) -> Result<u64> {
        let _operation = self.begin();
        self.0.files.seek(self.regular(id)?.as_ref(), offset, whence)
    }

    /// `lseek(2)` with `SEEK_DATA` (3) or `SEEK_HOLE` (4). An offset below zero, which callers pass as a number beyond
    /// [`i64::MAX`], is as good as zero.
    pub fn lseek(&self, id: InodeId, offset: u64, whence: u32) -> Result<u64> {
        let _operation = self.begin();
        let offset = if i64::try_from(offset).is_ok() { offset } else { 0 };
        match whence {
            3 => self.seek(id, offset, Whence::Data),
            4 => self.seek(id, offset, Whence::Hole),
            _ => Err(Error::refused(Errno::EINVAL, "only data and holes can be sought")),
        }
    }

    /// Copies up to `len` bytes from one file to another, or within one where the ranges do not overlap, sharing what
    /// can be shared. Returns how many; fewer only at the end of the source.
    pub fn copy_range(&self, source: (InodeId, u64), target: (InodeId, u64), len: u64) -> Result<u64> {
        let _operation = self.begin();
        self.copy_range_as(source, target, len, true)
    }

    /// As [`copy_range`](Self::copy_range); only with `kill_suidgid` the target loses its set-id bits.
    pub fn copy_range_as(
        &self,
        (source, source_offset): (InodeId, u64),
        (target, target_offset): (InodeId, u64),
        len: u64,
        kill_suidgid: bool,
    ) -> Result<u64> {
        let _operation = self.begin();
        let from = self.regular(source)?;
        let len = len.min(from.size().saturating_sub(source_offset));
        if source == target && source_offset.abs_diff(target_offset) < len {
            return Err(Error::refused(Errno::EINVAL, "the ranges overlap"));
        }
        if target_offset.checked_add(len).is_none_or(|end| end > MAX_FILE_SIZE) {
            return Err(Error::refused(Errno::EFBIG, "the file would become too large"));
        }
        let into = self.regular(target)?;
        let shared = self.0.files.share_range((&from, source_offset), (&into, target_offset), len, kill_suidgid)?;
        let (rest, onto) = ((source, source_offset + shared), (target, target_offset + shared));
        let copied = self.copy_bytes(rest, onto, len - shared, kill_suidgid);
        match copied {
            Err(_) if shared > 0 => Ok(shared),
            copied => copied.map(|copied| shared + copied),
        }
    }

    /// Copies by reading and writing.
    fn copy_bytes(
        &self,
        (source, from): (InodeId, u64),
        (target, to): (InodeId, u64),
        len: u64,
        kill_suidgid: bool,
    ) -> Result<u64> {
        let mut buffer = Vec::new();
        let mut done = 0;
        while done < len {
            let want = (len - done).min(COPY_BYTES as u64) as usize;
            if self.read(source, from + done, want, &mut buffer)? == 0 {
                break;
            }
            match self.write(target, to + done, &buffer, kill_suidgid) {
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
                Ok(written) => done += written as u64,
            }
        }
        Ok(done)
    }

    /// Lets a range of one file share the extents of a range of another (`FICLONERANGE`); `len` 0 means up to the end
    /// of the source. `EINVAL` unless all of it can be shared.
    pub fn clone_range(&self, source: (InodeId, u64), target: (InodeId, u64), len: u64) -> Result<()> {
        let _operation = self.begin();
        let (from, into) = (self.regular(source.0)?, self.regular(target.0)?);
        let left = from.size().saturating_sub(source.1);
        let len = if len == 0 { left } else { len };
        if len > left {
            return Err(Error::refused(Errno::EINVAL, "the range ends behind the end of the source"));
        }
        match self.0.files.share_range((&from, source.1), (&into, target.1), len, true)? {
            shared if shared == len => Ok(()),
            shared => Err(Error::refused_at(Errno::EINVAL, format!("only {shared} of {len} bytes can be shared"))),
        }
    }

    /// The extents of a file that overlap `range`, in order, after writing back what is buffered. Holes without an item
    /// are left out.
    pub fn extents(&self, id: InodeId, range: Range<u64>) -> Result<Vec<FileExtent>> {
        let _operation = self.begin();
        self.some_extents(id, range, usize::MAX)
    }

    /// The first `most` of them.
    pub fn some_extents(&self, id: InodeId, range: Range<u64>, most: usize) -> Result<Vec<FileExtent>> {
        let _operation = self.begin();
        self.0.files.list_extents(&self.regular(id)?, &range, most)
    }

    /// Whether others than the file may use the data of one of its extents, in other files or in snapshots.
    pub fn is_shared(&self, id: InodeId, extent: &FileExtent) -> Result<bool> {
        let _operation = self.begin();
        self.0.files.is_shared(self.regular(id)?.as_ref(), extent)
    }

    /// Whether [`clone_range`](Self::clone_range) from one to the other can share at all.
    pub fn may_share(&self, source: InodeId, target: InodeId) -> Result<bool> {
        let _operation = self.begin();
        Ok(self.0.files.may_share(self.regular(source)?.as_ref(), self.regular(target)?.as_ref()))
    }

    /// Lets a range share the extents of another one that holds the same bytes (`FIDEDUPERANGE`); `false` when they
    /// differ.
    pub fn dedupe_range(&self, source: (InodeId, u64), target: (InodeId, u64), len: u64) -> Result<bool> {
        let _operation = self.begin();
        let (from, into) = (self.regular(source.0)?, self.regular(target.0)?);
        self.0.files.dedupe_range((&from, source.1), (&into, target.1), len)
    }

    /// Writes fragments of a file anew, as one. Returns how many bytes.
    pub fn defragment(&self, id: InodeId, how: &Defragment) -> Result<u64> {
        let _operation = self.begin();
        self.0.files.defragment(&self.regular(id)?, how)
    }

    /// How new data is stored, where files do not say otherwise themselves.
    pub fn data_policy(&self) -> DataPolicy {
        let _operation = self.begin();
        self.0.engine.data_policy()
    }

    /// Stores data another way from now on, as after a remount.
    pub fn set_data_policy(&self, policy: DataPolicy) {
        let _operation = self.begin();
        self.0.engine.set_data_policy(policy);
    }
}
