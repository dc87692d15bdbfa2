//! Superblock copies: whether they are valid, and reading the filesystem by another copy than the first.

use crate::finding::Finding;
use crate::session::Sink;
use butterfs_device::BlockDevice;
use butterfs_ondisk::Superblock;
use butterfs_ondisk::superblock::{OFFSETS, SUPERBLOCK_LEN};
use std::io;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Checks the copies that a device of the filesystem should have, from `first` on. An older generation is usual in a
/// secondary one: a log sync and a crash leave it.
pub(crate) fn check_copies(device: &dyn BlockDevice, total_bytes: u64, first: usize, sink: &mut Sink) {
    for (copy, at) in Superblock::copies_on(total_bytes).enumerate().skip(first) {
        let mut bytes = vec![0; SUPERBLOCK_LEN];
        let read = device.read_at(at.get(), &mut bytes).map_err(|error| error.to_string());
        let parsed = read.and_then(|()| Superblock::parse(&bytes, at).map_err(|error| error.to_string()));
        if let Err(rule) = parsed {
            let device = device.name();
            sink.add(match copy {
                0 => Finding::SuperblockPrimary { device, rule },
                copy => Finding::SuperblockCopy { device, copy: copy as u64, rule },
            });
        }
    }
}

/// A device that shows one of its secondary superblocks in the place of the first. It cannot be written.
#[derive(Debug)]
pub(crate) struct ByCopy {
    inner: Arc<dyn BlockDevice>,
    primary: Vec<u8>,
}

impl ByCopy {
    /// Reads by copy `copy` of the device.
    pub fn new(inner: Arc<dyn BlockDevice>, copy: usize) -> Result<ByCopy, String> {
        let at = *OFFSETS.get(copy).ok_or_else(|| format!("there is no superblock copy {copy}, only 0, 1 and 2"))?;
        let mut bytes = vec![0; SUPERBLOCK_LEN];
        let fail = |error: String| format!("superblock copy {copy} of {}: {error}", inner.name());
        inner.read_at(at.get(), &mut bytes).map_err(|error| fail(error.to_string()))?;
        let mut sb = Superblock::parse(&bytes, at).map_err(|error| fail(error.to_string()))?;
        sb.bytenr = OFFSETS[0].get().into();
        sb.seal();
        Ok(ByCopy { inner, primary: sb.as_bytes().to_vec() })
    }
}

impl BlockDevice for ByCopy {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)?;
        let (start, end) = (OFFSETS[0].get(), OFFSETS[0].get() + SUPERBLOCK_LEN as u64);
        let (from, to) = (offset.max(start), (offset + buf.len() as u64).min(end));
        if from < to {
            let source = &self.primary[(from - start) as usize..(to - start) as usize];
            buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
        }
        Ok(())
    }

    fn write_at(&self, _offset: u64, _data: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&self) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn is_read_only(&self) -> bool {
        true
    }
}
