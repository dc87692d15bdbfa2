//! A set of block addresses: one bit for each sector of the regions of the address space in which there are blocks.

use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Sectors of one page; a page takes 4 KiB and covers 128 MiB of sectors of 4 KiB.
const PAGE_BITS: u64 = 1 << 15;

type Page = [AtomicU64; (PAGE_BITS / 64) as usize];

/// The set. Addresses that differ only within a sector are the same.
pub(crate) struct BlockSet {
    shift: u32,
    pages: RwLock<FxHashMap<u64, Arc<Page>>>,
}

impl BlockSet {
    /// An empty set for sectors of this many bytes, a power of two.
    pub fn new(sectorsize: u64) -> BlockSet {
        BlockSet { shift: sectorsize.max(1).trailing_zeros(), pages: RwLock::default() }
    }

    /// Adds an address; true when it is new.
    pub fn insert(&self, at: u64) -> bool {
        let (page, word, bit) = self.place(at);
        let known = self.pages.read().get(&page).cloned();
        let page = known.unwrap_or_else(|| {
            let mut pages = self.pages.write();
            pages.entry(page).or_insert_with(|| Arc::new([const { AtomicU64::new(0) }; _])).clone()
        });
        page[word].fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    fn place(&self, at: u64) -> (u64, usize, u64) {
        let sector = at >> self.shift;
        let inside = sector % PAGE_BITS;
        (sector / PAGE_BITS, (inside / 64) as usize, 1 << (inside % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_is_new_once() {
        let set = BlockSet::new(4096);
        for at in [0, 4096, 4096 * 64, PAGE_BITS * 4096, u64::MAX - 4095] {
            assert!(set.insert(at));
            assert!(!set.insert(at));
        }
    }
}
