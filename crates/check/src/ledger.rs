//! The references of the whole filesystem as two sums: what the trees make, and what the extent tree has.
//!
//! Each reference is hashed with the address it is to, and the hashes are added; so is each reference with the length
//! it takes the extent for, and each tree block with its level and generation. Where all sums are alike nothing has to
//! be remembered. Where they are not, `extents::compare` finds out what it is.
//!
//! Also: a block without the flag for full back references must be referred to by its owner. A block is remembered here
//! from its first visit, when that is not by way of its owner, until it is. A parent that a balance made excuses it.

use crate::mix;
use crate::references::Source;
use crate::session::Seen;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Sums of hashes; the same for the same references in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    sources: u64,
    lengths: u64,
    blocks: u64,
}

impl Sums {
    /// `count` references to the extent at `at`.
    pub fn add_source(&mut self, seed: u64, at: u64, source: &Source, count: u64) {
        let Source { kind, from, inode, offset } = *source;
        let hash = mix::numbers(seed, &[at, kind.into(), from, inode, offset]);
        self.sources = self.sources.wrapping_add(hash.wrapping_mul(count));
    }

    /// `count` references that take the extent at `at` for this long.
    pub fn add_length(&mut self, seed: u64, at: u64, length: u64, count: u64) {
        let hash = mix::numbers(seed ^ 1, &[at, length]);
        self.lengths = self.lengths.wrapping_add(hash.wrapping_mul(count));
    }

    /// A tree block.
    pub fn add_block(&mut self, seed: u64, at: u64, level: u64, generation: u64) {
        self.blocks = self.blocks.wrapping_add(mix::numbers(seed ^ 2, &[at, level, generation]));
    }

    pub fn add(&mut self, other: &Sums) {
        self.sources = self.sources.wrapping_add(other.sources);
        self.lengths = self.lengths.wrapping_add(other.lengths);
        self.blocks = self.blocks.wrapping_add(other.blocks);
    }
}

/// Blocks without their owner that are remembered; with more, something is wrong anyway.
const MAX_UNOWNED: usize = 1 << 16;

/// Blocks whose owner was not met yet.
#[derive(Default)]
pub(crate) struct Unowned {
    owners: Mutex<FxHashMap<u64, u64>>,
    count: AtomicUsize,
    overflow: AtomicBool,
}

impl Unowned {
    /// A block that was come by otherwise than by its owner, for the first time.
    pub fn insert(&self, at: u64, seen: &Seen) {
        let mut owners = self.owners.lock();
        if owners.len() >= MAX_UNOWNED {
            self.overflow.store(true, Ordering::Relaxed);
            return;
        }
        owners.insert(at, seen.owner);
        self.count.store(owners.len(), Ordering::Relaxed);
    }

    /// The owner of the block refers to it.
    pub fn remove(&self, at: u64) {
        if self.count.load(Ordering::Relaxed) > 0 {
            let mut owners = self.owners.lock();
            owners.remove(&at);
            self.count.store(owners.len(), Ordering::Relaxed);
        }
    }

    /// Whether every block has its owner, or one that `is_excused`.
    pub fn is_balanced(&self, is_excused: impl Fn(u64) -> bool) -> bool {
        !self.overflow.load(Ordering::Relaxed) && self.owners.lock().values().all(|owner| is_excused(*owner))
    }
}
