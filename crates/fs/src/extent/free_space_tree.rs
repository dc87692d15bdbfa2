//! The free space tree: for each block group its free runs, as extents or as bitmaps.
//!
//! ```text
//! (start, FREE_SPACE_INFO, length)    extent_count, flags
//! (at, FREE_SPACE_EXTENT, length)     a free run; neighbours are merged, none crosses the group
//! (at, FREE_SPACE_BITMAP, length)     one bit a sector, least significant first, 1 is free; 8 MiB of 4 KiB sectors
//! ```
//!
//! # Invariants
//! 1. At every commit the runs are exactly the complement of the extent items inside each group.
//! 2. A group has only extents or only bitmaps; `extent_count` is the number of maximal runs in either form.
//! 3. The form changes at the kernel's thresholds.

use crate::error::{Error, Result};
use crate::space::GroupInfo;
use crate::transaction::{Copied, Core, Handle, Tree};
use butterfs_ondisk::items::FreeSpaceInfo;
use butterfs_ondisk::{Key, KeyType, Logical};
use std::ops::ControlFlow;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// Sectors that one bitmap item covers.
const BITMAP_SECTORS: u64 = 2048;

/// A range that got or lost its extent item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RangeChange {
    pub at: u64,
    pub len: u64,
    pub allocated: bool,
}

/// Applies changes, sorted by address.
pub(super) fn apply(handle: &Handle, changes: &[RangeChange]) -> Result<()> {
    let core = handle.core();
    let Some(tree) = core.globals().free_space.as_ref().filter(|_| core.maintains_free_space_tree()) else {
        return Ok(());
    };
    let mut rest = changes;
    while let Some(first) = rest.first() {
        let group = core
            .space
            .group_of(Logical(first.at))
            .ok_or_else(|| Error::corrupt(format!("extent {} is in no block group", first.at)))?;
        let end = group.start.0 + group.length;
        let (here, later) = rest.split_at(rest.partition_point(|change| change.at < end));
        GroupRuns::open(handle, tree, group)?.apply(&coalesce(here))?;
        rest = later;
    }
    Ok(())
}

/// Has the items in memory that changes of extents at these places, which ascend, are going to change.
pub(super) fn preload(core: &Core, groups: &[GroupInfo], places: &[Logical], copied: &mut Copied) {
    let Some(tree) = core.globals().free_space.as_ref().filter(|_| core.maintains_free_space_tree()) else { return };
    tree.preload_copied(core, &groups.iter().map(info_key).collect::<Vec<_>>(), copied);
    tree.preload_copied(core, &places.iter().map(|at| behind_run_at(at.0)).collect::<Vec<_>>(), copied);
}

fn behind_run_at(at: u64) -> Key {
    Key::new(at, KeyType(KeyType::FREE_SPACE_EXTENT.0 + 1), 0)
}

fn coalesce(changes: &[RangeChange]) -> Vec<RangeChange> {
    let mut merged: Vec<RangeChange> = Vec::with_capacity(changes.len());
    for change in changes {
        match merged.last_mut() {
            Some(last) if last.at + last.len == change.at && last.allocated == change.allocated => {
                last.len += change.len
            }
            _ => merged.push(*change),
        }
    }
    merged
}

/// One group's runs, while they are edited.
struct GroupRuns<'a> {
    handle: &'a Handle,
    tree: &'a Arc<Tree>,
    group: GroupInfo,
    sector: u64,
    count: u32,
    bitmaps: bool,
}

