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

    /// The number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// The items by key; of those with one key the last one that was added.
    pub fn sorted(&mut self) -> impl Iterator<Item = (Key, &[u8])> {
        if !self.items.is_sorted_by(|(before, _), (after, _)| before < after) {
            // Stable, so that the last one that was added is the last of its key.
            self.items.sort_by_key(|(key, _)| *key);
            self.items.dedup_by(|later, earlier| {
                let is_same = later.0 == earlier.0;
                if is_same {
                    std::mem::swap(later, earlier);
                }
                is_same
            });
        }
        self.items.iter().map(|(key, range)| (*key, &self.payloads[range.clone()]))
    }
}

/// Two sorted sequences as one. Their keys differ.
pub(super) fn merged<'a>(
    left: impl Iterator<Item = (Key, &'a [u8])>,
    right: impl Iterator<Item = (Key, &'a [u8])>,
) -> impl Iterator<Item = (Key, &'a [u8])> {
    let (mut left, mut right) = (left.peekable(), right.peekable());
    std::iter::from_fn(move || match (left.peek(), right.peek()) {
        (Some((key, _)), Some((other, _))) if other < key => right.next(),
        (Some(_), _) => left.next(),
        (None, _) => right.next(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_ondisk::KeyType;

    #[test]
    fn the_last_of_a_key_counts() {
        let key = |ino| Key::new(ino, KeyType::INODE_ITEM, 0);
        let mut batch = Batch::default();
        for (ino, payload) in [(3, "c"), (1, "old"), (2, ""), (1, "older"), (1, "new")] {
            batch.push(key(ino), payload.as_bytes());
        }
        let sorted = [(key(1), &b"new"[..]), (key(2), b""), (key(3), b"c")];
        assert_eq!((batch.len(), batch.bytes()), (5, 12 + 5 * 25));
        assert!(batch.sorted().eq(sorted));
        assert!(batch.sorted().eq(sorted), "once more");
    }

    #[test]
    fn two_sequences_become_one() {
        let items = |inos: &[u64]| {
            let mut batch = Batch::default();
            inos.iter().for_each(|ino| batch.push(Key::new(*ino, KeyType::INODE_ITEM, 0), b"item"));
            batch
        };
        for (left, right) in [(&[1, 4, 5][..], &[2, 3, 6][..]), (&[], &[1]), (&[1, 2], &[]), (&[7, 8], &[1, 9])] {
            let (mut all, mut left, mut right) = (items(&[left, right].concat()), items(left), items(right));
            assert!(merged(left.sorted(), right.sorted()).eq(all.sorted()));
        }
    }
}
