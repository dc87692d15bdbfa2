//! The addresses that a scrub is limited to.
//!
//! Memory: 16 bytes for each extent that does not touch the one before.

use crate::error::{Errno, Error, Result};
use crate::extent::TreeItems;
use crate::extent::items::Items;
use crate::file_extent::{FileExtent, key_at};
use crate::subvolume;
use crate::transaction::Core;
use butterfs_ondisk::{Generation, Ino, KeyType, Logical, TreeId};
use butterfs_tree::Walk;
use std::ops::{ControlFlow, Range};

/// More pieces are refused: a gigabyte of memory.
const MOST_PIECES: usize = 64 << 20;

/// Ranges of addresses, ascending and disjoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    ranges: Vec<Range<u64>>,
}

impl Selection {
    /// These ranges.
    pub fn of(mut ranges: Vec<Range<u64>>) -> Selection {
        ranges.retain(|range| range.start < range.end);
        ranges.sort_unstable_by_key(|range| range.start);
        let mut merged: Vec<Range<u64>> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        Selection { ranges: merged }
    }

    /// The data of a file, as far as it is in the trees.
    pub(crate) fn of_file(core: &Core, tree: TreeId, ino: Ino) -> Result<Selection> {
        let mut ranges = Vec::new();
        let (sectorsize, tree) = (u64::from(core.sectorsize()), core.tree(tree)?);
        let items = TreeItems::reading(core, &tree);
        items.scan(key_at(ino.0, 0), key_at(ino.0, u64::MAX), &mut |key, payload| {
            if key.kind == KeyType::EXTENT_DATA {
                take(&mut ranges, &FileExtent::parse(key, payload, sectorsize)?)?;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(Selection::of(ranges))
    }

    /// The data of all files of a subvolume, and its tree blocks.
    pub(crate) fn of_subvolume(core: &Core, tree: TreeId) -> Result<Selection> {
        let mut ranges = Vec::new();
        subvolume::extents::newer_than(core, tree, Generation(0), &mut |_, extent| take(&mut ranges, extent))?;
        let nodesize = u64::from(core.nodesize());
        let root = core.tree(tree)?.root();
        // Blocks of the last commit; what changes meanwhile is verified when it is written.
        crate::backref::View::look(core, |view| {
            let Some(root) = view.root(tree)? else { return Ok(()) };
            ranges.push(root.at.0..root.at.0.saturating_add(nodesize));
            butterfs_tree::walk(view, &root, &mut |_, node| {
                if !node.is_leaf() {
                    let children = (0..node.nritems()).map(|slot| node.child(slot).0.0);
                    ranges.extend(children.map(|at| at..at.saturating_add(nodesize)));
                }
                // The leaves themselves need not be read.
                Ok(if node.level().0 > 1 { Walk::Into } else { Walk::Over })
            })?;
            Ok(())
        })?;
        ranges.push(root.at.0..root.at.0.saturating_add(nodesize));
        Ok(Selection::of(ranges))
    }

    /// The ranges.
    pub fn into_ranges(self) -> Vec<Range<u64>> {
        self.ranges
    }

    /// Whether it has nothing.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Bytes.
    pub fn len_bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// Whether some byte of a range is in it.
    pub fn touches(&self, range: Range<Logical>) -> bool {
        let index = self.ranges.partition_point(|own| own.end <= range.start.0);
        self.ranges.get(index).is_some_and(|own| own.start < range.end.0)
    }
}

fn take(ranges: &mut Vec<Range<u64>>, extent: &FileExtent) -> Result<()> {
    if extent.is_on_disk() {
        ranges.push(extent.at.0..extent.at.0.saturating_add(extent.disk_len));
    }
    if ranges.len() > MOST_PIECES {
        return Err(Error::refused_at(
            Errno::E2BIG,
            format!("it has more than {MOST_PIECES} extents; scrub everything"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_merged_and_found() {
        let selection = Selection::of(vec![30..40, 10..20, 20..25, 50..50]);
        assert_eq!(selection.ranges, [10..25, 30..40]);
        assert_eq!(selection.len_bytes(), 25);
        let touches = |from, to| selection.touches(Logical(from)..Logical(to));
        assert!(touches(0, 11) && touches(24, 26) && touches(39, 100) && touches(0, 100));
        assert!(!touches(0, 10) && !touches(25, 30) && !touches(40, 100));
    }
}
