//! Random edits against a map of sectors.

use super::*;
use crate::extent::items::model::ItemMap;
use butterfs_ondisk::Logical;
use butterfs_testkit::rng::Rng;
use std::collections::BTreeMap;

const SECTOR: u64 = 4096;
const INO: u64 = 257;

/// A sector of the file: its extent, the sector within it, and whether it is only preallocated.
type Sector = (u64, u64, bool);

#[derive(Default)]
struct Books {
    refs: BTreeMap<(u64, u64), i64>,
    nbytes: i64,
}

impl Effects for Books {
    fn add_ref(&mut self, extent: &FileExtent, _new: bool) {
        *self.refs.entry((extent.at.0, extent.start.wrapping_sub(extent.offset))).or_default() += 1;
    }

    fn drop_ref(&mut self, extent: &FileExtent) {
        let key = (extent.at.0, extent.start.wrapping_sub(extent.offset));
        let count = self.refs.get_mut(&key).expect("a reference that exists");
        *count -= 1;
        if *count == 0 {
            self.refs.remove(&key);
        }
    }

    fn add_nbytes(&mut self, change: i64) {
        self.nbytes += change;
    }
}

struct File {
    context: FileContext,
    items: ItemMap,
    books: Books,
    model: BTreeMap<u64, Sector>,
    next_extent: u64,
    noise: Rng,
}

impl File {
    fn new(seed: u64, no_holes: bool) -> File {
        File {
            context: FileContext { ino: INO, sectorsize: SECTOR, no_holes, generation: 7 },
            items: ItemMap::default(),
            books: Books::default(),
            model: BTreeMap::new(),
            next_extent: 1 << 20,
            noise: Rng::new(seed),
        }
    }

    fn random_range(&mut self) -> Range<u64> {
        let start = self.noise.below(64) * SECTOR;
        start..start + (1 + self.noise.below(20)) * SECTOR
    }

    fn drop(&mut self, range: &Range<u64>) {
        let mut at = range.start;
        while at < range.end {
            let limit = 1 + self.noise.below(4) as usize;
            let stopped = self.context.drop_range(&mut self.items, &(at..range.end), limit, &mut self.books).unwrap();
            assert!(stopped > at);
            at = stopped;
        }
        self.model.retain(|sector, _| !range.contains(sector));
    }

    /// Replaces a range by one extent, inserted in two steps.
    fn put(&mut self, range: &Range<u64>, kind: ExtentKind) {
        self.drop(range);
        let extent = FileExtent::new(kind, range.start, Logical(self.next_extent), range.end - range.start, 7);
        self.next_extent += range.end - range.start;
        let middle = range.start + self.noise.below(range.end - range.start) / SECTOR * SECTOR;
        let parts = [extent.part(&(range.start..middle)), extent.part(&(middle..range.end))];
        for (i, part) in parts.iter().filter(|part| part.len > 0).enumerate() {
            self.context.insert(&mut self.items, part, i == 0, &mut self.books).unwrap();
        }
        for (i, sector) in sectors(range).enumerate() {
            self.model.insert(sector, (extent.at.0, i as u64, kind == ExtentKind::Prealloc));
        }
    }

    fn write_prealloc(&mut self, range: &Range<u64>) {
        let allowed = |sector| self.model.get(&sector).is_some_and(|found| found.2);
        let end = sectors(range).find(|&sector| !allowed(sector)).unwrap_or(range.end);
        let range = range.start..end;
        if range.is_empty() {
            return;
        }
        self.context.write_prealloc(&mut self.items, &range, &mut self.books).unwrap();
        sectors(&range).for_each(|sector| self.model.get_mut(&sector).unwrap().2 = false);
    }

