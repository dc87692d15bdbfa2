//! Extent items and their references as bytes.

use crate::references::{Block, Reference, Source};
use butterfs_ondisk::checksum::extent_data_ref_hash;
use butterfs_ondisk::features::incompat;
use butterfs_ondisk::header::{ITEM_LEN, leaf_data_size};
use butterfs_ondisk::items::{ExtentDataRef, ExtentItem, TreeBlockInfo, extent_flags};
use butterfs_ondisk::key::DiskKey;
use butterfs_ondisk::{Key, KeyType};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes that an extent item has at most, as the kernel has it; further references get items of their own.
fn most_bytes(nodesize: u64) -> usize {
    leaf_data_size(nodesize as u32) / 16 - ITEM_LEN
}

/// An extent as its items describe it, in either form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub at: u64,
    pub length: u64,
    pub is_data: bool,
    pub generation: u64,
    pub level: u8,
    pub full: bool,
    /// Ascending, each with its count.
    pub sources: Vec<(Source, u64)>,
    /// The owner that simple quotas count the extent for.
    pub owner: Option<u64>,
}

/// An extent item that was read, and where everything of it is.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub keys: Vec<Key>,
    /// `None` where it makes no sense.
    pub extent: Option<Extent>,
    pub refs: u64,
}

impl Stored {
    /// The extent item itself; keyed references are added.
    pub fn parse(key: Key, data: &[u8], nodesize: u64) -> Stored {
        let refs = ExtentItem::read_from_prefix(data).map_or(0, |(item, _)| item.refs.get());
        Stored { keys: vec![key], extent: parse(key, data, nodesize), refs }
    }

    /// A reference with an item of its own.
    pub fn add_keyed(&mut self, key: Key, data: &[u8]) {
        self.keys.push(key);
        let Some(extent) = &mut self.extent else { return };
        let source = Source { kind: key.kind.0, from: key.offset, inode: 0, offset: 0 };
        match key.kind {
            KeyType::TREE_BLOCK_REF | KeyType::SHARED_BLOCK_REF => extent.sources.push((source, 1)),
            KeyType::SHARED_DATA_REF => {
                let count = U32::read_from_bytes(data).map_or(0, U32::get);
                extent.sources.push((source, count.into()));
            }
            KeyType::EXTENT_DATA_REF => {
                let items = <[ExtentDataRef]>::ref_from_bytes(data).unwrap_or_default();
                extent.sources.extend(items.iter().map(data_source));
            }
            _ => {}
        }
    }

    /// Whether it says exactly what `wanted` says.
    pub fn is(&self, wanted: &Extent) -> bool {
        let total: u64 = wanted.sources.iter().map(|(_, count)| count).sum();
        let Some(mut own) = self.extent.clone() else { return false };
        own.sources.sort_unstable();
        own == *wanted && total == self.refs
    }
}

fn parse(key: Key, data: &[u8], nodesize: u64) -> Option<Extent> {
    let (item, mut rest) = ExtentItem::read_from_prefix(data).ok()?;
    let flags = item.flags.get();
    let is_data = flags & extent_flags::DATA != 0;
    let (mut length, mut level) = (key.offset, 0);
    if key.kind == KeyType::METADATA_ITEM {
        (length, level) = (nodesize, u8::try_from(key.offset).ok()?);
    } else if !is_data {
        let (info, after) = TreeBlockInfo::read_from_prefix(rest).ok()?;
        (level, rest) = (info.level, after);
    }
    let (mut sources, mut owner) = (Vec::new(), None);
    while let Some((&kind, body)) = rest.split_first() {
        rest = match KeyType(kind) {
            KeyType::EXTENT_DATA_REF => {
                let (item, after) = ExtentDataRef::read_from_prefix(body).ok()?;
                sources.push(data_source(&item));
                after
            }
            kind => {
                let (from, after) = U64::read_from_prefix(body).ok()?;
                let source = Source { kind: kind.0, from: from.get(), inode: 0, offset: 0 };
                match kind {
                    KeyType::SHARED_DATA_REF => {
                        let (count, after) = U32::read_from_prefix(after).ok()?;
                        sources.push((source, count.get().into()));
                        after
                    }
                    KeyType::EXTENT_OWNER_REF => {
                        owner = Some(from.get());
                        after
                    }
                    _ => {
                        sources.push((source, 1));
                        after
                    }
                }
            }
        };
    }
    let (generation, full) = (item.generation.get(), flags & extent_flags::FULL_BACKREF != 0);
    Some(Extent { at: key.objectid, length, is_data, generation, level, full, sources, owner })
}

