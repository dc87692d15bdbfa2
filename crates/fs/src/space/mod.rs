//! Space, in memory only: block groups, what is free in them, what is reserved for whom.
//!
//! # Invariants
//! 1. A byte of a group is exactly one of: allocated, free (in `free`, once the group is loaded), pinned, or
//!    excluded (under a superblock copy).
//! 2. Space freed in generation N is pinned until N's superblock is durable ([`Space::release`]), and longer while
//!    somebody writes there ([`holds`]). Space that is being discarded is pinned too ([`discards`]).
//! 3. `used` is what the group's item will say at the end of the running commit.
//! 4. In groups with parity an allocation shares no parity with what is needed, unless it was allowed to ([`rows`]).
//! 5. `free` is the sum over a class's groups of what could be allocated, `sums` of the rest: operations ask for these,
//!    and there may be many groups.
//! 6. A [closed](closed_groups) group serves no allocation and counts as having no free space.
//!
//! It knows neither trees nor devices. A group is loaded by whoever can read the free space tree, when
//! [`Space::unloaded`] names it.

mod closed_groups;
mod discards;
#[cfg(test)]
mod fixture;
mod free_extents;
mod free_space;
mod holds;
mod rows;
mod unused_groups;
mod writes;

pub use discards::{Taken, TrimRange};
pub use free_extents::FreeExtents;
use free_space::FreeSpace;
pub use rows::{Sharing, Stream};

use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_ondisk::{Generation, Logical};
use butterfs_sync::{Condvar, Mutex, order};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The class of content that a group may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Class {
    /// File data.
    Data,
    /// Trees.
    Metadata,
    /// The chunk tree.
    System,
    /// Data and trees.
    Mixed,
}

impl Class {
    /// The class of a group's flags; `None` when the type bits are not one of the four legal ones.
    pub fn of(flags: u64) -> Option<Class> {
        match flags & bits::TYPE_MASK {
            bits::DATA => Some(Class::Data),
            bits::METADATA => Some(Class::Metadata),
            bits::SYSTEM => Some(Class::System),
            flags if flags == bits::DATA | bits::METADATA => Some(Class::Mixed),
            _ => None,
        }
    }

    /// The type bits of a group of this class.
    pub fn type_bits(self) -> u64 {
        match self {
            Class::Data => bits::DATA,
            Class::Metadata => bits::METADATA,
            Class::System => bits::SYSTEM,
            Class::Mixed => bits::DATA | bits::METADATA,
        }
    }
}

/// A block group.
#[derive(Debug)]
struct Group {
    length: u64,
    flags: u64,
    class: Class,
    /// Data columns of its rows, where it has parity, else 0.
    columns: u64,
    used: u64,
    free: Option<FreeSpace>,
    excluded: Vec<Range<u64>>,
    excluded_bytes: u64,
    pinned: u64,
    /// It serves no allocation.
    closed: bool,
}

impl Group {
    fn allocatable(&self) -> u64 {
        if self.closed { 0 } else { self.unallocated() }
    }

    /// Bytes that are free, whether or not they may be allocated.
    fn unallocated(&self) -> u64 {
        match &self.free {
            Some(free) => free.total(),
            None => self.length.saturating_sub(self.used + self.excluded_bytes + self.pinned),
        }
    }
}

/// A group as the rest of the engine sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupInfo {
    /// First address.
    pub start: Logical,
    /// Bytes.
    pub length: u64,
    /// Type and profile.
    pub flags: u64,
    /// Bytes allocated.
    pub used: u64,
}

/// Totals of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassTotals {
    /// Bytes of its groups.
    pub length: u64,
    /// Bytes allocated.
    pub used: u64,
    /// Bytes that could be allocated now.
    pub free: u64,
    /// Bytes reserved.
    pub reserved: u64,
    /// Whether it has groups with parity.
    pub has_rows: bool,
    /// Whether it holds data and trees.
    pub is_mixed: bool,
}

