//! Several operations that become durable together, or not at all.
//!
//! The mechanism is an exclusive generation: the transaction that runs is committed, nobody else is let in, the
//! operations work in the next one, and that is committed too, or thrown away. So what a failure leaves is what the
//! trees on disk say, and no operation needs a way back of its own.
//!
//! | | cost |
//! |---|---|
//! | beginning | all data that is buffered, and up to two commits: one beside others, one alone |
//! | ending | the data and a commit |
//! | others | wait meanwhile, readers too; nobody sees a part of it |
//! | going back | what is in memory of trees, inodes and free space is read again |
//! | memory | up to [`Together::MOST_BYTES`] of changed tree blocks; data is written back as it comes, to new places |

use super::Filesystem;
use crate::commit::Before;
use crate::error::{Errno, Error, Result};
use crate::options::Canary;
use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The filesystem within [`Filesystem::transaction`]. Belongs to its thread.
pub struct Together<'a> {
    filesystem: &'a Filesystem,
    /// Other threads wait until the transaction ends.
    of_one_thread: PhantomData<*const ()>,
}

impl Together<'_> {
    /// The most bytes of tree blocks that a transaction may change; `E2BIG` beyond.
    pub const MOST_BYTES: usize = crate::commit::Engine::MOST_TOGETHER;
}

impl Deref for Together<'_> {
    type Target = Filesystem;

    fn deref(&self) -> &Filesystem {
        self.filesystem
    }
}

impl Filesystem {
    /// Runs `work`; everything that it does to the filesystem is durable when this returns `Ok`, and nothing of it is
    /// there when `work` returns an error or panics. After a crash all of it is there, or nothing.
    ///
    /// Others wait until it ends, whatever they call; `work` must not wait for another thread that uses the filesystem.
    /// Within it nothing is made durable on its own, and nothing that a crash could not take back is begun: `fsync`,
    /// `sync`, reading snapshots for a stream, cleaning and `shutdown` are refused (`EBUSY`). What would change more
    /// than [`Together::MOST_BYTES`] of tree blocks is refused (`E2BIG`), and where space is short no commit makes
    /// room, so `ENOSPC` comes earlier. Where `work` goes on after such an error, what did not fail stays, unless data
    /// that is still buffered finds no room at the end: then everything is taken back. The same goes for data that a
    /// device refuses, and where there is such data of others, no transaction begins.
    ///
    /// Numbers of inodes and subvolumes that it used are not used again. References to inodes that it took (`lookup`,
    /// `create`) are given back as ever, also when it fails.
    ///
    /// ```
    /// # use butterfs_device::{BlockDevice, MemoryDevice};
    /// # use butterfs_fs::{Caller, Env, Filesystem, Options, mkfs};
    /// # use std::sync::Arc;
    /// # let devices: Vec<Arc<dyn BlockDevice>> = vec![Arc::new(MemoryDevice::new(128 << 20))];
    /// # mkfs::mkfs(&devices, &mkfs::MkfsOptions::default(), &Env::system())?;
    /// # let filesystem = Filesystem::open(devices, Options::default(), Env::system())?;
    /// let root = filesystem.root();
    /// filesystem.transaction(|together| {
    ///     let file = together.create(&Caller::default(), root, b"config", 0o644)?;
    ///     together.write(file.id, 0, b"new", false)?;
    ///     together.mkdir(&Caller::default(), root, b"state", 0o755)?;
    ///     Ok(())
    /// })?;
    /// # filesystem.shutdown()?;
    /// # Ok::<(), butterfs_fs::Error>(())
    /// ```
    pub fn transaction<R>(&self, work: impl FnOnce(&Together<'_>) -> Result<R>) -> Result<R> {
        if self.0.exclusion.is_inside() {
            return Err(Error::refused(Errno::EBUSY, "a transaction of several operations cannot hold another one"));
        }
        self.0.engine.must_not_be_read_only()?;
        // So that little is left to write while others wait. What goes wrong is met again.
        let _ = self.sync();
        let _alone = self.0.exclusion.alone();
        let alarm = self.0.engine.alarm();
        // It may have been closed while this waited.
        self.0.engine.must_not_be_read_only()?;
        self.0.files.write_back_all()?;
        let before = self.0.engine.begin_together()?;
        let together = Together { filesystem: self, of_one_thread: PhantomData };
        let worked = catch_unwind(AssertUnwindSafe(|| work(&together)));
        let result = match worked {
            Ok(Ok(result)) => self.0.files.write_back_all().map(|()| Ok(result)),
            Ok(Err(error)) => Err(error),
            Err(panic) => Ok(Err(panic)),
        };
        match result {
            Ok(Ok(result)) => {
                self.0.engine.end_together();
                self.0.engine.commit()?;
                self.0.logs.forget_durable();
                Ok(result)
            }
            Ok(Err(panic)) => {
                // An operation that panicked has stopped all writing; nothing is left to go back to then.
                let _ = self.go_back(before);
                drop(alarm);
                resume_unwind(panic)
            }
            Err(error) => self.go_back(before).and(Err(error)),
        }
    }

    /// Throws away what the running transaction has done.
    fn go_back(&self, before: Before) -> Result<()> {
        let engine = &self.0.engine;
        if let Some(aborted) = engine.aborted() {
            engine.end_together();
            return Err(aborted);
        }
        // While it still counts as together: the write-back thread must not write in place what is about to be
        // forgotten.
        self.0.files.abandon();
        let reload = || if engine.has_canary(Canary::LeftBehind) { Ok(()) } else { self.0.inodes.reload() };
        // Half of the way back is no state that anybody may write.
        let gone_back = engine.go_back(before).and_then(|()| reload()).inspect_err(|error| engine.abort(error));
        engine.end_together();
        engine.note_trees_full(false);
        self.0.snapshots.forget();
        self.0.names.forget_cleaned();
        gone_back?;
        // Files without a name that were closed within are nobody's now. What is left of them goes with the next mount.
        let subvolumes = engine.trees.all().into_iter().filter(|tree| tree.id().is_subvolume() && !tree.is_deleted());
        subvolumes.for_each(|tree| drop(self.0.names.enter_subvolume(tree.id())));
        Ok(())
    }
}
