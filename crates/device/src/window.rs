//! A range of another device as a device: a partition of a disk image, or a filesystem behind a header.
//!
//! Offsets are those inside the window. A write that leaves the window is refused, so the rest of the device stays as
//! it is.

use crate::aligned::ALIGNMENT;
use crate::{BlockDevice, check_read, check_write};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// See the [module](self).
#[derive(Debug)]
pub struct WindowDevice {
    inner: Arc<dyn BlockDevice>,
    range: Range<u64>,
}

impl WindowDevice {
    /// The bytes `range` of `inner`; an error of kind `InvalidInput` if the device does not contain that range.
    pub fn new(inner: Arc<dyn BlockDevice>, range: Range<u64>) -> io::Result<WindowDevice> {
        if range.start <= range.end && range.end <= inner.len() {
            return Ok(WindowDevice { inner, range });
        }
        let Range { start, end } = range;
        let message = format!("bytes {start} to {end} do not lie inside of {} ({} bytes)", inner.name(), inner.len());
        Err(io::Error::new(io::ErrorKind::InvalidInput, message))
    }
}

impl BlockDevice for WindowDevice {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_read(self, offset, buf.len())?;
        self.inner.read_at(self.range.start + offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        check_write(self, offset, data.len() as u64)?;
        self.inner.write_at(self.range.start + offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn next_data(&self, offset: u64) -> u64 {
        let data = self.inner.next_data(self.range.start + offset).saturating_sub(self.range.start);
        data.min(self.len()).max(offset)
    }

    fn write_uncached(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        check_write(self, offset, data.len() as u64)?;
        self.inner.write_uncached(self.range.start + offset, data)
    }

    fn begin_write_out(&self, offset: u64, len: u64) {
        if check_read(self, offset, len as usize).is_ok() {
            self.inner.begin_write_out(self.range.start + offset, len);
        }
    }

    fn begin_read(&self, offset: u64, len: u64) {
        if check_read(self, offset, len as usize).is_ok() {
            self.inner.begin_read(self.range.start + offset, len);
        }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        check_write(self, offset, len)?;
        self.inner.discard(self.range.start + offset, len)
    }

    fn name(&self) -> String {
        format!("{} at {}", self.inner.name(), self.range.start)
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn current_len(&self) -> io::Result<u64> {
        Ok(self.inner.current_len()?.min(self.range.end).saturating_sub(self.range.start))
    }

    fn read_fresh(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_read(self, offset, buf.len())?;
        self.inner.read_fresh(self.range.start + offset, buf)
    }

    fn has_uncached_reads(&self) -> bool {
        self.range.start.is_multiple_of(ALIGNMENT as u64) && self.inner.has_uncached_reads()
    }

    fn read_uncached(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_read(self, offset, buf.len())?;
        self.inner.read_uncached(self.range.start + offset, buf)
    }

    fn kernel_use(&self, fsid: &[u8; 16]) -> Option<String> {
        self.inner.kernel_use(fsid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn a_window_shows_and_changes_its_range_alone() {
        let whole = Arc::new(MemoryDevice::new(4096));
        let window = WindowDevice::new(whole.clone(), 512..1024).unwrap();
        window.write_at(0, &[7; 512]).unwrap();
        assert_eq!((window.len(), window.current_len().unwrap()), (512, 512));
        assert!(window.write_at(1, &[7; 512]).is_err() && window.write_uncached(512, &[7]).is_err());
        assert!(window.read_at(500, &mut [0; 13]).is_err() && window.discard(0, 513).is_err());
        let bytes = whole.to_bytes();
        let sevens = bytes.iter().enumerate().filter(|(_, byte)| **byte == 7).map(|(at, _)| at);
        assert_eq!(sevens.collect::<Vec<_>>(), (512..1024).collect::<Vec<_>>());
    }

    #[test]
    fn a_window_lies_inside_of_its_device() {
        let whole = || Arc::new(MemoryDevice::new(4096));
        assert!(WindowDevice::new(whole(), 4000..4097).is_err());
        assert!(WindowDevice::new(whole(), std::ops::Range { start: 2, end: 1 }).is_err());
        assert!(WindowDevice::new(whole(), 4096..4096).is_ok());
    }
}
