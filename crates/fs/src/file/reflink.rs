//! Copying by sharing extents.
//!
//! Inline content of a small file is copied. Otherwise the target's items get the source's extents and one
//! reference each. What is buffered of the source when the copy begins is written back first; writes to it that run
//! beside the copy are seen or not, as beside any copy. Writes to the target wait.

use super::extents::FileContext;
use super::recording::Booking;
use super::{Files, buffer::MAX_FILE_SIZE};
use crate::error::{Errno, Error, Result};
use crate::extent::TreeItems;
use crate::file_extent::{ExtentKind, FileExtent};
use crate::inode::Inode;
use crate::transaction::{Handle, Reserve};
use butterfs_ondisk::items::inode_flags;
use butterfs_sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// Extents of the source that one step shares.
const SHARED_PER_STEP: usize = 12;
/// Extents of the target that one step drops.
const DROPPED_PER_STEP: usize = 16;

/// A range of one file that becomes the content of another, or of another place in the same one.
pub(super) struct Sharing<'a> {
    pub from: &'a Arc<Inode>,
    pub into: &'a Arc<Inode>,
    pub source: u64,
    pub target: u64,
    /// Bytes, up to the end of the source perhaps in the middle of a sector.
    pub len: u64,
    /// The target's content and times stay.
    pub silent: bool,
}

/// Both inodes, locked in the order of their numbers; the source is in neither when it is the target.
pub(super) struct Locks<'a> {
    _first: Option<RwLockReadGuard<'a, ()>>,
    _into: RwLockWriteGuard<'a, ()>,
    _last: Option<RwLockReadGuard<'a, ()>>,
}

impl<'a> Sharing<'a> {
    /// Items that one step changes, about.
    pub const ITEMS: u64 = (2 * SHARED_PER_STEP + DROPPED_PER_STEP + 8) as u64;

    /// Locks both. The source must not be deleted: then its extents may be free already.
    pub fn lock(&self) -> Result<Locks<'a>> {
        let same = Arc::ptr_eq(self.from, self.into);
        let source_first = self.from.id() < self.into.id();
        let first = if source_first { Some(self.from.lock_shared()?) } else { None };
        let into = self.into.lock_extents()?;
        let last = if source_first || same { None } else { Some(self.from.lock_shared()?) };
        Ok(Locks { _first: first, _into: into, _last: last })
    }
}

impl Files {
    /// Lets `target` of `into` share the extents of `source` of `from`, as far as that is possible: whole sectors,
    /// and the last one of the source where nothing of the target is behind it. Returns how many bytes; 0 when
    /// nothing can be shared. The target loses its capabilities, and with `set_id` its set-id bits.
    pub fn share_range(
        &self,
        (from, source): (&Arc<Inode>, u64),
        (into, target): (&Arc<Inode>, u64),
        len: u64,
        set_id: bool,
    ) -> Result<u64> {
        self.must_be_writable(into)?;
        let aligned = source.is_multiple_of(self.sector()) && target.is_multiple_of(self.sector());
        if !aligned || !self.may_share(from, into) || target.checked_add(len).is_none_or(|end| end > MAX_FILE_SIZE) {
            return Ok(0);
        }
        let same = Arc::ptr_eq(from, into);
        // A write that moved the target's end meanwhile would leave in the sector of the old end what was cut off
        // there.
        let _whole = into.data.whole.write();
        let _mappings = self.lock_mappings(from, into);
        let size = from.size();
        let len = len.min(size.saturating_sub(source));
        let ends_both = source + len == size && target + len >= into.size();
        let len = if ends_both { len } else { self.round_down(len) };
        if len == 0 || (same && source.abs_diff(target) < self.round_up(len)) {
            return Ok(0);
        }
        self.write_back_locked(from)?;
        self.write_back_locked(into)?;
        if self.is_inline(from)? {
            return self.copy_inline((from, source), (into, target), len, set_id);
        }
        if target > 0 && (target > into.size() || self.is_inline(into)?) {
            self.rewrite_tail(into)?;
        }
        let sharing = Sharing { from, into, source, target, len, silent: false };
        let mut done = 0;
        while done < len {
            done = self.share_step(&sharing, done, set_id)?;
        }
        Ok(len)
    }

    /// Whether the files have checksums, both or neither.
    pub fn may_share(&self, from: &Inode, into: &Inode) -> bool {
        let sums = |inode: &Inode| inode.with(|state| state.flags() & inode_flags::NODATASUM);
        sums(from) == sums(into)
    }

