//! A device that takes over from another one, and fails only until it has: from then on it is a member, whose failures
//! are the matter of `--members`.

use butterfs_device::{BlockDevice, Fault, FaultRule, FaultyDevice, Operation};
use butterfs_ondisk::superblock::{OFFSETS, Superblock};
use std::io;
use std::sync::Arc;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Target(FaultyDevice);

impl Target {
    pub fn new(device: Arc<dyn BlockDevice>) -> Target {
        Target(FaultyDevice::new(device))
    }

    /// Fails the operation behind so many of its kind, once.
    pub fn fail(&self, on: Operation, after: u64) {
        self.0.add_rule(FaultRule::always(on, Fault::Fail).after(after, 1));
    }

    /// Fails no more. Returns whether it has failed.
    pub fn recover(&self) -> bool {
        let has_failed = self.0.counts() != Default::default();
        self.0.clear();
        has_failed
    }

    fn notice_takeover(&self, offset: u64, data: &[u8]) {
        let superblock = (offset == OFFSETS[0].0).then(|| Superblock::parse(data, OFFSETS[0]));
        if let Some(Ok(superblock)) = superblock
            && superblock.dev_item.devid.get() != 0
        {
            self.0.clear();
        }
    }
}

impl BlockDevice for Target {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.notice_takeover(offset, data);
        self.0.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.discard(offset, len)
    }

    fn supports_discard(&self) -> bool {
        self.0.supports_discard()
    }

    fn name(&self) -> String {
        self.0.name()
    }
}
