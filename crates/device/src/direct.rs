//! Writing past the page cache (`O_DIRECT`): storage reads straight from our memory, so the bytes are copied once less, no
//! cached page is taken for them, and they are on their way when the write returns.
//!
//! Direct I/O wants memory, offset and length aligned. Data is copied into aligned buffers, which are kept for the next
//! write. The kernel keeps its page cache coherent: cached pages of the range are written out before, and dropped after.
//!
//! Not here: durability. The storage may have a cache of its own, so a flush is needed as ever.

use parking_lot::Mutex;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// What satisfies every storage: no block is larger than a page.
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

    /// Writes `data`, which [`takes`](Self::takes) has accepted. `false` when the storage refuses direct I/O after all: what
    /// has been written by then may be written again.
    pub fn write(&self, offset: u64, data: &[u8]) -> io::Result<bool> {
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