impl<'a> GroupRuns<'a> {
    fn open(handle: &'a Handle, tree: &'a Arc<Tree>, group: GroupInfo) -> Result<GroupRuns<'a>> {
        let key = info_key(&group);
        let item = tree.get(handle.core(), key)?;
        let info = item.and_then(|item| FreeSpaceInfo::read_from_bytes(&item).ok());
        let info = info.ok_or_else(|| Error::corrupt(format!("free space tree: no usable summary at {key}")))?;
        Ok(GroupRuns {
            handle,
            tree,
            group,
            sector: u64::from(handle.core().sectorsize()),
            count: info.extent_count.get(),
            bitmaps: info.flags.get() & FreeSpaceInfo::USING_BITMAPS != 0,
        })
    }

    fn end(&self) -> u64 {
        self.group.start.0 + self.group.length
    }

    fn apply(mut self, changes: &[RangeChange]) -> Result<()> {
        let group_end = self.end();
        for change in changes {
            let RangeChange { at, len, allocated } = *change;
            if at + len > group_end {
                return Err(Error::corrupt(format!("extent {at}+{len} leaves its block group")));
            }
            match (self.bitmaps, allocated) {
                (false, true) => self.take_extent(at, len)?,
                (false, false) => self.give_extent(at, len)?,
                (true, _) => self.change_bits(at, len, !allocated)?,
            }
            self.change_form()?;
        }
        let info = FreeSpaceInfo {
            extent_count: self.count.into(),
            flags: if self.bitmaps { FreeSpaceInfo::USING_BITMAPS } else { 0 }.into(),
        };
        self.tree.replace(self.handle, info_key(&self.group), info.as_bytes())?;
        Ok(())
    }

    fn wrong(&self, what: &str, at: u64, len: u64) -> Error {
        Error::corrupt(format!("free space tree: group {}: {at}+{len} {what}", self.group.start))
    }

    /// The run that starts at or before `at`, if it is this group's.
    fn run_before(&self, at: u64) -> Result<Option<(u64, u64)>> {
        let found = self.tree.last_before(self.handle.core(), behind_run_at(at))?;
        let own = |key: &Key| key.kind == KeyType::FREE_SPACE_EXTENT && key.objectid >= self.group.start.0;
        let Some((key, _)) = found.filter(|(key, _)| own(key)) else { return Ok(None) };
        self.must_be_inside(&key)?;
        Ok(Some((key.objectid, key.offset)))
    }

    fn must_be_inside(&self, key: &Key) -> Result<()> {
        let inside = key.objectid.checked_add(key.offset).is_some_and(|end| end <= self.end());
        if inside { Ok(()) } else { Err(self.wrong("is listed, but leaves the group", key.objectid, key.offset)) }
    }

    fn take_extent(&mut self, at: u64, len: u64) -> Result<()> {
        let run = self.run_before(at)?.filter(|&(run, run_len)| at + len <= run + run_len);
        let (run, run_len) = run.ok_or_else(|| self.wrong("is allocated, but was not free", at, len))?;
        self.tree.remove(self.handle, run_key(run, run_len))?;
        self.count_runs(-1)?;
        for (at, len) in [(run, at - run), (at + len, run + run_len - at - len)] {
            if len > 0 {
                self.tree.insert(self.handle, run_key(at, len), &[])?;
                self.count_runs(1)?;
            }
        }
        Ok(())
    }

    fn count_runs(&mut self, change: i32) -> Result<()> {
        let count = self.count.checked_add_signed(change);
        self.count = count.ok_or_else(|| self.wrong("makes an impossible number of runs", self.group.start.0, 0))?;
        Ok(())
    }

    fn give_extent(&mut self, mut at: u64, mut len: u64) -> Result<()> {
        let end = at + len;
        if let Some((run, run_len)) = self.run_before(end.min(self.end() - 1))? {
            if run < end && run + run_len > at {
                return Err(self.wrong("is freed, but was free already", at, len));
            }
            if run == end {
                self.tree.remove(self.handle, run_key(run, run_len))?;
                self.count_runs(-1)?;
                len += run_len;
            }
        }
        if let Some((run, run_len)) = self.run_before(at)? {
            if run + run_len > at {
                return Err(self.wrong("is freed, but was free already", at, len));
            }
            if run + run_len == at {
                self.tree.remove(self.handle, run_key(run, run_len))?;
                self.count_runs(-1)?;
                (at, len) = (run, run_len + len);
            }
        }
        if !self.tree.insert(self.handle, run_key(at, len), &[])? {
            return Err(self.wrong("is freed, but was free already", at, len));
        }
        self.count_runs(1)
    }

    fn bitmap_span(&self) -> u64 {
        BITMAP_SECTORS * self.sector
    }

    /// Whether the sector at `at` is free; false outside the group.
    fn bit(&self, at: u64) -> Result<bool> {
        if at < self.group.start.0 || at >= self.end() {
            return Ok(false);
        }
        let (key, index) = self.bitmap_of(at);
        let item = self.tree.get(self.handle.core(), key)?;
        let byte = item.as_ref().and_then(|item| item.get(index / 8));
        byte.map(|byte| byte & (1 << (index % 8)) != 0).ok_or_else(|| self.wrong("has no bitmap", at, self.sector))
    }

    /// The key of the bitmap with `at`'s bit, and the bit's number in it.
    fn bitmap_of(&self, at: u64) -> (Key, usize) {
        let start = self.group.start.0 + (at - self.group.start.0) / self.bitmap_span() * self.bitmap_span();
        let len = self.bitmap_span().min(self.end() - start);
        (Key::new(start, KeyType::FREE_SPACE_BITMAP, len), ((at - start) / self.sector) as usize)
    }

    fn change_bits(&mut self, at: u64, len: u64, free: bool) -> Result<()> {
        let before = at > self.group.start.0 && self.bit(at - self.sector)?;
        let behind = self.bit(at + len)?;
        let mut from = at;
        while from < at + len {
            let (key, first) = self.bitmap_of(from);
            let to = (at + len).min(key.objectid + key.offset);
            let bits = first..first + ((to - from) / self.sector) as usize;
            let changed = self.tree.update(self.handle, key, |data| set_bits(data, bits, free))?;
            if changed != Some(true) {
                let what = if free { "is freed, but was free already" } else { "is allocated, but was not free" };
                return Err(self.wrong(what, from, to - from));
            }
            from = to;
        }
        // A run of free sectors appears, grows, joins two, or the reverse.
        let joined = i64::from(before) + i64::from(behind);
        let change = if free { 1 - joined } else { joined - 1 };
        self.count = self
            .count
            .checked_add_signed(change as i32)
            .ok_or_else(|| self.wrong("brings the number of runs below zero", at, len))?;
        Ok(())
    }

    fn change_form(&mut self) -> Result<()> {
        let (low, high) = thresholds(self.group.length, self.sector);
        if !self.bitmaps && self.count > high {
            self.become_bitmaps()?;
        } else if self.bitmaps && self.count < low {
            self.become_extents()?;
        }
        Ok(())
    }

    fn become_bitmaps(&mut self) -> Result<()> {
        let runs = self.collect_and_remove(KeyType::FREE_SPACE_EXTENT)?;
        let mut start = self.group.start.0;
        let mut runs = runs.iter().map(|(key, _)| (key.objectid, key.offset)).peekable();
        let mut open: Option<(u64, u64)> = None;
        while start < self.end() {
            let len = self.bitmap_span().min(self.end() - start);
            let mut bits = vec![0; (len / self.sector).div_ceil(8) as usize];
            while let Some((at, run_len)) = open.take().or_else(|| runs.next_if(|&(at, _)| at < start + len)) {
                let to = (at + run_len).min(start + len);
                let range = ((at - start) / self.sector) as usize..((to - start) / self.sector) as usize;
                set_bits(&mut bits, range, true);
                if to < at + run_len {
                    open = Some((to, at + run_len - to));
                    break;
                }
            }
            self.tree.insert(self.handle, Key::new(start, KeyType::FREE_SPACE_BITMAP, len), &bits)?;
            start += len;
        }
        self.bitmaps = true;
        Ok(())
    }

    fn become_extents(&mut self) -> Result<()> {
        let bitmaps = self.collect_and_remove(KeyType::FREE_SPACE_BITMAP)?;
        let mut open: Option<(u64, u64)> = None;
        for (key, data) in bitmaps {
            for bit in 0..(key.offset / self.sector) as usize {
                let at = key.objectid + bit as u64 * self.sector;
                if data.get(bit / 8).is_some_and(|byte| byte & (1 << (bit % 8)) != 0) {
                    open = Some(open.map_or((at, self.sector), |(run, len)| (run, len + self.sector)));
                } else if let Some((run, len)) = open.take() {
                    self.tree.insert(self.handle, run_key(run, len), &[])?;
                }
            }
        }
        if let Some((run, len)) = open {
            self.tree.insert(self.handle, run_key(run, len), &[])?;
        }
        self.bitmaps = false;
        Ok(())
    }

    fn collect_and_remove(&self, kind: KeyType) -> Result<Vec<(Key, Vec<u8>)>> {
        let (from, to) = (Key::new(self.group.start.0, kind, 0), Key::new(self.end() - 1, kind, u64::MAX));
        let mut items = Vec::new();
        self.tree.scan(self.handle.core(), from, to, &mut |key, data| {
            if key.kind == kind {
                items.push((key, data.to_vec()));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let mut from = self.group.start.0;
        for (key, data) in &items {
            self.must_be_inside(key)?;
            let is_short = kind == KeyType::FREE_SPACE_BITMAP && (data.len() as u64) < key.offset / self.sector / 8;
            if key.objectid < from || is_short {
                return Err(self.wrong("overlaps another one, or has too few bits", key.objectid, key.offset));
            }
            from = key.objectid + key.offset;
            self.tree.remove(self.handle, *key)?;
        }
        Ok(items)
    }
}

fn info_key(group: &GroupInfo) -> Key {
    Key::new(group.start.0, KeyType::FREE_SPACE_INFO, group.length)
}

fn run_key(at: u64, len: u64) -> Key {
    Key::new(at, KeyType::FREE_SPACE_EXTENT, len)
}

/// Below how many runs a group goes back to extents, and above how many it goes to bitmaps.
fn thresholds(length: u64, sector: u64) -> (u32, u32) {
    let bitmaps = length.div_ceil(BITMAP_SECTORS * sector);
    let high = u32::try_from(bitmaps * 281 / 25).unwrap_or(u32::MAX);
    (high.saturating_sub(100), high)
}

/// Sets or clears bits; false, with nothing promised about the rest, when one of them has the value already.
fn set_bits(data: &mut [u8], bits: std::ops::Range<usize>, value: bool) -> bool {
    if bits.end > data.len() * 8 {
        return false;
    }
    for bit in bits {
        let mask = 1 << (bit % 8);
        if (data[bit / 8] & mask != 0) == value {
            return false;
        }
        data[bit / 8] ^= mask;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_the_kernels() {
        let cases: [(u64, u32, u32); 6] = [
            (8 << 20, 0, 11),
            (32 << 20, 0, 44),
            (112 << 20, 57, 157),
            (256 << 20, 259, 359),
            (1 << 30, 1338, 1438),
            (10 << 30, 14287, 14387),
        ];
        for (length, low, high) in cases {
            assert_eq!(thresholds(length, 4096), (low, high), "{length}");
        }
    }

    #[test]
    fn touching_ranges_of_one_kind_become_one() {
        let change = |at, len, allocated| RangeChange { at, len, allocated };
        let merged = coalesce(&[change(0, 4, true), change(4, 4, true), change(8, 4, false), change(16, 4, false)]);
        assert_eq!(merged, [change(0, 8, true), change(8, 4, false), change(16, 4, false)]);
    }

    #[test]
    fn setting_a_bit_twice_is_noticed() {
        let mut data = [0u8; 2];
        assert!(set_bits(&mut data, 3..11, true));
        assert_eq!(data, [0b1111_1000, 0b0000_0111]);
        assert!(!set_bits(&mut data, 2..4, true));
        assert!(!set_bits(&mut data, 15..17, true));
    }
}
