//! The schedule of discards: freed space in the commit that frees it, or later in the background, and anything free on
//! request.
//!
//! Discarding is as dangerous as writing, and may do what writing may: it touches only space that could be allocated
//! now, or that a durable transaction has freed. The space is taken out meanwhile ([`Space`], [`DeviceSpace`]), and no
//! lock is held.
//!
//! # Invariants
//! 1. Whoever finds no space [pauses](Discards::pause) discards before it reports `ENOSPC`: everything that was being
//!    discarded has come back then, and nothing more is taken. Pausing is the only wait for a discard, and nobody who
//!    pauses holds a handle.
//! 2. What waits to be discarded takes bounded memory: beyond the bound neighbouring ranges become one, with what lies
//!    between. That is right because only what is free in a range is discarded.
//! 3. The time at which the background begins moves only to earlier moments until it has begun.
//!
//! [`Space`]: crate::space::Space
//! [`DeviceSpace`]: super::DeviceSpace

use super::Core;
use super::unallocated::Again;
use crate::env::Env;
use crate::error::Result;
use crate::options::DiscardMode;
use crate::space::{Taken, TrimRange};
use butterfs_ondisk::chunk::Chunk;
use butterfs_ondisk::{DeviceId, Generation, Logical, Physical};
use butterfs_sync::{Condvar, Mutex, order};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a block group that one discard takes out.
pub(crate) const MOST_AT_ONCE: u64 = 64 << 20;
/// Bytes of a device's unallocated space that one discard takes out.
const MOST_UNALLOCATED: u64 = 256 << 20;
/// Ranges that may wait to be discarded.
const MOST_WAITING: usize = 16_384;
/// An unused chunk waits so long: it may be needed again, but that is rare.
const DELAY_OF_CHUNKS: Duration = Duration::from_secs(10);

/// The place of freed space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// In block groups, by logical addresses.
    Groups,
    /// On a device, in no chunk.
    Device(DeviceId),
}

/// Space that was freed and waits to be discarded.
#[derive(Default)]
struct Freed {
    /// By place and start: the end.
    ranges: BTreeMap<(Place, u64), u64>,
    /// When the background begins.
    due: Option<Duration>,
    /// The filesystem is being closed: nobody waits any more.
    is_closing: bool,
}

impl Freed {
    fn add(&mut self, place: Place, range: Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        // Ranges that overlap or touch become one.
        while let Some((&(_, before), &before_end)) = self.ranges.range((place, 0)..=(place, end)).next_back() {
            if before_end < start {
                break;
            }
            self.ranges.remove(&(place, before));
            (start, end) = (start.min(before), end.max(before_end));
        }
        self.ranges.insert((place, start), end);
        if self.ranges.len() > MOST_WAITING {
            self.halve();
        }
    }

    /// Makes one range of every two neighbours.
    fn halve(&mut self) {
        let ranges = std::mem::take(&mut self.ranges);
        let mut open: Option<((Place, u64), u64)> = None;
        for ((place, start), end) in ranges {
            match open.take() {
                Some((key, _)) if key.0 == place => drop(self.ranges.insert(key, end)),
                other => {
                    if let Some((key, end)) = other {
                        self.ranges.insert(key, end);
                    }
                    open = Some(((place, start), end));
                }
            }
        }
        self.ranges.extend(open);
    }

    fn is_due_at(&mut self, due: Duration) {
        self.due = Some(self.due.map_or(due, |known| known.min(due)));
    }
}

/// Discards that are under way.
#[derive(Default)]
struct Traffic {
    under_way: usize,
    /// The number of operations that lack space and wait, or try again.
    pauses: usize,
}

/// See the [module](self).
pub(crate) struct Discards {
    traffic: Mutex<Traffic, { order::DISCARD_TRAFFIC }>,
    traffic_changed: Condvar,
    freed: Mutex<Freed, { order::FREED }>,
    freed_changed: Condvar,
    mode: Mutex<DiscardMode, { order::DISCARD_MODE }>,
    delay: Duration,
}

/// A discard is under way until this is dropped.
#[must_use]
pub(crate) struct UnderWay<'a>(&'a Discards);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.traffic.lock().under_way -= 1;
        self.0.traffic_changed.notify_all();
    }
}

/// Nothing is being discarded until this is dropped, but what a commit frees.
#[must_use]
pub(crate) struct Pause<'a>(&'a Discards);

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.0.traffic.lock().pauses -= 1;
        self.0.traffic_changed.notify_all();
    }
}

impl Discards {
    /// Nothing is discarded yet. Freed space waits for `delay` where the background discards it.
    pub fn new(mode: DiscardMode, delay: Duration) -> Discards {
        Discards {
            traffic: Mutex::default(),
            traffic_changed: Condvar::new(),
            freed: Mutex::default(),
            freed_changed: Condvar::new(),
            mode: Mutex::new(mode),
            delay,
        }
    }

