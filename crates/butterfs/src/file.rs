//! The content of one file.

use crate::error::{Error, Result};
use crate::metadata::Metadata;
use crate::node::Node;
use crate::open_options::{OpenOptions, Start};
use crate::types::Access;
use butterfs_fs::inode::attr::mode;
use butterfs_fs::{Attr, Errno, SetAttr};
use std::fmt;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::sync::Arc;

/// Bytes that one call reads at most into a fresh buffer.
const READ_BYTES: usize = 1 << 20;

/// An open file.
///
/// It implements [`Read`], [`Write`] and [`Seek`], with a position of its own; [`read_at`](File::read_at) and
/// [`write_at`](File::write_at) need no position and work on a shared reference, from many threads at once. A file that
/// loses its last name stays until it is closed. Dropping a `File` closes it and makes nothing durable: see
/// [`sync_all`](File::sync_all).
///
/// ```
/// # use butterfs::{Device, Filesystem, Mkfs};
/// use std::io::{Read, Seek, SeekFrom, Write};
///
/// # let disk = Device::memory(128 << 20);
/// # Mkfs::new().device(disk.clone()).run()?;
/// # let root = Filesystem::open(disk)?.root();
/// let mut file = root.create_file("notes")?;
/// file.write_all(b"one two three")?;
/// file.seek(SeekFrom::Start(4))?;
/// let mut word = [0; 3];
/// file.read_exact(&mut word)?;
/// assert_eq!(&word, b"two");
/// file.write_all_at(b"2", 4)?; // the position stays
/// file.sync_all()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct File {
    handle: Arc<Handle>,
    position: u64,
}

/// An open handle in the engine, which keeps a file without a name.
struct Handle {
    node: Node,
    access: Access,
    start: Start,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.node.shared().memory().release(self.node.id());
    }
}

/// The change that [`File::allocate`] makes to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Allocate {
    /// Reserves space for it, and makes the file longer if it ends before.
    Reserve,
    /// Reserves space for it. The size stays.
    ReserveKeepingSize,
    /// Makes it a hole, which reads as zeros and takes no space.
    PunchHole,
    /// Makes it read as zeros, with space reserved.
    Zero,
}

impl Allocate {
    /// The bits of `fallocate(2)`.
    fn bits(self) -> u32 {
        match self {
            Allocate::Reserve => 0,
            Allocate::ReserveKeepingSize => 1,
            Allocate::PunchHole => 1 | 2,
            Allocate::Zero => 16,
        }
    }
}

impl File {
    pub(crate) fn open(node: Node, attr: &Attr, options: &OpenOptions) -> Result<File> {
        match attr.kind() {
            mode::S_IFREG => {}
            mode::S_IFDIR => return Err(Error::refused(Errno::EISDIR, "a directory has no content to read or write")),
            mode::S_IFLNK => {
                return Err(Error::refused(Errno::ELOOP, "a symbolic link has no content to read or write"));
            }
            _ => return Err(Error::refused(Errno::EOPNOTSUPP, "a special file has no content in the filesystem")),
        }
        if !options.access.is_read_only() {
            node.engine()?.check_writable(node.id(), options.start == Start::Append)?;
        }
        node.engine()?.acquire(node.id());
        let handle = Arc::new(Handle { node, access: options.access, start: options.start });
        Ok(File { handle, position: 0 })
    }

    /// The file's attributes.
    pub fn as_node(&self) -> &Node {
        &self.handle.node
    }

    /// Size, permissions, owner and times.
    pub fn metadata(&self) -> Result<Metadata> {
        self.handle.node.metadata()
    }

    /// Another handle on the same file, with a position of its own that begins at 0.
    #[must_use]
    pub fn reopen(&self) -> File {
        File { handle: Arc::clone(&self.handle), position: 0 }
    }

