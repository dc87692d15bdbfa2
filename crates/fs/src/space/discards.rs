//! Space that is being discarded: nobody can allocate it meanwhile.
//!
//! # Invariants
//! 1. A run that is being discarded was free, or was freed by a durable transaction and not free yet. Until the discard
//!    has ended it counts as pinned.
//! 2. Taking a free run leaves everything that is reserved, and the floor that the caller names, free. So whoever holds
//!    a reservation finds its space. A closed group's free space is nobody's reservation, and may all be taken.
//! 3. A discard ends before anybody reads the groups anew ([`Space::start_again`]).

use super::{Space, SpaceState};
use butterfs_ondisk::{Generation, Logical};
use std::ops::Range;

/// Which free runs are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrimRange {
    /// The addresses; what a run has outside of them is left alone.
    pub range: Range<u64>,
    /// Shorter runs are left alone.
    pub least: u64,
    /// The largest amount that is taken at once.
    pub most: u64,
}

/// The outcome of the request for the next free run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// These bytes are the caller's, until [`Space::end_discard`].
    Run {
        /// The position at which they begin.
        at: Logical,
        /// The number.
        len: u64,
        /// The end of the free run that contains them.
        run_end: u64,
    },
    /// This group must be loaded first.
    Load(Logical),
    /// There is none.
    Nothing,
}

impl SpaceState {
    /// Takes the first bytes of `wanted` in the group at `start`. `None` where there are none in this group, it cannot
    /// be written, or it has parity: its rows hold other data too.
    fn take_in(&mut self, start: u64, wanted: &TrimRange, floor: u64, unit: u64) -> Option<Taken> {
        let may_be_written = !self.unwritable.contains(&start);
        let group = self.groups.get_mut(&start).filter(|group| may_be_written && group.columns == 0)?;
        let before = group.allocatable();
        let (class, group_end) = (group.class as usize, start + group.length);
        let end = wanted.range.end.min(group_end);
        let Some(free) = &mut group.free else {
            return (group.length > group.used).then_some(Taken::Load(Logical(start)));
        };
        let mut from = wanted.range.start.max(start);
        loop {
            let (at, len) = free.next_from(from).filter(|(at, _)| *at < end)?;
            let run_end = (at + len).min(end);
            from = run_end;
            if run_end - at < wanted.least {
                continue;
            }
            let spare = match group.closed {
                true => u64::MAX,
                false => self.free[class].saturating_sub(self.reserved[class].saturating_add(floor)),
            };
            let len = (run_end - at).min(wanted.most).min(spare / unit * unit);
            if len == 0 {
                return None;
            }
            free.remove(at, len);
            group.pinned += len;
            self.free[class] -= before - group.allocatable();
            self.discarding.insert((at, len));
            return Some(Taken::Run { at: Logical(at), len, run_end });
        }
    }
}

impl Space {
    /// Takes the next free bytes of `wanted`, to discard them. In each class its floor (`floors`, by class) and all
    /// reservations stay free.
    pub fn take_for_discard(&self, wanted: &TrimRange, floors: [u64; 4]) -> Taken {
        let mut state = self.state.lock();
        let first = state.groups.range(..=wanted.range.start).next_back().map_or(0, |(&start, _)| start);
        let starts: Vec<u64> = state.groups.range(first..).map(|(&start, _)| start).collect();
        for start in starts.into_iter().take_while(|start| *start < wanted.range.end) {
            let floor = floors[state.groups[&start].class as usize];
            if let Some(taken) = state.take_in(start, wanted, floor, self.nodesize) {
                return taken;
            }
        }
        Taken::Nothing
    }

    /// `generation` is durable, and what it and earlier ones freed is going to be discarded: until
    /// [`end_discard`](Self::end_discard) these runs are not free.
    pub fn release_for_discard(&self, generation: Generation) -> Vec<(Logical, u64)> {
        let mut state = self.state.lock();
        let runs = state.released_by(generation);
        state.discarding.extend(&runs);
        runs.into_iter().map(|(at, len)| (Logical(at), len)).collect()
    }

    /// The discard of these runs has ended: they are free.
    pub fn end_discard(&self, runs: &[(Logical, u64)]) {
        let mut state = self.state.lock();
        for (at, len) in runs {
            state.discarding.remove(&(at.0, *len));
            state.free_pinned((at.0, *len));
        }
        state.steer_trees();
    }

