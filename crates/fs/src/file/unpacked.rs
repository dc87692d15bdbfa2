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
pub struct UnpackedExtents {
    extents: Vec<(Identity, Arc<[u8]>)>,
    /// The number of times that extents had been moved: a moved one has its address and not its generation from now.
    moves: u64,
}

impl UnpackedExtents {
    /// The content of the extent that `extent` uses a part of, if it is here.
    pub fn get(&mut self, extent: &FileExtent, verified: bool, moves: u64) -> Option<Arc<[u8]>> {
        self.follow(moves);
        let identity = Identity::of(extent, verified);
        let index = self.extents.iter().position(|(other, _)| *other == identity)?;
        let found = self.extents.remove(index);
        let content = Arc::clone(&found.1);
        self.extents.push(found);
        Some(content)
    }

    fn follow(&mut self, moves: u64) {
        if self.moves < moves {
            self.extents.clear();
            self.moves = moves;
        }
    }

    /// Keeps a content that was read after `moves` moves.
    pub fn put(&mut self, extent: &FileExtent, verified: bool, moves: u64, content: Arc<[u8]>) {
        self.follow(moves);
        if self.moves != moves {
            return;
        }
        if self.extents.len() == CAPACITY {
            self.extents.remove(0);
        }
        self.extents.push((Identity::of(extent, verified), content));
    }
}
