//! Checksums of data in the checksum tree (or in a log tree, which keeps them in the same form).
//!
//! ```text
//! key (−10, EXTENT_CSUM, logical address of the first sector)
//! payload: one digest for each sector from there on
//! ```
//!
//! # Invariants
//! 1. Items do not overlap. A digest stands for a sector of the logical space, whichever extents it belongs to.
//! 2. [`delete`] removes exactly the sectors of its range, whatever the borders of the items are.
//! 3. Reading accepts items of any length; writing keeps to the kernel's limit.
//! 4. A reader that runs beside an edit finds every digest that stays: an item is cut only when what stays of it is
//!    in the tree already.
//!
//! Not here: what a checksum is (`ondisk`), who may lack one (`file`).

use super::items::{EditItems, Items};
use crate::error::{Error, Result};
use crate::transaction::Core;
use butterfs_ondisk::header::leaf_data_size;
use butterfs_ondisk::{ChecksumKind, Key, KeyType, Logical};
use std::ops::{ControlFlow, Range};

/// Object id of checksum items (−10).
const OBJECTID: u64 = (-10i64) as u64;
/// No item of a writer is longer.
const LONGEST_ITEM_DIGESTS: usize = 4096;

/// The filesystem's constants that the layout of checksum items depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Which checksum, and so how long a digest is.
    pub kind: ChecksumKind,
    /// Bytes of data that a digest stands for.
    pub sectorsize: u32,
    /// Bytes of a tree block.
    pub nodesize: u32,
}

impl Layout {
    /// The constants of an open filesystem.
    pub fn of(core: &Core) -> Layout {
        Layout { kind: core.checksum_kind(), sectorsize: core.sectorsize(), nodesize: core.nodesize() }
    }

    fn sector(&self) -> u64 {
        u64::from(self.sectorsize)
    }

    fn most_digests(&self) -> usize {
        let fits = leaf_data_size(self.nodesize).saturating_sub(50) / self.kind.len();
        (fits.saturating_sub(1)).clamp(1, LONGEST_ITEM_DIGESTS)
    }

    /// Digests of `data`, one for each sector, one behind the other.
    pub fn digests(&self, data: &[u8]) -> Vec<u8> {
        self.kind.digests(data, self.sectorsize as usize)
    }

    /// The range of addresses that an item covers.
    fn span(&self, key: Key, payload_len: usize) -> Range<u64> {
        let sectors = (payload_len / self.kind.len()) as u64;
        key.offset..key.offset.saturating_add(sectors.saturating_mul(self.sector()))
    }
}

const fn key_at(at: u64) -> Key {
    Key::new(OBJECTID, KeyType::EXTENT_CSUM, at)
}

fn is_checksum(key: Key) -> bool {
    key.objectid == OBJECTID && key.kind == KeyType::EXTENT_CSUM
}

/// The digests of a range, sector by sector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checksums {
    layout: Layout,
    digests: Vec<u8>,
    present: Vec<bool>,
}

