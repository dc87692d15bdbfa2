//! Writing and reading past the page cache (`O_DIRECT`): storage reads straight from our memory, so the bytes are
//! copied once less, no cached page is taken for them, and they are on their way when the write returns.
//!
//! Direct I/O wants memory, offset and length aligned. Data that is not is copied into an [`AlignedBuffer`]. The kernel
//! keeps its page cache coherent: cached pages of the range are written out before, and dropped after.
//!
//! A direct read shows what the storage holds: the kernel writes cached changes of the range out before.
//!
//! Not here: durability. The storage may have a cache of its own, so a flush is needed as ever.

use crate::aligned::{ALIGNMENT, AlignedBuffer};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The longest single write: longer ones gain no speed.
const LONGEST: usize = 1 << 20;

/// A second descriptor of a file or block device, with `O_DIRECT`.
#[derive(Debug)]
pub struct Direct {
    file: File,
    /// The storage has refused a write that was aligned.
    is_refused: AtomicBool,
}

impl Direct {
    /// For the same file or device as `file`, which is open for writing; `None` where it has no direct I/O.
    pub fn beside(file: &File) -> Option<Direct> {
        let flags = OFlags::DIRECT.bits() as i32;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let file = OpenOptions::new().write(true).custom_flags(flags).open(path).ok()?;
        Some(Direct { file, is_refused: AtomicBool::new(false) })
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
        let mut parts = data.chunks(LONGEST).zip((offset..).step_by(LONGEST));
        self.taken(parts.try_for_each(|(part, at)| self.file.write_all_at(&AlignedBuffer::of(part), at)))
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
}

/// A second descriptor of a file or block device for direct reads, opened when the first one is wanted.
#[derive(Debug, Default)]
pub struct DirectReads {
    file: OnceLock<Option<File>>,
    /// The storage has refused a read that was aligned.
    is_refused: AtomicBool,
}

impl DirectReads {
    /// Whether `file` can be read so, as far as is known.
    pub fn are_possible(&self, file: &File) -> bool {
        !self.is_refused.load(Ordering::Relaxed) && self.file.get_or_init(|| reopen(file)).is_some()
    }

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
