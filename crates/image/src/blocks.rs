//! Trees from ascending items: leaves as full as possible, the nodes above them, and an address for each block in the
//! order in which blocks are begun.
//!
//! # Invariants
//! 1. A dry run and a real one give the same blocks the same addresses: they differ in whether bytes are made.
//! 2. Every block goes out through [`Node::seal_into`], which checks it as a reader would.

use crate::error::{Error, ErrorKind, Result};
use butterfs_fs::mkfs::{GENERATION, PlacedTree};
use butterfs_ondisk::header::{ITEM_LEN, leaf_data_size, pointers_per_node};
use butterfs_ondisk::{Key, Level, Logical, TreeId};
use butterfs_tree::{BlockIdentity, Node};
use butterfs_volume::Volume;
use std::ops::Range;

/// Bytes that are written at once.
const WRITE_AT_ONCE: usize = 1 << 20;

/// Makes an item's bytes.
pub type Fill<'a> = dyn FnMut(&mut [u8]) -> Result<()> + 'a;

/// Where ascending items of one tree go.
pub trait Items {
    /// Adds an item of `len` bytes. `fill` is not called in a dry run; the bytes it gets are zero.
    fn item(&mut self, key: Key, len: usize, fill: &mut Fill<'_>) -> Result<()>;

    /// Adds an item whose bytes are there.
    fn bytes(&mut self, key: Key, bytes: &[u8]) -> Result<()> {
        self.item(key, bytes.len(), &mut |out| {
            out.copy_from_slice(bytes);
            Ok(())
        })
    }
}

/// Addresses for tree blocks, ascending.
#[derive(Clone, Debug)]
pub struct Addresses {
    nodesize: u64,
    /// Ranges that blocks may use, ascending; the first one is cut off as it is used.
    free: std::collections::VecDeque<Range<u64>>,
}

impl Addresses {
    /// Blocks in these ranges.
    pub fn new(nodesize: u32, free: impl IntoIterator<Item = Range<u64>>) -> Addresses {
        Addresses { nodesize: nodesize.into(), free: free.into_iter().collect() }
    }

    /// Addresses without an end, for counting.
    pub fn unlimited(nodesize: u32) -> Addresses {
        Addresses::new(nodesize, std::iter::once(0..u64::MAX / 2))
    }

    /// These, and any number behind them.
    pub fn and_unlimited(mut self) -> Addresses {
        let end = self.free.back().map_or(0, |range| range.end);
        self.free.push_back(end..u64::MAX / 2);
        self
    }

    /// The next one.
    pub fn take(&mut self) -> Option<Logical> {
        while let Some(range) = self.free.front_mut() {
            let at = range.start.next_multiple_of(self.nodesize);
            if at + self.nodesize <= range.end {
                range.start = at + self.nodesize;
                return Some(Logical(at));
            }
            self.free.pop_front();
        }
        None
    }

    /// Bytes that are left.
    pub fn left(&self) -> u64 {
        self.free.iter().map(|range| range.end.saturating_sub(range.start.next_multiple_of(self.nodesize))).sum()
    }
}

/// A tree block that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its address.
    pub at: Logical,
    /// Its level.
    pub level: u8,
    /// The tree.
    pub owner: TreeId,
}

/// Where blocks go.
pub struct Output<'a> {
    /// The fields that all blocks have in common.
    pub identity: &'a BlockIdentity,
    /// Where they lie.
    pub addresses: Addresses,
    /// Every block so far.
    pub blocks: Vec<Block>,
    /// The volume that they are written to; `None` in a dry run.
    pub volume: Option<&'a Volume>,
    run: (Logical, Vec<u8>),
}