    fn check(&self) {
        let (mut found, mut books, mut end) = (BTreeMap::new(), Books::default(), 0);
        for (key, payload) in &self.items.0 {
            let extent = FileExtent::parse(*key, payload, SECTOR).unwrap();
            assert!(extent.start >= end && extent.len > 0);
            end = extent.end();
            books.nbytes += extent.nbytes() as i64;
            if extent.is_hole() {
                assert!(!self.context.no_holes);
                continue;
            }
            books.add_ref(&extent, false);
            for (i, sector) in sectors(&extent.range()).enumerate() {
                let inside = extent.offset / SECTOR + i as u64;
                found.insert(sector, (extent.at.0, inside, extent.kind == ExtentKind::Prealloc));
            }
        }
        assert!(found == self.model);
        assert_eq!(self.books.refs, books.refs);
        assert_eq!(self.books.nbytes, books.nbytes);
    }
}

fn sectors(range: &Range<u64>) -> impl Iterator<Item = u64> + use<> {
    range.clone().step_by(SECTOR as usize)
}

#[test]
fn random_edits_agree_with_a_map_of_sectors() {
    for seed in 0..40 {
        let mut file = File::new(seed, seed % 2 == 0);
        for _ in 0..400 {
            let range = file.random_range();
            match file.noise.below(6) {
                0 => {
                    file.drop(&range);
                    file.context.insert_hole(&mut file.items, &range).unwrap();
                }
                1 => file.put(&range, ExtentKind::Regular),
                2 => file.put(&range, ExtentKind::Prealloc),
                3 => file.context.fill_gaps(&mut file.items, &range).unwrap(),
                _ => file.write_prealloc(&range),
            }
            file.check();
        }
    }
}

#[test]
fn without_no_holes_every_gap_is_filled_and_neighbours_merge() {
    let mut file = File::new(1, false);
    file.put(&(8 * SECTOR..9 * SECTOR), ExtentKind::Regular);
    file.context.fill_gaps(&mut file.items, &(0..16 * SECTOR)).unwrap();
    assert_eq!(file.context.gaps(&file.items, &(0..16 * SECTOR)).unwrap(), []);
    let whole = 8 * SECTOR..9 * SECTOR;
    file.drop(&whole);
    file.context.insert_hole(&mut file.items, &whole).unwrap();
    let left = file.context.list(&file.items, &(0..16 * SECTOR), 10).unwrap();
    assert_eq!(left, [FileExtent::hole(&(0..16 * SECTOR), 7)]);
}

#[test]
fn writing_preallocated_space_in_order_leaves_one_written_item() {
    let mut file = File::new(1, true);
    file.put(&(0..100 * SECTOR), ExtentKind::Prealloc);
    for i in [1, 0, 2, 5, 4, 3, 99] {
        file.write_prealloc(&(i * SECTOR..(i + 1) * SECTOR));
    }
    file.check();
    let kinds: Vec<_> = file.context.list(&file.items, &(0..100 * SECTOR), 10).unwrap();
    let shape: Vec<_> = kinds.iter().map(|extent| (extent.start / SECTOR, extent.len / SECTOR, extent.kind)).collect();
    assert_eq!(shape, [(0, 6, ExtentKind::Regular), (6, 93, ExtentKind::Prealloc), (99, 1, ExtentKind::Regular)]);
    assert_eq!(file.books.refs.values().copied().collect::<Vec<_>>(), [3]);
}

#[test]
fn inline_data_goes_as_a_whole() {
    let mut file = File::new(1, true);
    file.items.insert(key_at(INO, 0), &FileExtent::encode_inline(7, 5, 0, b"hello")).unwrap();
    file.books.nbytes = 5;
    let stopped = file.context.drop_range(&mut file.items, &(0..2 * SECTOR), 9, &mut file.books).unwrap();
    assert_eq!((stopped, file.books.nbytes, file.items.0.len()), (2 * SECTOR, 0, 0));
}

#[test]
fn items_of_other_inodes_are_not_touched() {
    let mut file = File::new(1, true);
    let mut other = file.context;
    for ino in [INO - 1, INO + 1] {
        other.ino = ino;
        let extent = FileExtent::new(ExtentKind::Regular, 0, Logical(ino << 30), 1 << 20, 7);
        other.insert(&mut file.items, &extent, true, &mut file.books).unwrap();
    }
    let before = file.items.clone();
    assert!(file.context.before(&file.items, 0).unwrap().is_none());
    file.drop(&(0..1 << 30));
    assert_eq!(file.items.0, before.0);
}
