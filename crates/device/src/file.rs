//! A regular file or a block device as a [`BlockDevice`].
//!
//! # Invariants
//! 1. Cached writes and flushes go through one descriptor for the whole life of the device: a write error that the
//!    kernel reports once is not missed. Direct writes, through a second one, report their errors themselves.
//! 2. The first failed flush is final: the kernel may have dropped what it could not write and call the pages clean,
//!    so a later flush that "succeeds" means nothing. Every later write and flush fails.
//! 3. While a device is open for writing nobody else who asks can open it for writing or for a mount: `flock`
//!    (exclusive for writers, shared for readers) on the file or block device, also on the file beneath a loop
//!    device, and for block devices a claim (`O_EXCL`), which a mount by the kernel conflicts with.
//! 4. A file that was cut off meanwhile is not written any more: a write behind its end would give it its length back,
//!    with zeros for content.
//!
//! Reads and small writes go through the page cache; [`write_uncached`](BlockDevice::write_uncached) goes past it.

use crate::direct::{Direct, DirectReads};
use crate::in_use::{self, Span};
use crate::write_out;
use crate::{BlockDevice, OpenError, OpenErrorKind, block_ioctl, check_read, check_write};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, FlockOperation, OFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Options for opening a [`FileDevice`].
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// For writing.
    pub write: bool,
    /// With a lock: exclusive for writing, else shared. Without one, what is read may change meanwhile.
    pub lock: bool,
    /// For writing to a block device: claim it, so that the kernel does not mount it. Off for a device that is to be
    /// mounted as `fuseblk`, because then the kernel claims it.
    pub exclusive: bool,
    /// The time to wait for another process to release the device, which it may be unmounting just now.
    pub wait: Duration,
}

impl FileOptions {
    /// For writing, locked and claimed, waiting for nobody.
    pub fn read_write() -> FileOptions {
        FileOptions { write: true, lock: true, exclusive: true, wait: Duration::ZERO }
    }

    /// For reading, refused while another process writes.
    pub fn read_only() -> FileOptions {
        FileOptions { write: false, lock: true, exclusive: false, wait: Duration::ZERO }
    }

    /// For looking at it even while another process writes.
    pub fn inspect() -> FileOptions {
        FileOptions { lock: false, ..FileOptions::read_only() }
    }
}

/// A regular file or a block device.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    /// For writing past the page cache, where that is possible.
    direct: Option<Direct>,
    /// For reading past it.
    direct_reads: DirectReads,
    name: String,
    len: AtomicU64,
    is_block_device: bool,
    read_only: bool,
    /// Set once a flush has failed, or the file was cut off; the text says how.
    has_failed: AtomicBool,
    failure: Mutex<Option<String>>,
    /// A discard was refused, because the device or the filesystem of the file has none.
    has_no_discard: AtomicBool,
    /// The locked file beneath a loop device.
    beneath: Option<File>,
}

impl Drop for FileDevice {
    /// Releases the locks by name. Closing is not enough: a child of another thread, between fork and exec, has the
    /// descriptors too, and would hold the locks until it runs its program.
    fn drop(&mut self) {
        for file in self.locked() {
            let _ = rustix::fs::flock(file, FlockOperation::Unlock);
        }
    }
}

impl FileDevice {
    /// Opens an existing file or block device.
    pub fn open(path: impl AsRef<Path>, options: &FileOptions) -> Result<FileDevice, OpenError> {
        const PAUSE: Duration = Duration::from_millis(50);
        let mut waited = Duration::ZERO;
        loop {
            match FileDevice::open_now(path.as_ref(), options) {
                Err(error) if error.is_in_use() && waited < options.wait => std::thread::sleep(PAUSE),
                result => return result,
            }
            waited += PAUSE;
        }
    }

