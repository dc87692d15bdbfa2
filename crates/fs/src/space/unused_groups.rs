//! Deleting groups that became empty, so that other classes can have their place on the devices.
//!
//! # Invariants
//! 1. A group leaves only when every byte of it is free: nothing allocated, nothing pinned by a transaction that is not
//!    durable, nothing taken for a log.
//! 2. What is reserved in a class, and the floor its caller names, stays free in the groups that are left.
//! 3. The last group of a class and profile stays: it says what the next one is to be.
//!
//! [`SpaceState::steer_trees`] helps groups of trees to become empty. What is on disk about a group, and its chunk, are
//! the caller's.

use super::{Class, Group, GroupInfo, Space, SpaceState, info};
use butterfs_ondisk::Logical;
use butterfs_ondisk::items::block_group_flags as bits;
use std::collections::BTreeSet;

impl Group {
    pub(super) fn is_empty(&self) -> bool {
        self.used == 0 && self.pinned == 0 && self.unallocated() == self.length - self.excluded_bytes
    }

    /// Free bytes beside the floor that the class keeps when this group leaves. Trees come back soon: a group that is
    /// needed again at once would come and go with every commit.
    fn slack(&self) -> u64 {
        if self.class == Class::Metadata { self.length / 8 } else { 0 }
    }
}

impl SpaceState {
    fn may_leave(&self, start: u64, metadata_floor: u64) -> bool {
        let group = &self.groups[&start];
        let (class, profile) = (group.class, group.flags & bits::PROFILE_MASK);
        let floor = match class {
            Class::Data => 0,
            Class::Metadata => metadata_floor,
            Class::System | Class::Mixed => return false,
        };
        let alike = |(&other, group): (&u64, &Group)| {
            other != start && group.class == class && group.flags & bits::PROFILE_MASK == profile
        };
        let left = self.free[class as usize].saturating_sub(group.allocatable());
        group.is_empty()
            && !group.closed
            && left >= self.reserved[class as usize] + floor + group.slack()
            && self.groups.iter().any(alike)
    }

    /// New tree blocks leave a group that is nearly empty for the first one that has room: what is left in it moves out
    /// as it changes, and it is deleted.
    pub(super) fn steer_trees(&mut self) {
        let class = Class::Metadata;
        let hint = self.hint[class as usize];
        let Some((&serving, group)) = self.groups.range(..=hint).next_back() else { return };
        if group.class != class || group.used > group.length / 8 {
            return;
        }
        let roomy = |group: &Group| group.class == class && group.allocatable() >= group.length / 4;
        if let Some((&start, _)) = self.groups.range(..serving).find(|(_, group)| roomy(group)) {
            self.hint[class as usize] = start;
        }
    }
}

impl Space {
    /// Takes out up to `most` empty groups of data or trees, small ones first, except those in `keep`. In the groups of
    /// trees that are left, `metadata_floor` and all reservations stay free.
    pub fn delete_unused(&self, metadata_floor: u64, most: usize, keep: &BTreeSet<Logical>) -> Vec<GroupInfo> {
        let mut state = self.state.lock();
        let mut empty: Vec<(u64, u64)> = state
            .groups
            .iter()
            .filter(|(start, group)| group.is_empty() && !keep.contains(&Logical(**start)))
            .map(|(&start, group)| (group.length, start))
            .collect();
        empty.sort_unstable();
        let mut deleted = Vec::new();
        for (_, start) in empty {
            let is_leaving = state.leaving.contains(&start);
            if deleted.len() < most && (is_leaving || state.may_leave(start, metadata_floor)) {
                state.leaving.remove(&start);
                let group = state.groups.remove(&start).expect("just listed");
                state.free[group.class as usize] -= group.allocatable();
                let sum = &mut state.sums[group.class as usize];
                sum.length -= group.length;
                sum.used -= group.used;
                sum.with_rows -= usize::from(group.columns > 0);
                state.dirty.remove(&start);
                deleted.push(info(start, &group));
            }
        }
        state.emptied = !deleted.is_empty() && deleted.len() == most;
        deleted
    }

