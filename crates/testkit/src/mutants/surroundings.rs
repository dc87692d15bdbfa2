//! A run depends on nothing but its seed. A clock that ticks, random numbers that are counted, no threads in
//! the background, and devices in memory that count what is asked of them.

use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::Env;
use butterfs_fs::env::{Source, Time};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An environment in which the same calls have the same answers.
pub fn steady() -> Env {
    Env::new(Steady::default())
}

#[derive(Default)]
struct Steady(AtomicU64);

impl Source for Steady {
    fn now(&self) -> Time {
        Time { sec: 1_700_000_000 + self.0.fetch_add(1, Ordering::Relaxed) as i64, nsec: 0 }
    }

    fn random(&self) -> [u8; 16] {
        (u128::from(self.0.fetch_add(1, Ordering::Relaxed)) | 1 << 100).to_le_bytes()
    }

    fn threads(&self) -> usize {
        1
    }

    fn background(&self) -> bool {
        false
    }
}

/// Reads and writes of all devices of a run.
#[derive(Debug, Default)]
pub struct Meter {
    calls: AtomicU64,
    written: AtomicU64,
}

impl Meter {
    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }
}

/// A device in memory that counts.
pub struct MeteredDevice {
    inner: Arc<MemoryDevice>,
    meter: Arc<Meter>,
}

impl MeteredDevice {
    /// These devices; all count on one meter.
    pub fn all(disks: &[Arc<MemoryDevice>], meter: &Arc<Meter>) -> Vec<Arc<dyn BlockDevice>> {
        let metered = |disk: &Arc<MemoryDevice>| MeteredDevice { inner: Arc::clone(disk), meter: Arc::clone(meter) };
        disks.iter().map(|disk| Arc::new(metered(disk)) as Arc<dyn BlockDevice>).collect()
    }

    fn count(&self, written: usize) {
        self.meter.calls.fetch_add(1, Ordering::Relaxed);
        self.meter.written.fetch_add(written as u64, Ordering::Relaxed);
    }
}

impl fmt::Debug for MeteredDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MeteredDevice")
    }
}

impl BlockDevice for MeteredDevice {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.count(0);
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.count(data.len());
        self.inner.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.count(0);
        self.inner.discard(offset, len)
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}