/// Totals over the groups of a class.
#[derive(Clone, Copy, Default)]
struct Sum {
    length: u64,
    used: u64,
    /// Groups with parity.
    with_rows: usize,
}

#[derive(Default)]
struct SpaceState {
    groups: BTreeMap<u64, Group>,
    sums: [Sum; 4],
    free: [u64; 4],
    reserved: [u64; 4],
    hint: [u64; 4],
    pins: BTreeMap<Generation, Vec<(u64, u64)>>,
    holds: holds::Holds,
    /// Runs that are being discarded.
    discarding: BTreeSet<(u64, u64)>,
    writes: writes::Writes,
    dirty: BTreeSet<u64>,
    mixed: bool,
    /// A group of data or trees became empty since unused groups were last deleted.
    emptied: bool,
    /// The profile of new allocations of a class, while the class is being converted.
    targets: [Option<u64>; 4],
    /// Closed groups that the next commit deletes if they are empty.
    leaving: BTreeSet<u64>,
    /// Groups on devices that cannot be written.
    unwritable: BTreeSet<u64>,
}

impl SpaceState {
    fn group_at(&mut self, at: u64) -> (u64, &mut Group) {
        let (&start, group) = self.groups.range_mut(..=at).next_back().expect("an allocated address is in a group");
        assert!(at < start + group.length, "address {at} is in no block group");
        (start, group)
    }

    fn close(&mut self, streams: &[Stream]) {
        for free in self.groups.values_mut().filter_map(|group| group.free.as_mut()) {
            streams.iter().for_each(|stream| free.close(*stream));
        }
    }

    fn has_rows(&self, class: Class) -> bool {
        self.sums[class as usize].with_rows > 0
    }

    fn allocate_block(&mut self, class: Class, stream: Stream, sharing: Sharing, len: u64) -> Found {
        match self.targets[class as usize].map(|target| self.find_block(class, stream, sharing, len, Some(target))) {
            Some(found) if found != Found::Nothing => found,
            _ => self.find_block(class, stream, sharing, len, None),
        }
    }

    /// The same in groups of one profile, or of any.
    fn find_block(&mut self, class: Class, stream: Stream, sharing: Sharing, len: u64, profile: Option<u64>) -> Found {
        let hint = self.hint[class as usize];
        let first = self.groups.range(..=hint).next_back().map_or(0, |(&start, _)| start);
        let (mut unloaded, mut from) = (None, Some(first));
        // From the group that served last to the end, then from the beginning.
        for wrapped in [false, true] {
            while let Some(start) = from.filter(|&start| !wrapped || start < first) {
                let group = self.groups.get_mut(&start);
                let fits = |group: &&mut Group| {
                    group.class == class && group.allocatable() >= len && group.has_profile(profile)
                };
                if let Some(group) = group.filter(fits) {
                    match &mut group.free {
                        None => unloaded = unloaded.or(Some(start)),
                        Some(free) => {
                            if let Some(at) = free.take_aligned(stream, sharing, len, hint) {
                                self.free[class as usize] -= len;
                                self.hint[class as usize] = at + len;
                                return Found::Extent(Logical(at), len);
                            }
                        }
                    }
                }
                from = self.groups.range(start + 1..).next().map(|(&start, _)| start);
            }
            from = self.groups.keys().next().copied();
        }
        unloaded.map_or(Found::Nothing, |start| Found::Load(Logical(start)))
    }

    fn allocate_extent(&mut self, class: Class, (want, min): (u64, u64), by: (Stream, Sharing)) -> Found {
        match self.targets[class as usize].map(|target| self.find_extent(class, (want, min), by, Some(target))) {
            Some(found) if found != Found::Nothing => found,
            _ => self.find_extent(class, (want, min), by, None),
        }
    }

