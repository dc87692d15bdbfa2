//! Moving whole chunks, step by step, while everybody else works.

use super::courtesy::Courtesy;
use super::{Filesystem, OperationProgress};
use crate::env::Point;
use crate::error::{Errno, Error, Result};
use crate::migration::{Migration, MigrationTarget};
use butterfs_ondisk::Logical;

impl Filesystem {
    /// Refuses to go on with long work while the filesystem is being closed.
    pub(super) fn must_not_be_stopping(&self) -> Result<()> {
        match self.is_stopping() {
            true => Err(Error::refused(Errno::ECANCELED, "the filesystem is being closed")),
            false => Ok(()),
        }
    }

    /// Moves the chunk at `start` where `target` wants it, and returns when that is durable. False where it is so
    /// already, or the chunk is gone. After an error the chunk is where it was. The caller has the right to an
    /// [exclusive operation](Self::begin_exclusive), whose `progress` says whether to stop.
    pub fn migrate_chunk(
        &self,
        start: Logical,
        target: &MigrationTarget,
        progress: &OperationProgress,
    ) -> Result<bool> {
        let _alarm = self.0.engine.alarm();
        let Some(mut migration) = ({
            let _operation = self.begin();
            self.0.engine.must_not_be_read_only()?;
            Migration::begin(&self.0.engine, start, target)?
        }) else {
            return Ok(false);
        };
        let mut courtesy = Courtesy::new(self);
        loop {
            self.0.engine.env().reached(Point::PieceMoved);
            courtesy.before_next_step(self, progress)?;
            let _operation = self.begin();
            match migration.step()? {
                Some(bytes) => progress.add_done(bytes),
                None => break,
            }
        }
        let _operation = self.begin();
        migration.finish()?;
        Ok(true)
    }
}
