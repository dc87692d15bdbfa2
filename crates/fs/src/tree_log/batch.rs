//! Many items in one piece of memory, to be inserted in the order of their keys.

use butterfs_ondisk::Key;
use butterfs_ondisk::header::ITEM_LEN;
use std::ops::Range;

/// See the [module](self).
#[derive(Default)]
pub(super) struct Batch {
    payloads: Vec<u8>,
    items: Vec<(Key, Range<usize>)>,
}

impl Batch {
    /// Adds an item.
    pub fn push(&mut self, key: Key, payload: &[u8]) {
        let start = self.payloads.len();
        self.payloads.extend_from_slice(payload);
        self.items.push((key, start..self.payloads.len()));
    }

    /// Bytes that the items take in leaves.
    pub fn bytes(&self) -> usize {
        self.payloads.len() + self.items.len() * ITEM_LEN
    }

    /// How many items there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// The items by key; of those with one key the last one that was added.
    pub fn sorted(&mut self) -> Vec<(Key, &[u8])> {
        self.items.reverse();
        // Stable, so that the last one that was added is the first of its key.
        self.items.sort_by_key(|(key, _)| *key);
        self.items.dedup_by_key(|(key, _)| *key);
        self.items.iter().map(|(key, range)| (*key, &self.payloads[range.clone()])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_ondisk::KeyType;

    #[test]
    fn the_last_of_a_key_counts() {
        let key = |ino| Key::new(ino, KeyType::INODE_ITEM, 0);
        let mut batch = Batch::default();
        for (ino, payload) in [(3, "c"), (1, "old"), (2, ""), (1, "new")] {
            batch.push(key(ino), payload.as_bytes());
        }
        let sorted = [(key(1), &b"new"[..]), (key(2), b""), (key(3), b"c")];
        assert_eq!((batch.len(), batch.bytes()), (4, 7 + 4 * 25));
        assert_eq!(batch.sorted(), sorted);
    }
}
