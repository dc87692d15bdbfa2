//! Ranges of keys, half open, whose end may lie behind all keys.

use butterfs_ondisk::Key;

/// Keys from `from` on, before `end`; all of them where there is no end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KeyRange {
    /// The first key.
    pub from: Key,
    /// The first key behind it.
    pub end: Option<Key>,
}

impl KeyRange {
    /// Every key.
    pub const ALL: KeyRange = KeyRange { from: Key::MIN, end: None };

    /// The keys from `first` to `last`, both included.
    pub fn through(first: Key, last: Key) -> KeyRange {
        KeyRange { from: first, end: (last < Key::MAX).then(|| last.successor()) }
    }

    /// Whether a key lies in it.
    pub fn contains(&self, key: Key) -> bool {
        self.from <= key && self.end.is_none_or(|end| key < end)
    }

    /// Whether there is no key in it.
    pub fn is_empty(&self) -> bool {
        self.end.is_some_and(|end| end <= self.from)
    }

    /// The keys that lie in both.
    pub fn and(&self, other: &KeyRange) -> KeyRange {
        let end = match (self.end, other.end) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        KeyRange { from: self.from.max(other.from), end }
    }
}
