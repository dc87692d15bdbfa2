//! A device of which some parts are known to be bad: they are not touched.

use crate::scan::Ddrescue;
use butterfs_device::BlockDevice;
use std::io;
use std::sync::Arc;

/// Reads pass where the map has nothing against them; nothing is written.
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
            return self.inner.read_at(offset, buf);
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