    /// The space that `generation` has freed so far, for a canary.
    #[doc(hidden)]
    pub fn pinned_by(&self, generation: Generation) -> Vec<(Logical, u64)> {
        let state = self.state.lock();
        let pins = state.pins.get(&generation).into_iter().flatten();
        pins.map(|(at, len)| (Logical(*at), *len)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::fixture::space;
    use crate::space::{Class, Found, GroupInfo, Sharing, Stream};
    use butterfs_ondisk::items::block_group_flags as bits;

    const MIB: u64 = 1 << 20;

    fn wanted(range: Range<u64>, least: u64, most: u64) -> TrimRange {
        TrimRange { range, least, most }
    }

    #[test]
    fn space_in_discard_cannot_be_allocated() {
        let space = space(&[bits::DATA; 1]);
        let all = wanted(0..u64::MAX, 0, 12 * MIB);
        let taken = space.take_for_discard(&all, [0; 4]);
        assert_eq!(taken, Taken::Run { at: Logical(0), len: 12 * MIB, run_end: 16 * MIB });
        assert_eq!(
            space.allocate_extent(Class::Data, 8 * MIB, 8 * MIB, (Stream::Data, Sharing::Never)),
            Found::Nothing
        );
        assert!(!space.reserve(Class::Data, 5 * MIB, 0));
        space.end_discard(&[(Logical(0), 12 * MIB)]);
        assert!(space.reserve(Class::Data, 16 * MIB, 0));
        assert_eq!(space.take_for_discard(&all, [0; 4]), Taken::Nothing, "all of it is reserved");
        assert_eq!(
            space.allocate_extent(Class::Data, 16 * MIB, MIB, (Stream::Data, Sharing::Never)),
            Found::Extent(Logical(0), 16 * MIB)
        );
    }

    /// A closed group has nothing that could be allocated, so nothing of it is lost to the others.
    #[test]
    fn discards_in_closed_groups_take_nothing_from_the_others() {
        let space = space(&[bits::DATA; 3]);
        space.close_for_good(Logical(32 * MIB));
        assert!(space.close_group(Logical(0), 0) && space.reserve(Class::Data, 16 * MIB, 0));
        let all = wanted(0..u64::MAX, 0, u64::MAX);
        let taken = space.take_for_discard(&all, [0; 4]);
        assert_eq!(taken, Taken::Run { at: Logical(0), len: 16 * MIB, run_end: 16 * MIB });
        assert_eq!(space.take_for_discard(&all, [0; 4]), Taken::Nothing, "reserved, or not written");
        assert_eq!(space.totals(Class::Data).free, 16 * MIB);
        // Reopened in the middle of it.
        space.reopen_group(Logical(0));
        assert_eq!(space.totals(Class::Data).free, 16 * MIB);
        space.end_discard(&[(Logical(0), 16 * MIB)]);
        assert_eq!(space.totals(Class::Data).free, 32 * MIB);
        // And the other way round.
        let taken = space.take_for_discard(&wanted(0..16 * MIB, 0, u64::MAX), [0; 4]);
        assert!(matches!(taken, Taken::Run { len, .. } if len == 16 * MIB), "{taken:?}");
        assert!(space.close_group(Logical(0), 0));
        space.end_discard(&[(Logical(0), 16 * MIB)]);
        assert_eq!(space.totals(Class::Data).free, 16 * MIB);
        space.reopen_group(Logical(0));
        assert_eq!(space.totals(Class::Data).free, 32 * MIB);
    }

    #[test]
    fn reservations_and_the_floor_stay_free() {
        let space = space(&[bits::DATA; 1]);
        assert!(space.reserve(Class::Data, 6 * MIB, 0));
        let all = wanted(0..u64::MAX, 0, u64::MAX);
        let taken = space.take_for_discard(&all, [4 * MIB; 4]);
        assert_eq!(taken, Taken::Run { at: Logical(0), len: 6 * MIB, run_end: 16 * MIB });
    }

    #[test]
    fn runs_are_clipped_and_short_ones_left_alone() {
        let space = space(&[bits::DATA; 2]);
        for at in [2, 3, 10] {
            assert_eq!(space.claim(Class::Data, Logical(at * MIB), MIB), crate::space::Claimed::Yes);
        }
        let mut from = MIB / 2;
        let mut found = Vec::new();
        while let Taken::Run { at, len, run_end } =
            space.take_for_discard(&wanted(from..20 * MIB, 2 * MIB, u64::MAX), [0; 4])
        {
            found.push((at.0 / MIB, len / MIB));
            from = run_end;
        }
        assert_eq!(found, [(4, 6), (11, 5), (16, 4)]);
    }

    #[test]
    fn freed_space_stays_pinned_until_it_is_discarded() {
        let space = space(&[bits::DATA; 1]);
        let Found::Extent(at, len) = space.allocate_extent(Class::Data, 16 * MIB, MIB, (Stream::Data, Sharing::Never))
        else {
            panic!("it is empty")
        };
        space.account_allocated(at, len);
        assert!(space.account_freed(at, len, Generation(3)));
        assert_eq!(space.pinned_by(Generation(3)), [(at, len)]);
        let runs = space.release_for_discard(Generation(3));
        assert_eq!(runs, [(at, len)]);
        assert_eq!(space.allocate_extent(Class::Data, MIB, MIB, (Stream::Data, Sharing::Never)), Found::Nothing);
        space.end_discard(&runs);
        assert_eq!(
            space.allocate_extent(Class::Data, MIB, MIB, (Stream::Data, Sharing::Never)),
            Found::Extent(at, MIB)
        );
    }

    #[test]
    fn a_group_that_is_not_loaded_is_named() {
        let space = space(&[bits::DATA; 0]);
        let info = GroupInfo { start: Logical(16 * MIB), length: 16 * MIB, flags: bits::DATA, used: MIB };
        space.add_group(info, &[], false);
        let all = wanted(0..u64::MAX, 0, u64::MAX);
        assert_eq!(space.take_for_discard(&all, [0; 4]), Taken::Load(Logical(16 * MIB)));
        space.load(Logical(16 * MIB), &[(17 * MIB, 15 * MIB)]);
        let taken = space.take_for_discard(&all, [0; 4]);
        assert_eq!(taken, Taken::Run { at: Logical(17 * MIB), len: 15 * MIB, run_end: 32 * MIB });
    }
}
