//! A set of numbers that mostly follow each other: a bit for each, in pages.

use rustc_hash::FxHashMap;

const PAGE_BITS: u64 = 4096;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Bits {
    pages: FxHashMap<u64, Box<[u64; 64]>>,
}

impl Bits {
    /// Adds a number; `false` if it is in the set already.
    pub fn insert(&mut self, number: u64) -> bool {
        let page = self.pages.entry(number / PAGE_BITS).or_insert_with(|| Box::new([0; 64]));
        let (word, bit) = ((number % PAGE_BITS / 64) as usize, 1 << (number % 64));
        let is_new = page[word] & bit == 0;
        page[word] |= bit;
        is_new
    }

    /// Whether a number is in the set.
    pub fn contains(&self, number: u64) -> bool {
        let page = self.pages.get(&(number / PAGE_BITS));
        page.is_some_and(|page| page[(number % PAGE_BITS / 64) as usize] & (1 << (number % 64)) != 0)
    }
}
