//! Data extents of files whose items are lost, as the extent tree has them.
//!
//! A snapshot shares tree blocks with the subvolume that it was taken of, and the extents of a shared block are those
//! of the subvolume that has written it. They are the snapshot's too if both have lost the same block. If only the
//! snapshot has, its block is known to the extents that it leads to.

use super::{ROOT_DIRECTORY, Restorer};
use crate::back_references::{ExtentTree, Referenced};
use crate::roots::Source;
use crate::tree::{Losses, Tree, meets, merged};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Key, KeyType, TreeId};
use std::ops::ControlFlow;
use std::rc::Rc;

impl<'a> Restorer<'a> {
    /// The extent tree of the commit that a tree is of.
    pub(super) fn extent_tree(&self, id: TreeId) -> Option<Rc<ExtentTree<'a>>> {
        let is_current = |id| self.roots.trees.get(&id).is_some_and(|root| root.source == Source::Current);
        if self.expects_older || !is_current(id) || !is_current(TreeId::EXTENT) {
            return None;
        }
        let made = self.extent_tree.get_or_init(|| {
            let subvolumes = self.roots.subvolumes().filter(|(id, _)| is_current(**id));
            let subvolumes = subvolumes.map(|(_, root)| Tree::new(self.wreck, root.root)).collect();
            self.tree(TreeId::EXTENT).map(|tree| Rc::new(ExtentTree::new(tree, subvolumes)))
        });
        made.clone()
    }

    /// The extents of a file that the extent tree has and that its list may lack: it has none, or has lost blocks.
    pub(super) fn referenced(&self, id: TreeId, ino: u64) -> Vec<Referenced> {
        let (Some(extents), Some((has_extents, losses))) = (self.extent_tree(id), self.items(id, ino)) else {
            return Vec::new();
        };
        if has_extents && losses.blocks() == 0 {
            return Vec::new();
        }
        let own = extents.references().of_inode(id, ino);
        if !own.is_empty() {
            return own;
        }
        for origin in self.wreck.origins_of(id) {
            let mut found = extents.references().of_inode(origin, ino);
            let is_shared = self.items(origin, ino).is_some_and(|(_, other)| losses.shares(&other));
            if !is_shared {
                found.retain(|one| extents.is_shared_by(one, &losses));
            }
            if !found.is_empty() {
                return found;
            }
        }
        Vec::new()
    }

    /// Whether an inode has extents, and the blocks that may have had items of it.
    fn items(&self, id: TreeId, ino: u64) -> Option<(bool, Losses)> {
        let mut has_extents = false;
        let losses = self.tree(id)?.scan_object(ino, KeyType::INODE_ITEM, KeyType::EXTENT_DATA, &mut |key, _, _| {
            has_extents |= key.kind == KeyType::EXTENT_DATA;
            ControlFlow::Continue(())
        });
        Some((has_extents, losses))
    }

    /// Inodes of a tree that have extents, and whose items lay in blocks that are lost; in order.
    pub(super) fn without_items(&self, id: TreeId, losses: &Losses) -> Vec<u64> {
        let (Some(tree), false) = (self.tree(id), losses.ranges.is_empty()) else { return Vec::new() };
        let Some(extents) = self.extent_tree(id) else { return Vec::new() };
        // The inodes whose items would lie in a range of keys, from the first one on.
        let from = |key: &Key| key.objectid.saturating_add(u64::from(*key > inode_key(key.objectid)));
        let ranges = losses.ranges.iter();
        let lost = merged(ranges.map(|(first, end)| from(first)..end.as_ref().map_or(u64::MAX, from)).collect());
        let is_deleted = |ino: &u64| tree.item(Key::new(objectid::ORPHAN, KeyType::ORPHAN_ITEM, *ino)).is_some();
        let trees = std::iter::once(id).chain(self.wreck.origins_of(id));
        let mut found: Vec<u64> = trees.flat_map(|tree| extents.references().inodes(tree)).collect();
        found.retain(|ino| (ROOT_DIRECTORY..u64::MAX - 256).contains(ino) && meets(&lost, &(*ino..*ino + 1)));
        found.sort_unstable();
        found.dedup();
        found.retain(|ino| !is_deleted(ino));
        found
    }
}

fn inode_key(ino: u64) -> Key {
    Key::new(ino, KeyType::INODE_ITEM, 0)
}
