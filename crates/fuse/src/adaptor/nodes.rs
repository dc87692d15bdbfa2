//! Inodes of many subvolumes as the numbers of one filesystem: node ids, which are also the inode numbers that `stat`
//! shows.
//!
//! | inode | number |
//! |---|---|
//! | root directory of the superblock | node id 1, shown as one of the numbers below |
//! | tree of the first mount, below 2^40 | its own inode number |
//! | another tree below 2^23, inode below 2^40 | `tree << 40 \| ino` |
//! | anything else | 2^63 and up, in the order of appearance |
//!
//! # Invariants
//! 1. A number stands for one inode and an inode has one number, for the life of the mount. When another host has
//!    removed an inode that the kernel knows, its node id is revoked: it leads nowhere any more, and an inode that has
//!    its number later gets a node id of the table.
//! 2. All but the last row are computed, so they are the same in every mount, and a number that the kernel kept for
//!    an NFS client means the same after everything here was forgotten.
//!
//! The last row exists for damaged or ancient filesystems and for placeholders of subvolumes; the table grows with the
//! number of such inodes and never shrinks.

use crate::protocol::flags::ROOT_ID;
use butterfs_fs::{Ino, InodeId, TreeId};
use parking_lot::RwLock;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::atomic::{AtomicBool, Ordering};

/// Bits of an inode number that is computed.
const INO_BITS: u32 = 40;
/// Bits of a tree id that is computed.
const TREE_BITS: u32 = 23;
/// First number of the table.
const TABLE: u64 = 1 << 63;
/// The inode number that the kernel shows for every placeholder.
const PLACEHOLDER_INO: u64 = 2;

/// See the [module](self).
pub struct Nodes {
    root: InodeId,
    /// The subvolume that was mounted first.
    plain: TreeId,
    table: RwLock<Table>,
    has_revoked: AtomicBool,
    revoked: RwLock<Revoked>,
}

/// Node ids that lead nowhere any more.
#[derive(Default)]
struct Revoked {
    nodes: FxHashSet<u64>,
    /// The node ids of those who have the number of a revoked one.
    replaced: FxHashMap<InodeId, u64>,
}

#[derive(Default)]
struct Table {
    by_inode: FxHashMap<InodeId, u64>,
    by_number: Vec<InodeId>,
}

impl Nodes {
    /// The numbers of a superblock whose root directory is `root`. Inodes of the tree `plain` keep their own.
    pub fn new(root: InodeId, plain: TreeId) -> Nodes {
        Nodes { root, plain, table: RwLock::default(), has_revoked: AtomicBool::new(false), revoked: RwLock::default() }
    }

    /// The node id of an inode.
    pub fn node(&self, id: InodeId) -> u64 {
        if id == self.root {
            return ROOT_ID;
        }
        let replaced = || self.revoked.read().replaced.get(&id).copied();
        self.has_revoked.load(Ordering::Acquire).then(replaced).flatten().unwrap_or_else(|| self.number(id))
    }

    /// Lets the node id of an inode lead nowhere from now on; returns it.
    pub fn revoke(&self, id: InodeId) -> u64 {
        let node = self.node(id);
        if node != ROOT_ID {
            let next = self.table.write().push(id);
            let mut revoked = self.revoked.write();
            revoked.nodes.insert(node);
            revoked.replaced.insert(id, next);
            self.has_revoked.store(true, Ordering::Release);
        }
        node
    }

    /// The inode number that users see.
    pub fn ino(&self, id: InodeId) -> u64 {
        if id.is_placeholder() { PLACEHOLDER_INO } else { self.number(id) }
    }

    /// The inode of a node id; none for a number that was never given out, or is revoked.
    pub fn inode(&self, node: u64) -> Option<InodeId> {
        if node == ROOT_ID {
            return Some(self.root);
        }
        if self.has_revoked.load(Ordering::Acquire) && self.revoked.read().nodes.contains(&node) {
            return None;
        }
        if node >= TABLE {
            return self.table.read().by_number.get((node - TABLE) as usize).copied();
        }
        let tree = match node >> INO_BITS {
            0 => self.plain,
            tree => TreeId(tree),
        };
        Some(InodeId { tree, ino: Ino(node & ((1 << INO_BITS) - 1)) })
    }

