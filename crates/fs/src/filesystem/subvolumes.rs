//! Subvolumes of an open filesystem, and the work on them that goes on in the background.

use super::Filesystem;
use crate::error::Result;
use crate::inode::InodeId;
use crate::inode::attr::Caller;
use crate::subvolume::{self, SubvolumeInfo, uuid_tree};
use butterfs_ondisk::TreeId;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Filesystem {
    /// Makes an empty subvolume and returns its id.
    pub fn create_subvolume(&self, caller: &Caller, parent: InodeId, name: &[u8]) -> Result<TreeId> {
        let _operation = self.begin();
        subvolume::create(&self.0.inodes, &self.0.files, caller, parent, name)
    }

    /// Makes a snapshot of `source`, with everything written to it before the call, and returns its id when it is
    /// durable. Files without a name, which others have open in the source, are deleted from the snapshot.
    pub fn snapshot(&self, source: TreeId, parent: InodeId, name: &[u8], read_only: bool) -> Result<TreeId> {
        let _operation = self.begin();
        self.0.files.write_back_all()?;
        let id = subvolume::snapshot(&self.0.inodes, &self.0.files, source, parent, name, read_only)?;
        // In the next transaction. The snapshot is durable, so an error is not one of making it; the first lookup of
        // the next mount tries again.
        let _ = self.0.names.enter_subvolume(id);
        Ok(id)
    }

    /// Deletes the subvolume that `name` in `parent` leads to; its space comes back in the background.
    pub fn delete_subvolume(&self, parent: InodeId, name: &[u8]) -> Result<TreeId> {
        let _operation = self.begin();
        self.delete_victim(parent, name, None, false)
    }

    /// The same, if the name still leads to `expected`; else `ESTALE`. For callers who have checked what the user may
    /// do to `expected`: users can exchange names at any moment.
    pub fn delete_expected_subvolume(&self, parent: InodeId, name: &[u8], expected: TreeId) -> Result<()> {
        let _operation = self.begin();
        self.delete_victim(parent, name, Some(expected), false).map(|_| ())
    }

    /// As rmdir(2) does: only an empty one.
    pub(super) fn delete_empty_subvolume(&self, parent: InodeId, name: &[u8]) -> Result<TreeId> {
        self.delete_victim(parent, name, None, true)
    }

    fn delete_victim(&self, parent: InodeId, name: &[u8], expected: Option<TreeId>, empty: bool) -> Result<TreeId> {
        let victim = subvolume::Victim { expected, empty, mounted: self.root().tree };
        let id = subvolume::delete(&self.0.inodes, &self.0.files, parent, name, victim)?;
        // At once, not only when the cleaner begins: whoever syncs next must not write what the cleaner drops
        // meanwhile.
        self.0.inodes.discard_tree(id);
        self.0.engine.background_requests.request_cleaning();
        Ok(id)
    }

    /// All living subvolumes by id.
    pub fn subvolumes(&self) -> Result<Vec<SubvolumeInfo>> {
        let _operation = self.begin();
        subvolume::list(&self.0.engine)
    }

    /// The first `most` living subvolumes from the id `from` on, by id.
    pub fn some_subvolumes(&self, from: TreeId, most: usize) -> Result<Vec<SubvolumeInfo>> {
        let _operation = self.begin();
        subvolume::list_from(&self.0.engine, from, most)
    }

    /// One subvolume.
    pub fn subvolume_info(&self, id: TreeId) -> Result<SubvolumeInfo> {
        let _operation = self.begin();
        subvolume::info(&self.0.engine, id)
    }

    /// The living snapshots of the subvolume with this UUID, by id. The first call reads the root items of all
    /// subvolumes, each later one those made since.
    pub fn snapshots_of(&self, uuid: &[u8; 16]) -> Result<Vec<TreeId>> {
        let _operation = self.begin();
        self.0.snapshots.of(&self.0.engine, uuid)
    }

    /// The subvolumes with this UUID, of their own or as they were received: one descent of the UUID tree each.
    pub fn subvolumes_by_uuid(&self, kind: uuid_tree::UuidKind, uuid: &[u8; 16]) -> Result<Vec<TreeId>> {
        let _operation = self.begin();
        uuid_tree::lookup(&self.0.engine, kind, uuid)
    }

    /// Makes `id` the subvolume that is mounted when none is named.
    pub fn set_default_subvolume(&self, id: TreeId) -> Result<()> {
        let _operation = self.begin();
        subvolume::set_default(&self.0.files, id)
    }

    /// Makes a subvolume read-only or writable. When it is read-only nothing is under way in it any more: what others
    /// wrote before is in its tree.
    pub fn set_subvolume_readonly(&self, id: TreeId, read_only: bool) -> Result<()> {
        let _operation = self.begin();
        if !read_only {
            return subvolume::set_readonly(&self.0.files, id, false);
        }
        // Most of it is written now, so that little is left for later.
        self.0.files.write_back_all_for(id)?;
        subvolume::set_readonly(&self.0.files, id, true)?;
        self.end_changes(id)
    }

    /// Waits for those who found a subvolume writable before it became read-only, and writes what they brought.
    pub(super) fn end_changes(&self, id: TreeId) -> Result<()> {
        self.0.inodes.await_operations(id);
        self.0.engine.let_handles_end()?;
        self.0.files.write_back_all_for(id)
    }

    /// Deleted subvolumes whose space has not come back yet.
    pub fn deleted_subvolumes(&self) -> Result<Vec<TreeId>> {
        let _operation = self.begin();
        subvolume::deleted(&self.0.engine)
    }

    /// Drops what is left of deleted subvolumes, until there is nothing more or the filesystem is being closed.
    pub fn clean_subvolumes(&self) -> Result<()> {
        let _operation = self.begin();
        let mut at = TreeId(0);
        while self.clean_step(&mut at)? {}
        Ok(())
    }

    /// Does one step of dropping deleted subvolumes: of the first whose number is `at` or greater, and moves `at` on.
    /// False when there is nothing more, or the filesystem is being closed.
    pub(super) fn clean_step(&self, at: &mut TreeId) -> Result<bool> {
        let _turn = self.0.upkeep.lock();
        if self.is_stopping() || self.is_read_only() {
            return Ok(false);
        }
        // What it frees step by step could not be taken back.
        self.0.engine.must_not_be_together()?;
        let Some(id) = subvolume::first_deleted(&self.0.engine, *at)? else { return Ok(false) };
        if !subvolume::is_dropping(&self.0.engine, id)? {
            self.prepare_dropping(id)?;
        }
        let gone = subvolume::clean_step(&self.0.engine, id)?;
        self.0.engine.book_what_is_too_much()?;
        *at = if gone { TreeId(id.0.saturating_add(1)) } else { id };
        Ok(true)
    }

    /// Sees to it that nobody writes into the tree of a deleted subvolume while its blocks are freed.
    fn prepare_dropping(&self, id: TreeId) -> Result<()> {
        let core = &self.0.engine;
        self.0.inodes.discard_tree(id);
        // Whoever found the tree alive under a handle must be done with it.
        core.let_handles_end()?;
        self.0.inodes.record_inodes_of(id)?;
        subvolume::begin_dropping(core, id)?;
        // Whoever was about to write an inode, too.
        core.let_handles_end()
    }

    /// Makes the UUID tree complete and right; returns how many entries were wrong.
    pub fn repair_uuid_tree(&self) -> Result<usize> {
        let _operation = self.begin();
        let _turn = self.0.upkeep.lock();
        subvolume::repair_uuid_tree(&self.0.engine, &|| !self.is_stopping())
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.0.stopping.load(Ordering::Relaxed)
    }

    /// The background thread: first the UUID tree if somebody left it behind, then deleted subvolumes and devices that
    /// have missed writes, now and whenever there is another one.
    pub(super) fn start_cleaner(&self) {
        if self.is_read_only() || !self.0.engine.env().background() {
            return;
        }
        let (weak, core) = (Arc::downgrade(&self.0), Arc::clone(&self.0.engine));
        let work = move || {
            let _alarm = core.alarm();
            let due = |inner: &Arc<super::Inner>| {
                !inner.engine.uuid_tree_current() || inner.engine.options().rescan_uuid_tree
            };
            if let Some(inner) = weak.upgrade().filter(due) {
                // What could not be repaired now is repaired at the next mount: the superblock says that it is due.
                let _ = Filesystem(inner).repair_uuid_tree();
            }
            let mut at = TreeId(0);
            let mut resync = super::resync::Resync::default();
            loop {
                // Nothing is held from one step to the next: whoever drops the filesystem is not kept waiting.
                let Some(inner) = weak.upgrade() else { return };
                let filesystem = Filesystem(inner);
                // An error has stopped the filesystem, or is met again at the next mount.
                let operation = filesystem.begin();
                let more = filesystem.clean_step(&mut at).unwrap_or(false);
                let more = filesystem.resync_step(&mut resync).unwrap_or(false) || more;
                drop(operation);
                if filesystem.is_stopping() {
                    return;
                }
                drop(filesystem);
                if !more {
                    at = TreeId(0);
                    core.background_requests.wait_for_cleaning();
                }
            }
        };
        let spawned = std::thread::Builder::new().name("cleaner".to_owned()).spawn(work);
        *self.0.cleaner.lock() = spawned.ok();
    }
}
