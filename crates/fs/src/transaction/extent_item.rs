//! Extent items as values: the head, the flags, and the inline references.
//!
//! ```text
//! EXTENT_ITEM / METADATA_ITEM: [refs 8][generation 8][flags 8] [key 17, level 1: tree block as EXTENT_ITEM]
//!   then inline references: [type 1][tree or parent 8] | [178][ExtentDataRef 28] | [184][parent 8][count 4]
//! ```
//! Inline references lie by type ascending and within a type by sequence descending.

use super::refs::RefBy;
use crate::error::{Error, Result};
use butterfs_ondisk::checksum::extent_data_ref_hash;
use butterfs_ondisk::items::{ExtentDataRef, ExtentItem, TreeBlockInfo, extent_flags};
use butterfs_ondisk::{KeyType, Logical, TreeId};
use zerocopy::{FromBytes, IntoBytes};

/// A reference and its weight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CountedRef {
    /// The referrer.
    pub by: RefBy,
    /// How many file extent items; 1 for tree blocks.
    pub count: u32,
}

impl RefBy {
    /// The type of the reference's inline form and of its key.
    pub fn kind(&self) -> KeyType {
        match self {
            RefBy::Tree(_) => KeyType::TREE_BLOCK_REF,
            RefBy::Block(_) => KeyType::SHARED_BLOCK_REF,
            RefBy::File { .. } => KeyType::EXTENT_DATA_REF,
            RefBy::Leaf(_) => KeyType::SHARED_DATA_REF,
        }
    }

    /// The value that orders references of one type, and the offset of the keyed form.
    pub fn sequence(&self) -> u64 {
        match *self {
            RefBy::Tree(tree) => tree.0,
            RefBy::Block(parent) | RefBy::Leaf(parent) => parent.0,
            RefBy::File { tree, ino, offset } => extent_data_ref_hash(tree.0, ino, offset),
        }
    }

    /// Bytes of the inline form.
    pub fn inline_len(&self) -> usize {
        match self {
            RefBy::Tree(_) | RefBy::Block(_) => 9,
            RefBy::File { .. } => 29,
            RefBy::Leaf(_) => 13,
        }
    }
}

/// A parsed EXTENT_ITEM or METADATA_ITEM.
#[derive(Clone, Debug)]
pub struct ExtentRecord {
    /// References, inline and keyed.
    pub refs: u64,
    /// Generation that allocated it.
    pub generation: u64,
    /// See [`extent_flags`].
    pub flags: u64,
    /// Behind the head of a tree block that is stored as an EXTENT_ITEM.
    pub block_info: Option<TreeBlockInfo>,
    /// Owner under simple quotas; carried along.
    pub owner: Option<u64>,
    /// Inline references in their order.
    pub inline: Vec<CountedRef>,
}

impl ExtentRecord {
    /// Whether the block's children are referenced by its address.
    pub fn is_full(&self) -> bool {
        self.flags & extent_flags::FULL_BACKREF != 0
    }