impl Checksums {
    /// The digest of sector `index` of the range; `None` when there is none.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let len = self.layout.kind.len();
        self.present.get(index)?.then(|| &self.digests[index * len..(index + 1) * len])
    }

    /// Sectors in the range.
    pub fn len(&self) -> usize {
        self.present.len()
    }

    /// Whether the range has no sectors.
    pub fn is_empty(&self) -> bool {
        self.present.is_empty()
    }

    /// Whether no sector has a digest.
    pub fn none_present(&self) -> bool {
        !self.present.contains(&true)
    }

    /// The sectors of `data`, the bytes of the range, by index and ascending, that have another digest than their own.
    pub fn differing(&self, data: &[u8]) -> Vec<usize> {
        let sector = self.layout.sectorsize as usize;
        let of_run = |(first, digests): (usize, &[u8])| {
            let differing = self.layout.kind.differing(&data[first * sector..], sector, digests);
            differing.into_iter().map(move |index| first + index)
        };
        self.runs().flat_map(of_run).collect()
    }

    /// The first sector of `data`, by its index there, that has no digest or another one than its own. Sector 0 of
    /// `data` is sector `first` of the range.
    pub fn first_differing(&self, data: &[u8], first: usize) -> Option<usize> {
        let (len, sector) = (self.layout.kind.len(), self.layout.sectorsize as usize);
        let sectors = data.len().div_ceil(sector);
        let own = self.present.get(first..).unwrap_or_default().iter().take(sectors);
        let present = own.take_while(|present| **present).count();
        let digests = &self.digests.get(first * len..).unwrap_or_default()[..present * len];
        let differing = self.layout.kind.differing(data, sector, digests).first().copied();
        differing.or((present < sectors).then_some(present))
    }

    /// The digests of the sectors that have one, as pieces without gaps: index of the first, and the bytes.
    pub fn runs(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let from = at + self.present[at..].iter().position(|&present| present)?;
            let to = self.present[from..].iter().position(|&present| !present).map_or(self.len(), |n| from + n);
            at = to;
            let len = self.layout.kind.len();
            Some((from, &self.digests[from * len..to * len]))
        })
    }

    fn put(&mut self, index: usize, digests: &[u8]) {
        let len = self.layout.kind.len();
        let count = digests.len() / len;
        self.digests[index * len..(index + count) * len].copy_from_slice(digests);
        self.present[index..index + count].fill(true);
    }
}

/// Looks up the checksums of `[at, at + len_bytes)`, both multiples of the sector.
pub fn lookup(items: &impl Items, layout: Layout, at: Logical, len_bytes: u64) -> Result<Checksums> {
    let sectors = (len_bytes / layout.sector()) as usize;
    let digests = vec![0; sectors * layout.kind.len()];
    let mut found = Checksums { layout, digests, present: vec![false; sectors] };
    let range = at.0..at.0.saturating_add(len_bytes);
    overlapping(items, layout, &range, &mut |key, payload| {
        let span = layout.span(key, payload.len());
        let (from, to) = (span.start.max(range.start), span.end.min(range.end));
        found.put(((from - range.start) / layout.sector()) as usize, piece(layout, key, payload, from..to));
        Ok(())
    })?;
    Ok(found)
}

/// The digests that an item holds for `range`, which lies in its span.
fn piece(layout: Layout, key: Key, payload: &[u8], range: Range<u64>) -> &[u8] {
    let index = |at: u64| ((at - key.offset) / layout.sector()) as usize * layout.kind.len();
    &payload[index(range.start)..index(range.end)]
}

/// Calls `each` for the items that have a digest of a sector in `range`.
fn overlapping(
    items: &impl Items,
    layout: Layout,
    range: &Range<u64>,
    each: &mut dyn FnMut(Key, &[u8]) -> Result<()>,
) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    if let Some((key, payload)) = items.last_before(key_at(range.start))?
        && is_checksum(key)
        && layout.span(key, payload.len()).end > range.start
    {
        must_be_aligned(layout, key)?;
        each(key, &payload)?;
    }
    items.scan(key_at(range.start), key_at(range.end - 1), &mut |key, payload| {
        must_be_aligned(layout, key)?;
        each(key, payload)?;
        Ok(ControlFlow::Continue(()))
    })
}

fn must_be_aligned(layout: Layout, key: Key) -> Result<()> {
    if key.offset.is_multiple_of(layout.sector()) {
        return Ok(());
    }
    Err(Error::corrupt(format!("checksum item {key}: the address is not a multiple of {}", layout.sectorsize)))
}

/// Records the digests of the sectors from `at` on; sectors that have one get the new one.
pub fn insert(items: &mut impl EditItems, layout: Layout, at: Logical, digests: &[u8]) -> Result<()> {
    let mut at = at.0;
    let mut rest = digests;
    while !rest.is_empty() {
        let taken = insert_some(items, layout, at, rest)?;
        at += (taken / layout.kind.len()) as u64 * layout.sector();
        rest = &rest[taken..];
    }
    Ok(())
}