    /// Whether a group became empty since unused groups were last deleted.
    pub fn has_emptied(&self) -> bool {
        self.state.lock().emptied
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::fixture::space;
    use crate::space::{Found, Sharing, Stream};
    use butterfs_ondisk::Generation;

    const MIB: u64 = 1 << 20;

    fn starts(deleted: &[GroupInfo]) -> Vec<u64> {
        deleted.iter().map(|group| group.start.0 / MIB).collect()
    }

    fn delete_unused(space: &Space, floor: u64) -> Vec<u64> {
        starts(&space.delete_unused(floor, usize::MAX, &BTreeSet::new()))
    }

    #[test]
    fn one_of_each_class_and_profile_stays() {
        let (data, trees, dup) = (bits::DATA, bits::METADATA, bits::METADATA | bits::DUP);
        let space = space(&[data, data, data, trees, trees, dup, bits::SYSTEM, bits::SYSTEM]);
        assert_eq!(delete_unused(&space, 0), [0, 16, 48]);
        assert_eq!(delete_unused(&space, 0), [0; 0]);
        assert_eq!(space.totals(Class::Data).free, 16 * MIB);
    }

    #[test]
    fn reserved_space_stays_free() {
        let space = space(&[bits::DATA; 3]);
        assert!(space.reserve(Class::Data, 17 * MIB, 0));
        assert_eq!(delete_unused(&space, 0), [0]);
        space.unreserve(Class::Data, 17 * MIB);
        assert_eq!(delete_unused(&space, 0), [16]);
    }

    #[test]
    fn trees_keep_their_floor_and_some_more() {
        let space = space(&[bits::METADATA; 3]);
        assert_eq!(delete_unused(&space, 17 * MIB), [0]);
        assert_eq!(delete_unused(&space, 15 * MIB), [0; 0]);
        assert_eq!(delete_unused(&space, 14 * MIB), [16]);
    }

    #[test]
    fn trees_move_out_of_a_nearly_empty_group() {
        let space = space(&[bits::METADATA; 3]);
        let mut taken = Vec::new();
        while let Found::Extent(at, len) = space.allocate_node(Class::Metadata) {
            space.account_allocated(at, len);
            taken.push(at);
        }
        // The first group keeps half of its blocks, the second none, the third, which serves now, one.
        let stay = |at: Logical| at.0 < 8 * MIB || at.0 == 32 * MIB;
        let (stayed, gone): (Vec<Logical>, Vec<Logical>) = taken.into_iter().partition(|at| stay(*at));
        gone.iter().for_each(|at| assert!(space.account_freed(*at, 16384, Generation(1))));
        space.release(Generation(1));
        assert_eq!(space.allocate_node(Class::Metadata), Found::Extent(Logical(8 * MIB), 16384));
        assert_eq!(delete_unused(&space, 0), [16]);
        space.account_freed(*stayed.last().expect("one in the third"), 16384, Generation(2));
        space.release(Generation(2));
        assert_eq!(delete_unused(&space, 0), [32]);
    }

    #[test]
    fn a_block_is_not_taken_again_in_a_group_that_is_to_be_deleted() {
        let space = space(&[bits::METADATA; 2]);
        let taken = |_| match space.allocate_node(Class::Metadata) {
            Found::Extent(at, _) => at,
            other => panic!("{other:?}"),
        };
        let [tree, log] = [0, 1].map(taken);
        space.account_allocated(tree, 16384);
        assert!(!space.retake_node(Class::Metadata, log), "it is taken");
        space.pin(log, 16384, Generation(1));
        assert!(!space.retake_node(Class::Metadata, log), "it is pinned");
        space.release(Generation(1));
        assert!(!space.retake_node(Class::Data, log), "it is a group of trees");
        assert!(space.retake_node(Class::Metadata, log));
        space.give_back(log, 16384);
        space.account_freed(tree, 16384, Generation(2));
        space.release(Generation(2));
        assert!(!space.retake_node(Class::Metadata, log), "its group is empty");
        assert_eq!(delete_unused(&space, 0), [0]);
        assert!(!space.retake_node(Class::Metadata, log), "its group is gone");
    }

    #[test]
    fn mixed_groups_stay() {
        assert_eq!(delete_unused(&space(&[bits::DATA | bits::METADATA; 2]), 0), [0; 0]);
    }

    #[test]
    fn pinned_and_unrecorded_bytes_keep_their_group() {
        let space = space(&[bits::DATA; 2]);
        let Found::Extent(at, len) = space.allocate_extent(Class::Data, MIB, MIB, (Stream::InPlace, Sharing::Allowed))
        else {
            panic!("it is empty")
        };
        assert_eq!(at, Logical(0));
        assert_eq!(delete_unused(&space, 0), [16], "the other one is empty");
        space.add_group(GroupInfo { start: Logical(64 * MIB), length: MIB, flags: bits::DATA, used: 0 }, &[], true);
        space.account_allocated(at, len);
        space.account_freed(at, len, Generation(7));
        assert_eq!(delete_unused(&space, 0), [64], "pinned bytes are not free");
        space.add_group(GroupInfo { start: Logical(64 * MIB), length: MIB, flags: bits::DATA, used: 0 }, &[], true);
        assert!(!space.has_emptied());
        space.release(Generation(7));
        assert!(space.has_emptied());
        let keep = [Logical(64 * MIB)].into();
        assert_eq!(starts(&space.delete_unused(0, 1, &keep)), [0]);
        assert_eq!(space.group_of(at), None);
    }
}