    /// The same in groups of one profile, or of any.
    fn find_extent(
        &mut self,
        class: Class,
        (want, min): (u64, u64),
        (stream, sharing): (Stream, Sharing),
        profile: Option<u64>,
    ) -> Found {
        let hint = self.hint[class as usize];
        let first = self.groups.range(..=hint).next_back().map_or(0, |(&start, _)| start);
        let order: Vec<u64> = self
            .groups
            .range(first..)
            .chain(self.groups.range(..first))
            .filter(|(_, group)| group.class == class && group.allocatable() >= min && group.has_profile(profile))
            .map(|(&start, _)| start)
            .collect();
        // A whole run wherever there is one, before any fragment; but a group must be loaded to know.
        for (want_at_least, fragments) in [(want, false), (min, true)] {
            for &start in &order {
                let group = self.groups.get_mut(&start).expect("just listed");
                if !fragments && group.allocatable() < want {
                    continue;
                }
                let Some(free) = &mut group.free else { return Found::Load(Logical(start)) };
                if let Some((at, len)) = free.take_best_fit(stream, sharing, want, want_at_least) {
                    self.free[class as usize] -= len;
                    self.hint[class as usize] = start;
                    return Found::Extent(Logical(at), len);
                }
            }
        }
        Found::Nothing
    }

    /// Puts an unused allocation back; returns its class.
    fn give_back(&mut self, at: Logical, len: u64) -> usize {
        let (_, group) = self.group_at(at.0);
        let class = group.class as usize;
        // An allocation comes from a loaded group, and a loaded group stays loaded.
        let before = group.allocatable();
        group.free.as_mut().expect("allocated from a loaded group").insert(at.0, len);
        self.free[class] += group.allocatable() - before;
        class
    }

    /// The runs that become free when `generation` is durable. They stay pinned until the caller says more of them.
    fn released_by(&mut self, generation: Generation) -> Vec<(u64, u64)> {
        let later = self.pins.split_off(&generation.next());
        let released = std::mem::replace(&mut self.pins, later);
        released.into_values().flatten().filter(|run| !self.keep_if_held(*run)).collect()
    }

    /// A run that was pinned becomes free.
    fn free_pinned(&mut self, (at, len): (u64, u64)) {
        // A group can be gone by now (removed when empty).
        let Some((&start, group)) = self.groups.range_mut(..=at).next_back() else { return };
        if at >= start + group.length {
            return;
        }
        let (class, before) = (group.class as usize, group.allocatable());
        group.pinned -= len;
        if let Some(free) = &mut group.free {
            // Of extents that overlap on a damaged disk, one may have come back already.
            free.remove(at, len);
            free.insert(at, len);
            group.excluded.iter().for_each(|range| free.remove(range.start, range.end - range.start));
        }
        let gained = group.allocatable() - before;
        let emptied = group.used == 0 && group.pinned == 0 && matches!(group.class, Class::Data | Class::Metadata);
        self.free[class] += gained;
        self.emptied |= emptied;
    }

    fn resolve(&self, class: Class) -> Class {
        match class {
            Class::Data | Class::Metadata if self.mixed => Class::Mixed,
            class => class,
        }
    }
}

/// See the [module](self).
pub struct Space {
    state: Mutex<SpaceState, { order::SPACE }>,
    /// Writes of data have ended.
    written: Condvar,
    nodesize: u64,
}

/// The result of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Here, this many bytes.
    Extent(Logical, u64),
    /// This group may have some, but must be loaded first.
    Load(Logical),
    /// Nothing.
    Nothing,
}

/// The outcome of a claim to certain bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// They are the caller's.
    Yes,
    /// They are not all free, or not in a group of the class.
    No,
    /// This group must be loaded first.
    Load(Logical),
}

impl Space {
    /// No groups yet.
    pub fn new(nodesize: u32) -> Space {
        Space { state: Mutex::default(), written: Condvar::default(), nodesize: u64::from(nodesize) }
    }