    /// Parses a payload. `kind` is the key's type.
    pub fn parse(at: Logical, kind: KeyType, payload: &[u8]) -> Result<ExtentRecord> {
        let bad = || Error::corrupt(format!("extent item {at}: the references do not fill the item"));
        let (head, mut rest) = ExtentItem::read_from_prefix(payload).map_err(|_| bad())?;
        let flags = head.flags.get();
        let mut block_info = None;
        if kind == KeyType::EXTENT_ITEM && flags & extent_flags::TREE_BLOCK != 0 {
            let (info, tail) = TreeBlockInfo::read_from_prefix(rest).map_err(|_| bad())?;
            (block_info, rest) = (Some(info), tail);
        }
        let (mut owner, mut inline) = (None, Vec::new());
        while let Some((&kind, tail)) = rest.split_first() {
            let number = |from: usize| -> Result<u64> {
                let bytes = tail.get(from..from + 8).ok_or_else(bad)?;
                Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
            };
            let (len, reference) = match KeyType(kind) {
                KeyType::EXTENT_OWNER_REF => {
                    owner = Some(number(0)?);
                    (9, None)
                }
                KeyType::TREE_BLOCK_REF => (9, Some(CountedRef { by: RefBy::Tree(TreeId(number(0)?)), count: 1 })),
                KeyType::SHARED_BLOCK_REF => (9, Some(CountedRef { by: RefBy::Block(Logical(number(0)?)), count: 1 })),
                KeyType::EXTENT_DATA_REF => {
                    let (item, _) = ExtentDataRef::read_from_prefix(tail).map_err(|_| bad())?;
                    (29, Some(counted(&item)))
                }
                KeyType::SHARED_DATA_REF => {
                    let count = tail.get(8..12).ok_or_else(bad)?;
                    let count = u32::from_le_bytes(count.try_into().expect("four bytes"));
                    (13, Some(CountedRef { by: RefBy::Leaf(Logical(number(0)?)), count }))
                }
                _ => return Err(bad()),
            };
            inline.extend(reference);
            rest = rest.get(len..).ok_or_else(bad)?;
        }
        Ok(ExtentRecord { refs: head.refs.get(), generation: head.generation.get(), flags, block_info, owner, inline })
    }

    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let head = ExtentItem { refs: self.refs.into(), generation: self.generation.into(), flags: self.flags.into() };
        let mut out = head.as_bytes().to_vec();
        if let Some(info) = &self.block_info {
            out.extend_from_slice(info.as_bytes());
        }
        if let Some(owner) = self.owner {
            out.push(KeyType::EXTENT_OWNER_REF.0);
            out.extend_from_slice(&owner.to_le_bytes());
        }
        for reference in &self.inline {
            out.push(reference.by.kind().0);
            match reference.by {
                RefBy::File { .. } => out.extend_from_slice(&keyed_payload(reference)),
                _ => out.extend_from_slice(&reference.by.sequence().to_le_bytes()),
            }
            if matches!(reference.by, RefBy::Leaf(_)) {
                out.extend_from_slice(&reference.count.to_le_bytes());
            }
        }
        out
    }

    /// Bytes of the payload.
    pub fn len(&self) -> usize {
        ExtentItem::LEN
            + self.block_info.map_or(0, |_| TreeBlockInfo::LEN)
            + self.owner.map_or(0, |_| 9)
            + self.inline.iter().map(|reference| reference.by.inline_len()).sum::<usize>()
    }

    /// Puts a reference at its place: type ascending, sequence descending, behind its equals.
    pub fn insert_inline(&mut self, reference: CountedRef) {
        let rank = |r: &CountedRef| (r.by.kind(), std::cmp::Reverse(r.by.sequence()));
        let at = self.inline.partition_point(|existing| rank(existing) <= rank(&reference));
        self.inline.insert(at, reference);
    }
}

/// The payload of a keyed reference.
pub fn keyed_payload(reference: &CountedRef) -> Vec<u8> {
    match reference.by {
        RefBy::Tree(_) | RefBy::Block(_) => Vec::new(),
        RefBy::Leaf(_) => reference.count.to_le_bytes().to_vec(),
        RefBy::File { tree, ino, offset } => {
            let item = ExtentDataRef {
                root: tree.0.into(),
                objectid: ino.into(),
                offset: offset.into(),
                count: reference.count.into(),
            };
            item.as_bytes().to_vec()
        }
    }
}

/// The reference of an EXTENT_DATA_REF payload.
pub fn counted(item: &ExtentDataRef) -> CountedRef {
    let by = RefBy::File { tree: TreeId(item.root.get()), ino: item.objectid.get(), offset: item.offset.get() };
    CountedRef { by, count: item.count.get() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_references_keep_the_formats_order_and_survive_a_round_trip() {
        let mut record = ExtentRecord {
            refs: 5,
            generation: 7,
            flags: extent_flags::DATA,
            block_info: None,
            owner: None,
            inline: Vec::new(),
        };
        for by in [
            RefBy::Leaf(Logical(4096)),
            RefBy::File { tree: TreeId(5), ino: 257, offset: 0 },
            RefBy::Leaf(Logical(8192)),
            RefBy::File { tree: TreeId(5), ino: 258, offset: 0 },
        ] {
            record.insert_inline(CountedRef { by, count: 2 });
        }
        let kinds: Vec<u8> = record.inline.iter().map(|r| r.by.kind().0).collect();
        assert_eq!(kinds, [178, 178, 184, 184]);
        assert!(record.inline[0].by.sequence() > record.inline[1].by.sequence());
        assert_eq!(record.inline[2].by, RefBy::Leaf(Logical(8192)));
        let bytes = record.encode();
        assert_eq!(bytes.len(), record.len());
        let again = ExtentRecord::parse(Logical(0), KeyType::EXTENT_ITEM, &bytes).unwrap();
        assert_eq!(again.inline, record.inline);
        assert!(ExtentRecord::parse(Logical(0), KeyType::EXTENT_ITEM, &bytes[..bytes.len() - 1]).is_err());
    }
}
