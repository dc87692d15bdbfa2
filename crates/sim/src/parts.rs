//! Several devices in one: a disk of the simulator holds all devices of its filesystem, one behind the other, so that a
//! snapshot is of all of them at one moment.

use butterfs_device::{BlockDevice, MemoryDevice};
use std::io;
use std::sync::Arc;

/// A part of a device, as a device.
#[derive(Debug)]
struct Part {
    whole: Arc<dyn BlockDevice>,
    start: u64,
    len: u64,
}

/// The devices, all of one size, that `whole` holds.
pub fn parts(whole: Arc<dyn BlockDevice>, count: usize) -> Vec<Arc<dyn BlockDevice>> {
    let len = whole.len() / count as u64;
    let part = |number: u64| -> Arc<dyn BlockDevice> {
        Arc::new(Part { whole: Arc::clone(&whole), start: number * len, len })
    };
    (0..count as u64).map(part).collect()
}

/// The devices of a disk; what is written to them leaves the disk as it is.
pub fn devices(disk: &MemoryDevice, count: usize) -> Vec<Arc<dyn BlockDevice>> {
    parts(Arc::new(disk.snapshot()), count)
}

impl Part {
    fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        let error = || io::Error::new(io::ErrorKind::InvalidInput, format!("{len} bytes at {offset} are outside"));
        inside.then_some(()).ok_or_else(error)
    }
}

impl BlockDevice for Part {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check(offset, buf.len() as u64)?;
        self.whole.read_at(self.start + offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check(offset, data.len() as u64)?;
        self.whole.write_at(self.start + offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.whole.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(offset, len)?;
        self.whole.discard(self.start + offset, len)
    }

    fn name(&self) -> String {
        format!("disk{}", self.start / self.len + 1)
    }
}