    /// Begins again with these groups, what is excluded in each, and the data columns of its rows; what is reserved
    /// stays reserved.
    pub fn start_again(&self, groups: impl Iterator<Item = (GroupInfo, Vec<Range<Logical>>, u64)>) {
        let mut state = self.state.lock();
        let writes = std::mem::take(&mut state.writes);
        *state = SpaceState { reserved: state.reserved, targets: state.targets, writes, ..SpaceState::default() };
        drop(state);
        groups.for_each(|(info, excluded, columns)| self.add_group_in_rows(info, &excluded, false, columns));
    }

    /// Adds a group. `free` is `Some` for one whose whole content is known (a new one).
    pub fn add_group(&self, info: GroupInfo, excluded: &[Range<Logical>], new: bool) {
        self.add_group_in_rows(info, excluded, new, 0);
    }

    /// The same for a group with parity, whose rows have so many data columns; 0 for one without.
    pub fn add_group_in_rows(&self, info: GroupInfo, excluded: &[Range<Logical>], new: bool, columns: u64) {
        let class = Class::of(info.flags).expect("the tree checker has seen the flags");
        let excluded: Vec<Range<u64>> = excluded.iter().map(|range| range.start.0..range.end.0).collect();
        let excluded_bytes = merged_len(&excluded);
        let (start, length, flags, used) = (info.start.0, info.length, info.flags, info.used);
        let (free, pinned, closed) = (None, 0, false);
        let mut group = Group { length, flags, class, columns, used, free, excluded, excluded_bytes, pinned, closed };
        if new {
            let mut free = FreeSpace::new(start, columns);
            free.insert(start, length);
            group.excluded.iter().for_each(|range| free.remove(range.start, range.end - range.start));
            group.free = Some(free);
        }
        let mut state = self.state.lock();
        state.mixed |= class == Class::Mixed;
        state.free[class as usize] += group.allocatable();
        if new {
            state.dirty.insert(start);
        }
        let sum = &mut state.sums[class as usize];
        sum.length += length;
        sum.used += used;
        sum.with_rows += usize::from(columns > 0);
        state.groups.insert(start, group);
    }

    /// Whether data and trees share groups.
    pub fn is_mixed(&self) -> bool {
        self.state.lock().mixed
    }

    /// The group that holds `at`.
    pub fn group_of(&self, at: Logical) -> Option<GroupInfo> {
        let state = self.state.lock();
        let (&start, group) = state.groups.range(..=at.0).next_back()?;
        (at.0 < start + group.length).then(|| info(start, group))
    }

    /// All groups.
    pub fn groups(&self) -> Vec<GroupInfo> {
        self.state.lock().groups.iter().map(|(&start, group)| info(start, group)).collect()
    }

    /// A group has other flags of the same class from now on.
    pub fn set_flags(&self, start: Logical, flags: u64) {
        if let Some(group) = self.state.lock().groups.get_mut(&start.0) {
            group.flags = flags;
        }
    }

    /// The ranges of a group that may hold something: everything that is neither free nor excluded. `None` while it is
    /// not loaded, or is gone.
    pub fn occupied(&self, start: Logical) -> Option<Vec<(Logical, u64)>> {
        let state = self.state.lock();
        let group = state.groups.get(&start.0)?;
        let free = group.free.as_ref()?.iter().map(|(at, len)| at..at + len);
        let mut absent: Vec<Range<u64>> = free.chain(group.excluded.iter().cloned()).collect();
        absent.sort_by_key(|range| range.start);
        let (mut at, end) = (start.0, start.0 + group.length);
        absent.push(end..end);
        let mut found = Vec::new();
        for range in absent {
            if range.start > at {
                found.push((Logical(at), range.start - at));
            }
            at = at.max(range.end);
        }
        Some(found)
    }

    /// Whether a group's free runs are known.
    pub fn is_loaded(&self, start: Logical) -> bool {
        self.state.lock().groups.get(&start.0).is_some_and(|group| group.free.is_some())
    }

