//! A device that refuses to be changed, whatever the one beneath allows.

use crate::{BlockDevice, check_write};
use std::io;
use std::sync::Arc;

/// Reads pass, writes and discards are refused.
#[derive(Debug)]
pub struct ReadOnlyDevice {
    inner: Arc<dyn BlockDevice>,
}

impl ReadOnlyDevice {
    /// A read-only view of `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>) -> ReadOnlyDevice {
        ReadOnlyDevice { inner }
    }
}

impl BlockDevice for ReadOnlyDevice {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        check_write(self, offset, data.len() as u64)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        check_write(self, offset, len)
    }

    fn next_data(&self, offset: u64) -> u64 {
        self.inner.next_data(offset)
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn current_len(&self) -> io::Result<u64> {
        self.inner.current_len()
    }
}
