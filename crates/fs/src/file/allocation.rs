//! `fallocate`: preallocating, punching holes, zeroing ranges.

use super::extents::FileContext;
use super::recording::Booking;
use super::{Files, buffer::MAX_FILE_SIZE};
use crate::env::Time;
use crate::error::{Errno, Error, Result};
use crate::extent::TreeItems;
use crate::file_extent::{ExtentKind, FileExtent};
use crate::inode::Inode;
use crate::space::Stream;
use crate::transaction::{BlockSource, DataReservation, Handle, Reserve, without_waiting};
use butterfs_device::is_zero;
use butterfs_ondisk::items::inode_flags;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// The longest preallocated extent.
const LONGEST_PREALLOC: u64 = 256 << 20;
/// Extents that one step of punching drops.
const DROPS_PER_STEP: usize = 24;

/// The change that `fallocate` makes to a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocation {
    /// Give it space; the file grows unless `keep_size`.
    Allocate {
        /// Space behind the end stays behind the end.
        keep_size: bool,
    },
    /// Take its space away.
    PunchHole,
    /// Make it read as zeros without losing its space.
    ZeroRange {
        /// The file does not grow.
        keep_size: bool,
    },
}

impl Allocation {
    const KEEP_SIZE: u32 = 1;
    const PUNCH_HOLE: u32 = 2;
    const ZERO_RANGE: u32 = 16;

    /// The meaning of the `mode` of `fallocate(2)`; `EOPNOTSUPP` for what btrfs does not have.
    pub fn from_mode(mode: u32) -> Result<Allocation> {
        let keep_size = mode & Allocation::KEEP_SIZE != 0;
        match mode & !Allocation::KEEP_SIZE {
            0 => Ok(Allocation::Allocate { keep_size }),
            Allocation::PUNCH_HOLE if keep_size => Ok(Allocation::PunchHole),
            Allocation::ZERO_RANGE => Ok(Allocation::ZeroRange { keep_size }),
            _ => Err(Error::refused(Errno::EOPNOTSUPP, "this mode of fallocate is not supported")),
        }
    }
}

impl Files {
    /// Applies `what` to `range`. The file loses its capabilities, and with `set_id` its set-id bits.
    pub fn allocate_range(&self, inode: &Arc<Inode>, what: Allocation, range: Range<u64>, set_id: bool) -> Result<()> {
        if range.is_empty() {
            return Err(Error::refused(Errno::EINVAL, "the range is empty"));
        }
        self.must_be_writable(inode)?;
        if range.end > MAX_FILE_SIZE {
            return Err(Error::refused(Errno::EFBIG, "the range ends behind the largest file size"));
        }
        let append_only = inode.with(|state| state.has(inode_flags::APPEND));
        if append_only && !matches!(what, Allocation::Allocate { .. }) {
            return Err(Error::refused(Errno::EPERM, "the file can only be appended to"));
        }
        // All is done in several steps, and no write may come between them.
        let _whole = inode.data.whole.write();
        let _mapping = inode.data.lock_mapping();
        if !matches!(what, Allocation::Allocate { .. }) && range.end >= inode.size() {
            // The dropped data may be all that would have advanced the recorded size. Until the sectors before it are
            // written, they may show content that was cut off: the size must not run ahead of them.
            self.write_back_locked(inode)?;
        }
        let now = || Some(self.engine.env().now());
        // A call that is refused for want of space changes no times. Privileges go before the content changes.
        match what {
            Allocation::Allocate { keep_size } => {
                self.prepare_allocation(inode, &range, keep_size)?;
                self.preallocate(inode, &range, keep_size, None)?;
                self.note_allocation(inode, set_id, now())?;
            }
            Allocation::PunchHole if self.is_hole(inode, &range)? => self.note_allocation(inode, set_id, None)?,
            Allocation::PunchHole => {
                self.note_allocation(inode, set_id, now())?;
                self.punch(inode, &range)?;
            }
            Allocation::ZeroRange { keep_size } => {
                // Refused for want of space, or by the device, it must be before the content is gone.
                self.prepare_allocation(inode, &range, keep_size)?;
                let span = self.sectors_of(&range);
                let reserved = self.reserve_data(span.end - span.start)?;
                self.note_allocation(inode, set_id, now())?;
                self.punch(inode, &range)?;
                self.preallocate(inode, &range, keep_size, Some(reserved))?;
            }
        }
        Ok(())
    }