    /// The mapping locks of both, in the order of their numbers.
    pub(super) fn lock_mappings<'a>(
        &self,
        from: &'a Arc<Inode>,
        into: &'a Arc<Inode>,
    ) -> (MutexGuard<'a, ()>, Option<MutexGuard<'a, ()>>) {
        let (first, second) = if from.id() <= into.id() { (from, into) } else { (into, from) };
        let guard = first.data.lock_mapping();
        (guard, (!Arc::ptr_eq(from, into)).then(|| second.data.lock_mapping()))
    }

    /// Copies what a small file keeps in its item. The mappings are locked.
    fn copy_inline(
        &self,
        (from, source): (&Arc<Inode>, u64),
        (into, target): (&Arc<Inode>, u64),
        len: u64,
        set_id: bool,
    ) -> Result<u64> {
        let content = self.sectors(from, &(source..source + self.round_up(len)))?;
        let reservation = self.reserve_for_write(into, target, len)?;
        self.put(into, target, &content[..len as usize], reservation, Some(set_id))?;
        Ok(len)
    }

    /// Shares some more, from `done` on; returns how far it came.
    fn share_step(&self, sharing: &Sharing<'_>, done: u64, set_id: bool) -> Result<u64> {
        let (end, moves) = (self.round_up(sharing.len), self.engine.moved.count());
        let (parts, covered) = self.shareable(sharing.from, sharing.source + done..sharing.source + end)?;
        let range = sharing.target + done..sharing.target + (covered - sharing.source);
        self.preload_extents(sharing.into, &range);
        let handle = self.start(Reserve::items(Sharing::ITEMS))?;
        if self.engine.moved.count() != moves {
            // The extents may lie elsewhere now.
            return Ok(done);
        }
        let _locks = sharing.lock()?;
        let kill = (done == 0).then_some(set_id);
        let shared = self.share_under(&handle, sharing, &parts, &range, kill);
        shared.map(|stopped| (stopped - sharing.target).min(sharing.len)).inspect_err(|error| handle.failed(error))
    }

    /// The extents with data in a range of the source, a few of them, and up to where that is all.
    pub(super) fn shareable(&self, from: &Inode, range: Range<u64>) -> Result<(Vec<FileExtent>, u64)> {
        let (context, items) = self.extents(from);
        let (mut parts, mut covered) = (Vec::new(), range.end);
        context.overlapping(&items, &range, &mut |extent, _| {
            if extent.kind == ExtentKind::Inline {
                return Err(Error::refused(Errno::EOPNOTSUPP, "inline data is not shared"));
            }
            if extent.kind == ExtentKind::Regular && extent.is_on_disk() {
                parts.push(extent.part(&(extent.start.max(range.start)..extent.end().min(range.end))));
            }
            if parts.len() < SHARED_PER_STEP {
                return Ok(ControlFlow::Continue(()));
            }
            covered = extent.end().min(range.end);
            Ok(ControlFlow::Break(()))
        })?;
        Ok((parts, covered))
    }

    /// Replaces a first part of `range` of the target; returns where it stopped. With `kill` the target loses
    /// privileges.
    pub(super) fn share_under(
        &self,
        handle: &Handle,
        sharing: &Sharing<'_>,
        parts: &[FileExtent],
        range: &Range<u64>,
        kill: Option<bool>,
    ) -> Result<u64> {
        let inode = sharing.into;
        let now = self.engine.env().now();
        let context: FileContext = self.context(inode, handle.generation());
        let mut items = TreeItems::editing(handle, &inode.tree);
        let mut booking = Booking::new(handle, inode);
        let stopped = context.drop_range(&mut items, range, DROPPED_PER_STEP, &mut booking)?;
        for part in parts {
            let start = sharing.target + (part.start - sharing.source);
            let len = part.len.min(stopped.saturating_sub(start));
            if len > 0 {
                context.insert(&mut items, &FileExtent { start, len, ..*part }, false, &mut booking)?;
            }
        }
        if let Some(set_id) = kill {
            inode.kill_privileges(handle, set_id)?;
        }
        inode.data.with(|buffer| {
            buffer.dirty.cut(range.start..stopped);
            buffer.trim_reservation();
        });
        let end = stopped.min(sharing.target + sharing.len);
        inode.change(|state| {
            state.size = state.size.max(end);
            if !sharing.silent {
                state.touch_content(now);
            }
        });
        let recorded = self.round_up(inode.with(|state| state.item.size.get()));
        context.fill_gaps(&mut items, &(range.start..stopped.min(recorded).max(range.start)))?;
        self.advance_size(inode, &context, &mut items, end, |state| booking.apply(state))?;
        Ok(stopped)
    }
}