    /// How freed space is discarded now.
    pub fn mode(&self) -> DiscardMode {
        *self.mode.lock()
    }

    /// Discards freed space another way from now on.
    pub fn set_mode(&self, mode: DiscardMode) {
        *self.mode.lock() = mode;
        if mode != DiscardMode::Async {
            *self.freed.lock() = Freed::default();
        }
    }

    /// Waits until nothing is being discarded, and keeps it so. No handle may be held.
    pub fn pause(&self) -> Pause<'_> {
        let mut traffic = self.traffic.lock();
        traffic.pauses += 1;
        while traffic.under_way > 0 {
            self.traffic_changed.wait(&mut traffic);
        }
        Pause(self)
    }

    fn begin(&self) -> UnderWay<'_> {
        let mut traffic = self.traffic.lock();
        while traffic.pauses > 0 {
            self.traffic_changed.wait(&mut traffic);
        }
        traffic.under_way += 1;
        UnderWay(self)
    }

    /// The same for a commit, which waits for nobody.
    fn begin_in_commit(&self) -> UnderWay<'_> {
        self.traffic.lock().under_way += 1;
        UnderWay(self)
    }

    fn note_freed(&self, place: Place, ranges: impl Iterator<Item = Range<u64>>, due: Duration) {
        let mut freed = self.freed.lock();
        let mut any = false;
        for range in ranges {
            freed.add(place, range);
            any = true;
        }
        if any {
            freed.is_due_at(due);
            drop(freed);
            self.freed_changed.notify_all();
        }
    }

    /// Everything that waits, in ascending order.
    pub fn take_freed(&self) -> Vec<(Place, Range<u64>)> {
        let mut freed = self.freed.lock();
        freed.due = None;
        let ranges = std::mem::take(&mut freed.ranges);
        drop(freed);
        ranges.into_iter().map(|((place, start), end)| (place, start..end)).collect()
    }

    /// Bytes that wait, at most.
    pub fn waiting_bytes(&self) -> u64 {
        self.freed.lock().ranges.iter().map(|((_, start), end)| end - start).sum()
    }

    /// Waits until something is due, or until it is [told](Self::wake) to look. True when something is due.
    pub fn wait_for_freed(&self, env: &Env) -> bool {
        let mut freed = self.freed.lock();
        if freed.is_closing {
            return false;
        }
        match freed.due.map(|due| due.saturating_sub(env.uptime())) {
            Some(Duration::ZERO) => return true,
            Some(left) => drop(self.freed_changed.wait_for(&mut freed, left)),
            None => self.freed_changed.wait(&mut freed),
        }
        freed.due.is_some_and(|due| due <= env.uptime())
    }

    /// Waits for so long, or until it is [told](Self::wake) to stop.
    pub fn rest(&self, time: Duration) {
        let mut freed = self.freed.lock();
        if !freed.is_closing {
            self.freed_changed.wait_for(&mut freed, time);
        }
    }

    /// Ends every wait for freed space from now on: the filesystem is being closed.
    pub fn wake(&self) {
        self.freed.lock().is_closing = true;
        self.freed_changed.notify_all();
    }
}

/// One discard, and where the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Discarded {
    /// Bytes that the devices took.
    pub bytes: u64,
    /// Behind what was discarded.
    pub next: u64,
    /// The end of the free run that contains it.
    pub run_end: u64,
}

impl Core {
    /// The space that `generation` and earlier ones freed becomes free; before or after that it is discarded, as the
    /// mount options say. Returns the runs.
    pub(crate) fn release_freed(&self, generation: Generation) -> Vec<(Logical, u64)> {
        match self.discards.mode() {
            DiscardMode::Off => self.space.release(generation),
            DiscardMode::Async => {
                let runs = self.space.release(generation);
                let ranges = runs.iter().map(|(at, len)| at.0..at.0 + len);
                self.discards.note_freed(Place::Groups, ranges, self.env().uptime() + self.discards.delay);
                runs
            }
            DiscardMode::Sync => {
                let runs = self.space.release_for_discard(generation);
                let under_way = self.discards.begin_in_commit();
                for run in merged(&runs) {
                    self.volume.discard(Logical(run.start), run.end - run.start);
                }
                self.space.end_discard(&runs);
                drop(under_way);
                runs
            }
        }
    }

    /// The places of these chunks, whose removal is durable, are about to be free.
    pub(crate) fn discard_chunks(&self, removed: &[Chunk]) {
        let mode = self.discards.mode();
        if mode == DiscardMode::Off {
            return;
        }
        let due = self.env().uptime() + self.discards.delay.min(DELAY_OF_CHUNKS);
        for (chunk, stripe) in removed.iter().flat_map(|chunk| chunk.stripes.iter().map(move |stripe| (chunk, stripe)))
        {
            let (start, len) = (stripe.physical.0, chunk.stripe_length());
            if mode == DiscardMode::Sync {
                self.volume.discard_on(stripe.device, stripe.physical, len);
            } else {
                self.discards.note_freed(Place::Device(stripe.device), std::iter::once(start..start + len), due);
            }
        }
    }