    /// Takes privileges away and, where the file changes, sets its times.
    fn note_allocation(&self, inode: &Arc<Inode>, set_id: bool, changed: Option<Time>) -> Result<()> {
        self.preload_extents(inode, &(0..0));
        let handle = self.start_surely(3)?;
        let _guard = inode.lock_exclusive()?;
        inode.kill_privileges(&handle, set_id)?;
        if let Some(now) = changed {
            inode.change(|state| state.touch_content(now));
        }
        Ok(())
    }

    /// Whether `range` has neither data nor space. Behind the end of the file a hole cannot be punched.
    fn is_hole(&self, inode: &Inode, range: &Range<u64>) -> Result<bool> {
        without_waiting(self.engine.core(), &inode.tree, |source| self.is_hole_in(source, inode, range))
    }

    fn is_hole_in(&self, source: BlockSource<'_>, inode: &Inode, range: &Range<u64>) -> Result<bool> {
        let _guard = inode.lock_shared()?;
        let end = self.round_up(inode.size());
        let span = self.sectors_of(range);
        let span = span.start..span.end.min(end);
        if span.is_empty() {
            return Ok(true);
        }
        if inode.data.next_buffered(span.start).is_some_and(|buffered| buffered.start < span.end) {
            return Ok(false);
        }
        let (context, items) = self.extents_from(source, inode);
        let mut is_hole = true;
        context.overlapping(&items, &span, &mut |extent, _| {
            is_hole = extent.kind == ExtentKind::Regular && extent.is_hole();
            Ok(if is_hole { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        Ok(is_hole)
    }

    /// Makes `range` a hole as far as it is whole sectors, and zero at its ends.
    fn punch(&self, inode: &Arc<Inode>, range: &Range<u64>) -> Result<()> {
        if range.start >= self.round_up(inode.size()) {
            return Ok(());
        }
        // The end of the file is as good as a sector's: behind it nothing is to be kept.
        let range = range.start..if range.end >= inode.size() { self.round_up(range.end) } else { range.end };
        let inner = self.sectors_in(&range);
        let ends = if inner.is_empty() { [range, 0..0] } else { [range.start..inner.start, inner.end..range.end] };
        self.zero_parts(inode, &ends)?;
        let mut at = inner.start;
        while at < inner.end {
            at = self.punch_step(inode, &(at..inner.end), at == inner.start)?;
        }
        Ok(())
    }

    /// Writes zeros over parts of sectors, where they are not zero already. All of them are refused, or none.
    fn zero_parts(&self, inode: &Arc<Inode>, parts: &[Range<u64>]) -> Result<()> {
        let mut reserved_parts = Vec::new();
        for part in parts {
            let part = part.start..part.end.min(inode.size());
            if !part.is_empty() && !self.is_zero(inode, &part)? {
                reserved_parts.push((self.reserve_for_write(inode, part.start, part.end - part.start)?, part));
            }
        }
        for (reservation, part) in reserved_parts {
            self.put(inode, part.start, &vec![0; (part.end - part.start) as usize], reservation, None)?;
        }
        Ok(())
    }

    fn is_zero(&self, inode: &Inode, range: &Range<u64>) -> Result<bool> {
        let span = self.sectors_of(range);
        let current = self.sectors(inode, &span)?;
        let part = &current[(range.start - span.start) as usize..(range.end - span.start) as usize];
        Ok(is_zero(part))
    }

    /// Drops some extents of whole sectors; returns how far it came.
    fn punch_step(&self, inode: &Arc<Inode>, range: &Range<u64>, first: bool) -> Result<u64> {
        self.preload_extents(inode, range);
        let handle = self.start(Reserve::removal(DROPS_PER_STEP as u64 + 6))?;
        let _guard = inode.lock_extents()?;
        if first && !inode.data.is_idle() {
            inode.data.with(|buffer| {
                buffer.dirty.cut(range.clone());
                buffer.trim_reservation();
            });
        }
        let context = self.context(inode, handle.generation());
        let mut items = TreeItems::editing(&handle, &inode.tree);
        let mut booking = Booking::new(&handle, inode);
        let dropped = context.drop_range(&mut items, range, DROPS_PER_STEP, &mut booking).and_then(|stopped| {
            let recorded = self.round_up(inode.with(|state| state.item.size.get()));
            context.insert_hole(&mut items, &(range.start..stopped.min(recorded).max(range.start)))?;
            // The recorded size stays: it is the file's where the hole reaches the end, and elsewhere what is to
            // advance it is still buffered. No size in between may be seen after a crash.
            inode.change(|state| booking.apply(state));
            Ok(stopped)
        });
        dropped.inspect_err(|error| handle.failed(error))
    }

    /// Writes all data that preallocating `range` needs on the device. Nothing is buffered afterwards, the file's
    /// content is not in its item if `range` goes beyond it, and if the file is to grow, what lies behind its end is
    /// zero.
    fn prepare_allocation(&self, inode: &Arc<Inode>, range: &Range<u64>, keep_size: bool) -> Result<()> {
        self.write_back_locked(inode)?;
        if range.end > inode.size() && !keep_size {
            self.rewrite_tail(inode)?;
        }
        if range.end > self.sector() && self.is_inline(inode)? {
            // Inline data is a file's only extent.
            self.convert_inline(inode)?;
        }
        Ok(())
    }

    /// Gives every hole in `range`, which is prepared, space, out of `reserved` if that was reserved before.
    fn preallocate(
        &self,
        inode: &Arc<Inode>,
        range: &Range<u64>,
        keep_size: bool,
        mut reserved: Option<DataReservation>,
    ) -> Result<()> {
        let span = self.sectors_of(range);
        let holes = self.holes(inode, &span)?;
        let wanted: u64 = holes.iter().map(|hole| hole.end - hole.start).sum();
        if wanted > 0 && reserved.is_none() {
            reserved = Some(self.reserve_data(wanted)?);
        }
        for hole in holes {
            let mut at = hole.start;
            while at < hole.end {
                let reserved = reserved.as_mut().expect("there are holes");
                at += self.preallocate_step(inode, &(at..hole.end), reserved)?;
            }
        }
        if !keep_size && range.end > inode.size() {
            self.preload_extents(inode, &(range.end..range.end));
            let handle = self.start(Reserve::items(4))?;
            let _guard = inode.lock_extents()?;
            self.grow_under(&handle, inode, range.end).inspect_err(|error| handle.failed(error))?;
        }
        Ok(())
    }

    /// The holes in `range`.
    fn holes(&self, inode: &Inode, range: &Range<u64>) -> Result<Vec<Range<u64>>> {
        let (context, items) = self.extents(inode);
        let mut holes: Vec<Range<u64>> = Vec::new();
        let mut at = range.start;
        context.overlapping(&items, range, &mut |extent, _| {
            if !extent.is_hole() {
                if extent.start > at {
                    holes.push(at..extent.start);
                }
                at = extent.end();
            }
            Ok(ControlFlow::Continue(()))
        })?;
        if at < range.end {
            holes.push(at..range.end);
        }
        Ok(holes)
    }

    /// Gives the first part of a hole space; returns how many bytes.
    fn preallocate_step(&self, inode: &Arc<Inode>, hole: &Range<u64>, reserved: &mut DataReservation) -> Result<u64> {
        let wanted = (hole.end - hole.start).min(LONGEST_PREALLOC);
        let mut chunk = self.place((wanted, self.sector()), Stream::InPlace, reserved)?;
        self.preload_extents(inode, hole);
        let handle = self.start(Reserve::items(6))?;
        let _guard = inode.lock_extents()?;
        let context = self.context(inode, handle.generation());
        let (at, len) = (chunk.at, chunk.len);
        let extent = FileExtent::new(ExtentKind::Prealloc, hole.start, at, len, context.generation);
        let inserted = self.insert_prealloc(inode, &context, &handle, &extent);
        inserted.inspect_err(|error| handle.failed(error))?;
        chunk.recorded(len);
        Ok(len)
    }

    fn insert_prealloc(
        &self,
        inode: &Arc<Inode>,
        context: &FileContext,
        handle: &Handle,
        extent: &FileExtent,
    ) -> Result<()> {
        let mut items = TreeItems::editing(handle, &inode.tree);
        let mut booking = Booking::new(handle, inode);
        let recorded = self.round_up(inode.with(|state| state.item.size.get()));
        context.drop_range(&mut items, &extent.range(), usize::MAX, &mut booking)?;
        context.insert(&mut items, extent, true, &mut booking)?;
        context.fill_gaps(&mut items, &(recorded..extent.start.max(recorded)))?;
        inode.change(|state| {
            state.set_flags(inode_flags::PREALLOC);
            booking.apply(state);
        });
        Ok(())
    }
}
