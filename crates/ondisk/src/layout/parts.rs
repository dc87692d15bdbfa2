//! The structures that an item's payload is made of.

use super::{STRUCTURES, Structure};
use crate::items::*;
use crate::key::{Key, KeyType, objectid};

/// A structure in a payload.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Its offset in bytes.
    pub at: usize,
    /// The kind.
    pub structure: &'static Structure,
}

/// The structures of the payload of `key`, in order, as far as they lie in it. What lies in none of them is names,
/// values, checksums and bitmaps, or of a type that has no declared structure.
pub fn parts(key: Key, payload: &[u8]) -> Vec<Part> {
    let mut found = Parts { payload, at: 0, parts: Vec::new() };
    match key.kind {
        KeyType::INODE_REF => while found.named("InodeRef", InodeRef::LEN - 2, None) {},
        KeyType::INODE_EXTREF => while found.named("InodeExtref", InodeExtref::LEN - 2, None) {},
        KeyType::DIR_ITEM | KeyType::DIR_INDEX | KeyType::XATTR_ITEM => {
            while found.named("DirItem", DirItem::LEN - 3, Some(DirItem::LEN - 5)) {}
        }
        KeyType::EXTENT_DATA => found.file_extent(),
        KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM => found.extent(key.kind),
        KeyType::CHUNK_ITEM => {
            found.take("ChunkHead");
            while found.take("Stripe") {}
        }
        _ => {
            if let Some(name) = single(key) {
                found.take(name);
            }
        }
    }
    found.parts
}

/// The structure of payloads that are one structure, or begin with one.
fn single(key: Key) -> Option<&'static str> {
    Some(match key.kind {
        KeyType::INODE_ITEM => "InodeItem",
        KeyType::ROOT_ITEM => "RootItem",
        KeyType::ROOT_REF | KeyType::ROOT_BACKREF => "RootRef",
        KeyType::EXTENT_DATA_REF => "ExtentDataRef",
        KeyType::SHARED_DATA_REF => "SharedDataRef",
        KeyType::BLOCK_GROUP_ITEM => "BlockGroupItem",
        KeyType::FREE_SPACE_INFO => "FreeSpaceInfo",
        KeyType::DEV_ITEM => "DevItem",
        KeyType::DEV_EXTENT => "DevExtent",
        KeyType::QGROUP_STATUS => "QgroupStatus",
        KeyType::QGROUP_INFO => "QgroupInfo",
        KeyType::QGROUP_LIMIT => "QgroupLimit",
        KeyType::TEMPORARY_ITEM => "BalanceItem",
        KeyType::PERSISTENT_ITEM if key.objectid == objectid::STALE_DEVICE => "StaleDevice",
        KeyType::PERSISTENT_ITEM => "DevStats",
        KeyType::DEV_REPLACE => "DevReplaceItem",
        KeyType(0) if key.objectid == objectid::FREE_SPACE => "FreeSpaceHeader",
        _ => return None,
    })
}

struct Parts<'a> {
    payload: &'a [u8],
    at: usize,
    parts: Vec<Part>,
}

impl Parts<'_> {
    fn u16_at(&self, at: usize) -> usize {
        usize::from(u16::from_le_bytes([self.payload[at], self.payload[at + 1]]))
    }

    /// Takes a structure if it lies in the payload.
    fn take(&mut self, name: &str) -> bool {
        let Some(structure) = STRUCTURES.iter().find(|one| one.name == name) else { return false };
        let fits = self.at + structure.len <= self.payload.len();
        if fits {
            self.parts.push(Part { at: self.at, structure });
            self.at += structure.len;
        }
        fits
    }

    /// Takes a structure that is followed by bytes whose lengths stand at `name_len` and `data_len` in it.
    fn named(&mut self, name: &str, name_len: usize, data_len: Option<usize>) -> bool {
        let begin = self.at;
        let taken = self.take(name);
        if taken {
            let lengths = [Some(name_len), data_len].into_iter().flatten();
            self.at += lengths.map(|at| self.u16_at(begin + at)).sum::<usize>();
        }
        taken
    }

    fn file_extent(&mut self) {
        let is_inline = self.payload.get(FileExtentHead::LEN - 1) == Some(&file_extent_type::INLINE);
        if is_inline || !self.take("FileExtent") {
            self.take("FileExtentHead");
        }
    }

    fn extent(&mut self, kind: KeyType) {
        if !self.take("ExtentItem") {
            return;
        }
        let is_tree_block = u64::from(self.payload[16]) & extent_flags::TREE_BLOCK != 0;
        if kind == KeyType::EXTENT_ITEM && is_tree_block {
            self.take("TreeBlockInfo");
        }
        while let Some(&kind) = self.payload.get(self.at) {
            if !self.take("InlineRef") {
                return;
            }
            match KeyType(kind) {
                KeyType::EXTENT_DATA_REF => {
                    self.at -= InlineRef::LEN - 1;
                    self.take("ExtentDataRef");
                }
                KeyType::SHARED_DATA_REF => drop(self.take("SharedDataRef")),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(kind: KeyType, payload: &[u8]) -> Vec<(usize, &'static str)> {
        parts(Key::new(256, kind, 0), payload).iter().map(|part| (part.at, part.structure.name)).collect()
    }

    #[test]
    fn names_and_values_are_skipped() {
        let one = |name: &[u8], value: &[u8]| {
            let mut bytes = vec![0; 25];
            bytes.extend((value.len() as u16).to_le_bytes());
            bytes.extend((name.len() as u16).to_le_bytes());
            [&bytes, &[8][..], name, value].concat()
        };
        let payload = [one(b"user.one", b"1"), one(b"user.two", b"")].concat();
        assert_eq!(names(KeyType::XATTR_ITEM, &payload), [(0, "DirItem"), (39, "DirItem")]);
        assert_eq!(names(KeyType::XATTR_ITEM, &payload[..50]), [(0, "DirItem")]);
        assert_eq!(names(KeyType::INODE_REF, &[0; 9]), []);
    }

    #[test]
    fn inline_references_are_found() {
        let mut payload = vec![0; 24];
        payload[16] = 1;
        payload.extend([&[KeyType::EXTENT_DATA_REF.0][..], &[0; 28]].concat());
        payload.extend([&[KeyType::SHARED_DATA_REF.0][..], &[0; 12]].concat());
        let of_data = ["ExtentItem", "InlineRef", "ExtentDataRef", "InlineRef", "SharedDataRef"];
        let found = names(KeyType::EXTENT_ITEM, &payload);
        assert_eq!(found.iter().map(|(_, name)| *name).collect::<Vec<_>>(), of_data);
        assert_eq!(found.last(), Some(&(62, "SharedDataRef")));
    }
}