    /// Fills in a group's free runs, as the trees of the running transaction list them. What is pinned or excluded
    /// is taken out here.
    pub fn load(&self, start: Logical, runs: &[(u64, u64)]) {
        let mut state = self.state.lock();
        let pins = state.pins.values().flatten().chain(&state.holds.waiting).chain(&state.discarding);
        let pins: Vec<(u64, u64)> = pins.copied().collect();
        let Some(group) = state.groups.get_mut(&start.0) else { return };
        if group.free.is_some() {
            return;
        }
        let before = group.allocatable();
        let mut free = FreeSpace::new(start.0, group.columns);
        runs.iter().for_each(|&(at, len)| free.insert(at, len));
        group.excluded.iter().for_each(|range| free.remove(range.start, range.end - range.start));
        let group_range = start.0..start.0 + group.length;
        pins.iter().filter(|(at, _)| group_range.contains(at)).for_each(|&(at, len)| free.remove(at, len));
        group.free = Some(free);
        let (class, after) = (group.class as usize, group.allocatable());
        state.free[class] = state.free[class] - before + after;
    }

    /// A group of `class` to load, where those that are loaded have less than `least` bytes to allocate.
    pub fn group_to_load(&self, class: Class, least: u64) -> Option<GroupInfo> {
        let state = self.state.lock();
        let class = state.resolve(class);
        let of_class = || state.groups.iter().filter(|(_, group)| group.class == class && group.allocatable() > 0);
        let loaded: u64 =
            of_class().filter(|(_, group)| group.free.is_some()).map(|(_, group)| group.allocatable()).sum();
        let next = of_class().find(|(_, group)| group.free.is_none()).filter(|_| loaded < least);
        next.map(|(start, group)| info(*start, group))
    }

    /// About where the next tree blocks are going to be allocated.
    pub fn next_nodes(&self) -> [Logical; 2] {
        let state = self.state.lock();
        [Class::Metadata, Class::System].map(|class| Logical(state.hint[state.resolve(class) as usize]))
    }

    /// Allocates one tree block, aligned to its size; where parity allows it and there is room, away from what is
    /// needed.
    pub fn allocate_node(&self, class: Class) -> Found {
        self.allocate_block(class, Stream::Trees)
    }

    /// The same, for a log.
    pub fn allocate_log_node(&self) -> Found {
        self.allocate_block(Class::Metadata, Stream::Logs)
    }

    fn allocate_block(&self, class: Class, stream: Stream) -> Found {
        let mut state = self.state.lock();
        let class = state.resolve(class);
        match state.allocate_block(class, stream, Sharing::Never, self.nodesize) {
            Found::Nothing if state.has_rows(class) => {
                state.allocate_block(class, stream, Sharing::Allowed, self.nodesize)
            }
            found => found,
        }
    }

    /// Allocates up to `want` contiguous bytes, at least `min`, for `stream`.
    pub fn allocate_extent(&self, class: Class, want: u64, min: u64, (stream, sharing): (Stream, Sharing)) -> Found {
        let mut state = self.state.lock();
        let class = state.resolve(class);
        let found = state.allocate_extent(class, (want, min), (stream, sharing));
        if let (Found::Extent(at, _), Stream::Data) = (found, stream) {
            state.begin_write(at);
        }
        found
    }

    /// The same of exactly `len` bytes in groups of one profile only.
    pub fn allocate_extent_of(&self, class: Class, len: u64, by: (Stream, Sharing), profile: u64) -> Found {
        let mut state = self.state.lock();
        let class = state.resolve(class);
        let found = state.find_extent(class, (len, len), by, Some(profile));
        if let (Found::Extent(at, _), Stream::Data) = (found, by.0) {
            state.begin_write(at);
        }
        found
    }

    /// Bytes of the class that serves `class` that are free in slices of which nothing is in use; of groups that are
    /// not loaded all that is free.
    pub fn fresh(&self, class: Class) -> u64 {
        let state = self.state.lock();
        let class = state.resolve(class);
        let groups = state.groups.values().filter(|group| group.class == class);
        groups.map(|group| group.free.as_ref().map_or_else(|| group.allocatable(), FreeSpace::fresh)).sum()
    }

