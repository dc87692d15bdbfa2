//! Contents in the log: extents over those of the last commit, and checksums over its checksums.

use super::{Item, Items, Merge, all_of, inode_key, is_file};
use crate::block::Quality;
use crate::tree::Tree;
use butterfs_fs::file_extent::{ExtentKind, FileExtent};
use butterfs_ondisk::items::InodeItem;
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Key, KeyType};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};
use zerocopy::IntoBytes;

/// The extents of a file by their starts, with their items.
type Extents = BTreeMap<u64, (FileExtent, Item)>;

impl Merge<'_> {
    /// Lays the extents of the log over those of the files, and cuts files at their new ends.
    pub(super) fn extents(&mut self) {
        let logged = self.log.keys().filter(|key| matches!(key.kind, KeyType::EXTENT_DATA | KeyType::INODE_ITEM));
        let inodes: BTreeSet<u64> = logged.map(|key| key.objectid).collect();
        for ino in inodes.into_iter().filter(|ino| !self.nameless.contains(ino)).collect::<Vec<_>>() {
            self.extents_of(ino);
        }
    }

    fn extents_of(&mut self, ino: u64) {
        let sector = self.committed.wreck.sectorsize();
        let (first, last) = all_of(ino, KeyType::EXTENT_DATA);
        let parsed = |(key, item): (Key, Item)| {
            let extent = FileExtent::parse(key, &item.0, sector).ok()?;
            Some((extent.start, (extent, item)))
        };
        let before: Extents = self.committed(first, last).into_iter().filter_map(parsed).collect();
        let mut extents = before.clone();
        let item = self.inode_item(ino);
        let end = item.as_ref().filter(|(item, _)| is_file(item) && self.log.contains_key(&inode_key(ino)));
        if let Some(end) = end.and_then(|(item, _)| item.size.get().checked_next_multiple_of(sector)) {
            cut(&mut extents, end..u64::MAX);
        }
        for (start, (extent, item)) in self.log.range(first..=last).map(super::owned).filter_map(parsed) {
            cut(&mut extents, start..extent.end());
            extents.insert(start, (extent, item));
        }
        if extents == before {
            return;
        }
        let key = |start| Key::new(ino, KeyType::EXTENT_DATA, start);
        before.keys().filter(|start| !extents.contains_key(start)).for_each(|start| self.drop(key(*start)));
        let bytes = extents.values().fold(0u64, |sum, (extent, _)| sum.saturating_add(bytes_of(extent)));
        let changed = extents.into_iter().filter(|(start, own)| before.get(start) != Some(own));
        changed.for_each(|(start, (_, (data, quality)))| self.put(key(start), data, quality));
        if let Some((item, quality)) = item {
            let item = InodeItem { nbytes: bytes.into(), ..item };
            self.put(inode_key(ino), item.as_bytes().to_vec(), quality);
        }
    }
}

/// Bytes that an inode counts for an extent.
fn bytes_of(extent: &FileExtent) -> u64 {
    match extent.kind {
        ExtentKind::Inline => extent.ram_bytes,
        _ if extent.is_hole() => 0,
        _ => extent.len,
    }
}

/// Removes what lies in a range.
fn cut(extents: &mut Extents, range: Range<u64>) {
    let met = extents.range(..range.end).filter(|(_, (extent, _))| extent.end() > range.start);
    let met: Vec<u64> = met.map(|(start, _)| *start).collect();
    for start in met {
        let Some((extent, (_, quality))) = extents.remove(&start) else { continue };
        if extent.kind == ExtentKind::Inline {
            continue;
        }
        let (start, end) = (extent.start, extent.end());
        if start < range.start {
            put(extents, FileExtent { len: range.start - start, ..extent }, quality);
        }
        if range.end < end {
            let offset = if extent.is_hole() { extent.offset } else { extent.offset + (range.end - start) };
            put(extents, FileExtent { start: range.end, len: end - range.end, offset, ..extent }, quality);
        }
    }
}

fn put(extents: &mut Extents, extent: FileExtent, quality: Quality) {
    extents.insert(extent.start, (extent, (extent.encode(), quality)));
}

/// The checksums of logs laid over those of the last commit.
pub(super) fn checksums(committed: &Tree<'_>, logged: &BTreeMap<Key, Item>) -> Items {
    let (sector, width) = (committed.wreck.sectorsize(), committed.wreck.checksum().len());
    let key = |at| Key::new(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM, at);
    let reach = committed.wreck.nodesize() as u64 / width as u64 * sector;
    let end_of = |at: u64, sums: &[u8]| at.saturating_add((sums.len() / width) as u64 * sector);
    let mut items = Items::new();
    for (own, (sums, quality)) in logged {
        let range = own.offset..end_of(own.offset, sums);
        if range.is_empty() {
            continue;
        }
        let (first, last) = (key(range.start.saturating_sub(reach)), key(range.end - 1));
        let mut met: BTreeMap<Key, Item> = BTreeMap::new();
        committed.scan_committed(first, last, &mut |key, sums, quality| {
            if !items.contains_key(&key) {
                met.insert(key, (sums.to_vec(), quality));
            }
            ControlFlow::Continue(())
        });
        met.extend(items.range(first..=last).filter_map(|(key, item)| Some((*key, item.clone()?))));
        for (other, (sums, quality)) in met {
            let (start, end) = (other.offset, end_of(other.offset, &sums));
            if end <= range.start {
                continue;
            }
            items.insert(other, None);
            let bytes = |from: u64, to: u64| {
                let at = |place: u64| ((place - start) / sector) as usize * width;
                Some((sums[at(from)..at(to)].to_vec(), quality))
            };
            if start < range.start {
                items.insert(other, bytes(start, range.start));
            }
            if range.end < end {
                items.insert(key(range.end), bytes(range.end, end));
            }
        }
        items.insert(*own, Some((sums.clone(), *quality)));
    }
    items
}
