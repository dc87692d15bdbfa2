//! Everything that a filesystem shows of a tree, in a form that two sides can be compared by.
//!
//! Invariants: (1) the same tree gives the same fingerprint, whoever looks at it: the kernel's mount, ours, the
//! library, or the model; (2) what a side cannot know is `None`, and is compared only where both sides know it; (3)
//! links to one inode are grouped by the first of their paths, so that inode numbers do not matter. Nothing here
//! decides whether a difference is allowed.

mod difference;
mod library;
mod model;
mod tree;

pub use difference::{Compare, differences};
pub(crate) use library::data_ranges;

use crate::operation::{Kind, Moment};
use std::collections::BTreeMap;
use xxhash_rust::xxh64::Xxh64;

/// The fingerprint of one path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct PathFingerprint {
    pub kind: Kind,
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub device: (u32, u32),
    pub atime: Option<Moment>,
    pub mtime: Option<Moment>,
    pub ctime: Option<Moment>,
    pub btime: Option<Moment>,
    /// 512-byte units.
    pub blocks: Option<u64>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path of the same inode, when it has more than one link.
    pub first_path: Option<Vec<u8>>,
    /// Of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// Of a regular file: the hash of what is not zero.
    pub content: Option<u64>,
    /// Of a regular file: where SEEK_DATA finds data, as `start..end`.
    pub data: Option<Vec<(u64, u64)>>,
}

/// A tree: entries by path relative to its root, which is the empty path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// By path.
    pub entries: BTreeMap<Vec<u8>, PathFingerprint>,
    /// Inode numbers by path, where the side has them; never compared.
    pub numbers: BTreeMap<Vec<u8>, u64>,
}

impl Fingerprint {
    /// Fills in `first_path` from inode identities by path.
    fn group_links<I: Ord>(&mut self, inodes: impl IntoIterator<Item = (Vec<u8>, I)>) {
        let mut first: BTreeMap<I, Vec<u8>> = BTreeMap::new();
        let sorted: BTreeMap<Vec<u8>, I> = inodes.into_iter().collect();
        for (path, inode) in sorted {
            let Some(entry) = self.entries.get_mut(&path) else { continue };
            if entry.kind != Kind::Folder && entry.links > 1 {
                entry.first_path = Some(first.entry(inode).or_insert(path).clone());
            }
        }
    }
}

const BLOCK: usize = 4096;

/// Hashes content so that it does not matter which zeros are holes.
pub struct ContentHash(Xxh64);

impl Default for ContentHash {
    fn default() -> ContentHash {
        ContentHash(Xxh64::new(0))
    }
}

impl ContentHash {
    /// The bytes at `offset`, which is a multiple of 4 KiB; calls ascend, and each but the last of a file covers whole
    /// blocks.
    pub fn update(&mut self, offset: u64, bytes: &[u8]) {
        for (number, block) in bytes.chunks(BLOCK).enumerate() {
            // Zeros at the end of a block tell nothing that the size does not.
            let used = without_zeros(block);
            if used > 0 {
                self.0.update(&(offset + (number * BLOCK) as u64).to_le_bytes());
                self.0.update(&block[..used]);
            }
        }
    }

    /// The hash.
    pub fn finish(self) -> u64 {
        self.0.digest()
    }
}

/// The length without the zeros at the end; most blocks have no end of zeros or nothing else.
fn without_zeros(block: &[u8]) -> usize {
    const PIECE: usize = 256;
    let zeros = block.rchunks(PIECE).take_while(|piece| **piece == [0; PIECE][..piece.len()]).count() * PIECE;
    let rest = &block[..block.len().saturating_sub(zeros)];
    rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests;