    /// Makes a new, sparse file of `len` bytes and opens it for writing.
    pub fn create(path: impl AsRef<Path>, len: u64) -> Result<FileDevice, OpenError> {
        let path = path.as_ref();
        let wrap = |error| OpenError::from_io(path, error);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).map_err(wrap)?;
        lock(&file, path, true)?;
        if let Err(error) = file.set_len(len) {
            // Best effort: the error that matters is the first one.
            let _ = std::fs::remove_file(path);
            return Err(wrap(error));
        }
        Ok(FileDevice::assemble(file, path, len, false, false, None))
    }

    /// A file or block device that the caller has opened, for writing if the descriptor allows it. `name` is its name
    /// in messages. A block device is locked but not claimed (`O_EXCL`), because only opening it can do that.
    pub fn from_file(file: File, name: &str) -> Result<FileDevice, OpenError> {
        let path = Path::new(name);
        let wrap = |error| OpenError::from_io(path, error);
        let metadata = file.metadata().map_err(wrap)?;
        let is_block_device = is_block_device(path, &metadata)?;
        let mode = rustix::fs::fcntl_getfl(&file).map_err(|error| wrap(error.into()))? & OFlags::ACCMODE;
        let write = mode == OFlags::RDWR;
        let options = FileOptions { write, exclusive: false, ..FileOptions::read_only() };
        let beneath = secure(&file, path, &metadata, &options)?;
        let len = if is_block_device { device_size(&file).map_err(wrap)? } else { metadata.len() };
        Ok(FileDevice::assemble(file, path, len, is_block_device, !write, beneath))
    }

    fn open_now(path: &Path, options: &FileOptions) -> Result<FileDevice, OpenError> {
        let wrap = |error| OpenError::from_io(path, error);
        let is_block_device = is_block_device(path, &std::fs::metadata(path).map_err(wrap)?)?;
        let file = open_file(path, options, is_block_device)?;
        let metadata = file.metadata().map_err(wrap)?;
        if is_block_device && options.write && block_ioctl::is_write_protected(&file).map_err(wrap)? {
            return Err(OpenError::new(path, OpenErrorKind::WriteProtected));
        }
        if self::is_block_device(path, &metadata)? != is_block_device {
            return Err(wrap(io::Error::other("it was replaced while it was being opened")));
        }
        let beneath = secure(&file, path, &metadata, options)?;
        let len = if is_block_device { device_size(&file).map_err(wrap)? } else { metadata.len() };
        Ok(FileDevice::assemble(file, path, len, is_block_device, !options.write, beneath))
    }

    fn assemble(
        file: File,
        path: &Path,
        len: u64,
        is_block_device: bool,
        read_only: bool,
        beneath: Option<File>,
    ) -> FileDevice {
        FileDevice {
            direct: if read_only { None } else { Direct::beside(&file) },
            direct_reads: DirectReads::default(),
            file,
            name: path.display().to_string(),
            len: AtomicU64::new(len),
            is_block_device,
            read_only,
            has_failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            has_no_discard: AtomicBool::new(false),
            beneath,
        }
    }

    /// Whether this is a block device.
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// The files that carry this device's locks.
    fn locked(&self) -> impl Iterator<Item = &File> {
        std::iter::once(&self.file).chain(&self.beneath)
    }

    /// The same file or device once more, for writing. The locks stay with this one, which must be kept as long, and
    /// become exclusive: refused while others read.
    pub fn open_for_writing(&self) -> Result<FileDevice, OpenError> {
        let path = Path::new(&self.name);
        if let Some(error) = self.locked().find_map(|file| lock(file, path, true).err()) {
            // A lock that could not be changed may be gone.
            self.locked().try_for_each(|file| lock(file, path, false))?;
            return Err(error);
        }
        let opened = OpenOptions::new().read(true).write(true).open(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        let file = opened.map_err(|error| OpenError::from_io(path, error))?;
        let wrap = |error| OpenError::from_io(path, error);
        if self.is_block_device && block_ioctl::is_write_protected(&file).map_err(wrap)? {
            return Err(OpenError::new(path, OpenErrorKind::WriteProtected));
        }
        Ok(FileDevice::assemble(file, path, self.len(), self.is_block_device, false, None))
    }

    /// The error of a write that must not be tried.
    fn check_may_write(&self, offset: u64, len: u64) -> io::Result<()> {
        check_write(self, offset, len)?;
        self.check_not_failed()?;
        if self.is_block_device { Ok(()) } else { self.check_not_truncated() }
    }

    /// The error of every write to a file that has become shorter.
    fn check_not_truncated(&self) -> io::Result<()> {
        let len = self.file.metadata()?.len();
        if len >= self.len() {
            return Ok(());
        }
        let sentence =
            format!("{} was truncated while it was in use: it had {} bytes, now {len}", self.name, self.len());
        self.fail(&sentence);
        Err(io::Error::other(sentence))
    }

    fn fail(&self, why: &str) {
        self.failure.lock().get_or_insert_with(|| why.to_owned());
        self.has_failed.store(true, Ordering::Release);
    }

    /// The error of every write and flush after a flush has failed.
    fn check_not_failed(&self) -> io::Result<()> {
        if !self.has_failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let failure = self.failure.lock().clone().unwrap_or_default();
        Err(io::Error::other(format!("{} cannot be written any more: {failure}", self.name)))
    }
}

