//! Making things durable: one inode by its subvolume's log, everything by a commit.

use super::Filesystem;
use crate::error::{Errno, Error, Result};
use crate::inode::attr::mode;
use crate::inode::{Inode, InodeId};
use crate::options::Canary;
use crate::transaction::{BlockSource, Misses};
use crate::tree_log::{LogStats, Request, Synced, Ticket};
use butterfs_ondisk::items::InodeItem;
use butterfs_ondisk::{Generation, Ino};
use std::cell::{Cell, OnceCell};
use std::sync::Arc;

/// The data that is durable when a filesystem [goes down](Filesystem::go_down).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoingDown {
    /// Everything.
    Synced,
    /// All changes but data that is still buffered.
    Committed,
    /// Data that was durable already.
    AtOnce,
}

/// The number of times that an `fsync` may find that blocks are missing; each time more of what it needs is in memory.
const MOST_ROUNDS: usize = 256;
/// Inodes that an `fsync` looks for in memory before it makes a list of those that may be ahead of their tree.
const ASKED_ONE_BY_ONE: usize = 256;

impl Filesystem {
    /// Makes everything durable that was done before the call. Where data of a file cannot be written, everything else
    /// is durable, and the error is that file's.
    pub fn sync(&self) -> Result<()> {
        let _operation = self.begin();
        if self.is_read_only() {
            return Ok(());
        }
        let written = self.0.files.write_back_all();
        let committed = self.0.engine.commit();
        self.0.logs.forget_durable();
        committed.and(written)
    }

    /// The same now and then: also gives empty block groups back.
    pub(super) fn sync_and_tidy(&self) -> Result<()> {
        self.sync()?;
        self.0.engine.commit_unused_groups()
    }

    /// Commits, with all data that was written before where that is wanted.
    pub(super) fn commit(&self) -> Result<()> {
        self.commit_through(self.0.engine.generation())
    }

    fn commit_through(&self, generation: Generation) -> Result<()> {
        if self.options().flush_on_commit {
            // An error stays with its file, for whoever syncs that.
            let _ = self.0.files.write_back_all();
        }
        self.0.engine.commit_through(generation)?;
        self.0.logs.forget_durable();
        Ok(())
    }

    /// Stops all writing for good, as after a power cut, for tests of what a crash leaves (`FS_IOC_SHUTDOWN`). What
    /// `how` says is made durable before.
    pub fn go_down(&self, how: GoingDown) -> Result<()> {
        let _operation = self.begin();
        match how {
            GoingDown::Synced => self.sync()?,
            GoingDown::Committed if self.is_read_only() => {}
            GoingDown::Committed => self.0.engine.commit()?,
            GoingDown::AtOnce => {}
        }
        self.0.engine.abort(&Error::refused(Errno::EIO, "it was shut down on request"));
        Ok(())
    }

    /// Makes an inode durable: its content, its item, its attributes, its names; of a directory the entries, with the
    /// inodes that they lead to, and all of new directories. `datasync` promises less, and does the same. An error of
    /// an earlier write-back is told here, once.
    pub fn fsync(&self, id: InodeId, _datasync: bool) -> Result<()> {
        let _operation = self.begin();
        if self.is_read_only() {
            return Ok(());
        }
        self.0.engine.must_not_be_together()?;
        let inode = self.0.inodes.get(id)?;
        self.0.files.write_back_for_sync(&inode)?;
        match self.log(&inode)? {
            Ticket::Logged(generation, point) => match self.0.logs.sync(generation, point)? {
                Synced::Done => Ok(()),
                Synced::Commit => self.commit_through(generation),
            },
            Ticket::Frozen(generation) | Ticket::Commit(generation) => self.commit_through(generation),
        }
    }

    /// Counters of logging since the filesystem was opened.
    pub fn log_stats(&self) -> LogStats {
        let _operation = self.begin();
        self.0.logs.stats()
    }

    /// Puts an inode into the log of the running transaction, if that is possible and worth it.
    pub(super) fn log(&self, inode: &Arc<Inode>) -> Result<Ticket> {
        let core = &self.0.engine;
        let policies = &self.options().policies;
        // A device that lacks the newest log, or comes back later, could bring an older one of the same generation with
        // it.
        let may_log = core.volume().is_whole() || core.has_canary(Canary::LogOnTooFew);
        if self.options().no_tree_log || !may_log {
            return Ok(Ticket::Commit(core.generation()));
        }
        if let Some(generation) = core.gate.placed_in(inode.tree_id()).filter(|_| inode.ino == Ino::ROOT_DIR) {
            return Ok(Ticket::Commit(generation));
        }
        if policies.log_behind_commit {
            core.order.wait_durable(core.generation().0 - 1);
        }
        let misses = Misses::default();
        for _ in 0..MOST_ROUNDS {
            if let Some(ticket) = self.log_from(inode, BlockSource::in_memory(core, &misses))? {
                return Ok(ticket);
            }
            // What cannot be read is for the commit to report, if it matters.
            if misses.load(core, &inode.tree).is_err() {
                break;
            }
        }
        Ok(Ticket::Commit(core.generation()))
    }

    /// The same with what `source` has; `None` where that is too little.
    fn log_from(&self, inode: &Arc<Inode>, source: BlockSource<'_>) -> Result<Option<Ticket>> {
        let core = &self.0.engine;
        let is_file = inode.with(|state| state.mode()) & mode::S_IFMT == mode::S_IFREG;
        let _mapping = is_file.then(|| inode.data.lock_mapping());
        let handle = core.join()?;
        let (asked, dirty) = (Cell::new(0), OnceCell::new());
        let item = |ino: Ino| -> Option<InodeItem> {
            asked.set(asked.get() + 1);
            // Looking for each inode of a large directory costs more than all the rest.
            if asked.get() > ASKED_ONE_BY_ONE && ino != inode.ino {
                let dirty = dirty.get_or_init(|| core.dirty_inodes.of_tree(inode.tree_id()));
                dirty.contains(&ino).then_some(())?;
            }
            let inode = self.0.inodes.peek(InodeId { tree: inode.tree_id(), ino })?;
            Some(inode.with(|state| state.item))
        };
        let changed = inode.changed();
        let request = Request { tree: &inode.tree, ino: inode.ino, changed, memory: &item };
        Ok(self.0.logs.log(&handle, &request, source))
    }
}
