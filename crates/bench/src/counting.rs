//! A file as a device that counts the bytes written to it.

use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts bytes written.
#[derive(Debug)]
pub struct Counting {
    inner: FileDevice,
    written: AtomicU64,
    flushes: AtomicU64,
}

impl BlockDevice for Counting {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.written.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.inner.write_at(offset, data)
    }
    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.inner.flush()
    }
    fn begin_write_out(&self, offset: u64, len: u64) {
        self.inner.begin_write_out(offset, len);
    }
    fn begin_read(&self, offset: u64, len: u64) {
        self.inner.begin_read(offset, len);
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
    fn name(&self) -> String {
        self.inner.name()
    }
}

impl Counting {
    /// Opens the file at `path`.
    pub fn open(path: &Path) -> Counting {
        let inner = FileDevice::open(path, &FileOptions::read_write()).unwrap_or_else(|error| panic!("{error}"));
        Counting { inner, written: AtomicU64::new(0), flushes: AtomicU64::new(0) }
    }

    /// Bytes written and flushes so far.
    pub fn totals(&self) -> (u64, u64) {
        (self.written.load(Ordering::Relaxed), self.flushes.load(Ordering::Relaxed))
    }
}