/// Whether it is a block device; the error if it is not a regular file either.
fn is_block_device(path: &Path, metadata: &Metadata) -> Result<bool, OpenError> {
    let kind = metadata.file_type();
    let found = match kind {
        _ if kind.is_file() => return Ok(false),
        _ if kind.is_block_device() => return Ok(true),
        _ if kind.is_dir() => "a directory",
        _ if kind.is_char_device() => "a character device",
        _ if kind.is_fifo() => "a FIFO",
        _ => "a socket",
    };
    Err(OpenError::new(path, OpenErrorKind::NotStorage { found }))
}

fn open_file(path: &Path, options: &FileOptions, is_block_device: bool) -> Result<File, OpenError> {
    let mut flags = OFlags::empty();
    if is_block_device && options.write && options.exclusive {
        flags |= OFlags::EXCL;
    }
    let opened = OpenOptions::new().read(true).write(options.write).custom_flags(flags.bits() as i32).open(path);
    opened.map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => busy(path, options.write),
        _ => OpenError::from_io(path, error),
    })
}

/// Somebody has claimed the block device: name the use if it can be found out.
fn busy(path: &Path, for_writing: bool) -> OpenError {
    let number = std::fs::metadata(path).map(|metadata| metadata.rdev()).unwrap_or_default();
    let kind = match in_use::usage_of_block_device(number) {
        Some(usage) => OpenErrorKind::UsedByKernel { usage },
        None => OpenErrorKind::InUse { for_writing },
    };
    OpenError::new(path, kind)
}

/// Takes the locks, then makes sure that the kernel does not use the device. Returns the lock on the file beneath.
fn secure(file: &File, path: &Path, metadata: &Metadata, options: &FileOptions) -> Result<Option<File>, OpenError> {
    if !options.lock {
        return Ok(None);
    }
    lock(file, path, options.write)?;
    let is_block_device = metadata.file_type().is_block_device();
    let beneath = if is_block_device { lock_beneath(path, metadata.rdev(), options.write)? } else { None };
    if options.write {
        let usage = if is_block_device {
            in_use::usage_of_block_device(metadata.rdev())
        } else {
            in_use::usage_of_file(metadata)
        };
        if let Some(usage) = usage {
            return Err(OpenError::new(path, OpenErrorKind::UsedByKernel { usage }));
        }
    }
    Ok(beneath)
}

fn lock(file: &File, path: &Path, for_writing: bool) -> Result<(), OpenError> {
    let operation =
        if for_writing { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
    match rustix::fs::flock(file, operation) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::new(path, OpenErrorKind::InUse { for_writing })),
        // A reader is no danger to anybody, so it may go without.
        Err(_) if !for_writing => Ok(()),
        Err(error) => Err(OpenError::new(path, OpenErrorKind::CannotLock(error.into()))),
    }
}

/// Locks the file beneath a loop device. One that cannot be opened, or is gone, is nobody's business here.
fn lock_beneath(path: &Path, number: u64, for_writing: bool) -> Result<Option<File>, OpenError> {
    let Some(file) = in_use::backing_file(number).and_then(|beneath| File::open(beneath).ok()) else {
        return Ok(None);
    };
    lock(&file, path, for_writing)?;
    Ok(Some(file))
}

/// Bytes of a block device. Cached pages are dropped first: the kernel's own filesystem may have written past them.
fn device_size(file: &File) -> io::Result<u64> {
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?;
    block_ioctl::size_bytes(file)
}

