//! A device whose reads, writes and flushes are accesses that a scheduler sees: any of them may take as long as all
//! other threads like.

use butterfs_device::BlockDevice;
use butterfs_sync::{Access, Object, access};
use std::io;
use std::sync::Arc;

/// See the [module](self).
#[derive(Debug)]
pub struct SlowDevice {
    inner: Arc<dyn BlockDevice>,
}

impl SlowDevice {
    /// As slow as the scheduler wants.
    pub fn new(inner: Arc<dyn BlockDevice>) -> SlowDevice {
        SlowDevice { inner }
    }

    fn reach(&self, shared: bool) {
        access(Access { object: Object(std::ptr::from_ref(self).addr()), shared });
    }
}

impl BlockDevice for SlowDevice {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.reach(true);
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.reach(false);
        self.inner.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.reach(false);
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.reach(false);
        self.inner.discard(offset, len)
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}
