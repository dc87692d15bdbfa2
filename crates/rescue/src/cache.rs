//! Blocks that were read lately.

use crate::block::Block;
use crate::key::KeyRange;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The key of a block: address, generation and level that were expected, the tree, and the keys that belong to it.
pub type Identity = (u64, Option<u64>, Option<u8>, u64, KeyRange);

/// Bytes that are kept at most.
const LIMIT_BYTES: usize = 48 << 20;

/// See the [module](self). Two halves: the older one is dropped when the newer one is full.
#[derive(Default, Debug)]
pub struct Cache(Mutex<[FxHashMap<Identity, Option<Arc<Block>>>; 2]>);

impl Cache {
    /// The outcome of reading this block, if it is still known.
    pub fn get(&self, identity: &Identity) -> Option<Option<Arc<Block>>> {
        let mut halves = self.0.lock();
        if let Some(found) = halves[0].get(identity) {
            return Some(found.clone());
        }
        let found = halves[1].remove(identity)?;
        halves[0].insert(*identity, found.clone());
        Some(found)
    }

    /// Remembers what reading this block, one of `nodesize` bytes, has led to.
    pub fn put(&self, identity: Identity, found: Option<Arc<Block>>, nodesize: usize) {
        let mut halves = self.0.lock();
        if halves[0].len() >= LIMIT_BYTES / 2 / nodesize.max(1) {
            halves[1] = std::mem::take(&mut halves[0]);
        }
        halves[0].insert(identity, found);
    }

    /// Forgets everything.
    pub fn clear(&self) {
        *self.0.lock() = Default::default();
    }
}