    /// Discards what `generation` has freed although its superblock is not durable.
    pub(crate) fn discard_too_early(&self, generation: Generation) {
        for (at, len) in self.space.pinned_by(generation) {
            self.volume.discard(at, len);
        }
    }

    /// Discards the next free bytes of `wanted`; `None` where there are none. Nothing is held.
    pub(crate) fn discard_free(self: &Arc<Self>, wanted: &TrimRange) -> Result<Option<Discarded>> {
        loop {
            let under_way = self.discards.begin();
            match self.space.take_for_discard(wanted, self.discard_floors()) {
                Taken::Nothing => return Ok(None),
                Taken::Load(start) => {
                    drop(under_way);
                    if let Some(group) = self.space.group_of(start) {
                        self.load_group_ahead(&group)?;
                    }
                }
                Taken::Run { at, len, run_end } => {
                    let bytes = self.volume.discard(at, len);
                    self.space.end_discard(&[(at, len)]);
                    return Ok(Some(Discarded { bytes, next: at.0 + len, run_end }));
                }
            }
        }
    }

    /// The same for unallocated bytes of a device.
    pub(crate) fn discard_unallocated(&self, id: DeviceId, wanted: &TrimRange, again: Again) -> Option<Discarded> {
        let _under_way = self.discards.begin();
        let wanted = TrimRange { most: wanted.most.min(MOST_UNALLOCATED), ..wanted.clone() };
        let place = {
            let mut devices = self.devices.space.lock();
            if let Some(device) = devices.devices.get_mut(&id) {
                device.is_lost = !self.volume.is_usable(id);
            }
            devices.take_unallocated(id, &wanted, again)?
        };
        let bytes = self.volume.discard_on(id, Physical(place.at), place.len);
        self.devices.space.lock().end_unallocated(id, &place);
        Some(Discarded { bytes, next: place.at + place.len, run_end: place.run_end })
    }

    /// The space that stays free in each class beside all reservations.
    fn discard_floors(&self) -> [u64; 4] {
        let trees = self.commit_cost() + self.global_reserve();
        // By class: data, trees, chunk tree, mixed.
        [0, trees, 16 * u64::from(self.nodesize()), trees]
    }
}

/// Runs in ascending order, neighbours merged.
fn merged(runs: &[(Logical, u64)]) -> Vec<Range<u64>> {
    let mut sorted: Vec<Range<u64>> = runs.iter().map(|(at, len)| at.0..at.0 + len).collect();
    sorted.sort_unstable_by_key(|run| run.start);
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(sorted.len());
    for run in sorted {
        match merged.last_mut() {
            Some(last) if last.end >= run.start => last.end = last.end.max(run.end),
            _ => merged.push(run),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(freed: &Freed) -> Vec<(u64, u64)> {
        freed.ranges.iter().map(|((_, start), end)| (*start, *end)).collect()
    }

    #[test]
    fn ranges_that_touch_become_one() {
        let mut freed = Freed::default();
        for (start, end) in [(10, 20), (30, 40), (0, 5), (20, 30), (100, 110), (90, 130), (5, 6)] {
            freed.add(Place::Groups, start..end);
        }
        freed.add(Place::Device(DeviceId(1)), 40..50);
        assert_eq!(listed(&freed), [(0, 6), (10, 40), (90, 130), (40, 50)]);
    }

    #[test]
    fn waiting_discards_are_bounded_and_covered() {
        let mut freed = Freed::default();
        let starts = (0..100_000u64).map(|number| number * 7919 % 100_003 * 10);
        starts.clone().for_each(|start| freed.add(Place::Groups, start..start + 4));
        assert!(freed.ranges.len() <= MOST_WAITING);
        for start in starts {
            let found = freed.ranges.range(..=(Place::Groups, start)).next_back();
            assert!(found.is_some_and(|(_, end)| *end >= start + 4), "{start} is lost");
        }
    }

    #[test]
    fn the_deadline_moves_only_to_earlier_moments() {
        let mut freed = Freed::default();
        for (due, expected) in [(50, 50), (70, 50), (30, 30), (90, 30)] {
            freed.is_due_at(Duration::from_secs(due));
            assert_eq!(freed.due, Some(Duration::from_secs(expected)));
        }
    }

    #[test]
    fn a_pause_waits_for_what_is_under_way_and_keeps_the_rest_away() {
        let discards = Discards::new(DiscardMode::Off, Duration::ZERO);
        let under_way = discards.begin();
        std::thread::scope(|scope| {
            let paused = scope.spawn(|| drop(discards.pause()));
            while discards.traffic.lock().pauses == 0 {
                std::thread::yield_now();
            }
            assert!(!paused.is_finished());
            drop(under_way);
            paused.join().expect("it ends");
        });
        drop(discards.begin());
    }
}