fn data_source(item: &ExtentDataRef) -> (Source, u64) {
    let (from, inode, offset) = (item.root.get(), item.objectid.get(), item.offset.get());
    (Source { kind: KeyType::EXTENT_DATA_REF.0, from, inode, offset }, item.count.get().into())
}

impl Extent {
    /// The extent that these references, which are of one address, make.
    pub fn of(records: &[Reference], block: Option<&Block>, stored: Option<&Extent>) -> Extent {
        let sources: Vec<(Source, u64)> = records.iter().map(|record| (record.source, record.count)).collect();
        let mut joined: Vec<(Source, u64)> = Vec::new();
        for (source, count) in sources {
            match joined.last_mut() {
                Some((last, sum)) if *last == source => *sum += count,
                _ => joined.push((source, count)),
            }
        }
        let oldest = records.iter().map(|record| record.generation).min().unwrap_or(0);
        let data_generation = stored.filter(|stored| stored.is_data).map_or(oldest, |stored| stored.generation);
        Extent {
            at: records[0].at,
            length: likeliest_length(records),
            is_data: block.is_none(),
            generation: block.map_or(data_generation, |block| block.generation),
            level: block.map_or(0, |block| block.level),
            full: block.is_some_and(|block| block.full),
            sources: joined,
            owner: stored.and_then(|stored| stored.owner).filter(|_| block.is_none()),
        }
    }

    /// Whether a reference names this inode and this place of it, of whatever subvolume.
    pub fn is_of_place(&self, inode: u64, offset: u64) -> bool {
        let is_it = |source: &Source| {
            source.kind == KeyType::EXTENT_DATA_REF.0 && (source.inode, source.offset) == (inode, offset)
        };
        self.sources.iter().any(|(source, _)| is_it(source))
    }

    /// The tree blocks that refer to it by their address.
    pub fn blocks(&self) -> impl Iterator<Item = u64> {
        let is_block = |source: &Source| source.kind == KeyType::SHARED_DATA_REF.0;
        self.sources.iter().filter(move |(source, _)| is_block(source)).map(|(source, _)| source.from)
    }

    /// A tree block that its own tree alone refers to.
    pub fn of_block(at: u64, nodesize: u64, level: u8, generation: u64, source: Source) -> Extent {
        let (is_data, full, owner) = (false, false, None);
        Extent { at, length: nodesize, is_data, generation, level, full, sources: vec![(source, 1)], owner }
    }

