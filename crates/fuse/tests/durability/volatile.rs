//! A device that forgets, when the power is cut, whatever no flush has covered.

use butterfs_device::{BlockDevice, MemoryDevice};
use parking_lot::Mutex;
use std::io;

/// See the [module](self).
#[derive(Debug)]
pub struct VolatileDevice {
    /// The content that reads show.
    seen: MemoryDevice,
    /// The content after a power cut.
    durable: MemoryDevice,
    /// Writes since the last flush began, in order.
    pending: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl VolatileDevice {
    /// A device whose content is durable.
    pub fn new(content: &MemoryDevice) -> VolatileDevice {
        VolatileDevice { seen: content.snapshot(), durable: content.snapshot(), pending: Mutex::default() }
    }

    /// The content after a power cut at this moment.
    pub fn after_power_cut(&self) -> MemoryDevice {
        self.durable.snapshot()
    }
}

impl BlockDevice for VolatileDevice {
    fn len(&self) -> u64 {
        self.seen.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.seen.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut pending = self.pending.lock();
        self.seen.write_at(offset, data)?;
        pending.push((offset, data.to_vec()));
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let mut pending = self.pending.lock();
        pending.drain(..).try_for_each(|(offset, data)| self.durable.write_at(offset, &data))
    }

    fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn name(&self) -> String {
        "volatile".to_owned()
    }
}