    /// Reads at `offset` into `buf`; fewer bytes than it holds only at the end of the file.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let mut read = Vec::new();
        let mut done = 0;
        while done < buf.len() {
            let want = (buf.len() - done).min(READ_BYTES);
            let Some(at) = offset.checked_add(done as u64) else { break };
            let count = self.engine()?.read(self.handle.node.id(), at, want, &mut read)?;
            buf[done..done + count].copy_from_slice(&read);
            done += count;
            if count < want {
                break;
            }
        }
        Ok(done)
    }

    /// The whole content.
    pub fn read_all(&self) -> Result<Vec<u8>> {
        let (mut content, mut part) = (Vec::new(), Vec::new());
        while self.engine()?.read(self.handle.node.id(), content.len() as u64, READ_BYTES, &mut part)? > 0 {
            content.extend_from_slice(&part);
        }
        Ok(content)
    }

    /// Writes at `offset`; returns how many bytes. A file opened with [`OpenOptions::append`] is written at its end
    /// instead.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        self.write_anywhere(data, offset).map(|_| data.len())
    }

    /// Writes all of `data` at `offset`. A file opened with [`OpenOptions::append`] is written at its end instead.
    pub fn write_all_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.write_anywhere(data, offset).map(drop)
    }

    /// Writes all of `data`; returns the position behind it.
    fn write_anywhere(&self, data: &[u8], mut offset: u64) -> Result<u64> {
        self.must_be_open_for_writing()?;
        let id = self.handle.node.id();
        if self.handle.start == Start::Append {
            return Ok(self.engine()?.append(id, data, false)?);
        }
        let mut left = data;
        while !left.is_empty() {
            let written = self.engine()?.write(id, offset, left, false)?;
            left = &left[written..];
            offset += written as u64;
        }
        Ok(offset)
    }

    /// Sets the size; bytes beyond the old end read as zeros.
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.must_be_open_for_writing()?;
        self.handle.node.set(SetAttr { size: Some(len), ..SetAttr::default() })
    }

    /// Reserves or frees the space of a range.
    pub fn allocate(&self, range: Range<u64>, how: Allocate) -> Result<()> {
        self.must_be_open_for_writing()?;
        let len = range.end.saturating_sub(range.start);
        Ok(self.engine()?.fallocate(self.handle.node.id(), how.bits(), range.start, len, false)?)
    }

    /// The offset of the next data at or after `offset`; none if only a hole follows.
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        self.seek_to(offset, 3)
    }

    /// The offset of the next hole at or after `offset`. The end of the file counts as a hole; none if `offset` lies
    /// behind it.
    pub fn next_hole(&self, offset: u64) -> Result<Option<u64>> {
        self.seek_to(offset, 4)
    }

    fn seek_to(&self, offset: u64, whence: u32) -> Result<Option<u64>> {
        match self.engine()?.lseek(self.handle.node.id(), offset, whence) {
            Err(error) if error.is(Errno::ENXIO) => Ok(None),
            found => Ok(Some(found?)),
        }
    }

    /// Shares the content of `source`, the whole of it. Both files stay independent: a later write to one does not show
    /// in the other.
    pub fn clone_from(&self, source: &File) -> Result<()> {
        self.clone_range(source, 0..source.metadata()?.len(), 0)
    }

    /// Shares the bytes `range` of `source` at `offset`. Start, offset and length are multiples of the sector size
    /// (4096), unless the range ends at the end of `source`.
    pub fn clone_range(&self, source: &File, range: Range<u64>, offset: u64) -> Result<()> {
        self.must_be_on_the_same_filesystem(source)?;
        // The engine takes 0 for "to the end".
        if range.is_empty() {
            return Ok(());
        }
        let from = (source.handle.node.id(), range.start);
        let to = (self.handle.node.id(), offset);
        Ok(self.engine()?.clone_range(from, to, range.end - range.start)?)
    }

    /// Copies the bytes `range` of `source` to `offset` and shares those that can be shared. Returns how many; fewer
    /// only if `source` ends before.
    pub fn copy_range(&self, source: &File, range: Range<u64>, offset: u64) -> Result<u64> {
        self.must_be_on_the_same_filesystem(source)?;
        let from = (source.handle.node.id(), range.start);
        let to = (self.handle.node.id(), offset);
        Ok(self.engine()?.copy_range(from, to, range.end.saturating_sub(range.start))?)
    }

    /// Makes content, attributes and names durable.
    pub fn sync_all(&self) -> Result<()> {
        self.handle.node.sync()
    }

    fn engine(&self) -> Result<&butterfs_fs::Filesystem> {
        self.handle.node.engine()
    }

    fn must_be_open_for_writing(&self) -> Result<()> {
        if self.handle.access.is_read_only() {
            return Err(Error::refused(Errno::EBADF, "the file is open for reading only"));
        }
        self.handle.node.must_be_writable()
    }

    fn must_be_on_the_same_filesystem(&self, source: &File) -> Result<()> {
        self.must_be_open_for_writing()?;
        if Arc::ptr_eq(self.handle.node.shared(), source.handle.node.shared()) {
            return Ok(());
        }
        Err(Error::refused(Errno::EXDEV, "only files of one open filesystem can share content"))
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.read_at(buf, self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.position = self.write_anywhere(data, self.position)?;
        Ok(data.len())
    }

    /// Does nothing: a write is in the filesystem when it returns. For durability there is [`File::sync_all`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (base, by) = match to {
            SeekFrom::Start(at) => (at, 0),
            SeekFrom::Current(by) => (self.position, by),
            SeekFrom::End(by) => (self.metadata()?.len(), by),
        };
        let at = base.checked_add_signed(by);
        self.position = at.ok_or_else(|| Error::refused(Errno::EINVAL, "the position would lie before the file"))?;
        Ok(self.position)
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = crate::InodeId::from(self.handle.node.id());
        f.debug_struct("File").field("id", &id).field("position", &self.position).finish_non_exhaustive()
    }
}
