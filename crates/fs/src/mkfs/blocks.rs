//! The places of the tree blocks of a new filesystem: how many blocks a tree of given items needs, and their addresses.
//!
//! Some trees have items about blocks, and so about themselves: the extent tree has one item per block, the root
//! tree names the height of each tree. [`lay_out`] repeats until the items fit the blocks they speak of.

use butterfs_ondisk::header::{ITEM_LEN, leaf_data_size, pointers_per_node};
use butterfs_ondisk::{Key, Level, Logical, TreeId};
use butterfs_volume::{Chunk, ChunkMap};
use std::ops::Range;

/// An item of a new tree.
pub type Item = (Key, Vec<u8>);

/// A tree whose blocks have addresses. `levels[0]` are the leaves, the last level has one block, the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedTree {
    /// The tree.
    pub id: TreeId,
    /// Addresses, leaves first.
    pub levels: Vec<Vec<Logical>>,
}

impl PlacedTree {
    /// The root's address.
    pub fn root(&self) -> Logical {
        self.levels[self.levels.len() - 1][0]
    }

    /// The root's level.
    pub fn height(&self) -> Level {
        Level(self.levels.len() as u8 - 1)
    }

    /// All blocks with their levels.
    pub fn blocks(&self) -> impl Iterator<Item = (Logical, Level)> {
        let numbered = (0..).zip(&self.levels);
        numbered.flat_map(|(level, blocks)| blocks.iter().map(move |&at| (at, Level(level))))
    }
}

/// Splits ascending items into the contents of leaves, each as full as possible. No items make one empty leaf.
pub fn leaves(items: &[Item], nodesize: u32) -> Vec<&[Item]> {
    let (mut out, mut start, mut used) = (Vec::new(), 0, 0);
    for (slot, (_, data)) in items.iter().enumerate() {
        let size = ITEM_LEN + data.len();
        if used + size > leaf_data_size(nodesize) {
            out.push(&items[start..slot]);
            (start, used) = (slot, 0);
        }
        used += size;
    }
    out.push(&items[start..]);
    out
}

/// Blocks on each level of a tree with these items, leaves first.
fn shape(items: &[Item], nodesize: u32) -> Vec<usize> {
    let mut levels = vec![leaves(items, nodesize).len()];
    while levels[levels.len() - 1] > 1 {
        levels.push(levels[levels.len() - 1].div_ceil(pointers_per_node(nodesize)));
    }
    levels
}

/// Finds a placement of `trees` for which the items that `items_of` gives under that placement need exactly the blocks
/// that were placed. `space_of` says from which of `spaces` a tree's blocks come. `None` when a space is too small.
pub fn lay_out(
    trees: &[TreeId],
    spaces: &[ChunkSpace],
    space_of: impl Fn(TreeId) -> usize,
    items_of: impl Fn(TreeId, &[PlacedTree]) -> Vec<Item>,
) -> Option<Vec<PlacedTree>> {
    let mut shapes: Vec<Vec<usize>> = vec![vec![1]; trees.len()];
    loop {
        let placed = place(trees, &shapes, spaces.to_vec(), &space_of)?;
        let needed = |&tree| shape(&items_of(tree, &placed), spaces[space_of(tree)].nodesize);
        let needed: Vec<Vec<usize>> = trees.iter().map(needed).collect();
        if needed == shapes {
            return Some(placed);
        }
        // More blocks never mean fewer items, so shapes only grow until they fit or the space ends.
        shapes = needed;
    }
}

/// Gives every block an address: trees in order, each tree's leaves first.
fn place(
    trees: &[TreeId],
    shapes: &[Vec<usize>],
    mut spaces: Vec<ChunkSpace>,
    space_of: &impl Fn(TreeId) -> usize,
) -> Option<Vec<PlacedTree>> {
    let mut placed = Vec::new();
    for (&id, shape) in trees.iter().zip(shapes) {
        let space = &mut spaces[space_of(id)];
        let levels = shape.iter().map(|&count| (0..count).map(|_| space.take()).collect::<Option<Vec<_>>>());
        placed.push(PlacedTree { id, levels: levels.collect::<Option<Vec<_>>>()? });
    }
    Some(placed)
}

