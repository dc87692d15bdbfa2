//! A node's key pointers, and what leaves and nodes have in common when they split or join.

use super::{Node, at};
use crate::NodePtr;
use butterfs_ondisk::header::{HEADER_LEN, KEY_POINTER_LEN};
use butterfs_ondisk::{Generation, Key, Level, Logical, TreeId};

/// The byte where pointer `slot` begins.
const fn pointer_at(slot: usize) -> usize {
    HEADER_LEN + slot * KEY_POINTER_LEN
}

impl Node {
    /// The address and the generation of the child in `slot`.
    pub fn child(&self, slot: usize) -> (Logical, Generation) {
        debug_assert!(!self.is_leaf() && slot < self.nritems());
        let base = pointer_at(slot);
        (Logical(self.u64_at(base + at::POINTER_BLOCK)), Generation(self.u64_at(base + at::POINTER_GENERATION)))
    }

    /// All that this node promises about the child in `slot`, for a reader of `tree`.
    pub fn child_ptr(&self, slot: usize, tree: TreeId) -> NodePtr {
        let (at, generation) = self.child(slot);
        NodePtr { at, generation, level: Level(self.level().get() - 1), tree, first_key: Some(self.key(slot)) }
    }

    /// The slot of the child in whose range `key` lies; keys before the first child belong to it.
    pub fn child_slot(&self, key: Key) -> usize {
        match self.find(key) {
            Ok(slot) => slot,
            Err(slot) => slot.saturating_sub(1),
        }
    }

    /// Points `slot` at another block.
    pub fn set_child(&mut self, slot: usize, at: Logical, generation: Generation) {
        assert!(!self.is_leaf() && slot < self.nritems());
        self.put_u64(pointer_at(slot) + at::POINTER_BLOCK, at.get());
        self.put_u64(pointer_at(slot) + at::POINTER_GENERATION, generation.get());
    }

    /// Changes the key in `slot`.
    pub fn set_key(&mut self, slot: usize, key: Key) {
        assert!(slot < self.nritems());
        let offset = HEADER_LEN + slot * self.stride();
        self.put_key(offset, key);
    }

    /// Inserts a pointer. There must be room.
    pub fn insert_pointer(&mut self, slot: usize, key: Key, at: Logical, generation: Generation) {
        let count = self.nritems();
        assert!(!self.is_leaf() && slot <= count && count < self.max_pointers(), "pointer does not fit");
        self.bytes.copy_within(pointer_at(slot)..pointer_at(count), pointer_at(slot + 1));
        self.set_nritems(count + 1);
        self.put_key(pointer_at(slot), key);
        self.set_child(slot, at, generation);
    }

    /// Removes a pointer.
    pub fn remove_pointer(&mut self, slot: usize) {
        let count = self.nritems();
        assert!(!self.is_leaf() && slot < count);
        self.bytes.copy_within(pointer_at(slot + 1)..pointer_at(count), pointer_at(slot));
        self.bytes[pointer_at(count - 1)..pointer_at(count)].fill(0);
        self.set_nritems(count - 1);
    }

    /// Moves everything from `slot` on to `right`, an empty node of the same level.
    pub fn split_off(&mut self, slot: usize, right: &mut Node) {
        assert!(right.is_empty() && right.level() == self.level() && slot <= self.nritems());
        assert!(right.bytes.len() == self.bytes.len());
        if self.is_leaf() {
            return self.split_leaf(slot, right);
        }
        let count = self.nritems();
        let moved = &mut self.bytes[pointer_at(slot)..pointer_at(count)];
        right.bytes[HEADER_LEN..HEADER_LEN + moved.len()].copy_from_slice(moved);
        moved.fill(0);
        right.set_nritems(count - slot);
        self.set_nritems(slot);
    }

    /// Whether the content of this node and of `other` fit into one.
    pub fn fits_with(&self, other: &Node) -> bool {
        self.used() + other.used() + HEADER_LEN <= self.bytes.len()
    }

    /// Appends the content of `right`, whose keys are all larger. It must fit.
    pub fn append(&mut self, right: &Node) {
        assert!(self.level() == right.level() && self.fits_with(right));
        if self.is_leaf() {
            return self.append_leaf(right);
        }
        let (count, added) = (self.nritems(), right.nritems());
        self.bytes[pointer_at(count)..pointer_at(count + added)]
            .copy_from_slice(&right.bytes[HEADER_LEN..pointer_at(added)]);
        self.set_nritems(count + added);
    }

    /// Puts the content of `left`, whose keys are all smaller, before this node's own. It must fit.
    pub fn prepend(&mut self, left: &Node) {
        assert!(self.level() == left.level() && self.fits_with(left));
        if self.is_leaf() {
            return self.prepend_leaf(left);
        }
        let (count, added) = (self.nritems(), left.nritems());
        self.bytes.copy_within(HEADER_LEN..pointer_at(count), pointer_at(added));
        self.bytes[HEADER_LEN..pointer_at(added)].copy_from_slice(&left.bytes[HEADER_LEN..pointer_at(added)]);
        self.set_nritems(count + added);
    }
}
