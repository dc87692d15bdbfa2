//! Changing a file's size.
//!
//! Growing makes the old tail visible, so a last sector that is not zero behind the end is rewritten first, and what
//! is buffered is recorded: the size on disk never covers data that is not there. Shrinking goes from the end in
//! bounded steps, each of which is a file that is merely not short enough yet.

use super::extents::FileContext;
use super::inline::InlineContent;
use super::recording::Booking;
use super::{Files, LEAVES_PER_STEP};
use crate::error::Result;
use crate::extent::TreeItems;
use crate::file_extent::{ExtentKind, FileExtent, INLINE_HEAD};
use crate::inode::Inode;
use crate::transaction::{Handle, Reserve};
use butterfs_ondisk::{Key, KeyType};
use std::sync::Arc;

/// The side effects of a new size.
#[derive(Clone, Copy, Debug)]
pub struct Resized {
    /// The file loses its set-id bits; its capabilities go in any case.
    pub set_id: bool,
    /// The times move, also where the size stays.
    pub touch: bool,
}

/// Extents that one step of shrinking drops.
const DROPS_PER_STEP: u64 = 24;

impl Files {
    /// Sets the size. One that is the old one moves the times only where `effects` say so.
    pub fn set_size(&self, inode: &Arc<Inode>, size: u64, effects: Resized) -> Result<()> {
        self.must_be_writable(inode)?;
        self.must_fit(size, 0)?;
        // A write that moved the end meanwhile would leave in the sector of the old end what was cut off there.
        let _whole = inode.data.whole.write();
        let _mapping = inode.data.lock_mapping();
        while size > inode.size() {
            if self.grow(inode, size, Resized { touch: true, ..effects })? {
                return Ok(());
            }
        }
        self.shrink(inode, size, effects)
    }

    fn note_resize(&self, handle: &Handle, inode: &Arc<Inode>, effects: Resized) -> Result<()> {
        let now = self.engine.env().now();
        inode.kill_privileges(handle, effects.set_id)?;
        if effects.touch {
            inode.change(|state| state.touch_content(now));
        }
        Ok(())
    }

    /// False when the file has grown beyond `size` meanwhile.
    fn grow(&self, inode: &Arc<Inode>, size: u64, effects: Resized) -> Result<bool> {
        self.write_back_locked(inode)?;
        self.rewrite_tail(inode)?;
        self.preload_extents(inode, &(size..size));
        let handle = self.start(Reserve::items(6))?;
        let _guard = inode.lock_extents()?;
        if inode.size() > size {
            return Ok(false);
        }
        let grown = self.grow_under(&handle, inode, size);
        grown.and_then(|()| self.note_resize(&handle, inode, effects)).inspect_err(|error| handle.failed(error))?;
        Ok(true)
    }

    /// Makes what is behind the end of the file zero on disk, before the end moves. The mapping lock is held.
    pub(super) fn rewrite_tail(&self, inode: &Arc<Inode>) -> Result<()> {
        if self.is_inline(inode)? {
            return self.convert_inline(inode);
        }
        if inode.size().is_multiple_of(self.sector()) {
            return Ok(());
        }
        let reserved = self.reserve_data(self.sector());
        loop {
            let end = inode.size();
            let content = self.tail_to_rewrite(inode, end)?;
            let _guard = inode.lock_exclusive()?;
            if inode.size() != end {
                continue;
            }
            let Some(content) = content else { return Ok(()) };
            let reserved = reserved?;
            inode.data.with(|buffer| {
                buffer.dirty.write_below(self.round_down(end), &content);
                buffer.reserve(reserved);
                buffer.trim_reservation();
                buffer.counted.total.get_or_insert_with(|| Arc::clone(&self.buffered_bytes));
            });
            break;
        }
        self.write_back_locked(inode)?;
        // A short file may have moved into its item with that.
        if self.is_inline(inode)? { self.convert_inline(inode) } else { Ok(()) }
    }

    /// Whether the file's content is in its item.
    pub(super) fn is_inline(&self, inode: &Inode) -> Result<bool> {
        let (context, items) = self.extents(inode);
        Ok(context.before(&items, 1)?.is_some_and(|(extent, _)| extent.kind == ExtentKind::Inline))
    }

    pub(super) fn grow_under(&self, handle: &Handle, inode: &Arc<Inode>, size: u64) -> Result<()> {
        let context = self.context(inode, handle.generation());
        let recorded = inode.with(|state| state.item.size.get());
        let mut items = TreeItems::editing(handle, &inode.tree);
        let gap = self.round_up(recorded)..self.round_up(size.max(recorded));
        context.fill_gaps(&mut items, &gap)?;
        inode.change(|state| {
            state.item.size = size.max(recorded).into();
            state.size = state.size.max(size);
        });
        Ok(())
    }

    /// Shrinks the file, also by what is preallocated behind its end.
    fn shrink(&self, inode: &Arc<Inode>, size: u64, effects: Resized) -> Result<()> {
        self.unpack_inline(inode, size)?;
        self.shrink_in_steps(inode, size, effects)?;
        // Data that was to advance the recorded size may just have been forgotten.
        let (recorded, ahead) = (inode.with(|state| state.item.size.get()), self.is_buffered_up_to(inode, size));
        if recorded < size && !ahead {
            self.grow(inode, size, Resized { touch: false, ..effects })?;
        }
        Ok(())
    }

