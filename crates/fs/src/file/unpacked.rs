//! Decompressed extents of which a part was read lately.
//!
//! The key is everything that determines the content: an address alone is reused by later transactions, and one
//! extent can be described in several ways.

use crate::file_extent::FileExtent;
use butterfs_ondisk::Logical;
use std::sync::Arc;

/// Extents that are kept; each has at most 1 MiB, usually 128 KiB.
const CAPACITY: usize = 24;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    at: Logical,
    disk_len: u64,
    ram_bytes: u64,
    compression: u8,
    generation: u64,
    verified: bool,
}

impl Identity {
    fn of(extent: &FileExtent, verified: bool) -> Identity {
        let FileExtent { at, disk_len, ram_bytes, compression, generation, .. } = *extent;
        Identity { at, disk_len, ram_bytes, compression, generation, verified }
    }
}

/// See the [module](self). The most recently used is last.
#[derive(Default)]
pub struct UnpackedExtents(Vec<(Identity, Arc<[u8]>)>);

impl UnpackedExtents {
    /// The content of the extent that `extent` uses a part of, if it is here.
    pub fn get(&mut self, extent: &FileExtent, verified: bool) -> Option<Arc<[u8]>> {
        let identity = Identity::of(extent, verified);
        let index = self.0.iter().position(|(other, _)| *other == identity)?;
        let found = self.0.remove(index);
        let content = Arc::clone(&found.1);
        self.0.push(found);
        Some(content)
    }

    /// Keeps a content.
    pub fn put(&mut self, extent: &FileExtent, verified: bool, content: Arc<[u8]>) {
        if self.0.len() == CAPACITY {
            self.0.remove(0);
        }
        self.0.push((Identity::of(extent, verified), content));
    }
}
