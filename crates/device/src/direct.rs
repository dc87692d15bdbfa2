//! Writing and reading past the page cache (`O_DIRECT`): storage reads straight from our memory, so the bytes are
//! copied once less, no cached page is taken for them, and they are on their way when the write returns.
//!
//! Direct I/O wants memory, offset and length aligned. Data that is not is copied into aligned buffers, which are kept
//! for the next write. The kernel keeps its page cache coherent: cached pages of the range are written out before, and
//! dropped after.
//!
//! A direct read shows what the storage holds: the kernel writes cached changes of the range out before.
//!
//! Not here: durability. The storage may have a cache of its own, so a flush is needed as ever.

use parking_lot::Mutex;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// An alignment that satisfies every storage: no block is larger than a page.
const ALIGNMENT: usize = 4096;
/// The longest single write: longer ones gain no speed.
const LONGEST: usize = 1 << 20;
/// Bytes of buffers that are kept for the next writes.
const KEPT_BYTES: usize = 4 << 20;

/// A second descriptor of a file or block device, with `O_DIRECT`.
#[derive(Debug)]
pub struct Direct {
    file: File,
    buffers: Mutex<Vec<Buffer>>,
    /// The storage has refused a write that was aligned.
    is_refused: AtomicBool,
}

/// Memory that direct I/O may use.
type Buffer = Vec<Page>;

/// Zeroed bytes at an address that direct I/O accepts.
#[derive(Debug, Default)]
pub struct AlignedBuffer {
    pages: Buffer,
    len: usize,
}

impl AlignedBuffer {
    /// A buffer of `len` bytes.
    pub fn new(len: usize) -> AlignedBuffer {
        AlignedBuffer { pages: vec![Page::new_zeroed(); len.div_ceil(ALIGNMENT)], len }
    }
}

impl std::ops::Deref for AlignedBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.pages.as_bytes()[..self.len]
    }
}

impl std::ops::DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.pages.as_mut_bytes()[..self.len]
    }
}

#[derive(Clone, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; ALIGNMENT]);

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Page")
    }
}

impl Direct {
    /// For the same file or device as `file`, which is open for writing; `None` where it has no direct I/O.
    pub fn beside(file: &File) -> Option<Direct> {
        let flags = OFlags::DIRECT.bits() as i32;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let file = OpenOptions::new().write(true).custom_flags(flags).open(path).ok()?;
        Some(Direct { file, buffers: Mutex::default(), is_refused: AtomicBool::new(false) })
    }

    /// Whether a write like this one can be direct.
    pub fn takes(&self, offset: u64, len: usize) -> bool {
        let is_aligned = offset.is_multiple_of(ALIGNMENT as u64) && len.is_multiple_of(ALIGNMENT);
        is_aligned && !self.is_refused.load(Ordering::Relaxed)
    }

    /// Writes `data`, which [`takes`](Self::takes) has accepted. `false` when the storage refuses direct I/O after all:
    /// what has been written by then may be written again.
    pub fn write(&self, offset: u64, data: &[u8]) -> io::Result<bool> {
        if (data.as_ptr() as usize).is_multiple_of(ALIGNMENT) {
            return self.taken(self.file.write_all_at(data, offset));
        }
        let mut buffer = self.buffers.lock().pop().unwrap_or_default();
        let parts = data.chunks(LONGEST).zip((offset..).step_by(LONGEST));
        let result = parts.into_iter().try_for_each(|(part, at)| {
            let pages = part.len() / ALIGNMENT;
            if buffer.len() < pages {
                buffer.resize(pages, Page::new_zeroed());
            }
            let aligned = &mut buffer[..pages];
            aligned.as_mut_bytes().copy_from_slice(part);
            self.file.write_all_at(aligned.as_bytes(), at)
        });
        self.keep(buffer);
        self.taken(result)
    }

    fn taken(&self, result: io::Result<()>) -> io::Result<bool> {
        match result {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.is_refused.store(true, Ordering::Relaxed);
                Ok(false)
            }
            result => result.map(|()| true),
        }
    }

    fn keep(&self, buffer: Buffer) {
        let mut buffers = self.buffers.lock();
        let kept: usize = buffers.iter().map(|buffer| buffer.as_bytes().len()).sum();
        if kept + buffer.as_bytes().len() <= KEPT_BYTES {
            buffers.push(buffer);
        }
    }
}

/// A second descriptor of a file or block device for direct reads, opened when the first one is wanted.
#[derive(Debug, Default)]
pub struct DirectReads {
    file: OnceLock<Option<File>>,
    /// The storage has refused a read that was aligned.
    is_refused: AtomicBool,
}

impl DirectReads {
    /// Fills `buf` from `file` past the page cache; `false` when the storage or the range does not allow that.
    pub fn read(&self, file: &File, offset: u64, buf: &mut [u8]) -> io::Result<bool> {
        let is_aligned = offset.is_multiple_of(ALIGNMENT as u64) && buf.len().is_multiple_of(ALIGNMENT);
        if !is_aligned || self.is_refused.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let Some(direct) = self.file.get_or_init(|| reopen(file)) else { return Ok(false) };
        let result = if (buf.as_ptr() as usize).is_multiple_of(ALIGNMENT) {
            direct.read_exact_at(buf, offset)
        } else {
            let mut aligned = AlignedBuffer::new(buf.len());
            direct.read_exact_at(&mut aligned, offset).map(|()| buf.copy_from_slice(&aligned))
        };
        match result {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.is_refused.store(true, Ordering::Relaxed);
                Ok(false)
            }
            result => result.map(|()| true),
        }
    }
}

fn reopen(file: &File) -> Option<File> {
    let flags = OFlags::DIRECT.bits() as i32;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(flags).open(path).ok()
}
