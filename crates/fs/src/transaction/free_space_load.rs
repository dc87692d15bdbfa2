//! Reading what is free in a block group: from the free space tree, or from the gaps of the extent tree.
//!
//! Both trees change only while a transaction freezes, and a group that is not loaded has no allocations newer
//! than what they say; what they list as free but must not be used yet is pinned, and [`Space::load`] takes it out.
//!
//! [`Space::load`]: crate::space::Space::load

use super::Core;
use crate::error::{Error, Result};
use crate::space::{Class, GroupInfo};
use butterfs_ondisk::{Key, KeyType, Logical};
use std::ops::ControlFlow;
use std::sync::Arc;

impl Core {
    /// Loads the free runs of the group that starts at `start`. No tree lock may be held, and nothing may freeze
    /// meanwhile: the caller has a handle, or is the one who freezes. A group that was deleted since it was named is
    /// nothing to load.
    pub(crate) fn load_group(&self, start: Logical) -> Result<()> {
        let Some(group) = self.space.group_of(start) else { return Ok(()) };
        let runs = self.free_runs(&group)?;
        self.space.load(group.start, &runs);
        Ok(())
    }

    /// Loads groups that tree blocks can be allocated from, so that nobody has to who holds a handle. Nothing is held.
    /// What cannot be read is for whoever needs it to report.
    pub(crate) fn load_groups_ahead(self: &Arc<Self>) {
        for (class, least) in [(Class::Metadata, 4096 * u64::from(self.nodesize())), (Class::System, 1)] {
            while let Some(group) = self.space.group_to_load(class, least) {
                if self.load_group_ahead(&group).is_err() {
                    break;
                }
            }
        }
    }

    /// Has the free runs of a group in memory. No handle and no lock may be held.
    pub(crate) fn load_whole_group(self: &Arc<Self>, group: &GroupInfo) -> Result<()> {
        if self.space.is_loaded(group.start) { Ok(()) } else { self.load_group_ahead(group) }
    }

    /// The same for the group that begins at `start`.
    pub(crate) fn load_group_at(self: &Arc<Self>, start: Logical) -> Result<()> {
        self.space.group(start).map_or(Ok(()), |group| self.load_whole_group(&group))
    }

    /// Loads a group, of which everything is read before a handle is joined.
    pub(crate) fn load_group_ahead(self: &Arc<Self>, group: &GroupInfo) -> Result<()> {
        self.free_runs(group)?;
        // Nothing settles while a handle is held.
        let _handle = self.join()?;
        self.load_group(group.start)
    }

    fn free_runs(&self, group: &GroupInfo) -> Result<Vec<(u64, u64)>> {
        if self.maintains_free_space_tree() { self.listed_runs(group) } else { self.gaps(group) }
    }

    fn listed_runs(&self, group: &GroupInfo) -> Result<Vec<(u64, u64)>> {
        let tree = self.globals().free_space.as_ref().expect("maintained trees are open");
        let (start, end) = (group.start.0, group.start.0 + group.length);
        let (from, to) = (Key::new(start, KeyType(0), 0), Key::new(end - 1, KeyType(255), u64::MAX));
        let mut runs = Runs::default();
        tree.scan(self, from, to, &mut |key, data| {
            match key.kind {
                KeyType::FREE_SPACE_EXTENT => runs.push(key.objectid, key.offset),
                KeyType::FREE_SPACE_BITMAP => runs.push_bitmap(key.objectid, data, u64::from(self.sectorsize())),
                _ => {}
            }
            Ok(ControlFlow::Continue(()))
        })?;
        runs.checked(group)
    }

    fn gaps(&self, group: &GroupInfo) -> Result<Vec<(u64, u64)>> {
        let (start, end) = (group.start.0, group.start.0 + group.length);
        let (from, to) = (Key::new(start, KeyType(0), 0), Key::new(end - 1, KeyType(255), u64::MAX));
        let mut runs = Runs::default();
        let mut free_from = start;
        self.globals().extent.scan(self, from, to, &mut |key, _| {
            let len = match key.kind {
                KeyType::EXTENT_ITEM => key.offset,
                KeyType::METADATA_ITEM => u64::from(self.nodesize()),
                _ => return Ok(ControlFlow::Continue(())),
            };
            if key.objectid > free_from {
                runs.push(free_from, key.objectid - free_from);
            }
            free_from = free_from.max(key.objectid.saturating_add(len));
            Ok(ControlFlow::Continue(()))
        })?;
        if end > free_from {
            runs.push(free_from, end - free_from);
        }
        runs.checked(group)
    }
}

/// Runs in ascending order, neighbours merged.
#[derive(Default)]
struct Runs(Vec<(u64, u64)>);

impl Runs {
    fn push(&mut self, at: u64, len: u64) {
        match self.0.last_mut() {
            Some((last, last_len)) if last.saturating_add(*last_len) == at => *last_len = last_len.saturating_add(len),
            _ => self.0.push((at, len)),
        }
    }

    fn push_bitmap(&mut self, at: u64, bits: &[u8], sectorsize: u64) {
        let set = |bit: usize| bits[bit / 8] & (1 << (bit % 8)) != 0;
        let mut bit = 0;
        while bit < bits.len() * 8 {
            if !set(bit) {
                bit += 1;
                continue;
            }
            let first = bit;
            while bit < bits.len() * 8 && set(bit) {
                bit += 1;
            }
            self.push(at.saturating_add(first as u64 * sectorsize), (bit - first) as u64 * sectorsize);
        }
    }

    /// The runs, if they are inside the group and do not overlap.
    fn checked(self, group: &GroupInfo) -> Result<Vec<(u64, u64)>> {
        let mut from = group.start.0;
        let end = group.start.0 + group.length;
        for &(at, len) in &self.0 {
            let run_end = at.checked_add(len).filter(|&run_end| at >= from && run_end <= end && len > 0);
            from = run_end.ok_or_else(|| {
                Error::corrupt(format!(
                    "block group {}: the free run {at}+{len} overlaps or leaves the group",
                    group.start
                ))
            })?;
        }
        Ok(self.0)
    }
}
