//! A device of which some parts are known to be bad: they are not touched.

use crate::scan::Ddrescue;
use butterfs_device::BlockDevice;
use std::io;
use std::sync::Arc;

/// Reads pass where the map has nothing against them, past the page cache, which would read ahead into what is bad;
/// nothing is written.
#[derive(Debug)]
pub struct MappedDevice {
    inner: Arc<dyn BlockDevice>,
    known: Ddrescue,
}

impl MappedDevice {
    /// A view of `inner` without what is known to be bad.
    pub fn new(inner: Arc<dyn BlockDevice>, known: Ddrescue) -> MappedDevice {
        MappedDevice { inner, known }
    }
}

impl BlockDevice for MappedDevice {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.known.is_good(&(offset..offset.saturating_add(buf.len() as u64))) {
            return self.inner.read_uncached(offset, buf);
        }
        Err(io::Error::other(format!("{}: known to be bad near {offset}", self.name())))
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, format!("{} is only read", self.name())))
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn is_read_only(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_device::MemoryDevice;

    /// A device whose page cache would read ahead.
    #[derive(Debug)]
    struct Cached(MemoryDevice);

    impl BlockDevice for Cached {
        fn len(&self) -> u64 {
            self.0.len()
        }
        fn read_at(&self, offset: u64, _: &mut [u8]) -> io::Result<()> {
            Err(io::Error::other(format!("{offset} goes through the cache")))
        }
        fn read_uncached(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            self.0.read_at(offset, buf)
        }
        fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.0.write_at(offset, data)
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
        fn name(&self) -> String {
            self.0.name()
        }
    }

    #[test]
    fn what_is_bad_is_touched_by_no_cache() {
        let inner = Arc::new(Cached(MemoryDevice::new(1 << 20)));
        let bad = std::iter::once(0x5200..0x5400).collect();
        let device = MappedDevice::new(inner, Ddrescue::of_bad(bad));
        let mut buf = [1; 4096];
        device.read_at(0x4000, &mut buf).unwrap();
        device.read_at(0x6000, &mut buf).unwrap();
        assert_eq!(buf, [0; 4096]);
        let refused = device.read_at(0x5000, &mut buf).unwrap_err();
        assert!(refused.to_string().contains("known to be bad near 20480"), "{refused}");
    }
}