impl<'a> Output<'a> {
    /// Nothing yet.
    pub fn new(identity: &'a BlockIdentity, addresses: Addresses, volume: Option<&'a Volume>) -> Output<'a> {
        Output { identity, addresses, blocks: Vec::new(), volume, run: (Logical(0), Vec::new()) }
    }

    fn begin(&mut self, level: u8, owner: TreeId) -> Result<Logical> {
        let at = self.addresses.take();
        let at = at.ok_or_else(|| Error::new(ErrorKind::NoSpace, "the metadata does not fit into the image"))?;
        self.blocks.push(Block { at, level, owner });
        Ok(at)
    }

    fn write(&mut self, node: &Node) -> Result<()> {
        let nodesize = self.identity.nodesize as usize;
        let behind = self.run.0.plus(self.run.1.len() as u64);
        let same_chunk = || {
            let map = self.volume.map(Volume::chunk_map);
            map.is_some_and(|map| map.get(self.run.0).map(|it| it.start) == map.get(node.at()).map(|it| it.start))
        };
        if behind != node.at() || self.run.1.len() >= WRITE_AT_ONCE || !same_chunk() {
            self.flush()?;
            self.run.0 = node.at();
        }
        let start = self.run.1.len();
        self.run.1.resize(start + nodesize, 0);
        node.seal_into(&mut self.run.1[start..], self.identity)
            .map_err(|corrupt| Error::new(ErrorKind::Content, format!("a tree block cannot be made: {corrupt}")))
    }

    /// Writes what waits.
    pub fn flush(&mut self) -> Result<()> {
        if let Some(volume) = self.volume.filter(|_| !self.run.1.is_empty()) {
            volume
                .write_new(self.run.0, &self.run.1)
                .map_err(|error| Error::new(ErrorKind::Output, error.to_string()))?;
        }
        self.run.1.clear();
        Ok(())
    }
}

/// A tree that is being made.
pub struct TreeWriter<'a, 'b> {
    output: &'a mut Output<'b>,
    id: TreeId,
    leaf: Option<Leaf>,
    last: Option<Key>,
    /// Pointers that wait for their node, by the level of what they point to.
    pointers: Vec<Vec<(Key, Logical)>>,
    levels: Vec<Vec<Logical>>,
}

struct Leaf {
    at: Logical,
    first: Key,
    used: usize,
    count: usize,
    node: Option<Node>,
}

impl<'a, 'b> TreeWriter<'a, 'b> {
    /// A tree without items.
    pub fn new(output: &'a mut Output<'b>, id: TreeId) -> TreeWriter<'a, 'b> {
        TreeWriter { output, id, leaf: None, last: None, pointers: Vec::new(), levels: Vec::new() }
    }

    /// The finished tree. One without items is an empty leaf.
    pub fn finish(mut self) -> Result<PlacedTree> {
        if self.leaf.is_none() && self.levels.is_empty() {
            self.leaf = Some(self.new_leaf(Key::MIN)?);
        }
        self.close_leaf()?;
        let mut level = 0;
        while level < self.pointers.len() {
            let is_root = level + 1 == self.pointers.len() && self.pointers[level].len() == 1;
            if is_root {
                break;
            }
            self.write_parent(level)?;
            level += 1;
        }
        Ok(PlacedTree { id: self.id, levels: self.levels })
    }

    fn new_leaf(&mut self, first: Key) -> Result<Leaf> {
        let at = self.begin(0)?;
        let new = || Node::new_empty(self.output.identity, at, Level(0), GENERATION, self.id);
        let node = self.output.volume.is_some().then(new);
        Ok(Leaf { at, first, used: 0, count: 0, node })
    }

    fn begin(&mut self, level: usize) -> Result<Logical> {
        let at = self.output.begin(level as u8, self.id)?;
        if self.levels.len() == level {
            self.levels.push(Vec::new());
        }
        self.levels[level].push(at);
        Ok(at)
    }

    fn close_leaf(&mut self) -> Result<()> {
        let Some(leaf) = self.leaf.take() else { return Ok(()) };
        if let Some(node) = &leaf.node {
            self.output.write(node)?;
        }
        self.point(0, leaf.first, leaf.at)
    }