    /// Whether the class that serves `class` has groups with parity.
    pub fn has_rows(&self, class: Class) -> bool {
        let state = self.state.lock();
        state.has_rows(state.resolve(class))
    }

    /// Closes the slices of these streams, whose data is about to be needed.
    pub fn close(&self, streams: &[Stream]) {
        self.state.lock().close(streams);
    }

    /// Whether all of `len` bytes at `at` is known to be free.
    pub fn is_free(&self, at: Logical, len: u64) -> bool {
        let state = self.state.lock();
        let group = state.groups.range(..=at.0).next_back();
        group.is_some_and(|(_, group)| group.free.as_ref().is_some_and(|free| free.covers(at.0, len)))
    }

    /// Takes exactly these bytes, which somebody wrote whom the trees do not know (a log), out of what is free in a
    /// group of `class`.
    pub fn claim(&self, class: Class, at: Logical, len: u64) -> Claimed {
        let mut state = self.state.lock();
        let class = state.resolve(class);
        let Some((&start, group)) = state.groups.range_mut(..=at.0).next_back() else { return Claimed::No };
        let inside = at.0.checked_add(len).is_some_and(|end| end <= start + group.length);
        if !inside || group.class != class {
            return Claimed::No;
        }
        let Some(free) = &mut group.free else { return Claimed::Load(Logical(start)) };
        if !free.covers(at.0, len) {
            return Claimed::No;
        }
        free.remove(at.0, len);
        let lost = if group.closed { 0 } else { len };
        state.free[class as usize] -= lost;
        Claimed::Yes
    }

    /// Takes one block of a log where the caller had one before. Skips otherwise empty groups, which are about to be
    /// deleted, closed ones, and places that share parity with what is needed.
    pub fn retake_node(&self, class: Class, at: Logical) -> bool {
        let holds_more = self.group_of(at).is_some_and(|group| group.used > 0);
        holds_more && self.reclaim(class, at, self.nodesize)
    }

    fn reclaim(&self, class: Class, at: Logical, len: u64) -> bool {
        let mut state = self.state.lock();
        let class = state.resolve(class);
        let Some((_, group)) = state.groups.range_mut(..=at.0).next_back() else { return false };
        if group.class != class || group.closed {
            return false;
        }
        let Some(free) = group.free.as_mut().filter(|free| free.offers(Stream::Logs, at.0, len)) else { return false };
        free.take(Stream::Logs, at.0, len, true);
        state.free[class as usize] -= len;
        true
    }

    /// Gives back what was allocated and never written or never recorded.
    pub fn give_back(&self, at: Logical, len: u64) {
        self.state.lock().give_back(at, len);
    }

    /// The same, and reserves it for whom it was reserved before.
    pub fn give_back_reserved(&self, at: Logical, len: u64) {
        let mut state = self.state.lock();
        let class = state.give_back(at, len);
        state.reserved[class] += len;
    }

    /// Records that `len` bytes at `at` have an extent item from now on.
    pub fn account_allocated(&self, at: Logical, len: u64) {
        let mut state = self.state.lock();
        let (start, group) = state.group_at(at.0);
        let (class, before) = (group.class as usize, group.allocatable());
        group.used += len;
        let after = group.allocatable();
        state.sums[class].used += len;
        state.free[class] = state.free[class] - before + after;
        state.dirty.insert(start);
    }

    /// Records that the extent item is gone; the bytes are pinned for `generation`. False, and nothing done, when they
    /// are not in one group, are free already, or are more than the group has in use: extent items come from disk.
    pub fn account_freed(&self, at: Logical, len: u64, generation: Generation) -> bool {
        let mut state = self.state.lock();
        let Some((&start, group)) = state.groups.range_mut(..=at.0).next_back() else { return false };
        let inside = at.0.checked_add(len).is_some_and(|end| end <= start + group.length);
        let is_free = group.free.as_ref().is_some_and(|free| free.touches(at.0, len));
        if !inside || is_free || group.used < len {
            return false;
        }
        let (class, before) = (group.class as usize, group.allocatable());
        group.used -= len;
        group.pinned += len;
        let after = group.allocatable();
        state.sums[class].used -= len;
        state.free[class] = state.free[class] - before + after;
        state.dirty.insert(start);
        state.pins.entry(generation).or_default().push((at.0, len));
        true
    }

