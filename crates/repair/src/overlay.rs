//! A device over another one: what is written stays in memory, and what was not written is read from beneath.
//!
//! Invariant: the device beneath is never written. Memory grows with the number of different pages written.

use butterfs_device::BlockDevice;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::Arc;

/// Bytes of a page: the unit in which differences are kept.
pub(crate) const PAGE: u64 = 4096;

/// One range of a device that gets other bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Where on the device.
    pub offset: u64,
    /// The present bytes.
    pub old: Vec<u8>,
    /// The bytes that replace them.
    pub new: Vec<u8>,
}

/// The overlay.
#[derive(Debug)]
pub(crate) struct Overlay {
    inner: Arc<dyn BlockDevice>,
    pages: RwLock<BTreeMap<u64, Box<[u8]>>>,
}

impl Overlay {
    /// Nothing written yet.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Overlay {
        Overlay { inner, pages: RwLock::default() }
    }

    /// The differences from the device beneath, page by page, ascending.
    pub fn changes(&self) -> io::Result<Vec<Change>> {
        let mut changes = Vec::new();
        for (&page, new) in self.pages.read().iter() {
            let offset = page * PAGE;
            let mut old = vec![0; new.len()];
            self.inner.read_at(offset, &mut old)?;
            if old[..] != new[..] {
                changes.push(Change { offset, old, new: new.to_vec() });
            }
        }
        Ok(changes)
    }

    fn page_len(&self, page: u64) -> usize {
        (self.inner.len() - page * PAGE).min(PAGE) as usize
    }
}

impl BlockDevice for Overlay {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if buf.is_empty() {
            return self.inner.read_at(offset, buf);
        }
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= self.len());
        let end =
            end.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "the range is outside of the device"))?;
        let pages = self.pages.read();
        let (first, last) = (offset / PAGE, (end - 1) / PAGE);
        // A page that was written may lie on a bad sector: where all of a range was written, nothing beneath is read.
        let all = (first..=last).all(|page| pages.contains_key(&page));
        if !all {
            self.inner.read_at(offset, buf)?;
        }
        for (page, bytes) in pages.range(first..=last) {
            let start = page * PAGE;
            let (from, to) = (start.max(offset), (start + bytes.len() as u64).min(end));
            let source = &bytes[(from - start) as usize..(to - start) as usize];
            buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= self.len());
        let end =
            end.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the range is outside of the device"))?;
        let mut pages = self.pages.write();
        let mut at = offset;
        while at < end {
            let (page, start) = (at / PAGE, at / PAGE * PAGE);
            let len = self.page_len(page);
            let to = end.min(start + len as u64);
            let bytes = match pages.entry(page) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => {
                    let mut bytes = vec![0; len].into_boxed_slice();
                    if to - at < len as u64 {
                        self.inner.read_at(start, &mut bytes)?;
                    }
                    place.insert(bytes)
                }
            };
            let source = &data[(at - offset) as usize..(to - offset) as usize];
            bytes[(at - start) as usize..(to - start) as usize].copy_from_slice(source);
            at = to;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_device::MemoryDevice;

    #[test]
    fn what_is_written_is_read_and_the_device_beneath_stays() {
        let base = Arc::new(MemoryDevice::from_bytes(&[7; 10_000]));
        let overlay = Overlay::new(base.clone());
        overlay.write_at(4090, &[1; 20]).unwrap();
        overlay.write_at(9_990, &[2; 10]).unwrap();
        overlay.write_at(100, &[7; 5]).unwrap();
        let mut found = vec![0; 10_000];
        overlay.read_at(0, &mut found).unwrap();
        let expected = |at: usize| match at {
            4090..4110 => 1,
            9_990..10_000 => 2,
            _ => 7,
        };
        assert!(found.iter().enumerate().all(|(at, byte)| *byte == expected(at)));
        assert_eq!(base.to_bytes(), vec![7; 10_000]);
        let changes = overlay.changes().unwrap();
        assert_eq!(changes.iter().map(|change| change.offset).collect::<Vec<_>>(), [0, 4096, 8192]);
        assert_eq!(changes[2].new.len(), 10_000 - 8192);
        overlay.write_at(9_995, &[0; 6]).unwrap_err();
    }
}
