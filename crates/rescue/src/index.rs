//! The tree blocks that a scan has found, in memory and in order.
//!
//! Invariant: memory is bounded by the number of blocks that the index was told to keep ([`Limit`]); of more blocks
//! those of the oldest generations go, and [`Index::forgotten_before`] says so.

use crate::key::KeyRange;
use butterfs_ondisk::{Key, TreeId};
use std::collections::BTreeMap;

/// A tree block that a scan has found: its checksum was right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The tree that wrote it.
    pub owner: u64,
    /// Its address.
    pub logical: u64,
    /// The transaction that wrote it.
    pub generation: u64,
    /// Where it lies on its device.
    pub physical: u64,
    /// Its first key.
    pub first: Key,
    /// Its last key.
    pub last: Key,
    /// Bytes of the regular files whose inodes it has.
    pub bytes: u64,
    /// Such files.
    pub files: u32,
    /// Items or pointers.
    pub items: u32,
    /// The device, by its place on the command line.
    pub device: u16,
    /// Its level.
    pub level: u8,
    /// The filesystem, by its place in the scan's list.
    pub family: u8,
}

/// How many blocks are kept at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit(pub usize);

impl Limit {
    /// As many as fit into so many bytes of memory.
    pub fn of_bytes(bytes: u64) -> Limit {
        // Four bytes for the order of addresses, and as much again while a list grows.
        let each = 2 * (size_of::<Found>() + size_of::<u32>()) as u64;
        Limit((bytes / each).max(1024) as usize)
    }
}

impl Default for Limit {
    fn default() -> Limit {
        Limit::of_bytes(384 << 20)
    }
}

/// Blocks that are being collected.
#[derive(Debug, Default)]
pub struct Collection {
    found: Vec<Found>,
    limit: Limit,
    forgotten_before: u64,
}

impl Collection {
    /// An empty one.
    pub fn new(limit: Limit) -> Collection {
        Collection { found: Vec::new(), limit, forgotten_before: 0 }
    }

    /// Adds a block. Where there are too many, a quarter of them is forgotten, those of the oldest generations.
    pub fn add(&mut self, found: Found) {
        if found.generation < self.forgotten_before {
            return;
        }
        if self.found.len() >= self.limit.0 {
            let cut = self.found.len() / 4;
            let (_, oldest, _) = self.found.select_nth_unstable_by_key(cut, |found| found.generation);
            self.forgotten_before = oldest.generation.max(self.forgotten_before + 1);
            let before = self.forgotten_before;
            self.found.retain(|found| found.generation >= before);
            // All may be of one generation.
            self.found.truncate(self.limit.0 * 3 / 4);
        }
        self.found.push(found);
    }

    /// Blocks.
    pub fn len(&self) -> usize {
        self.found.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// All of them, as they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Found> {
        self.found.iter()
    }

    /// The index of those of one filesystem, or of one and its seeds.
    pub fn into_index(mut self, families: &[u8]) -> Index {
        self.found.retain(|found| families.contains(&found.family));
        self.found.sort_unstable_by_key(|found| {
            let Found { owner, level, first, generation, logical, device, physical, .. } = *found;
            (owner, level, first, u64::MAX - generation, logical, device, physical)
        });
        self.found.dedup();
        Index::of_sorted(self.found, self.forgotten_before)
    }
}

/// The blocks found of one filesystem.
#[derive(Debug, Default)]
pub struct Index {
    /// By owner, level, first key, and generation, the newest first.
    found: Vec<Found>,
    by_address: Vec<u32>,
    /// Blocks of older generations were not kept.
    pub forgotten_before: u64,
}

/// A part of a tree that one found block stands for.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// The keys.
    pub range: KeyRange,
    /// Which block.
    pub found: Found,
    /// The extent tree of the last commit has this block for this tree.
    pub is_confirmed: bool,
}

impl Index {
    fn of_sorted(found: Vec<Found>, forgotten_before: u64) -> Index {
        let mut by_address: Vec<u32> = (0..found.len() as u32).collect();
        by_address.sort_unstable_by_key(|index| (found[*index as usize].logical, found[*index as usize].generation));
        Index { found, by_address, forgotten_before }
    }

