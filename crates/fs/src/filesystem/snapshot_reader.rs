//! A read-only subvolume as a tree of items: looked up, scanned, compared with another one, its data read.
//!
//! # Invariants
//! 1. What is read is what was committed, and it does not change while the reader lives: the subvolume is read-only,
//!    and until the last of its readers is gone it can be neither deleted nor made writable. Blocks and data that are
//!    moved meanwhile stay where the reader's root leads to ([`CommittedReader`]).
//! 2. Data is verified like that of every other reader.
//!
//! # Not here
//! What the items mean to a stream.

use super::{Filesystem, Inner};
use crate::backref::sharers::{self, Sharers};
use crate::error::{Errno, Error, Result};
use crate::file_extent::FileExtent;
use crate::subvolume::SubvolumeInfo;
use crate::transaction::{BlockSource, CommittedReader};
use butterfs_ondisk::{Key, Logical, TreeId};
use butterfs_tree::{Difference, NodePtr, Position};
use std::ops::ControlFlow;
use std::sync::Arc;

/// See the [module](self).
pub struct SnapshotReader {
    filesystem: Arc<Inner>,
    root: NodePtr,
    info: SubvolumeInfo,
    _committed: CommittedReader,
}

impl Filesystem {
    /// Opens a read-only subvolume for reading as a tree; `EPERM` when it is writable.
    pub fn read_snapshot(&self, id: TreeId) -> Result<SnapshotReader> {
        let _operation = self.begin();
        self.0.engine.must_not_be_together()?;
        // What is read now is in memory when nobody may change it.
        self.subvolume_info(id)?;
        // Nothing is moved while a handle is open. On a filesystem that has stopped nothing is moved any more.
        let handle = self.0.engine.join().ok();
        let committed = self.0.engine.read_committed();
        drop(handle);
        let mut table = self.0.engine.subvolume_table.lock();
        let (tree, info) = (self.0.engine.tree(id)?, self.subvolume_info(id)?);
        if !info.is_readonly() {
            return Err(Error::refused(Errno::EPERM, "the subvolume is not read-only"));
        }
        table.begin(id);
        drop(table);
        let mut reader =
            SnapshotReader { filesystem: Arc::clone(&self.0), root: tree.root(), info, _committed: committed };
        if !self.is_read_only() && reader.may_be_ahead_of_the_disk() {
            self.sync()?;
            reader.root = tree.root();
            reader.info = self.subvolume_info(id)?;
        }
        Ok(reader)
    }
}

impl SnapshotReader {
    /// Whether the tree has blocks of a transaction that is not durable, or memory something that is not in the tree.
    fn may_be_ahead_of_the_disk(&self) -> bool {
        let core = &self.filesystem.engine;
        core.dirty_inodes.len() > 0 || self.root.generation > core.superblock().generation()
    }

    /// The properties of the subvolume.
    pub fn info(&self) -> &SubvolumeInfo {
        &self.info
    }

    /// Bytes of a sector.
    pub fn sectorsize(&self) -> u32 {
        self.filesystem.engine.sectorsize()
    }

    /// The leaf in whose range a key lies, and the key's place there.
    pub fn search(&self, key: Key) -> Result<Position> {
        let _alarm = self.filesystem.engine.alarm();
        butterfs_tree::search(&BlockSource::loading(&self.filesystem.engine), &self.root, &key)
    }

    /// The item with the greatest key below `key`.
    pub fn last_before(&self, key: Key) -> Result<Option<(Key, Vec<u8>)>> {
        let _alarm = self.filesystem.engine.alarm();
        let found = butterfs_tree::last_before(&BlockSource::loading(&self.filesystem.engine), &self.root, &key)?;
        Ok(found.map(|(leaf, slot)| (leaf.key(slot), leaf.item(slot).to_vec())))
    }

    /// Shows the items from `from` to `to`, both included, ascending, until `visit` breaks.
    pub fn scan<E: From<Error>>(
        &self,
        from: Key,
        to: Key,
        visit: &mut dyn FnMut(Key, &[u8]) -> Result<ControlFlow<()>, E>,
    ) -> Result<(), E> {
        let _alarm = self.filesystem.engine.alarm();
        let mut next = Some(from);
        while let Some(from) = next.filter(|from| *from <= to) {
            let at = self.search(from)?;
            for slot in at.slot..at.leaf.nritems() {
                let key = at.leaf.key(slot);
                if key > to || visit(key, at.leaf.item(slot))?.is_break() {
                    return Ok(());
                }
            }
            next = at.upper;
        }
        Ok(())
    }

    /// Shows every item that is not the same in `old`, ascending, until `visit` breaks. What both share is not read. No
    /// old one: everything is new.
    pub fn diff<E: From<Error>>(
        &self,
        old: Option<&SnapshotReader>,
        visit: &mut dyn FnMut(Key, Difference<'_>) -> Result<ControlFlow<()>, E>,
    ) -> Result<(), E> {
        let _alarm = self.filesystem.engine.alarm();
        butterfs_tree::diff(&BlockSource::loading(&self.filesystem.engine), old.map(|old| &old.root), &self.root, visit)
    }

    /// The content of an extent as its item, `payload`, says: from `from` bytes behind its start on, into `out`, whole
    /// sectors that lie inside it. `verified`: the file's data has checksums.
    pub fn extent_content(
        &self,
        extent: &FileExtent,
        payload: &[u8],
        verified: bool,
        from: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let _alarm = self.filesystem.engine.alarm();
        self.follow(extent, |extent| self.filesystem.files.extent_content(extent, payload, verified, from, out))
    }

    /// The bytes of a whole extent as they lie on disk, into `out`, which is as long as it.
    pub fn stored_content(&self, extent: &FileExtent, verified: bool, out: &mut [u8]) -> Result<()> {
        let _alarm = self.filesystem.engine.alarm();
        self.follow(extent, |extent| self.filesystem.files.stored_content(extent, verified, out))
    }

    /// The search for others that share an extent, see [`Sharers`]; nowhere when it has one reference only.
    pub fn sharers(&self, at: Logical, len: u64, most: usize) -> Result<Sharers> {
        let _alarm = self.filesystem.engine.alarm();
        let at = self.filesystem.engine.moved.now_at(at);
        Ok(sharers::sharers_of(&self.filesystem.engine, at, len, most)?.unwrap_or_default())
    }

    /// Reads an extent where its data is now.
    fn follow(&self, extent: &FileExtent, mut read: impl FnMut(&FileExtent) -> Result<()>) -> Result<()> {
        let moved = &self.filesystem.engine.moved;
        loop {
            let at = moved.now_at(extent.at);
            match read(&FileExtent { at, ..*extent }) {
                Err(_) if moved.now_at(extent.at) != at => {}
                other => return other,
            }
        }
    }
}

impl Drop for SnapshotReader {
    fn drop(&mut self) {
        self.filesystem.engine.subvolume_table.lock().end(self.info.id);
    }
}