    /// Whether write-back will advance the recorded size to `size` or further.
    fn is_buffered_up_to(&self, inode: &Inode, size: u64) -> bool {
        let end = |(at, data): (u64, &[u8])| at + data.len() as u64;
        !inode.data.is_idle() && inode.data.with(|buffer| buffer.dirty.iter().any(|run| end(run) >= size))
    }

    /// Has in memory what one step of shrinking changes.
    fn preload_end(&self, inode: &Inode, size: u64) {
        let key = |offset| Key::new(inode.ino.0, KeyType::EXTENT_DATA, offset);
        self.preload_extents(inode, &(size..size));
        inode.tree.preload_end_of_range(self.engine.core(), key(size), key(u64::MAX), LEAVES_PER_STEP);
    }

    fn shrink_in_steps(&self, inode: &Arc<Inode>, size: u64, effects: Resized) -> Result<()> {
        let mut first = true;
        loop {
            self.preload_end(inode, size);
            let handle = self.start(Reserve::removal(DROPS_PER_STEP + 6))?;
            let _guard = inode.lock_extents()?;
            if std::mem::take(&mut first) {
                // From here on everybody sees the new size, and may write behind it again.
                self.cut_buffer(inode, size);
                let touch = effects.touch || inode.size() != size;
                if touch {
                    inode.change(|state| state.size = size);
                }
                self.note_resize(&handle, inode, Resized { touch, ..effects })
                    .inspect_err(|error| handle.failed(error))?;
            }
            let result = self.shrink_step(&handle, inode, size);
            if result.inspect_err(|error| handle.failed(error))? {
                return Ok(());
            }
        }
    }

    /// Forgets what is buffered at or beyond `size`.
    fn cut_buffer(&self, inode: &Inode, size: u64) {
        if inode.data.is_idle() {
            return;
        }
        let end = self.round_up(size);
        inode.data.with(|buffer| {
            buffer.dirty.zero(size..end);
            buffer.dirty.cut(end..u64::MAX);
            buffer.trim_reservation();
        });
    }

    /// Drops extents from the end; true when none is left behind `size`.
    fn shrink_step(&self, handle: &Handle, inode: &Arc<Inode>, size: u64) -> Result<bool> {
        let context = self.context(inode, handle.generation());
        let (last, from) = self.last_extents(inode, &context, size)?;
        let mut items = TreeItems::editing(handle, &inode.tree);
        let mut booking = Booking::new(handle, inode);
        context.drop_range(&mut items, &(from..self.round_down(u64::MAX)), usize::MAX, &mut booking)?;
        inode.change(|state| {
            booking.apply(state);
            let left = if last { size } else { from };
            state.item.size = state.item.size.get().min(left).into();
        });
        if last {
            self.shrink_inline(handle, inode, &context, size)?;
        }
        Ok(last)
    }

    /// The position at which the next step of shrinking to `size` cuts, and whether nothing is left behind `size` then.
    fn last_extents(&self, inode: &Inode, context: &FileContext, size: u64) -> Result<(bool, u64)> {
        let items = TreeItems::reading(self.engine.core(), &inode.tree);
        let (end, mut from) = (self.round_up(size), u64::MAX);
        for _ in 0..DROPS_PER_STEP {
            match context.before(&items, from)? {
                Some((extent, _)) if extent.end() > end && extent.start >= end => from = extent.start,
                _ => return Ok((true, end)),
            }
        }
        Ok((false, from))
    }

    /// Cuts plain inline data to `size`.
    fn shrink_inline(&self, handle: &Handle, inode: &Arc<Inode>, context: &FileContext, size: u64) -> Result<()> {
        let items = TreeItems::reading(self.engine.core(), &inode.tree);
        let found = context.before(&items, 1)?;
        let Some((extent, payload)) = found.filter(|(extent, _)| extent.kind == ExtentKind::Inline) else {
            return Ok(());
        };
        if extent.ram_bytes <= size || size == 0 {
            return Ok(());
        }
        let data = self.inline_data(&extent, &payload[INLINE_HEAD..])?;
        let recorded = inode.with(|state| state.item.size.get());
        self.insert_inline(handle, inode, &InlineContent::plain(&data[..size as usize]))?;
        inode.remember(|state| state.item.size = recorded.into());
        Ok(())
    }

    /// Compressed inline data that would not fit an item uncompressed becomes a regular extent before it is cut.
    fn unpack_inline(&self, inode: &Arc<Inode>, size: u64) -> Result<()> {
        let (context, items) = self.extents(inode);
        let found = context.before(&items, 1)?.map(|(extent, _)| extent);
        let cut = |extent: &FileExtent| {
            extent.kind == ExtentKind::Inline && extent.compression != 0 && size < extent.ram_bytes
        };
        if size <= self.longest_inline() || !found.is_some_and(|extent| cut(&extent)) {
            return Ok(());
        }
        self.convert_inline(inode)
    }
}