/// The rest of a chunk, from which blocks are taken in ascending order.
#[derive(Clone, Debug)]
pub struct ChunkSpace {
    next: Logical,
    end: Logical,
    nodesize: u32,
    excluded: Vec<Range<Logical>>,
}

impl ChunkSpace {
    /// All of `range` except what `excluded` covers.
    pub fn new(range: Range<Logical>, nodesize: u32, excluded: Vec<Range<Logical>>) -> ChunkSpace {
        ChunkSpace { next: range.start, end: range.end, nodesize, excluded }
    }

    /// A whole chunk except the places of superblock copies.
    pub fn of(chunk: &Chunk, map: &ChunkMap, nodesize: u32) -> ChunkSpace {
        ChunkSpace::new(chunk.start..chunk.end(), nodesize, map.superblock_exclusions(chunk))
    }

    /// The next block, at a multiple of its size.
    fn take(&mut self) -> Option<Logical> {
        let size = u64::from(self.nodesize);
        let mut at = Logical(self.next.0.next_multiple_of(size));
        while let Some(hit) = self.excluded.iter().find(|range| range.start < at.plus(size) && at < range.end) {
            at = Logical(hit.end.0.next_multiple_of(size));
        }
        self.next = at.plus(size);
        (self.next <= self.end).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_ondisk::KeyType;

    const NODESIZE: u32 = 4096;

    fn items(count: u64, len: usize) -> Vec<Item> {
        (0..count).map(|n| (Key::new(n, KeyType::INODE_ITEM, 0), vec![0; len])).collect()
    }

    #[test]
    fn leaves_are_filled_and_no_item_is_lost() {
        // Items of 100 bytes with their headers: 31 fit into 3995 bytes.
        for (count, sizes) in [(0, vec![0]), (1, vec![1]), (31, vec![31]), (32, vec![31, 1]), (62, vec![31, 31])] {
            let items = items(count, 100);
            let found: Vec<usize> = leaves(&items, NODESIZE).iter().map(|leaf| leaf.len()).collect();
            assert_eq!(found, sizes, "{count} items");
        }
    }

    #[test]
    fn shapes_have_one_root() {
        // 121 pointers fit into a node of 4 KiB.
        for (leaves, levels) in [(1, vec![1]), (2, vec![2, 1]), (121, vec![121, 1]), (122, vec![122, 2, 1])] {
            assert_eq!(shape(&items(leaves * 31, 100), NODESIZE), levels);
        }
    }

    /// A tree with one item for each of its own blocks and `others` more, all of `len` bytes.
    fn lay_out_alone(others: u64, len: usize) -> Option<Vec<PlacedTree>> {
        let space = ChunkSpace::new(Logical(1 << 20)..Logical(2 << 20), NODESIZE, Vec::new());
        let about_itself = |_, placed: &[PlacedTree]| {
            let own = placed[0].blocks().map(|(at, _)| at.0);
            let others = (0..others).map(|n| n + (1 << 40));
            own.chain(others).map(|n| (Key::new(n, KeyType::METADATA_ITEM, 0), vec![0; len])).collect()
        };
        lay_out(&[TreeId::EXTENT], &[space], |_| 0, about_itself)
    }

    #[test]
    fn a_tree_that_describes_its_own_blocks_fits() {
        // Four items fit into a leaf.
        let placed = lay_out_alone(7, 900).expect("three leaves and a node have room for eleven items");
        assert_eq!(placed[0].levels.iter().map(Vec::len).collect::<Vec<_>>(), [3, 1]);
        assert_eq!(placed[0].root(), Logical((1 << 20) + 3 * 4096));
        assert_eq!(placed[0].height(), Level(1));
    }

    #[test]
    fn a_tree_that_never_fits_ends_with_its_space() {
        // One item fits into a leaf, so every leaf asks for another.
        assert_eq!(lay_out_alone(1, 3900), None);
    }

    #[test]
    fn excluded_ranges_are_left_out() {
        let excluded = vec![Logical(8192)..Logical(16384), Logical(20480)..Logical(20481)];
        let mut space = ChunkSpace::new(Logical(4096)..Logical(28672), NODESIZE, excluded);
        let taken: Vec<u64> = std::iter::from_fn(|| space.take()).map(|at| at.0).collect();
        assert_eq!(taken, [4096, 16384, 24576]);
    }
}
