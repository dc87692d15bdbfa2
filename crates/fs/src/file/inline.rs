//! Inline data: a small file's whole content in its item.
//!
//! # Invariants
//! 1. It is the file's only extent, and as long as the file. Before the file grows beyond it, or gets space elsewhere,
//!    it becomes a regular extent.
//! 2. It is compressed where the file's data is, as far as that makes it smaller. A whole sector fits only so.

use super::Files;
use super::extents::Effects;
use super::recording::Booking;
use crate::error::{Error, Result};
use crate::extent::TreeItems;
use crate::extent::items::EditItems;
use crate::file_buffer::DirtyRuns;
use crate::file_extent::{ExtentKind, FileExtent, key_at};
use crate::inode::Inode;
use crate::options::Method;
use crate::transaction::Handle;
use butterfs_ondisk::header::max_item_size;
use butterfs_ondisk::items::{FileExtentHead, compression, inode_flags};
use std::borrow::Cow;
use std::sync::Arc;

/// A small file's content as its item holds it.
pub(super) struct InlineContent<'a> {
    /// Bytes of the file.
    len: u64,
    compression: u8,
    stored: Cow<'a, [u8]>,
}

impl<'a> InlineContent<'a> {
    pub fn plain(data: &'a [u8]) -> InlineContent<'a> {
        InlineContent { len: data.len() as u64, compression: compression::NONE, stored: data.into() }
    }
}

impl Files {
    /// The largest content that is kept in the item.
    fn max_inline(&self) -> u64 {
        u64::from(self.engine.options().max_inline).min(self.longest_inline())
    }

    /// The largest content that can be kept in an item at all.
    pub(super) fn longest_inline(&self) -> u64 {
        let in_leaf = max_item_size(self.engine.nodesize()) - FileExtentHead::LEN;
        (self.sector() - 1).min(in_leaf as u64)
    }

    /// Records a small file's whole content in its item. False when it is not one.
    pub(super) fn record_inline(&self, inode: &Arc<Inode>, runs: &DirtyRuns) -> Result<bool> {
        let sector = self.sector();
        let only_first = runs.bytes() == sector && runs.contains(0);
        let plain = !inode.with(|state| state.has(inode_flags::NODATACOW));
        if !only_first || !plain || inode.size() > sector {
            return Ok(false);
        }
        let method = self.compression_request(inode)?.map(|request| request.method);
        let longest = if method.is_some() { sector } else { self.max_inline() };
        let fits = |size: u64| size > 0 && size <= longest && self.max_inline() > 0;
        if !fits(inode.size()) || !self.has_no_other_extent(inode)? {
            return Ok(false);
        }
        let mut data = vec![0; sector as usize];
        runs.pieces(0..sector)
            .for_each(|(at, piece)| data[at as usize..at as usize + piece.len()].copy_from_slice(piece));
        let handle = self.start_recording(6)?;
        let _guard = inode.lock_extents()?;
        let size = inode.size();
        if !fits(size) {
            return Ok(false);
        }
        let Some(content) = self.inline_content(method, &data[..size as usize]) else { return Ok(false) };
        self.insert_inline(&handle, inode, &content).inspect_err(|error| handle.failed(error))?;
        Ok(true)
    }

    /// How data is kept in the item; `None` when it does not fit.
    fn inline_content<'a>(&self, method: Option<Method>, data: &'a [u8]) -> Option<InlineContent<'a>> {
        let (len, limit) = (data.len() as u64, self.max_inline() as usize);
        let compress = |method: Method| {
            let stream = self.encoder().get().compress_inline(method, data, limit, self.engine.sectorsize())?;
            self.announce(method.algorithm);
            Some(InlineContent { len, compression: method.algorithm.raw(), stored: stream.into() })
        };
        let plain = || (data.len() <= limit).then(|| InlineContent::plain(data));
        method.and_then(compress).or_else(plain)
    }

    /// Puts `content` in the place of the first sector's extent, as the file's only content.
    pub(super) fn insert_inline(&self, handle: &Handle, inode: &Arc<Inode>, content: &InlineContent<'_>) -> Result<()> {
        let InlineContent { len, compression, stored } = content;
        let context = self.context(inode, handle.generation());
        let mut items = TreeItems::editing(handle, &inode.tree);
        let mut booking = Booking::new(handle, inode);
        context.drop_range(&mut items, &(0..self.sector()), usize::MAX, &mut booking)?;
        let payload = FileExtent::encode_inline(context.generation, *len, *compression, stored);
        if !items.insert(key_at(inode.ino.0, 0), &payload)? {
            return Err(Error::corrupt(format!("inode {}: an extent where the range was free", inode.ino)));
        }
        booking.add_nbytes(*len as i64);
        inode.change(|state| {
            state.item.size = (*len).into();
            booking.apply(state);
        });
        Ok(())
    }

    /// Whether the file has no extent but one in its first sector, and that not a preallocated one.
    fn has_no_other_extent(&self, inode: &Inode) -> Result<bool> {
        let (context, items) = self.extents(inode);
        let last = context.before(&items, u64::MAX)?.map(|(extent, _)| extent);
        Ok(last.is_none_or(|last| last.end() <= self.sector() && last.kind != ExtentKind::Prealloc))
    }

    /// Makes inline data a regular extent. The mapping lock is held.
    pub(super) fn convert_inline(&self, inode: &Arc<Inode>) -> Result<()> {
        let sector = 0..self.sector();
        let mut reserved = Some(self.reserve_data(self.sector())?);
        let content = self.sectors(inode, &sector)?;
        let mut runs = DirtyRuns::default();
        runs.write(0, &content);
        self.write_new(inode, &runs, &mut vec![sector], &mut reserved, &mut 0)
    }
}