    fn number(&self, id: InodeId) -> u64 {
        let InodeId { tree: TreeId(tree), ino: Ino(ino) } = id;
        // Below 2, a number is the root's node id or no number at all.
        if ino >> INO_BITS != 0 || ino < 2 {
            return self.tabled(id);
        }
        match tree {
            _ if id.tree == self.plain => ino,
            0 => self.tabled(id),
            tree if tree >> TREE_BITS == 0 => tree << INO_BITS | ino,
            _ => self.tabled(id),
        }
    }

    fn tabled(&self, id: InodeId) -> u64 {
        if let Some(number) = self.table.read().by_inode.get(&id) {
            return *number;
        }
        let mut table = self.table.write();
        if let Some(number) = table.by_inode.get(&id) {
            return *number;
        }
        let number = table.push(id);
        table.by_inode.insert(id, number);
        number
    }
}

impl Table {
    fn push(&mut self, id: InodeId) -> u64 {
        self.by_number.push(id);
        TABLE + (self.by_number.len() as u64 - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(tree: u64, ino: u64) -> InodeId {
        InodeId { tree: TreeId(tree), ino: Ino(ino) }
    }

    #[test]
    fn numbers_are_unique_and_lead_back() {
        [5, 257].into_iter().for_each(|plain| are_unique(&Nodes::new(id(5, 256), TreeId(plain))));
    }

    fn are_unique(nodes: &Nodes) {
        let edge = 1 << INO_BITS;
        let mut seen = FxHashMap::default();
        for tree in [0, 5, 256, 257, (1 << TREE_BITS) - 1, 1 << TREE_BITS, u64::MAX - 8, u64::MAX] {
            for ino in [0, 1, 2, 256, 257, edge - 1, edge, 256 << INO_BITS | 256, TABLE, TABLE | 256, u64::MAX] {
                let node = nodes.node(id(tree, ino));
                assert_eq!(nodes.inode(node), Some(id(tree, ino)), "tree {tree} inode {ino}");
                assert_eq!(node, nodes.node(id(tree, ino)));
                assert!(node != 0 && seen.insert(node, (tree, ino)).is_none(), "tree {tree} inode {ino} as {node}");
            }
        }
        assert_eq!(nodes.inode(u64::MAX), None);
    }

    #[test]
    fn a_revoked_number_leads_nowhere() {
        let nodes = Nodes::new(id(5, 256), TreeId(5));
        for id in [id(5, 300), id(u64::MAX, 300)] {
            let first = nodes.node(id);
            assert_eq!(nodes.revoke(id), first);
            let second = nodes.node(id);
            assert_ne!(second, first);
            assert_eq!((nodes.inode(first), nodes.inode(second)), (None, Some(id)));
            assert_eq!(nodes.revoke(id), second);
            assert_eq!(nodes.inode(second), None);
            assert_eq!(nodes.inode(nodes.node(id)), Some(id));
        }
        assert_eq!((nodes.ino(id(5, 300)), nodes.node(id(5, 301))), (300, 301));
        assert_eq!(nodes.revoke(id(5, 256)), ROOT_ID);
        assert_eq!(nodes.inode(ROOT_ID), Some(id(5, 256)));
    }

    #[test]
    fn ordinary_inodes_show_their_own_number() {
        let nodes = Nodes::new(id(257, 256), TreeId(257));
        assert_eq!((nodes.node(id(257, 256)), nodes.ino(id(257, 256))), (ROOT_ID, 256));
        assert_eq!((nodes.node(id(257, 300)), nodes.ino(id(257, 300))), (300, 300));
        assert_eq!(nodes.ino(id(5, 300)), 5 << INO_BITS | 300);
        let beneath = Nodes::new(id(5, 256), TreeId(257));
        assert_eq!((beneath.node(id(5, 256)), beneath.ino(id(5, 256))), (ROOT_ID, 5 << INO_BITS | 256));
        assert_eq!((beneath.node(id(257, 256)), beneath.ino(id(257, 256))), (256, 256));
        let placeholder = InodeId::placeholder(TreeId(257), TreeId(5));
        assert_eq!(nodes.ino(placeholder), PLACEHOLDER_INO);
        assert_eq!(nodes.inode(nodes.node(placeholder)), Some(placeholder));
    }
}
