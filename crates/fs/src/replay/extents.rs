//! Third stage, attributes and contents: extended attributes, and file extents with their references and checksums.

use super::booking::Booking;
use super::logs::Claims;
use super::subvolume::Subvolume;
use crate::error::Result;
use crate::extent::TreeItems;
use crate::extent::checksums::{self, Layout};
use crate::extent::items::EditItems;
use crate::file::extents::Effects;
use crate::file_extent::{ExtentKind, FileExtent};
use crate::inode::attr::mode::{S_IFLNK, S_IFMT, S_IFREG};
use butterfs_ondisk::{Ino, Key, KeyType, Logical};

/// The most that is compressed in one piece, before and after.
const PACKED_BYTES: u64 = 128 << 10;
/// Bytes whose checksums are in memory at once.
const CHECKSUMS_OF_BYTES: u64 = 64 << 20;

impl Subvolume<'_> {
    /// Brings in attributes, names and extents of the inodes.
    pub fn replay_items(&mut self, claims: &Claims) -> Result<()> {
        self.each_logged(KeyType::INODE_REF, KeyType::EXTENT_DATA, &mut |this, key, payload| match key.kind {
            KeyType::INODE_REF | KeyType::INODE_EXTREF => this.replay_names(key, payload),
            KeyType::XATTR_ITEM => this.replay_attribute(key, payload),
            KeyType::EXTENT_DATA => this.replay_extent(key, payload, claims),
            _ => Ok(()),
        })
    }

    fn replay_attribute(&mut self, key: Key, payload: &[u8]) -> Result<()> {
        match self.mode(Ino(key.objectid))? {
            Some(_) => self.tree.put(self.handle, key, payload),
            None => Ok(()),
        }
    }

    fn replay_extent(&mut self, key: Key, payload: &[u8], claims: &Claims) -> Result<()> {
        let ino = Ino(key.objectid);
        let Some(mode) = self.mode(ino)? else { return Ok(()) };
        let context = self.file(ino);
        let extent = FileExtent::parse(key, payload, context.sectorsize)?;
        match mode & S_IFMT {
            S_IFREG => {}
            S_IFLNK if extent.kind == ExtentKind::Inline => {}
            _ => return Err(self.bad(key, &format!("an extent of an inode of mode {mode:#o}"))),
        }
        if extent.kind == ExtentKind::Inline && extent.ram_bytes > context.sectorsize {
            return Err(self.bad(key, &format!("{} bytes inline", extent.ram_bytes)));
        }
        if extent.is_on_disk() && extent.compression != 0 && extent.ram_bytes.max(extent.disk_len) > PACKED_BYTES {
            return Err(self.bad(key, "more is compressed in one piece than can be"));
        }
        if extent.is_on_disk() && extent.offset.checked_add(extent.len).is_none_or(|end| end > extent.ram_bytes) {
            return Err(self.bad(key, &format!("it shows more than the {} bytes of its extent", extent.ram_bytes)));
        }
        if extent.generation > context.generation {
            return Err(self.bad(key, &format!("generation {} is still to come", extent.generation)));
        }
        if extent.kind != ExtentKind::Inline && self.has(key, payload)? {
            return Ok(());
        }
        let mut items = TreeItems::editing(self.handle, &self.tree);
        let mut booking = Booking { handle: self.handle, tree: self.log.id, ino: ino.0, changes: &mut self.changes };
        context.drop_range(&mut items, &extent.range(), usize::MAX, &mut booking)?;
        if extent.is_hole() && context.no_holes {
            return Ok(());
        }
        items.insert(key, payload)?;
        booking.add_nbytes(extent.nbytes() as i64);
        if extent.is_on_disk() {
            booking.add_ref(&extent, claims.take(extent.at));
            self.replay_checksums(&extent)?;
        }
        Ok(())
    }

    /// Whether the subvolume has this very item.
    fn has(&self, key: Key, payload: &[u8]) -> Result<bool> {
        Ok(self.tree.get(self.core, key)?.is_some_and(|own| *own == *payload))
    }

    /// Brings in the checksums that the log has of the extent's data. Those of an old extent are there already.
    fn replay_checksums(&self, extent: &FileExtent) -> Result<()> {
        let (mut at, end) = match extent.compression {
            0 => (extent.at.0 + extent.offset, extent.at.0 + extent.offset + extent.len),
            _ => (extent.at.0, extent.at.0 + extent.disk_len),
        };
        let layout = Layout::of(self.core);
        let mut stored = TreeItems::editing(self.handle, &self.core.globals().csum);
        let logged = TreeItems::reading(self.core, &self.log.items);
        while at < end {
            let len = CHECKSUMS_OF_BYTES.min(end - at);
            for (sector, digests) in checksums::lookup(&logged, layout, Logical(at), len)?.runs() {
                let from = Logical(at + sector as u64 * u64::from(layout.sectorsize));
                checksums::insert(&mut stored, layout, from, digests)?;
            }
            at += len;
        }
        Ok(())
    }
}