    /// Its items: the extent item, and references that find no room in it.
    pub fn encode(&self, features: u64, nodesize: u64, first: Key) -> Vec<(Key, Vec<u8>)> {
        let flags = if self.is_data { extent_flags::DATA } else { extent_flags::TREE_BLOCK };
        let flags = flags | if self.full { extent_flags::FULL_BACKREF } else { 0 };
        let refs: u64 = self.sources.iter().map(|(_, count)| count).sum();
        let item = ExtentItem { refs: refs.into(), generation: self.generation.into(), flags: flags.into() };
        let mut data = item.as_bytes().to_vec();
        let is_skinny = !self.is_data && features & incompat::SKINNY_METADATA != 0;
        let key = if is_skinny {
            Key::new(self.at, KeyType::METADATA_ITEM, self.level.into())
        } else {
            Key::new(self.at, KeyType::EXTENT_ITEM, self.length)
        };
        if !self.is_data && !is_skinny {
            data.extend(TreeBlockInfo { key: DiskKey::from(first), level: self.level }.as_bytes());
        }
        if let Some(owner) = self.owner {
            data.push(KeyType::EXTENT_OWNER_REF.0);
            data.extend(owner.to_le_bytes());
        }
        let mut sources = self.sources.clone();
        // Types ascend, and within one the sequences fall.
        sources.sort_by_key(|(source, _)| (source.kind, std::cmp::Reverse(sequence(source))));
        let (mut items, mut taken) = (Vec::new(), std::collections::BTreeSet::new());
        for (source, count) in sources {
            let inline = inline(&source, count);
            if data.len() + inline.len() <= most_bytes(nodesize) {
                data.extend(inline);
                continue;
            }
            let mut offset = sequence(&source);
            while !taken.insert((source.kind, offset)) {
                offset = offset.wrapping_add(1);
            }
            items.push((Key::new(self.at, KeyType(source.kind), offset), keyed(&source, count)));
        }
        items.push((key, data));
        items.sort_by_key(|(key, _)| *key);
        items
    }
}

/// The length that most references take the extent for; of several the longest.
fn likeliest_length(records: &[Reference]) -> u64 {
    let mut counts = std::collections::BTreeMap::<u64, u64>::new();
    for record in records {
        *counts.entry(record.length).or_default() += record.count;
    }
    counts.into_iter().max_by_key(|(length, count)| (*count, *length)).map_or(0, |(length, _)| length)
}

fn sequence(source: &Source) -> u64 {
    match KeyType(source.kind) {
        KeyType::EXTENT_DATA_REF => extent_data_ref_hash(source.from, source.inode, source.offset),
        _ => source.from,
    }
}

fn count32(count: u64) -> U32 {
    u32::try_from(count).unwrap_or(u32::MAX).into()
}

fn inline(source: &Source, count: u64) -> Vec<u8> {
    let mut bytes = vec![source.kind];
    match KeyType(source.kind) {
        KeyType::EXTENT_DATA_REF => bytes.extend(data_ref(source, count).as_bytes()),
        KeyType::SHARED_DATA_REF => {
            bytes.extend(source.from.to_le_bytes());
            bytes.extend(count32(count).as_bytes());
        }
        _ => bytes.extend(source.from.to_le_bytes()),
    }
    bytes
}

fn data_ref(source: &Source, count: u64) -> ExtentDataRef {
    let (root, objectid, offset) = (source.from.into(), source.inode.into(), source.offset.into());
    ExtentDataRef { root, objectid, offset, count: count32(count) }
}

fn keyed(source: &Source, count: u64) -> Vec<u8> {
    match KeyType(source.kind) {
        KeyType::EXTENT_DATA_REF => data_ref(source, count).as_bytes().to_vec(),
        KeyType::SHARED_DATA_REF => count32(count).as_bytes().to_vec(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_parsed_alike_in_both_forms() {
        let source = |inode| Source { kind: KeyType::EXTENT_DATA_REF.0, from: 5, inode, offset: 0 };
        let mut sources: Vec<(Source, u64)> = (300..400).map(|inode| (source(inode), 2)).collect();
        sources.push((Source { kind: KeyType::SHARED_DATA_REF.0, from: 1 << 20, inode: 0, offset: 0 }, 3));
        sources.sort_unstable();
        let extent = Extent {
            at: 1 << 24,
            length: 8192,
            is_data: true,
            generation: 7,
            level: 0,
            full: false,
            sources,
            owner: Some(5),
        };
        let items = extent.encode(incompat::SKINNY_METADATA, 16384, Key::MIN);
        assert!(items.len() > 10 && items.is_sorted_by(|(a, _), (b, _)| a < b), "{}", items.len());
        let mut stored = Stored::parse(items[0].0, &items[0].1, 16384);
        items[1..].iter().for_each(|(key, data)| stored.add_keyed(*key, data));
        assert!(stored.is(&extent));
        stored.refs += 1;
        assert!(!stored.is(&extent));
    }
}