/// Records as many of `digests` as one item takes; returns how many bytes of them.
fn insert_some(items: &mut impl EditItems, layout: Layout, at: u64, digests: &[u8]) -> Result<usize> {
    let most = layout.most_digests() * layout.kind.len();
    let before = items.at_or_before(key_at(at))?.filter(|(key, _)| is_checksum(*key));
    if let Some((key, payload)) = &before {
        must_be_aligned(layout, *key)?;
        let end = layout.span(*key, payload.len()).end;
        if end > at {
            return overwrite(items, layout, *key, at..end, digests);
        }
        if end == at && payload.len() < most {
            let room = room_behind(items, layout, at)?;
            let taken = digests.len().min(most - payload.len()).min(room);
            let whole = payload.len() / layout.kind.len() * layout.kind.len();
            items.replace(*key, &[&payload[..whole], &digests[..taken]].concat())?;
            return Ok(taken);
        }
    }
    let taken = digests.len().min(most).min(room_behind(items, layout, at)?);
    items.insert(key_at(at), &digests[..taken])?;
    Ok(taken)
}

fn overwrite(
    items: &mut impl EditItems,
    layout: Layout,
    key: Key,
    covered: Range<u64>,
    digests: &[u8],
) -> Result<usize> {
    let len = layout.kind.len();
    let taken = digests.len().min(((covered.end - covered.start) / layout.sector()) as usize * len);
    let from = ((covered.start - key.offset) / layout.sector()) as usize * len;
    items.update(key, &mut |payload| payload[from..from + taken].copy_from_slice(&digests[..taken]))?;
    Ok(taken)
}

/// Bytes of digests that fit between `at` and the next item.
fn room_behind(items: &impl Items, layout: Layout, at: u64) -> Result<usize> {
    let mut next = None;
    items.scan(key_at(at), key_at(u64::MAX), &mut |key, _| {
        next = Some(key.offset);
        Ok(ControlFlow::Break(()))
    })?;
    let sectors = next.map_or(usize::MAX / 64, |next| ((next - at) / layout.sector()) as usize);
    if sectors == 0 {
        return Err(Error::corrupt(format!("checksum item at {}: not a multiple of the sector", at + 1)));
    }
    Ok(sectors.saturating_mul(layout.kind.len()))
}

/// The remainder of an item that a deletion cuts.
struct Cut {
    key: Key,
    head: Vec<u8>,
    tail: Vec<u8>,
}