impl BlockDevice for FileDevice {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_read(self, offset, buf.len())?;
        self.file.read_exact_at(buf, offset)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check_may_write(offset, data.len() as u64)?;
        self.file.write_all_at(data, offset)
    }

    fn write_uncached(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check_may_write(offset, data.len() as u64)?;
        let direct = self.direct.as_ref().filter(|direct| direct.takes(offset, data.len()));
        if let Some(direct) = direct
            && direct.write(offset, data)?
        {
            return Ok(());
        }
        self.file.write_all_at(data, offset)?;
        self.begin_write_out(offset, data.len() as u64);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.check_not_failed()?;
        self.file.sync_data().inspect_err(|error| self.fail(&format!("an earlier flush failed: {error}")))
    }

    fn begin_write_out(&self, offset: u64, len: u64) {
        // No length would mean all of the file.
        if len > 0 && !self.read_only {
            write_out::begin(&self.file, offset, len);
        }
    }

    fn begin_read(&self, offset: u64, len: u64) {
        // No length would mean all of the file.
        if let Some(len) = NonZeroU64::new(len) {
            let _ = rustix::fs::fadvise(&self.file, offset, Some(len), rustix::fs::Advice::WillNeed);
        }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_may_write(offset, len)?;
        if len == 0 || !self.supports_discard() {
            return Ok(());
        }
        let result = if self.is_block_device {
            block_ioctl::discard(&self.file, offset, len)
        } else {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&self.file, punch, offset, len).map_err(io::Error::from)
        };
        result.or_else(|error| match Refused::of(&error) {
            Some(Refused::Always) => {
                self.has_no_discard.store(true, Ordering::Relaxed);
                Ok(())
            }
            Some(Refused::ThisRange) => Ok(()),
            None => Err(error),
        })
    }

    fn supports_discard(&self) -> bool {
        !self.has_no_discard.load(Ordering::Relaxed)
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn is_at(&self, path: &Path) -> bool {
        let (Ok(own), Ok(other)) = (self.file.metadata(), std::fs::metadata(path)) else { return false };
        match self.is_block_device {
            true => other.file_type().is_block_device() && own.rdev() == other.rdev(),
            false => (own.dev(), own.ino()) == (other.dev(), other.ino()),
        }
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn current_len(&self) -> io::Result<u64> {
        if self.is_block_device { block_ioctl::size_bytes(&self.file) } else { Ok(self.file.metadata()?.len()) }
    }

    fn notice_growth(&self) -> io::Result<u64> {
        let found = self.current_len()?;
        self.len.fetch_max(found, Ordering::AcqRel);
        Ok(self.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if self.is_block_device {
            let message = format!("{} is a block device, whose size is not butterfs' to change", self.name);
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        self.check_not_failed()?;
        // A file that is shorter than this device believes would be called cut off.
        if len < self.len() {
            self.len.store(len, Ordering::Release);
        }
        self.file.set_len(len)?;
        self.len.store(len, Ordering::Release);
        self.flush()
    }

    fn read_fresh(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if let (true, Some(len)) = (self.is_block_device, NonZeroU64::new(buf.len() as u64)) {
            // The cache of a block device is its own: what was written beneath it, or by another machine, is not in
            // there.
            let _ = rustix::fs::fadvise(&self.file, offset, Some(len), rustix::fs::Advice::DontNeed);
        }
        self.read_at(offset, buf)
    }

    fn has_uncached_reads(&self) -> bool {
        self.direct_reads.are_possible(&self.file)
    }

    fn read_uncached(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_read(self, offset, buf.len())?;
        if self.direct_reads.read(&self.file, offset, buf)? {
            return Ok(());
        }
        self.read_fresh(offset, buf)
    }

    fn next_data(&self, offset: u64) -> u64 {
        match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Ok(data) => data.min(self.len()),
            // No data behind a place inside the file.
            Err(Errno::NXIO) if !self.is_block_device && self.current_len().is_ok_and(|len| len >= self.len()) => {
                self.len().max(offset)
            }
            Err(_) => offset,
        }
    }

    fn kernel_use(&self, fsid: &[u8; 16]) -> Option<String> {
        let metadata = self.file.metadata().ok()?;
        let span = match self.is_block_device {
            true => Span::of_block_device(metadata.rdev())?,
            false => Span::of_file(&metadata),
        };
        in_use::usage_of_filesystem(fsid, &span)
    }
}

/// Which discards a device refuses.
enum Refused {
    /// It supports none.
    Always,
    /// It supports none of ranges like this one.
    ThisRange,
}

impl Refused {
    /// The meaning of an error of a discard; `None` for a failure.
    fn of(error: &io::Error) -> Option<Refused> {
        match Errno::from_io_error(error)? {
            Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY => Some(Refused::Always),
            Errno::INVAL => Some(Refused::ThisRange),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
