//! Emptying one block group and deleting it, a bounded step at a time.

use super::courtesy::Courtesy;
use super::{Filesystem, OperationProgress};
use crate::error::{Errno, Error, Result};
use crate::relocation::{ClosedGroup, Mover, Step};
use crate::subvolume;
use butterfs_ondisk::{Logical, TreeId};
use std::time::Duration;

/// Passes over a group, at most.
const MOST_PASSES: usize = 32;
/// Passes in a row that may find as much as the one before: what had its place there before the group was closed can be
/// recorded later.
const MOST_IN_VAIN: usize = 4;

/// How long is waited for readers of a snapshot before a commit tries again to delete a group.
const READERS_PAUSE: Duration = Duration::from_millis(100);

/// A group that is being emptied. When it is dropped before it is empty, it serves allocations again with what is left
/// in it.
pub(super) struct Emptying {
    closed: ClosedGroup,
    mover: Option<Mover>,
    passes: usize,
    in_vain: usize,
    left: u64,
}

/// The outcome of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Emptied {
    /// There is more to do.
    NotYet,
    /// It is empty, and gone, or goes as soon as nobody reads what was there.
    Gone,
}

impl Filesystem {
    /// Begins to empty the group that begins at `start`.
    pub(super) fn begin_emptying(&self, start: Logical) -> Result<Emptying> {
        let _operation = self.begin();
        self.0.engine.must_not_be_together()?;
        subvolume::drop_old_caches(&self.0.engine)?;
        let closed = ClosedGroup::close(&self.0.engine, start)?;
        // What was allocated there is recorded and on disk from now on.
        self.sync()?;
        Ok(Emptying { closed, mover: None, passes: 0, in_vain: 0, left: u64::MAX })
    }

    /// Empties the group that begins at `start`, and returns when it is gone. `ENOSPC` where the others have no room.
    pub(super) fn empty_chunk(&self, start: Logical, progress: &OperationProgress) -> Result<()> {
        let mut emptying = self.begin_emptying(start)?;
        let mut courtesy = Courtesy::new(self);
        loop {
            courtesy.before_next_step(self, progress)?;
            if self.empty_some(&mut emptying)? == Emptied::Gone {
                break;
            }
        }
        // Readers of a snapshot may still look at what was there.
        while self.0.engine.space.group(start).is_some() {
            progress.must_go_on()?;
            self.must_not_be_stopping()?;
            std::thread::sleep(READERS_PAUSE);
            let _operation = self.begin();
            self.0.engine.commit_for_space()?;
        }
        Ok(())
    }

    /// Does one step.
    pub(super) fn empty_some(&self, emptying: &mut Emptying) -> Result<Emptied> {
        let _operation = self.begin();
        self.0.engine.must_not_be_together()?;
        let Some(mover) = &mut emptying.mover else { return self.begin_pass(emptying) };
        match mover.step()? {
            Step::Moved => {}
            Step::Blocked(tree) => self.drop_whole(tree)?,
            Step::End => {
                emptying.mover = None;
                self.sync()?;
            }
        }
        Ok(Emptied::NotYet)
    }

    /// Looks for what is left, if anything.
    fn begin_pass(&self, emptying: &mut Emptying) -> Result<Emptied> {
        let used = emptying.closed.used();
        if used == 0 {
            emptying.closed.delete()?;
            return Ok(Emptied::Gone);
        }
        emptying.passes += 1;
        emptying.in_vain = if used < emptying.left { 0 } else { emptying.in_vain + 1 };
        if emptying.in_vain > MOST_IN_VAIN || emptying.passes > MOST_PASSES {
            let start = emptying.closed.group().start;
            return Err(Error::refused_at(Errno::EIO, format!("{used} bytes of block group {start} cannot be moved")));
        }
        emptying.left = used;
        emptying.mover = Some(Mover::new(&self.0.engine, &emptying.closed));
        Ok(Emptied::NotYet)
    }

    /// Drops what is left of a deleted subvolume.
    fn drop_whole(&self, id: TreeId) -> Result<()> {
        let mut at = id;
        while at == id && self.clean_step(&mut at)? {}
        Ok(())
    }
}
