//! Closing a group for allocation, so that it can be emptied; and the profile of new allocations during a conversion.
//!
//! # Invariants
//! 1. A group is closed only if all reservations of its class, and the floor its caller names, fit into the other
//!    groups.
//! 2. A group on devices that cannot be written stays closed. Another one stays closed until its
//!    [`ClosedGroup`](crate::relocation) is dropped, or it is deleted.
//! 3. A group that [leaves](Space::let_leave) is deleted by the next commit for which it is empty, the last one of its
//!    profile too.

use super::{Class, Group, GroupInfo, Space, info};
use butterfs_ondisk::Logical;
use butterfs_ondisk::items::block_group_flags as bits;

impl Group {
    /// Whether it has this profile; any group has none in particular.
    pub(super) fn has_profile(&self, profile: Option<u64>) -> bool {
        profile.is_none_or(|profile| self.flags & bits::PROFILE_MASK == profile)
    }
}

impl Space {
    /// From now on nothing is allocated in the group. False, and nothing done, where reservations and `floor` more
    /// bytes would not fit into the others.
    pub fn close_group(&self, start: Logical, floor: u64) -> bool {
        let mut state = self.state.lock();
        let Some(group) = state.groups.get(&start.0) else { return false };
        let (class, lost) = (group.class as usize, group.allocatable());
        if state.free[class] - lost < state.reserved[class] + floor {
            return false;
        }
        state.free[class] -= lost;
        state.groups.get_mut(&start.0).expect("just found").closed = true;
        true
    }

    /// Nothing is ever allocated in the group: its devices cannot be written.
    pub fn close_for_good(&self, start: Logical) {
        self.state.lock().unwritable.insert(start.0);
        self.close_group(start, 0);
    }

    /// The group may be allocated from again.
    pub fn reopen_group(&self, start: Logical) {
        let mut state = self.state.lock();
        if state.unwritable.contains(&start.0) {
            return;
        }
        state.leaving.remove(&start.0);
        let Some(group) = state.groups.get_mut(&start.0).filter(|group| group.closed) else { return };
        group.closed = false;
        let (class, gained) = (group.class as usize, group.allocatable());
        state.free[class] += gained;
    }

    /// Whether the group that holds `at` is closed.
    pub fn is_closed(&self, at: Logical) -> bool {
        let state = self.state.lock();
        let group = state.groups.range(..=at.0).next_back();
        group.is_some_and(|(start, group)| group.closed && at.0 < start + group.length)
    }

    /// The closed group is to be deleted when it is empty.
    pub fn let_leave(&self, start: Logical) {
        let mut state = self.state.lock();
        state.leaving.insert(start.0);
        state.emptied = true;
    }

    /// The group that begins at `start`.
    pub fn group(&self, start: Logical) -> Option<GroupInfo> {
        self.state.lock().groups.get(&start.0).map(|group| info(start.0, group))
    }

    /// Whether every byte of the group that begins at `start` is free.
    pub fn is_vacant(&self, start: Logical) -> bool {
        self.state.lock().groups.get(&start.0).is_some_and(Group::is_empty)
    }

    /// Sets the profile that new allocations of a class prefer, or takes it back.
    pub fn set_target(&self, class: Class, profile: Option<u64>) {
        let mut state = self.state.lock();
        let class = state.resolve(class) as usize;
        state.targets[class] = profile;
    }

    /// The profile that new allocations of a class prefer.
    pub fn target(&self, class: Class) -> Option<u64> {
        let state = self.state.lock();
        state.targets[state.resolve(class) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::fixture::space;
    use crate::space::{Found, Sharing, Stream};
    use butterfs_ondisk::Generation;
    use std::collections::BTreeSet;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_closed_group_serves_nobody_and_leaves_when_it_is_empty() {
        let space = space(&[bits::DATA; 2]);
        let Found::Extent(at, len) = space.allocate_extent(Class::Data, MIB, MIB, (Stream::Data, Sharing::Never))
        else {
            panic!("it is empty")
        };
        space.account_allocated(at, len);
        assert!(space.close_group(at, 0) && space.is_closed(at.plus(MIB)));
        assert_eq!(space.totals(Class::Data).free, 16 * MIB);
        let Found::Extent(other, _) = space.allocate_extent(Class::Data, 16 * MIB, MIB, (Stream::Data, Sharing::Never))
        else {
            panic!("one is open")
        };
        assert_eq!(other, Logical(16 * MIB));
        space.let_leave(at);
        assert!(space.delete_unused(0, 9, &BTreeSet::new()).is_empty(), "it is in use");
        assert!(space.account_freed(at, len, Generation(1)));
        space.release(Generation(1));
        assert!(space.is_vacant(at));
        assert_eq!(space.totals(Class::Data).free, 0);
        let gone = space.delete_unused(0, 9, &BTreeSet::new());
        assert_eq!(gone.iter().map(|group| group.start).collect::<Vec<_>>(), [at]);
    }

    #[test]
    fn a_log_does_not_lie_in_a_closed_group_again() {
        let space = space(&[bits::METADATA; 2]);
        let Found::Extent(used, len) = space.allocate_node(Class::Metadata) else { panic!("it is empty") };
        space.account_allocated(used, len);
        let Found::Extent(log, len) = space.allocate_node(Class::Metadata) else { panic!("it has room") };
        space.give_back(log, len);
        assert!(space.close_group(used, 0));
        let free = space.totals(Class::Metadata).free;
        assert!(!space.retake_node(Class::Metadata, log));
        assert_eq!(space.totals(Class::Metadata).free, free);
        space.reopen_group(used);
        assert!(space.retake_node(Class::Metadata, log));
    }

    #[test]
    fn reservations_keep_a_group_open_and_reopening_gives_back() {
        let space = space(&[bits::DATA; 2]);
        assert!(space.reserve(Class::Data, 17 * MIB, 0));
        assert!(!space.close_group(Logical(0), 0));
        space.unreserve(Class::Data, 17 * MIB);
        assert!(!space.close_group(Logical(0), 17 * MIB));
        assert!(space.close_group(Logical(0), 16 * MIB));
        space.reopen_group(Logical(0));
        assert_eq!(space.totals(Class::Data).free, 32 * MIB);
    }

    #[test]
    fn a_conversion_prefers_its_profile() {
        let space = space(&[bits::METADATA, bits::METADATA | bits::DUP]);
        space.set_target(Class::Metadata, Some(bits::DUP));
        assert_eq!(space.allocate_node(Class::Metadata), Found::Extent(Logical(16 * MIB), 16384));
        assert!(space.close_group(Logical(16 * MIB), 0));
        assert_eq!(space.allocate_node(Class::Metadata), Found::Extent(Logical(0), 16384));
        assert_eq!(
            space.allocate_extent_of(Class::Metadata, MIB, (Stream::Trees, Sharing::Never), bits::DUP),
            Found::Nothing
        );
    }
}
