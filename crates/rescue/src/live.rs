//! Allocations since an earlier time: where a newer file has the place of a deleted one.
//!
//! Bytes without checksums do not show that another file has them now, and bytes that were written anew fit the
//! checksums of the last commit. The extent tree of the last commit tells: each of its items has the generation in
//! which the place was allocated.
//!
//! Only older leaves of the extent tree, which a scan may have found, tell of a place that was given away and freed
//! again.
//!
//! Limits: without them nothing is left of such a place; items of damaged blocks are left out, and so are ranges after
//! the first [`MOST_RANGES`].

use crate::roots::Roots;
use crate::tree::Tree;
use crate::trust::Trust;
use crate::wreck::Wreck;
use butterfs_ondisk::items::ExtentItem;
use butterfs_ondisk::{Key, KeyType, TreeId};
use std::collections::BinaryHeap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use zerocopy::FromBytes;

/// Ranges that are remembered; each takes 24 bytes.
const MOST_RANGES: usize = 1 << 22;

/// Ranges of addresses and the generation in which each was allocated last.
#[derive(Debug, Default)]
pub(crate) struct LiveExtents {
    /// In order, without overlaps.
    ranges: Vec<(Range<u64>, u64)>,
}

impl LiveExtents {
    /// The ranges in this extent tree, and in its leaves that a scan has found, that were allocated after the
    /// generation `oldest`.
    pub(crate) fn newer_than(oldest: u64, wreck: &Wreck, extents: Option<Tree<'_>>) -> LiveExtents {
        let nodesize = wreck.nodesize() as u64;
        let mut ranges = Vec::new();
        let mut note = |key: Key, data: &[u8]| {
            let len = match key.kind {
                KeyType::EXTENT_ITEM => key.offset,
                KeyType::METADATA_ITEM => nodesize,
                _ => return ControlFlow::Continue(()),
            };
            if let Ok((item, _)) = ExtentItem::read_from_prefix(data)
                && item.generation.get() > oldest
            {
                ranges.push((key.objectid..key.objectid.saturating_add(len), item.generation.get()));
            }
            if ranges.len() < MOST_RANGES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        if let Some(extents) = extents {
            extents.scan(Key::MIN, Key::MAX, &mut |key, data, quality| match quality.trust() {
                Trust::Proved => note(key, data),
                _ => ControlFlow::Continue(()),
            });
        }
        let found = wreck.index().map(|index| index.of(TreeId::EXTENT, 0)).unwrap_or_default();
        for leaf in found.iter().filter(|leaf| leaf.generation > oldest) {
            if let Some(block) = wreck.found_block(leaf) {
                let _ = block.node.items().try_for_each(|(key, data)| note(key, data));
            }
        }
        LiveExtents::of(ranges)
    }

    /// Ranges that may overlap: where they do, the last allocation counts.
    fn of(ranges: Vec<(Range<u64>, u64)>) -> LiveExtents {
        LiveExtents { ranges: topmost(ranges) }
    }

    fn is_newer(&self, range: &Range<u64>, generation: u64) -> bool {
        let first = self.ranges.partition_point(|(live, _)| live.end <= range.start);
        let met = self.ranges[first..].iter().take_while(|(live, _)| live.start < range.end);
        met.into_iter().any(|(_, own)| *own > generation)
    }
}

/// Ranges with a rank, in order and without overlaps: where they overlapped, the one of the highest rank is left.
pub(crate) fn topmost(mut ranges: Vec<(Range<u64>, u64)>) -> Vec<(Range<u64>, u64)> {
    ranges.sort_unstable_by_key(|(range, rank)| (range.start, *rank));
    let mut found: Vec<(Range<u64>, u64)> = Vec::new();
    let mut push = |range: Range<u64>, rank: u64| match found.last_mut() {
        _ if range.is_empty() => {}
        Some((last, own)) if last.end == range.start && *own == rank => last.end = range.end,
        _ => found.push((range, rank)),
    };
    // Those that reach beyond the start of the next one, the highest on top.
    let mut open: BinaryHeap<(u64, u64)> = BinaryHeap::new();
    let mut at = 0;
    for (range, rank) in ranges.into_iter().chain([(u64::MAX..u64::MAX, 0)]) {
        while let Some(&(highest, end)) = open.peek().filter(|_| at < range.start) {
            push(at..end.min(range.start), highest);
            at = at.max(end.min(range.start));
            if end <= at {
                open.pop();
            }
        }
        at = range.start;
        open.push((rank, range.end));
    }
    found
}

/// Allocations since the time of a tree.
#[derive(Clone, Debug)]
pub(crate) struct Since {
    pub(crate) live: Arc<LiveExtents>,
    /// The generation of the tree.
    pub(crate) generation: u64,
    /// Whether the tree's checksums are of its own time, so that bytes that fit them are its own.
    pub(crate) has_own_checksums: bool,
}

impl Since {
    /// That of the trees of an earlier commit; `None` for those of the last one.
    pub(crate) fn of(wreck: &Wreck, roots: &Roots) -> Option<Since> {
        let generation = roots.root_tree?.generation.filter(|own| *own < wreck.superblock().generation.get())?;
        let last = wreck.roots_of_last_commit();
        let root = |roots: &Roots, tree| roots.trees.get(&tree).map(|found| found.root);
        let extents = root(&last, TreeId::EXTENT).map(|root| Tree::new(wreck, root));
        let live = Arc::new(LiveExtents::newer_than(generation, wreck, extents));
        let has_own_checksums = root(roots, TreeId::CSUM) != root(&last, TreeId::CSUM);
        Some(Since { live, generation, has_own_checksums })
    }

    /// Whether a part of this range was allocated after the time of the tree.
    pub(crate) fn is_reused(&self, range: Range<u64>) -> bool {
        self.live.is_newer(&range, self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_reused_where_a_newer_one_lies_over_it() {
        let extents =
            [(0..10, 5), (10..20, 5), (40..50, 9), (15..30, 7), (41..42, 8), (12..13, 4), (60..70, 3), (60..61, 4)];
        let live = LiveExtents::of(extents.to_vec());
        assert_eq!(live.ranges, [(0..15, 5), (15..30, 7), (40..50, 9), (60..61, 4), (61..70, 3)]);
        let since = |generation| Since {
            live: Arc::new(LiveExtents { ranges: live.ranges.clone() }),
            generation,
            has_own_checksums: false,
        };
        let (old, new) = (since(6), since(9));
        let reused = [(0..15, false), (14..16, true), (29..41, true), (30..40, false), (49..60, true), (50..60, false)];
        for (range, is_reused) in reused {
            assert_eq!((old.is_reused(range.clone()), new.is_reused(range.clone())), (is_reused, false), "{range:?}");
        }
    }
}