    /// Notes a block of `level`. A full row of pointers becomes a node only when another one follows, so that no node
    /// has but one child.
    fn point(&mut self, level: usize, key: Key, at: Logical) -> Result<()> {
        if self.pointers.len() == level {
            self.pointers.push(Vec::new());
        }
        if self.pointers[level].len() == pointers_per_node(self.output.identity.nodesize) {
            self.write_parent(level)?;
        }
        self.pointers[level].push((key, at));
        Ok(())
    }

    /// Makes the node above the pointers that wait on `level`.
    fn write_parent(&mut self, level: usize) -> Result<()> {
        let children = std::mem::take(&mut self.pointers[level]);
        let at = self.begin(level + 1)?;
        if self.output.volume.is_some() {
            let mut node = Node::new_empty(self.output.identity, at, Level(level as u8 + 1), GENERATION, self.id);
            for (slot, (key, child)) in children.iter().enumerate() {
                node.insert_pointer(slot, *key, *child, GENERATION);
            }
            self.output.write(&node)?;
        }
        self.point(level + 1, children[0].0, at)
    }
}

impl Items for TreeWriter<'_, '_> {
    fn item(&mut self, key: Key, len: usize, fill: &mut Fill<'_>) -> Result<()> {
        assert!(self.last.is_none_or(|last| last < key), "items ascend: {:?}, then {key:?}", self.last);
        self.last = Some(key);
        let (size, room) = (ITEM_LEN + len, leaf_data_size(self.output.identity.nodesize));
        if size > room {
            let sentence =
                format!("an item of {len} bytes does not fit into a tree block: too many names with one hash");
            return Err(Error::content(sentence));
        }
        if self.leaf.as_ref().is_some_and(|leaf| leaf.used + size > room) {
            self.close_leaf()?;
        }
        if self.leaf.is_none() {
            self.leaf = Some(self.new_leaf(key)?);
        }
        let leaf = self.leaf.as_mut().expect("just made");
        leaf.used += size;
        leaf.count += 1;
        match &mut leaf.node {
            Some(node) => fill(node.insert_space(leaf.count - 1, key, len)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_ondisk::{ChecksumKind, Generation, KeyType};

    fn identity() -> BlockIdentity {
        BlockIdentity {
            fsid: [1; 16],
            seeds: Default::default(),
            chunk_tree_uuid: [2; 16],
            checksum: ChecksumKind::Crc32c,
            nodesize: 4096,
            sectorsize: 4096,
            incompat: 0,
            super_generation: Generation(0),
            ignores_checksums: false,
            writable: true,
        }
    }

    fn shape(items: u64) -> Vec<usize> {
        let identity = identity();
        let mut output = Output::new(&identity, Addresses::unlimited(4096), None);
        let mut tree = TreeWriter::new(&mut output, TreeId::FS);
        for n in 0..items {
            tree.item(Key::new(n, KeyType::INODE_ITEM, 0), 3970, &mut |_| Ok(())).unwrap();
        }
        let placed = tree.finish().unwrap();
        assert_eq!(placed.blocks().count(), output.blocks.len());
        placed.levels.iter().map(Vec::len).collect()
    }

    #[test]
    fn trees_have_one_root_and_no_node_with_one_child() {
        // One item fills a leaf; 121 pointers fill a node of 4 KiB.
        for (items, want) in [
            (0, vec![1]),
            (1, vec![1]),
            (2, vec![2, 1]),
            (121, vec![121, 1]),
            (122, vec![122, 2, 1]),
            (121 * 121, vec![121 * 121, 121, 1]),
            (121 * 121 + 1, vec![121 * 121 + 1, 122, 2, 1]),
        ] {
            assert_eq!(shape(items), want, "{items}");
        }
    }

    #[test]
    fn addresses_leave_out_what_is_not_free() {
        let mut addresses = Addresses::new(16384, [0..20000, 65536..131072]);
        let taken: Vec<u64> = std::iter::from_fn(|| addresses.take()).map(|at| at.0).collect();
        assert_eq!(taken, [0, 65536, 81920, 98304, 114688]);
    }
}
