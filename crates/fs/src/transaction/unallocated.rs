//! Discarding what lies in no chunk: new chunks keep away meanwhile.
//!
//! # Invariants
//! 1. A range that is being discarded lies in no chunk, pending ones included, and no chunk is planned there until it
//!    ends.
//! 2. `trimmed` lies in no chunk either: what a chunk has had can be discarded again.

use super::chunk_allocation::{DeviceExtents, DeviceSpace, FIRST_PHYSICAL};
use crate::space::{FreeExtents, TrimRange};
use butterfs_ondisk::DeviceId;
use std::collections::BTreeSet;
use std::ops::Range;

/// The part of a device's unallocated space that is, or was, discarded.
#[derive(Debug, Default, Clone)]
pub struct Trimmed {
    /// Ranges that are being discarded.
    pub discarding: BTreeSet<(u64, u64)>,
    /// The space that was discarded since the filesystem was opened, and was in no chunk since.
    pub trimmed: FreeExtents,
}

/// Whether space counts that was discarded before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Again {
    Yes,
    No,
}

/// Bytes of a device that the caller may discard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TakenPlace {
    pub at: u64,
    pub len: u64,
    /// The end of the range that contains them.
    pub run_end: u64,
}

impl DeviceExtents {
    /// The used ranges in ascending order: chunks, and ranges that are being discarded.
    pub(super) fn taken(&self) -> Vec<Range<u64>> {
        let of = |(at, len): (&u64, &u64)| *at..at.saturating_add(*len);
        let mut taken: Vec<Range<u64>> = self.extents.iter().map(of).collect();
        if !self.discards.discarding.is_empty() {
            taken.extend(self.discards.discarding.iter().map(|(at, len)| *at..at + len));
            taken.sort_unstable_by_key(|range| range.start);
        }
        taken
    }

    /// Parts of `range` that are in no chunk, not being discarded, and, unless they count again, not discarded before.
    fn unallocated_in(&self, range: &Range<u64>, again: Again) -> Vec<Range<u64>> {
        let mut taken = self.taken();
        if again == Again::No {
            taken.extend(self.discards.trimmed.iter().map(|(at, len)| at..at + len));
            taken.sort_unstable_by_key(|range| range.start);
        }
        let end = range.end.min(self.total_bytes);
        let mut from = range.start.max(FIRST_PHYSICAL);
        let mut found = Vec::new();
        for other in taken {
            if other.start.min(end) > from {
                found.push(from..other.start.min(end));
            }
            from = from.max(other.end);
        }
        if end > from {
            found.push(from..end);
        }
        found
    }
}

impl DeviceSpace {
    /// Takes the next unallocated bytes of a device, to discard them. None where the device is lost.
    pub(crate) fn take_unallocated(&mut self, id: DeviceId, wanted: &TrimRange, again: Again) -> Option<TakenPlace> {
        let device = self.devices.get_mut(&id).filter(|device| !device.is_lost)?;
        let found = device.unallocated_in(&wanted.range, again).into_iter();
        let run = found.into_iter().find(|run| run.end - run.start >= wanted.least.max(1))?;
        let len = (run.end - run.start).min(wanted.most);
        device.discards.discarding.insert((run.start, len));
        Some(TakenPlace { at: run.start, len, run_end: run.end })
    }

    /// The discard of these bytes has ended.
    pub(crate) fn end_unallocated(&mut self, id: DeviceId, place: &TakenPlace) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        device.discards.discarding.remove(&(place.at, place.len));
        // A part of it may have been discarded before.
        device.discards.trimmed.remove(place.at, place.len);
        device.discards.trimmed.insert(place.at, place.len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const ONE: DeviceId = DeviceId(1);

    fn device(extents: &[(u64, u64)]) -> DeviceSpace {
        let extents = extents.iter().map(|(at, len)| (at * MIB, len * MIB)).collect();
        let device = DeviceExtents { total_bytes: 100 * MIB, extents, ..DeviceExtents::default() };
        DeviceSpace { devices: [(ONE, device)].into() }
    }

    fn all(space: &mut DeviceSpace, least: u64, again: Again) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        let mut from = 0;
        let wanted = |from| TrimRange { range: from..u64::MAX, least: least * MIB, most: u64::MAX };
        while let Some(place) = space.take_unallocated(ONE, &wanted(from), again) {
            space.end_unallocated(ONE, &place);
            found.push((place.at / MIB, place.len / MIB));
            from = place.run_end;
        }
        found
    }

    #[test]
    fn unallocated_space_is_discarded_once() {
        let mut space = device(&[(10, 10), (20, 5), (99, 1)]);
        assert_eq!(all(&mut space, 20, Again::No), [(25, 74)]);
        assert_eq!(all(&mut space, 0, Again::No), [(1, 9)]);
        assert_eq!(all(&mut space, 0, Again::No), []);
        assert_eq!(all(&mut space, 0, Again::Yes), [(1, 9), (25, 74)]);
    }

    #[test]
    fn space_in_discard_is_taken() {
        let mut space = device(&[(10, 10)]);
        let wanted = TrimRange { range: 0..u64::MAX, least: 0, most: 4 * MIB };
        let place = space.take_unallocated(ONE, &wanted, Again::Yes).expect("there is some");
        assert_eq!((place.at, place.len, place.run_end), (MIB, 4 * MIB, 10 * MIB));
        assert_eq!(space.devices[&ONE].taken(), [MIB..5 * MIB, 10 * MIB..20 * MIB]);
        let next = space.take_unallocated(ONE, &wanted, Again::Yes).expect("there is more");
        assert_eq!(next.at, 5 * MIB);
        space.end_unallocated(ONE, &place);
        assert_eq!(space.devices[&ONE].taken(), [5 * MIB..9 * MIB, 10 * MIB..20 * MIB]);
    }
}
