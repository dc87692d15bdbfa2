//! A device whose changes stay in memory: what must be written to be read, such as a log that is replayed, is never
//! written to the source.

use crate::patch::Writer;
use crate::superblocks::{self, SuperblockCopy};
use crate::wreck::{Opening, Wreck};
use crate::{Error, Result};
use butterfs_device::BlockDevice;
use butterfs_fs::{Env, Filesystem, Options};
use butterfs_ondisk::Superblock;
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::io;
use std::sync::Arc;

/// Bytes that are copied at once.
const PAGE: u64 = 16 << 10;
/// Changed bytes at most.
const MOST_BYTES: u64 = 256 << 20;

/// See the [module](self).
#[derive(Debug)]
pub struct OverlayDevice {
    inner: Arc<dyn BlockDevice>,
    pages: RwLock<FxHashMap<u64, Box<[u8]>>>,
}

impl OverlayDevice {
    /// A device that begins with the content of `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>) -> OverlayDevice {
        OverlayDevice { inner, pages: RwLock::default() }
    }

    fn page(&self, number: u64) -> io::Result<Box<[u8]>> {
        let start = number * PAGE;
        let mut page = vec![0; PAGE.min(self.inner.len() - start) as usize].into_boxed_slice();
        self.inner.read_at(start, &mut page)?;
        Ok(page)
    }
}

/// The parts of `len` bytes at `offset` that lie in one page each: page, offset in it, range of the caller's bytes.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let (page, inside) = (at / PAGE, (at % PAGE) as usize);
        let range = done..len.min(done + PAGE as usize - inside);
        done = range.end;
        (!range.is_empty()).then_some((page, inside, range))
    })
}

impl BlockDevice for OverlayDevice {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let pages = self.pages.read();
        if pages.is_empty() || offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.len()) {
            return self.inner.read_at(offset, buf);
        }
        for (number, inside, range) in parts(offset, buf.len()) {
            let start = offset + range.start as u64;
            let into = &mut buf[range];
            match pages.get(&number) {
                Some(page) => into.copy_from_slice(&page[inside..inside + into.len()]),
                None => self.inner.read_at(start, into)?,
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > self.len()) {
            let message = format!("write of {} bytes at {offset} is outside of {}", data.len(), self.name());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let mut pages = self.pages.write();
        for (number, inside, range) in parts(offset, data.len()) {
            if !pages.contains_key(&number) {
                if pages.len() as u64 >= MOST_BYTES / PAGE {
                    return Err(io::Error::from(io::ErrorKind::StorageFull));
                }
                pages.insert(number, self.page(number)?);
            }
            let page = pages.get_mut(&number).expect("it was just put there");
            page[inside..inside + range.len()].copy_from_slice(&data[range]);
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn supports_discard(&self) -> bool {
        false
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}

/// The devices as they are after their log was replayed, in memory.
pub fn with_log_replayed(devices: Vec<Arc<dyn BlockDevice>>) -> Result<Vec<Arc<dyn BlockDevice>>> {
    let wreck = Wreck::open(devices.clone(), Opening::default()).ok();
    let Some(wreck) = wreck.filter(|wreck| wreck.superblock().log_root.get() != 0) else { return Ok(devices) };
    let overlays: Vec<Arc<dyn BlockDevice>> =
        devices.into_iter().map(|device| Arc::new(OverlayDevice::new(device)) as Arc<dyn BlockDevice>).collect();
    let copies = superblocks::copies(&overlays);
    let levels = |sb: &Superblock| [sb.root_level, sb.chunk_root_level, sb.log_root_level];
    let is_right = |copy: &SuperblockCopy| {
        copy.content
            .as_ref()
            .is_ok_and(|sb| sb.generation != wreck.superblock().generation || levels(sb) == levels(wreck.superblock()))
    };
    if copies.iter().any(|copy| copy.copy == 0 && !is_right(copy)) {
        Writer::new(&wreck, &overlays)?.write_superblock(wreck.superblock(), &|_| ())?;
    }
    let options = Options { read_only: true, degraded: true, ..Options::default() };
    let opened = Filesystem::open(overlays.clone(), options, Env::system());
    let opened = opened.map_err(|error| Error(format!("the log cannot be replayed: {error}")))?;
    opened.shutdown().map_err(|error| Error(error.to_string()))?;
    Ok(overlays)
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_device::{MemoryDevice, ReadOnlyDevice};

    #[test]
    fn changes_stay_above() {
        let lower = Arc::new(MemoryDevice::from_bytes(&vec![7; 100_000]));
        let overlay = OverlayDevice::new(Arc::new(ReadOnlyDevice::new(lower.clone())));
        overlay.write_at(16_000, &[1; 1000]).unwrap();
        overlay.write_at(99_990, &[2; 10]).unwrap();
        let mut all = vec![0; 100_000];
        overlay.read_at(0, &mut all).unwrap();
        let changed = |at: usize| (16_000..17_000).contains(&at) || at >= 99_990;
        assert!(all.iter().enumerate().all(|(at, byte)| (*byte == 7) != changed(at)));
        assert!(lower.to_bytes().iter().all(|byte| *byte == 7));
        assert!(overlay.write_at(99_995, &[0; 6]).is_err() && overlay.read_at(99_995, &mut [0; 6]).is_err());
    }
}
