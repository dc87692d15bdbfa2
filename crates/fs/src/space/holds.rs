//! Extents that somebody reads, or writes where they are, without a lock: they are not used again until that has ended.
//!
//! # Invariants
//! 1. A freed extent that is held stays pinned when its generation is durable, and becomes free when the last hold on
//!    it ends.
//! 2. A hold begins while the extent has an owner that cannot give it up: so before the extent can be freed and
//!    released.
//! 3. Extents that are held are whole ones, so no two of them overlap.

use super::{Space, SpaceState};
use butterfs_ondisk::Logical;
use std::collections::BTreeMap;

/// Extents that are held, and freed ones that wait for that to end.
#[derive(Default)]
pub(super) struct Holds {
    /// Address and length, with how many hold it.
    held: BTreeMap<(u64, u64), usize>,
    pub waiting: Vec<(u64, u64)>,
}

impl Holds {
    /// Whether some byte of a run is held.
    fn holds(&self, (at, len): (u64, u64)) -> bool {
        let before_end = self.held.range(..(at + len, 0)).next_back();
        before_end.is_some_and(|(&(start, held), _)| start + held > at)
    }
}

impl SpaceState {
    /// Keeps a run that is to become free if it is held.
    pub(super) fn keep_if_held(&mut self, run: (u64, u64)) -> bool {
        let held = self.holds.holds(run);
        if held {
            self.holds.waiting.push(run);
        }
        held
    }
}

impl Space {
    /// From now on the bytes of these extents are not used again when they are freed, until
    /// [`end_hold`](Self::end_hold).
    pub fn hold(&self, extents: &[(Logical, u64)]) {
        let mut state = self.state.lock();
        for (at, len) in extents {
            *state.holds.held.entry((at.0, *len)).or_default() += 1;
        }
    }

    /// Ends one hold on each of these extents.
    pub fn end_hold(&self, extents: &[(Logical, u64)]) {
        let mut state = self.state.lock();
        for (at, len) in extents {
            let count = state.holds.held.get_mut(&(at.0, *len)).expect("a hold ends once");
            *count -= 1;
            if *count == 0 {
                state.holds.held.remove(&(at.0, *len));
            }
        }
        if state.holds.waiting.is_empty() {
            return;
        }
        let waiting = std::mem::take(&mut state.holds.waiting);
        for run in waiting {
            if !state.keep_if_held(run) {
                state.free_pinned(run);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::space::{Class, Found, GroupInfo, Sharing, Space, Stream};
    use butterfs_ondisk::items::block_group_flags as bits;
    use butterfs_ondisk::{Generation, Logical};
    use std::collections::BTreeSet;

    const MIB: u64 = 1 << 20;

    /// Two groups of 16 MiB, with one extent of a MiB in the first.
    fn space() -> (Space, Logical) {
        let space = crate::space::fixture::space(&[bits::DATA; 2]);
        let Found::Extent(at, _) = space.allocate_extent(Class::Data, MIB, MIB, (Stream::InPlace, Sharing::Allowed))
        else {
            panic!("it is empty")
        };
        space.account_allocated(at, MIB);
        (space, at)
    }

    #[test]
    fn a_held_extent_becomes_free_when_the_last_hold_ends() {
        let (space, at) = space();
        let free = || space.totals(Class::Data).free;
        let before = free();
        space.hold(&[(at, MIB)]);
        space.hold(&[(at, MIB)]);
        space.account_freed(at, MIB, Generation(1));
        assert_eq!(space.release(Generation(1)), []);
        assert_eq!(free(), before);
        space.end_hold(&[(at, MIB)]);
        assert_eq!(free(), before);
        assert!(space.delete_unused(0, 1, &[Logical(16 * MIB)].into()).is_empty(), "its group stays");
        space.end_hold(&[(at, MIB)]);
        assert_eq!(free(), before + MIB);
        assert_eq!(space.delete_unused(0, 1, &BTreeSet::new()).len(), 1);
    }

    #[test]
    fn a_group_that_is_loaded_meanwhile_leaves_it_out() {
        let space = Space::new(16384);
        let info = GroupInfo { start: Logical(0), length: 16 * MIB, flags: bits::DATA, used: MIB };
        space.add_group(info, &[], false);
        space.hold(&[(Logical(0), MIB)]);
        space.account_freed(Logical(0), MIB, Generation(1));
        assert_eq!(space.release(Generation(1)), []);
        // The trees say that all of it is free.
        space.load(Logical(0), &[(0, 16 * MIB)]);
        assert_eq!(space.totals(Class::Data).free, 15 * MIB);
        space.end_hold(&[(Logical(0), MIB)]);
        assert_eq!(space.totals(Class::Data).free, 16 * MIB);
    }

    #[test]
    fn other_extents_are_released_as_ever() {
        let (space, at) = space();
        space.hold(&[(at.plus(4 * MIB), MIB)]);
        space.account_freed(at, MIB, Generation(1));
        assert_eq!(space.release(Generation(1)), [(at, MIB)]);
        space.end_hold(&[(at.plus(4 * MIB), MIB)]);
        assert_eq!(space.totals(Class::Data).free, 32 * MIB);
    }
}