/// Removes the digests of `[at, at + len_bytes)`, both multiples of the sector.
pub fn delete(items: &mut impl EditItems, layout: Layout, at: Logical, len_bytes: u64) -> Result<()> {
    let range = at.0..at.0.saturating_add(len_bytes);
    let mut cuts = Vec::new();
    overlapping(items, layout, &range, &mut |key, payload| {
        let span = layout.span(key, payload.len());
        let head = piece(layout, key, payload, span.start..range.start.clamp(span.start, span.end)).to_vec();
        let tail = piece(layout, key, payload, range.end.clamp(span.start, span.end)..span.end).to_vec();
        cuts.push(Cut { key, head, tail });
        Ok(())
    })?;
    for cut in cuts {
        // What stays is there at every moment, for readers that hold no lock over several items.
        if !cut.tail.is_empty() {
            items.insert(key_at(range.end), &cut.tail)?;
        }
        if cut.head.is_empty() {
            items.remove(cut.key)?;
        } else {
            items.replace(cut.key, &cut.head)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::items::model::ItemMap;
    use super::*;
    use butterfs_testkit::rng::Rng;
    use std::collections::BTreeMap;

    const SECTOR: u64 = 4096;

    fn layout(kind: ChecksumKind) -> Layout {
        Layout { kind, sectorsize: SECTOR as u32, nodesize: 4096 }
    }

    /// The checksums in the items, sector by sector; checks the rules for items.
    fn content(items: &ItemMap, layout: Layout) -> BTreeMap<u64, Vec<u8>> {
        let mut all = BTreeMap::new();
        let mut end = 0;
        for (key, payload) in &items.0 {
            assert!(key.offset >= end && !payload.is_empty(), "{key}");
            assert!(payload.len() <= layout.most_digests() * layout.kind.len());
            end = layout.span(*key, payload.len()).end;
            for (i, digest) in payload.chunks(layout.kind.len()).enumerate() {
                all.insert(key.offset + i as u64 * SECTOR, digest.to_vec());
            }
        }
        all
    }

    #[test]
    fn random_edits_agree_with_a_map_of_sectors() {
        for kind in [ChecksumKind::Crc32c, ChecksumKind::Xxhash64, ChecksumKind::Sha256] {
            let layout = layout(kind);
            let (mut items, mut model) = (ItemMap::default(), BTreeMap::new());
            let mut noise = Rng::new(kind as u64 + 1);
            for _ in 0..3000 {
                let at = noise.below(3000) * SECTOR;
                let sectors = 1 + if noise.below(10) == 0 { noise.below(2500) } else { noise.below(30) };
                match noise.below(5) {
                    0 | 1 => {
                        delete(&mut items, layout, Logical(at), sectors * SECTOR).unwrap();
                        (0..sectors).for_each(|i| drop(model.remove(&(at + i * SECTOR))));
                    }
                    2 | 3 => {
                        let digests: Vec<u8> =
                            (0..sectors as usize * kind.len()).map(|_| noise.below(256) as u8).collect();
                        insert(&mut items, layout, Logical(at), &digests).unwrap();
                        for (i, digest) in digests.chunks(kind.len()).enumerate() {
                            model.insert(at + i as u64 * SECTOR, digest.to_vec());
                        }
                    }
                    _ => {
                        let found = lookup(&items, layout, Logical(at), sectors * SECTOR).unwrap();
                        assert_eq!(found.len() as u64, sectors);
                        for i in 0..sectors {
                            let expected = model.get(&(at + i * SECTOR)).map(Vec::as_slice);
                            assert_eq!(found.get(i as usize), expected);
                        }
                        let in_runs: usize = found.runs().map(|(_, digests)| digests.len() / kind.len()).sum();
                        assert_eq!(in_runs, (0..found.len()).filter(|&i| found.get(i).is_some()).count());
                    }
                }
                assert!(content(&items, layout) == model);
            }
        }
    }

    #[test]
    fn items_of_kernel_length_are_made_and_grown() {
        let layout = Layout { kind: ChecksumKind::Crc32c, sectorsize: 4096, nodesize: 16384 };
        assert_eq!(layout.most_digests(), 4057);
        let layout_sha = Layout { kind: ChecksumKind::Sha256, ..layout };
        assert_eq!(layout_sha.most_digests(), 506);
        assert_eq!(Layout { kind: ChecksumKind::Xxhash64, ..layout }.most_digests(), 2028);
        let mut items = ItemMap::default();
        for i in 0..5000u64 {
            insert(&mut items, layout, Logical(i * SECTOR), &[1, 2, 3, 4]).unwrap();
        }
        assert_eq!(items.0.values().map(Vec::len).collect::<Vec<_>>(), [4057 * 4, 943 * 4]);
    }

    #[test]
    fn items_of_other_trees_objects_are_left_alone() {
        let layout = layout(ChecksumKind::Crc32c);
        let mut items = ItemMap::default();
        let before = Key::new(OBJECTID - 1, KeyType(255), u64::MAX);
        let behind = Key::new(OBJECTID, KeyType(129), 0);
        for key in [before, behind] {
            items.insert(key, &[9; 400]).unwrap();
        }
        insert(&mut items, layout, Logical(0), &[1; 8]).unwrap();
        delete(&mut items, layout, Logical(0), u64::MAX - 4095).unwrap();
        assert_eq!(items.0.keys().copied().collect::<Vec<_>>(), [before, behind]);
        assert!(lookup(&items, layout, Logical(0), 8192).unwrap().none_present());
    }

    #[test]
    fn a_misaligned_item_is_corrupt() {
        let layout = layout(ChecksumKind::Crc32c);
        let mut items = ItemMap::default();
        items.insert(key_at(4100), &[1; 8]).unwrap();
        assert!(lookup(&items, layout, Logical(0), 65536).is_err());
        assert!(insert(&mut items, layout, Logical(4096), &[1; 8]).is_err());
        assert!(delete(&mut items, layout, Logical(8192), 4096).is_err());
    }
}
