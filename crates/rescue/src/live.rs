//! Allocations since an earlier time: where a newer file has the place of a deleted one.
//!
//! Bytes without checksums do not show that another file has them now, and bytes that were written anew fit the
//! checksums of the last commit. The extent tree of the last commit tells: each of its items has the generation in
//! which the place was allocated.
//!
//! Limits: of a place that was given away and freed again nothing is left; items of damaged blocks are left out, and so
//! are ranges after the first [`MOST_RANGES`].

use crate::tree::Tree;
use crate::trust::Trust;
use butterfs_ondisk::items::ExtentItem;
use butterfs_ondisk::{Key, KeyType};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use zerocopy::FromBytes;

/// Ranges that are remembered; each takes 24 bytes.
const MOST_RANGES: usize = 1 << 22;

/// Ranges of addresses that are in use and the generation in which each was allocated.
#[derive(Debug, Default)]
pub(crate) struct LiveExtents {
    /// In order, without overlaps.
    ranges: Vec<(Range<u64>, u64)>,
}

impl LiveExtents {
    /// The ranges in this extent tree that were allocated after the generation `oldest`.
    pub(crate) fn newer_than(oldest: u64, extents: Tree<'_>) -> LiveExtents {
        let nodesize = extents.wreck.nodesize() as u64;
        let mut live = LiveExtents::default();
        extents.scan(Key::MIN, Key::MAX, &mut |key, data, quality| {
            let len = match key.kind {
                KeyType::EXTENT_ITEM => key.offset,
                KeyType::METADATA_ITEM => nodesize,
                _ => return ControlFlow::Continue(()),
            };
            if let Ok((item, _)) = ExtentItem::read_from_prefix(data)
                && quality.trust() == Trust::Proved
                && item.generation.get() > oldest
            {
                live.add(key.objectid..key.objectid.saturating_add(len), item.generation.get());
            }
            if live.ranges.len() < MOST_RANGES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        live
    }

    fn add(&mut self, range: Range<u64>, generation: u64) {
        match self.ranges.last_mut() {
            Some((last, own)) if last.end >= range.start && *own == generation => last.end = last.end.max(range.end),
            last => {
                let start = last.map_or(range.start, |(last, _)| last.end.max(range.start));
                if start < range.end {
                    self.ranges.push((start..range.end, generation));
                }
            }
        }
    }

    fn is_newer(&self, range: &Range<u64>, generation: u64) -> bool {
        let first = self.ranges.partition_point(|(live, _)| live.end <= range.start);
        let met = self.ranges[first..].iter().take_while(|(live, _)| live.start < range.end);
        met.into_iter().any(|(_, own)| *own > generation)
    }
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
        let mut live = LiveExtents::default();
        let extents = [(0..10, 5), (10..20, 5), (15..30, 7), (40..50, 9)];
        extents.into_iter().for_each(|(range, generation)| live.add(range, generation));
        assert_eq!(live.ranges, [(0..20, 5), (20..30, 7), (40..50, 9)]);
        let since = |generation| Since {
            live: Arc::new(LiveExtents { ranges: live.ranges.clone() }),
            generation,
            has_own_checksums: false,
        };
        let (old, new) = (since(6), since(9));
        let reused = [(0..20, false), (19..21, true), (29..41, true), (30..40, false), (49..60, true), (50..60, false)];
        for (range, is_reused) in reused {
            assert_eq!((old.is_reused(range.clone()), new.is_reused(range.clone())), (is_reused, false), "{range:?}");
        }
    }
}