    /// Pins bytes that never had an extent item (data written and dropped within one transaction).
    pub fn pin(&self, at: Logical, len: u64, generation: Generation) {
        let mut state = self.state.lock();
        let (_, group) = state.group_at(at.0);
        // The group is loaded: the bytes were allocated from it.
        group.pinned += len;
        state.pins.entry(generation).or_default().push((at.0, len));
    }

    /// Bytes that wait for `generation` or an earlier one to become durable.
    pub fn pinned_bytes(&self) -> u64 {
        self.state.lock().pins.values().flatten().map(|(_, len)| len).sum()
    }

    /// `generation` is durable: what it and earlier ones freed may be used again. Returns the runs that are free now.
    pub fn release(&self, generation: Generation) -> Vec<(Logical, u64)> {
        let mut state = self.state.lock();
        let runs = state.released_by(generation);
        runs.iter().for_each(|run| state.free_pinned(*run));
        state.steer_trees();
        runs.into_iter().map(|(at, len)| (Logical(at), len)).collect()
    }

    /// Groups whose `used` changed since the last call.
    pub fn take_dirty(&self) -> Vec<GroupInfo> {
        let mut state = self.state.lock();
        let dirty = std::mem::take(&mut state.dirty);
        dirty.iter().filter_map(|start| state.groups.get(start).map(|group| info(*start, group))).collect()
    }

    /// Whether some group's `used` changed.
    pub fn has_dirty(&self) -> bool {
        !self.state.lock().dirty.is_empty()
    }

    /// Reserves `bytes` of `class` if `floor` more bytes than all reservations remain free.
    pub fn reserve(&self, class: Class, bytes: u64, floor: u64) -> bool {
        let mut state = self.state.lock();
        let class = state.resolve(class) as usize;
        let enough = state.free[class] >= state.reserved[class] + bytes + floor;
        if enough {
            state.reserved[class] += bytes;
        }
        enough
    }

    /// Takes a reservation back, used or not.
    pub fn unreserve(&self, class: Class, bytes: u64) {
        let mut state = self.state.lock();
        let class = state.resolve(class) as usize;
        assert!(state.reserved[class] >= bytes, "more space is given back than was reserved");
        state.reserved[class] -= bytes;
    }

    /// Totals of the class that serves `class`.
    pub fn totals(&self, class: Class) -> ClassTotals {
        let state = self.state.lock();
        let class = state.resolve(class);
        let Sum { length, used, .. } = state.sums[class as usize];
        let (free, reserved) = (state.free[class as usize], state.reserved[class as usize]);
        ClassTotals { length, used, free, reserved, has_rows: state.has_rows(class), is_mixed: state.mixed }
    }

    /// Bytes free and not reserved in the class that serves `class`.
    pub fn available(&self, class: Class) -> u64 {
        let state = self.state.lock();
        let class = state.resolve(class) as usize;
        state.free[class].saturating_sub(state.reserved[class])
    }

    /// Sum of all groups' `used`: the superblock's `bytes_used`.
    pub fn bytes_used(&self) -> u64 {
        self.state.lock().sums.iter().map(|sum| sum.used).sum()
    }
}

fn info(start: u64, group: &Group) -> GroupInfo {
    GroupInfo { start: Logical(start), length: group.length, flags: group.flags, used: group.used }
}

fn merged_len(ranges: &[Range<u64>]) -> u64 {
    let mut sorted = ranges.to_vec();
    sorted.sort_by_key(|range| range.start);
    let mut end = 0;
    sorted.iter().fold(0, |total, range| {
        let fresh = range.end.saturating_sub(range.start.max(end));
        end = end.max(range.end);
        total + fresh
    })
}
