//! A handle: the right to change trees in one transaction, with the space that the change may need.

use super::refs::{Changed, ExtentKind, RefBy};
use super::{Core, Progress, Reserve};
use crate::error::{Errno, Error, Result};
use crate::node_io::Work;
use crate::options::Canary;
use crate::space::Class;
use butterfs_ondisk::{Generation, Logical, TreeId};
use butterfs_sync::order::{self, Held};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A reference from file extent items to data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataRef {
    /// Start of the extent.
    pub at: Logical,
    /// Length of the whole extent on disk.
    pub len: u64,
    /// The tree that holds the file extent item.
    pub tree: TreeId,
    /// The inode.
    pub ino: u64,
    /// Position in the file minus offset in the extent, modulo 2^64.
    pub offset: u64,
}

/// Changed tree blocks in memory after which a commit is due.
const DIRTY_NODES_BYTES: usize = 160 << 20;

/// See the [module](self). Ends when dropped.
pub struct Handle {
    core: Arc<Core>,
    generation: Generation,
    reserved: u64,
    counted: bool,
    edited: AtomicBool,
    /// A panic that drops it is its own.
    armed: bool,
    _held: Held,
}

impl Core {
    /// Joins the running transaction, with space reserved for what `reserve` says. `ENOSPC` happens here or not at
    /// all; `EROFS` when nothing may be written.
    pub fn start(self: &Arc<Self>, reserve: Reserve) -> Result<Handle> {
        if self.is_read_only() {
            return Err(Error::refused(Errno::EROFS, "the filesystem is mounted read-only"));
        }
        self.relieve_memory()?;
        self.book_one_slice()?;
        let reserved = self.reserve_metadata(reserve)?;
        self.join(reserved).inspect_err(|_| self.space.unreserve(Class::Metadata, reserved))
    }

    /// Has a commit done when much memory holds changes; does it here when that does not help.
    fn relieve_memory(self: &Arc<Self>) -> Result<()> {
        let limit = DIRTY_NODES_BYTES / self.nodesize() as usize;
        let dirty = self.nodes.dirty_count();
        if dirty > 2 * limit || (dirty > limit && !self.env().background()) {
            return self.commit();
        }
        if dirty > limit {
            self.want_commit();
        }
        Ok(())
    }

    /// Joins without a reservation.
    pub(crate) fn join(self: &Arc<Self>, reserved: u64) -> Result<Handle> {
        let held = Held::of(order::HANDLE);
        let mut progress = self.progress.lock();
        if progress.settling && progress.aborted.is_none() {
            progress.waiting += 1;
            while progress.settling && progress.aborted.is_none() {
                self.changed.wait(&mut progress);
            }
            progress.waiting -= 1;
            if progress.waiting == 0 {
                self.changed.notify_all();
            }
        }
        if let Some(reason) = &progress.aborted {
            return Err(Error::Aborted(reason.clone()));
        }
        progress.handles += 1;
        let generation = progress.running;
        drop(progress);
        Ok(self.handle(generation, reserved, held, true))
    }

    fn handle(self: &Arc<Self>, generation: Generation, reserved: u64, held: Held, counted: bool) -> Handle {
        let (edited, armed) = (AtomicBool::new(!counted), !std::thread::panicking());
        Handle { core: Arc::clone(self), generation, reserved, counted, edited, armed, _held: held }
    }

    /// Waits until every handle that is open now has ended; others begin only then. No handle may be held.
    pub(crate) fn let_handles_end(&self) -> Result<()> {
        self.stop_handles().map(drop)
    }

