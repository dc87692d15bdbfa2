//! The payload of DIR_ITEM, DIR_INDEX and XATTR_ITEM: entries of a head, a name, and (extended attributes) a value.
//!
//! ```text
//! 0 location key 17 | 17 transid u64 | 25 data_len u16 | 27 name_len u16 | 29 type u8 | 30 name | value
//! ```
//! Names whose hashes collide share an item, one entry after the other. Pure functions on bytes.

use crate::error::{Error, Result};
use butterfs_ondisk::items::DirItem;
use butterfs_ondisk::{Generation, Key};
use std::ops::Range;
use zerocopy::{FromBytes, IntoBytes};

/// The longest name of an entry.
pub const NAME_MAX: usize = 255;

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirItemEntry<'a> {
    /// The inode's or the subvolume's key; zero for an extended attribute.
    pub location: Key,
    /// The transaction that made the entry.
    pub transid: u64,
    /// See [`dir_type`](butterfs_ondisk::items::dir_type).
    pub kind: u8,
    /// The name.
    pub name: &'a [u8],
    /// The value of an extended attribute.
    pub value: &'a [u8],
}

impl DirItemEntry<'_> {
    /// Bytes of the entry on disk.
    pub fn len(&self) -> usize {
        DirItem::LEN + self.name.len() + self.value.len()
    }

    /// Appends the entry.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let head = DirItem {
            location: self.location.into(),
            transid: self.transid.into(),
            data_len: (self.value.len() as u16).into(),
            name_len: (self.name.len() as u16).into(),
            kind: self.kind,
        };
        out.reserve_exact(self.len());
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(self.name);
        out.extend_from_slice(self.value);
    }

    /// The entry's bytes.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.encode(&mut bytes);
        bytes
    }

    /// An entry of a directory.
    pub fn of_directory<'a>(location: Key, made_in: Generation, kind: u8, name: &'a [u8]) -> DirItemEntry<'a> {
        DirItemEntry { location, transid: made_in.0, kind, name, value: &[] }
    }
}

/// Walks the entries of an item, each with the bytes that it takes.
pub struct Entries<'a> {
    payload: &'a [u8],
    at: usize,
}

/// The entries of an item's payload. A malformed entry ends the walk with an error.
pub fn entries(payload: &[u8]) -> Entries<'_> {
    Entries { payload, at: 0 }
}

impl<'a> Entries<'a> {
    fn parse(&self) -> Option<(Range<usize>, DirItemEntry<'a>)> {
        let (head, rest) = DirItem::ref_from_prefix(self.payload.get(self.at..)?).ok()?;
        let (name_len, data_len) = (usize::from(head.name_len.get()), usize::from(head.data_len.get()));
        let name = rest.get(..name_len)?;
        let value = rest.get(name_len..name_len + data_len)?;
        let entry =
            DirItemEntry { location: head.location.into(), transid: head.transid.get(), kind: head.kind, name, value };
        Some((self.at..self.at + entry.len(), entry))
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<(Range<usize>, DirItemEntry<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.payload.len() {
            return None;
        }
        match self.parse() {
            Some((range, entry)) => {
                self.at = range.end;
                Some(Ok((range, entry)))
            }
            None => {
                let at = std::mem::replace(&mut self.at, self.payload.len());
                let len = self.payload.len();
                Some(Err(Error::corrupt(format!("an entry at byte {at} of an item of {len} bytes leaves the item"))))
            }
        }
    }
}

/// The entry with this name, and the bytes that it takes.
pub fn find<'a>(payload: &'a [u8], name: &[u8]) -> Result<Option<(Range<usize>, DirItemEntry<'a>)>> {
    for entry in entries(payload) {
        let (range, entry) = entry?;
        if entry.name == name {
            return Ok(Some((range, entry)));
        }
    }
    Ok(None)
}

/// `payload` without the bytes of `range`.
pub fn without(payload: &[u8], range: &Range<usize>) -> Vec<u8> {
    [&payload[..range.start], &payload[range.end..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_ondisk::KeyType;
    use butterfs_ondisk::items::dir_type;

    fn sample(name: &[u8], ino: u64) -> Vec<u8> {
        let location = Key::new(ino, KeyType::INODE_ITEM, 0);
        DirItemEntry::of_directory(location, Generation(7), dir_type::REG_FILE, name).to_bytes()
    }

    #[test]
    fn colliding_names_are_told_apart_and_removed_without_a_gap() {
        let payload = [sample(b"one", 257), sample(b"second", 258), sample(b"3", 259)].concat();
        let (range, entry) = find(&payload, b"second").unwrap().unwrap();
        assert_eq!((entry.location.objectid, entry.transid, range.clone()), (258, 7, 33..69));
        let rest = without(&payload, &range);
        let names: Vec<_> = entries(&rest).map(|entry| entry.unwrap().1.name.to_vec()).collect();
        assert_eq!(names, [b"one".to_vec(), b"3".to_vec()]);
        assert_eq!(find(&rest, b"second").unwrap(), None);
    }

    #[test]
    fn a_value_follows_its_name() {
        let entry =
            DirItemEntry { location: Key::MIN, transid: 9, kind: dir_type::XATTR, name: b"user.a", value: b"value" };
        let bytes = entry.to_bytes();
        assert_eq!(bytes.len(), 30 + 6 + 5);
        assert_eq!(find(&bytes, b"user.a").unwrap().unwrap().1, entry);
    }

    #[test]
    fn every_truncation_is_an_error_and_ends_the_walk() {
        let payload = [sample(b"one", 257), sample(b"second", 258)].concat();
        for len in (1..33).chain(34..payload.len()) {
            let results: Vec<_> = entries(&payload[..len]).collect();
            assert!(results.last().unwrap().is_err(), "{len}");
            assert!(results.len() <= 2);
        }
    }
}
