//! Bytes that are kept on this machine: in memory, or in a file without a name, which is gone with the process.
//!
//! The file has a region for each size: 4 KiB, 8 KiB and so on to 1 MiB. It is sparse, and places that are not used any
//! more are used again or made holes.

use butterfs_store::{Error, Kind, Result};
use bytes::Bytes;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use quick_cache::{OptionsBuilder, Weighter};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::hash::Hash;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Bytes of the smallest place, as a power of two.
const LEAST: u32 = 12;
/// Bytes of the largest place.
pub const MOST: usize = 1 << 20;
const SIZES: usize = 9;
/// Bytes of the region of one size, as a power of two.
const REGION: u32 = 40;
/// Bytes of places of one size that are free and no holes.
const MOST_FREE: u64 = 16 << 20;

/// See the [module](self).
pub struct LocalFile {
    file: File,
    sizes: [Mutex<Places>; SIZES],
}

/// The places of one size.
#[derive(Default)]
struct Places {
    free: Vec<u32>,
    /// Those from here on were never used.
    next: u32,
}

/// A place in the file.
pub struct Slot {
    owner: Arc<LocalFile>,
    size: usize,
    number: u32,
    len: usize,
}

/// Bytes in memory or in the file.
#[derive(Clone)]
pub enum Kept {
    /// In memory.
    Memory(Bytes),
    /// In the file.
    File(Arc<Slot>),
}

impl std::fmt::Debug for LocalFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LocalFile")
    }
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = if let Kept::Memory(_) = self { "memory" } else { "the file" };
        write!(f, "{} bytes in {place}", self.len())
    }
}

impl LocalFile {
    /// A file in a folder.
    pub fn in_folder(folder: &Path) -> Result<Arc<LocalFile>> {
        let refused = |error| Error::new(Kind::Invalid, format!("{} takes no file: {error}", folder.display()));
        let file = tempfile::tempfile_in(folder).map_err(refused)?;
        Ok(Arc::new(LocalFile { file, sizes: Default::default() }))
    }

    /// Keeps up to [`MOST`] bytes.
    pub(crate) fn keep(self: &Arc<Self>, bytes: &[u8]) -> io::Result<Kept> {
        let size = size_of_place(bytes.len());
        let number = {
            let mut places = self.sizes[size].lock();
            match places.free.pop() {
                Some(number) => number,
                None if u64::from(places.next) >= 1 << (REGION - LEAST - size as u32) => {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                None => {
                    places.next += 1;
                    places.next - 1
                }
            }
        };
        let slot = Slot { owner: self.clone(), size, number, len: bytes.len() };
        self.file.write_all_at(bytes, slot.offset())?;
        Ok(Kept::File(Arc::new(slot)))
    }
}

/// The index of the size of the place for so many bytes.
fn size_of_place(len: usize) -> usize {
    assert!((1..=MOST).contains(&len), "a place has 1 byte to 1 MiB");
    (len.next_power_of_two().trailing_zeros().max(LEAST) - LEAST) as usize
}

/// The bytes that a place of this size has.
fn bytes_of_place(size: usize) -> u64 {
    1 << (size as u32 + LEAST)
}

impl Slot {
    fn bytes(&self) -> u64 {
        bytes_of_place(self.size)
    }

    fn offset(&self) -> u64 {
        ((self.size as u64) << REGION) + u64::from(self.number) * self.bytes()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut places = self.owner.sizes[self.size].lock();
        places.free.push(self.number);
        if places.free.len() as u64 * self.bytes() > MOST_FREE {
            // A filesystem without holes keeps the room until the place is used again.
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = fallocate(&self.owner.file, hole, self.offset(), self.bytes());
        }
    }
}

/// A cache of so many bytes, with about so many entries. Half of it is for what was asked for once, because what is
/// read ahead must stay until it is read.
pub fn cache<K: Eq + Hash, W: Weighter<K, Kept> + Clone>(entries: u64, bytes: u64, weighter: W) -> Cache<K, Kept, W> {
    let mut options = OptionsBuilder::new();
    options.estimated_items_capacity(entries as usize).weight_capacity(bytes).hot_allocation(0.5);
    let options = options.build().expect("both numbers are given");
    Cache::with_options(options, weighter, Default::default(), Default::default())
}

impl Kept {
    /// Keeps bytes in the file, or in memory where there is none; `None` when the file takes no more.
    pub fn new(bytes: &Bytes, file: Option<&Arc<LocalFile>>) -> Option<Kept> {
        file.map_or_else(|| Some(Kept::Memory(bytes.clone())), |file| file.keep(bytes).ok())
    }

    /// Whether a disk can fail to give them back.
    pub fn is_on_disk(&self) -> bool {
        matches!(self, Kept::File(_))
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        match self {
            Kept::Memory(bytes) => bytes.len(),
            Kept::File(slot) => slot.len,
        }
    }

    /// Bytes that they take.
    pub fn room(&self) -> u64 {
        match self {
            Kept::Memory(bytes) => bytes.len().next_power_of_two().max(1 << LEAST) as u64,
            Kept::File(slot) => slot.bytes(),
        }
    }

    /// All of them.
    pub fn read(&self) -> io::Result<Bytes> {
        self.part(0, self.len())
    }

    /// So many from `skip` on.
    pub fn part(&self, skip: usize, len: usize) -> io::Result<Bytes> {
        match self {
            Kept::Memory(bytes) => Ok(bytes.slice(skip..skip + len)),
            Kept::File(slot) => {
                assert!(skip + len <= slot.len, "the part is within");
                let mut bytes = vec![0; len];
                slot.owner.file.read_exact_at(&mut bytes, slot.offset() + skip as u64)?;
                Ok(bytes.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn places_are_used_again_and_made_holes() {
        let file = LocalFile::in_folder(&std::env::temp_dir()).unwrap();
        let lens = [1, 4096, 4097, 65536, 100_000, MOST];
        for round in 0..3u8 {
            let content = |index: usize, len: usize| vec![round * 7 + index as u8; len];
            let kept: Vec<Kept> =
                lens.iter().enumerate().map(|(index, len)| file.keep(&content(index, *len)).unwrap()).collect();
            for (index, (kept, len)) in kept.iter().zip(lens).enumerate() {
                assert_eq!((kept.len(), kept.room() >= len as u64), (len, true));
                assert!(kept.read().unwrap() == content(index, len));
                assert!(kept.part(len / 2, len - len / 2).unwrap() == content(index, len - len / 2));
            }
        }
        let used: u32 = file.sizes.iter().map(|places| places.lock().next).sum();
        assert_eq!(used, 6, "two of 4 KiB and one of each other size");
        let many: Vec<Kept> = (0..100).map(|_| file.keep(&[1; MOST]).unwrap()).collect();
        let bytes = || file.file.metadata().unwrap().blocks() * 512;
        assert!(bytes() >= 100 << 20);
        drop(many);
        assert!(bytes() <= 2 * MOST_FREE, "{} bytes stay", bytes());
    }

    #[test]
    fn a_folder_that_is_none_is_an_error() {
        let error = LocalFile::in_folder(Path::new("/proc/nothing")).err().unwrap();
        assert_eq!(error.to_string(), "/proc/nothing takes no file: No such file or directory (os error 2)");
    }
}