    /// The index without the blocks on a device that belongs to something else.
    pub(crate) fn without_device(self, place: usize) -> Index {
        let kept = self.found.into_iter().filter(|found| usize::from(found.device) != place);
        Index::of_sorted(kept.collect(), self.forgotten_before)
    }

    /// Blocks.
    pub fn len(&self) -> usize {
        self.found.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// All blocks, by tree.
    pub fn iter(&self) -> impl Iterator<Item = &Found> {
        self.found.iter()
    }

    /// The blocks at an address, of the newest generation first.
    pub fn at(&self, logical: u64) -> impl Iterator<Item = &Found> {
        let start = self.by_address.partition_point(|index| self.found[*index as usize].logical < logical);
        let end = self.by_address.partition_point(|index| self.found[*index as usize].logical <= logical);
        self.by_address[start..end].iter().rev().map(|index| &self.found[*index as usize])
    }

    /// The blocks that a tree has written, of one level.
    pub fn of(&self, tree: TreeId, level: u8) -> &[Found] {
        let start = self.found.partition_point(|found| (found.owner, found.level) < (tree.0, level));
        let end = self.found.partition_point(|found| (found.owner, found.level) <= (tree.0, level));
        &self.found[start..end]
    }

    /// All blocks that a tree has written.
    pub fn of_tree(&self, tree: TreeId) -> &[Found] {
        let start = self.found.partition_point(|found| found.owner < tree.0);
        let end = self.found.partition_point(|found| found.owner <= tree.0);
        &self.found[start..end]
    }

    /// The trees that have written blocks.
    pub fn trees(&self) -> Vec<TreeId> {
        let mut trees: Vec<TreeId> = self.found.iter().map(|found| TreeId(found.owner)).collect();
        trees.dedup();
        trees
    }

    /// Leaves that stand for `window` of a tree: of those that the first of `writers` has written up to a generation
    /// those count first that are confirmed, then the newest where several overlap; what they leave open is filled from
    /// the next one.
    pub fn segments(
        &self,
        writers: &[(TreeId, u64)],
        window: &KeyRange,
        is_confirmed: &dyn Fn(&Found) -> bool,
    ) -> Vec<Segment> {
        let mut taken = Taken::default();
        for (tree, generation) in writers {
            let own = self.of(*tree, 0).iter().filter(|found| found.generation <= *generation && found.items > 0);
            let mut leaves: Vec<(bool, &Found)> = own
                .filter(|found| !KeyRange::through(found.first, found.last).and(window).is_empty())
                .map(|found| (is_confirmed(found), found))
                .collect();
            leaves.sort_by_key(|(is_confirmed, found)| (!is_confirmed, u64::MAX - found.generation, found.logical));
            leaves.dedup_by_key(|(_, found)| (found.generation, found.logical));
            for (is_confirmed, leaf) in leaves {
                let range = KeyRange::through(leaf.first, leaf.last).and(window);
                for gap in taken.gaps(&range) {
                    taken.0.insert(gap.from, Segment { range: gap, found: *leaf, is_confirmed });
                }
            }
        }
        taken.0.into_values().collect()
    }
}

/// Segments by their first keys; they do not overlap.
#[derive(Default)]
struct Taken(BTreeMap<Key, Segment>);

impl Taken {
    /// The parts of a range that belong to no segment.
    fn gaps(&self, range: &KeyRange) -> Vec<KeyRange> {
        let before = self.0.range(..=range.from).next_back();
        let inside = self.0.range(range.from..).filter(|(from, _)| **from > range.from);
        let inside = inside.take_while(|(from, _)| range.end.is_none_or(|end| **from < end));
        let (mut from, mut gaps) = (Some(range.from), Vec::new());
        for (_, segment) in before.into_iter().chain(inside) {
            let Some(start) = from else { break };
            let gap = KeyRange { from: start, end: Some(segment.range.from) };
            gaps.extend((!gap.is_empty()).then_some(gap));
            from = segment.range.end.map(|end| end.max(start));
        }
        let rest = from.map(|from| KeyRange { from, end: range.end });
        gaps.extend(rest.filter(|rest| !rest.is_empty()));
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_ondisk::KeyType;

    fn key(number: u64) -> Key {
        Key::new(number, KeyType::INODE_ITEM, 0)
    }

    fn leaf(generation: u64, first: u64, last: u64) -> Found {
        Found {
            owner: 5,
            logical: generation * 1_000_000 + first,
            generation,
            physical: 0,
            first: key(first),
            last: key(last),
            bytes: 0,
            files: 0,
            items: 2,
            device: 0,
            level: 0,
            family: 0,
        }
    }

    fn index_of(leaves: &[Found]) -> Index {
        let mut all = Collection::new(Limit(1000));
        leaves.iter().for_each(|leaf| all.add(*leaf));
        all.into_index(&[0])
    }

    #[test]
    fn the_newest_leaf_counts_where_several_overlap() {
        let index = index_of(&[leaf(9, 10, 20), leaf(8, 1, 30), leaf(7, 25, 40), leaf(12, 1, 100)]);
        let segments = index.segments(&[(TreeId(5), 9)], &KeyRange::ALL, &|_| false);
        let shown: Vec<_> = segments.iter().map(|one| (one.range.from.objectid, one.found.generation)).collect();
        assert_eq!(shown, [(1, 8), (10, 9), (20, 8), (30, 7)]);
        assert!(segments.windows(2).all(|pair| pair[0].range.end.is_some_and(|end| end <= pair[1].range.from)));
        assert_eq!(segments[2].range.from, key(20).successor());
        // A snapshot has leaves of its source.
        let own = Found { owner: 300, ..leaf(11, 12, 18) };
        let shared = index_of(&[own, leaf(10, 11, 13), leaf(9, 10, 20)]);
        let both = shared.segments(&[(TreeId(300), 11), (TreeId(5), 9)], &KeyRange::ALL, &|_| false);
        assert_eq!(both.iter().map(|one| one.found.generation).collect::<Vec<_>>(), [9, 11, 9]);
        let window = KeyRange { from: key(15), end: Some(key(27)) };
        let inside = index.segments(&[(TreeId(5), 9)], &window, &|_| false);
        assert_eq!(inside.iter().map(|one| one.found.generation).collect::<Vec<_>>(), [9, 8]);
        assert!(index.segments(&[(TreeId(6), 9)], &KeyRange::ALL, &|_| false).is_empty());
        // The extent tree knows better than generations.
        let known = index.segments(&[(TreeId(5), 9)], &KeyRange::ALL, &|found| found.generation == 8);
        assert_eq!(known.iter().map(|one| (one.found.generation, one.is_confirmed)).next(), Some((8, true)));
    }

    /// The promise of `rescue scan`: less than 512 MiB for devices of any size, lists that grow included.
    #[test]
    fn the_default_limit_is_below_half_a_gibibyte() {
        let bytes = Limit::default().0 * 2 * (size_of::<Found>() + size_of::<u32>());
        assert!(bytes <= 384 << 20 && Limit::default().0 > 1_000_000, "{bytes}");
    }

    #[test]
    fn of_too_many_the_newest_are_kept() {
        let mut all = Collection::new(Limit(1000));
        for generation in 1..=10_000 {
            all.add(leaf(generation, generation, generation));
        }
        assert!(all.len() <= 1000);
        let index = all.into_index(&[0]);
        assert!(index.forgotten_before > 8000);
        assert!(
            (index.forgotten_before..=10_000).all(|one| index.of(TreeId(5), 0).iter().any(|f| f.generation == one))
        );
        // Also where no generation is older than others.
        let mut same = Collection::new(Limit(1000));
        (0..10_000).for_each(|number| same.add(leaf(7, number, number)));
        assert!(same.len() <= 1000);
    }

    #[test]
    fn blocks_are_found_by_address() {
        let index = index_of(&[Found { logical: 4096, ..leaf(3, 1, 2) }, Found { logical: 4096, ..leaf(5, 1, 9) }]);
        assert_eq!(index.at(4096).map(|found| found.generation).collect::<Vec<_>>(), [5, 3]);
        assert_eq!(index.at(8192).count(), 0);
    }
}
