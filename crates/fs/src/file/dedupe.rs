//! Sharing what is equal: two ranges that hold the same bytes get the same extents.
//!
//! # Invariants
//! 1. Bytes are compared while both files are locked, and shared before they are unlocked: nothing that is written
//!    meanwhile is lost. What is still buffered is written back first, and tried again.
//! 2. Neither content nor times nor set-id bits change. A range that differs somewhere may be shared up to there.

use super::Files;
use super::reflink::Sharing;
use crate::error::{Errno, Error, Result};
use crate::file_extent::FileExtent;
use crate::inode::Inode;
use crate::transaction::Reserve;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that are compared under one pair of locks.
const COMPARED_AT_ONCE: u64 = 1 << 20;
/// The number of times that writers may come in between, for one piece.
const PATIENCE: usize = 16;

/// How a piece ended.
enum Piece {
    /// Up to here it is shared.
    Shared(u64),
    Differs,
    /// One of them has something buffered.
    Buffered,
}

impl Files {
    /// Lets `target` of `into` share the extents of `source` of `from` where both hold the same bytes; `false` when
    /// they differ. `EINVAL` for ranges that are not whole sectors (the last one of both files may be a part), end
    /// behind the end of a file, or overlap.
    pub fn dedupe_range(
        &self,
        (from, source): (&Arc<Inode>, u64),
        (into, target): (&Arc<Inode>, u64),
        len: u64,
    ) -> Result<bool> {
        self.must_be_writable(into)?;
        let _mappings = self.lock_mappings(from, into);
        self.check_dedupe(from, source, into, target, len)?;
        let sharing = Sharing { from, into, source, target, len, silent: true };
        let (mut done, mut patience) = (0, PATIENCE);
        while done < len {
            match self.dedupe_piece(&sharing, done)? {
                Piece::Shared(to) => (done, patience) = (to, PATIENCE),
                Piece::Differs => return Ok(false),
                Piece::Buffered if patience == 0 => {
                    return Err(Error::refused(Errno::EAGAIN, "the files are being written"));
                }
                Piece::Buffered => {
                    patience -= 1;
                    self.write_back_locked(from)?;
                    self.write_back_locked(into)?;
                }
            }
        }
        Ok(true)
    }

    fn check_dedupe(&self, from: &Arc<Inode>, source: u64, into: &Arc<Inode>, target: u64, len: u64) -> Result<()> {
        let refused = |what| Err(Error::refused(Errno::EINVAL, what));
        let end = |start: u64, inode: &Inode| start.checked_add(len).filter(|end| *end <= inode.size());
        let (Some(source_end), Some(target_end)) = (end(source, from), end(target, into)) else {
            return refused("a range ends behind the end of its file");
        };
        let whole = len.is_multiple_of(self.sector()) || source_end == from.size() && target_end == into.size();
        if !whole || !source.is_multiple_of(self.sector()) || !target.is_multiple_of(self.sector()) {
            return refused("the ranges are not whole sectors");
        }
        if Arc::ptr_eq(from, into) && source.abs_diff(target) < len {
            return refused("the ranges overlap");
        }
        if !self.may_share(from, into) {
            return refused("files with and without checksums share nothing");
        }
        self.write_back_locked(from)?;
        self.write_back_locked(into)?;
        if self.is_inline(from)? || self.is_inline(into)? {
            return refused("content that is kept in an item is not shared");
        }
        Ok(())
    }

    fn dedupe_piece(&self, sharing: &Sharing<'_>, done: u64) -> Result<Piece> {
        let moves = self.engine.moved.count();
        let end = self.round_up(sharing.len).min(done + COMPARED_AT_ONCE);
        let (parts, covered) = self.shareable(sharing.from, sharing.source + done..sharing.source + end)?;
        let read = sharing.source + done..covered;
        let range = sharing.target + done..sharing.target + (covered - sharing.source);
        // What the files have on disk does not change while their mappings are locked.
        let (one, other) = (self.sectors(sharing.from, &read)?, self.sectors(sharing.into, &range)?);
        self.preload_extents(sharing.into, &range);
        let handle = self.start(Reserve::items(Sharing::ITEMS))?;
        if self.engine.moved.count() != moves {
            // The extents may lie elsewhere now.
            return Ok(Piece::Shared(done));
        }
        let _locks = sharing.lock()?;
        let is_buffered = |inode: &Inode, range: &Range<u64>| {
            inode.data.next_buffered(range.start).is_some_and(|run| run.start < range.end)
        };
        if is_buffered(sharing.from, &read) || is_buffered(sharing.into, &range) {
            return Ok(Piece::Buffered);
        }
        if one != other {
            return Ok(Piece::Differs);
        }
        let moved = |part: &FileExtent| FileExtent { start: sharing.target + (part.start - sharing.source), ..*part };
        if self.shareable(sharing.into, range.clone())?.0.iter().eq(parts.iter().map(moved).collect::<Vec<_>>().iter())
        {
            return Ok(Piece::Shared(covered - sharing.source));
        }
        let shared = self.share_under(&handle, sharing, &parts, &range, None);
        let stopped = shared.inspect_err(|error| handle.failed(error))?;
        Ok(Piece::Shared((stopped - sharing.target).min(sharing.len)))
    }
}