    /// Has new handles wait, and waits for the ones that are open. Not longer than until the filesystem is aborted.
    pub(crate) fn stop_handles(&self) -> Result<Stopped<'_>> {
        self.stop_handles_when(|progress| !progress.settling)
    }

    /// The same, after all who wait to join have joined: for who does it again and again.
    pub(crate) fn stop_handles_in_turn(&self) -> Result<Stopped<'_>> {
        self.stop_handles_when(|progress| !progress.settling && progress.waiting == 0)
    }

    fn stop_handles_when(&self, may: impl Fn(&Progress) -> bool) -> Result<Stopped<'_>> {
        let held = Held::of(order::HANDLE);
        let mut progress = self.progress.lock();
        while !may(&progress) && progress.aborted.is_none() {
            self.changed.wait(&mut progress);
        }
        let stops = progress.aborted.is_none();
        progress.settling |= stops;
        while progress.handles > 0 && progress.aborted.is_none() {
            self.changed.wait(&mut progress);
        }
        let (generation, aborted) = (progress.running, progress.aborted.clone());
        drop(progress);
        let stopped = stops.then(|| Stopped { core: self, generation, before: self.nodes.work(), _held: held });
        match (stopped, aborted) {
            (Some(stopped), None) => Ok(stopped),
            (_, reason) => Err(Error::Aborted(reason.unwrap_or_default())),
        }
    }

    /// Remembers the most work that was done while everybody waited.
    fn count_stop(&self, before: &Work) {
        let work = self.nodes.work().since(before);
        self.longest_stop.0.fetch_max(work.steps(), Ordering::Relaxed);
        self.longest_stop.1.fetch_max(work.reads, Ordering::Relaxed);
    }

    /// The handle that settling works with; every other one has ended.
    pub(crate) fn settling_handle(self: &Arc<Self>, generation: Generation) -> Handle {
        self.handle(generation, 0, Held::of(order::UNRANKED), false)
    }
}

/// No handle is open, and new ones wait until this is dropped.
pub(crate) struct Stopped<'a> {
    core: &'a Core,
    /// The running transaction.
    pub generation: Generation,
    before: Work,
    _held: Held,
}

impl Stopped<'_> {
    /// Lets handles begin, in `running`.
    pub fn resume(self, running: Generation) {
        let mut progress = self.core.progress.lock();
        progress.running = running;
        self.core.set_generation(running);
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.core.abort_after_panic();
        }
        self.core.count_stop(&self.before);
        self.core.progress.lock().settling = false;
        self.core.changed.notify_all();
    }
}

impl Handle {
    /// The filesystem.
    pub fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The transaction.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    pub(super) fn edited(&self) {
        self.edited.store(true, Ordering::Relaxed);
    }

    /// An edit failed. If something was changed under this handle, the transaction cannot be completed.
    pub fn failed(&self, error: &Error) {
        if self.edited.load(Ordering::Relaxed) {
            self.core.abort(error);
        }
    }

    /// One more file extent item refers to data. `new`: the extent was just allocated and has no extent item.
    pub fn add_data_ref(&self, data: DataRef, new: bool) {
        self.change_data_ref(data, 1, new);
    }

    /// One file extent item less refers to data.
    pub fn drop_data_ref(&self, data: DataRef) {
        if self.core.has_canary(Canary::ReferenceMiscounted) && (data.at.0 / 4096).is_multiple_of(16) {
            return;
        }
        self.change_data_ref(data, -1, false);
    }

    fn change_data_ref(&self, data: DataRef, count: i64, new: bool) {
        let by = RefBy::File { tree: data.tree, ino: data.ino, offset: data.offset };
        if self.core.refs.change(data.at, data.len, ExtentKind::Data, by, count, new) == Changed::Conflict
            && let Some(conflict) = self.core.refs.conflict()
        {
            self.core.abort(&conflict);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Before anybody who waits for this handle can settle what it left half-made.
        if self.armed && std::thread::panicking() {
            self.core.abort_after_panic();
        }
        if self.reserved > 0 {
            self.core.space.unreserve(Class::Metadata, self.reserved);
        }
        if !self.counted {
            return;
        }
        let mut progress = self.core.progress.lock();
        progress.handles -= 1;
        if progress.handles == 0 && progress.settling {
            drop(progress);
            self.core.changed.notify_all();
        }
    }
}
