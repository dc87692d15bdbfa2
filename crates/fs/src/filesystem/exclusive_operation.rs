//! The one operation on the set of devices or on whole chunks that a filesystem allows at a time.
//!
//! # Invariants
//! 1. At most one operation runs; a paused balance counts as one, beside which only a device may be added.
//! 2. An operation ends when its [`Exclusive`] is dropped, whatever becomes of its work.
//! 3. A replacement and a scrub exclude each other, as in the kernel.
//! 4. Asking to cancel changes nothing but a flag that the operation looks at between its steps.
//!
//! Nothing here is on disk: what outlives a mount (a balance, a replacement) has its item in a tree.

use super::Filesystem;
use crate::error::{Errno, Error, Result};
use butterfs_sync::{Condvar, Mutex, order};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// For how long closing a filesystem waits for work on its devices: one piece and one commit.
const PATIENCE: Duration = Duration::from_secs(30);

/// The interval of progress reports.
const INTERVAL: Duration = Duration::from_millis(250);

/// An operation that excludes all others. The names are those that the kernel shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExclusiveOperation {
    /// Chunks are relocated or converted.
    Balance,
    /// A balance that waits to be resumed.
    BalancePaused,
    /// Devices are added.
    DeviceAdd,
    /// Devices are removed.
    DeviceRemove,
    /// A device is replaced.
    DeviceReplace,
    /// A device gets another size.
    Resize,
}

impl fmt::Display for ExclusiveOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ExclusiveOperation::Balance => "balance",
            ExclusiveOperation::BalancePaused => "balance paused",
            ExclusiveOperation::DeviceAdd => "device add",
            ExclusiveOperation::DeviceRemove => "device remove",
            ExclusiveOperation::DeviceReplace => "device replace",
            ExclusiveOperation::Resize => "resize",
        })
    }
}

impl ExclusiveOperation {
    /// Whether it changes the set of devices or their sizes.
    fn changes_devices(self) -> bool {
        use ExclusiveOperation::{DeviceAdd, DeviceRemove, DeviceReplace, Resize};
        matches!(self, DeviceAdd | DeviceRemove | DeviceReplace | Resize)
    }

    /// Whether it may begin while `running` is not over.
    fn may_join(self, running: ExclusiveOperation) -> bool {
        (self, running) == (ExclusiveOperation::DeviceAdd, ExclusiveOperation::BalancePaused)
    }
}

/// The progress of an operation, and whether it is to stop.
#[derive(Debug, Default)]
pub struct OperationProgress {
    is_cancelled: AtomicBool,
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
}

impl OperationProgress {
    /// Whether somebody wants it to stop.
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }

    /// Asks it to stop.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release);
    }

    /// The error of work that stops because it was asked to.
    pub fn must_go_on(&self) -> Result<()> {
        if self.is_cancelled() { Err(Error::refused(Errno::ECANCELED, "canceled")) } else { Ok(()) }
    }

    /// There are so many bytes to move.
    pub fn set_total(&self, bytes: u64) {
        self.total_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Adds bytes to the work done.
    pub fn add_done(&self, bytes: u64) {
        self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that are done, and all of them.
    pub fn bytes(&self) -> (u64, u64) {
        (self.done_bytes.load(Ordering::Relaxed), self.total_bytes.load(Ordering::Relaxed))
    }
}

/// The running operations, the last one on top: at most two.
#[derive(Default)]
pub(super) struct ExclusiveOperations {
    running: Mutex<Vec<(ExclusiveOperation, Arc<OperationProgress>)>, { order::EXCLUSIVE_OPERATION }>,
    ended: Condvar,
}

/// The right to run an operation. It ends when dropped.
#[must_use]
pub struct Exclusive {
    operations: Arc<ExclusiveOperations>,
    progress: Arc<OperationProgress>,
}

impl Exclusive {
    /// The progress, and whether it is to stop.
    pub fn progress(&self) -> &Arc<OperationProgress> {
        &self.progress
    }

    /// It is another operation from now on: a balance that is paused, or resumed. Of two that run, only a paused
    /// balance becomes another one.
    pub fn become_operation(&self, operation: ExclusiveOperation) -> Result<()> {
        let mut running = self.operations.running.lock();
        if operation != ExclusiveOperation::BalancePaused && running.len() > 1 {
            return Err(in_progress(operation, running[running.len() - 1].0));
        }
        let own = running.iter_mut().find(|(_, progress)| Arc::ptr_eq(progress, &self.progress));
        own.expect("it ends when it is dropped").0 = operation;
        Ok(())
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        let mut running = self.operations.running.lock();
        running.retain(|(_, progress)| !Arc::ptr_eq(progress, &self.progress));
        self.operations.ended.notify_all();
    }
}

/// Runs `work` on a thread of its own. `report` gets the bytes done and the bytes of all of `operation` whenever they
/// have changed; when it returns false, the operation is cancelled.
pub fn watched(
    filesystem: &Filesystem,
    operation: ExclusiveOperation,
    work: impl FnOnce() -> Result<()> + Send,
    report: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<()> {
    let (send, outcome) = channel();
    let mut told = None;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // The receiver waits for it.
            let _ = send.send(work());
        });
        loop {
            match outcome.recv_timeout(INTERVAL) {
                Ok(outcome) => return outcome,
                Err(RecvTimeoutError::Disconnected) => return Err(Error::refused(Errno::EIO, "the work has panicked")),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let running = filesystem.exclusive_operation().filter(|(running, _)| *running == operation);
            let Some((_, progress)) = running else { continue };
            let (done_bytes, total_bytes) = progress.bytes();
            if told.replace((done_bytes, total_bytes)) != Some((done_bytes, total_bytes))
                && !report(done_bytes, total_bytes)
            {
                progress.cancel();
            }
        }
    })
}

impl Filesystem {
    /// Begins an operation that excludes others; `EINPROGRESS` names the one that runs.
    pub fn begin_exclusive(&self, operation: ExclusiveOperation) -> Result<Exclusive> {
        let _alarm = self.0.engine.alarm();
        let progress = Arc::new(OperationProgress::default());
        let mut running = self.0.exclusive_operations.running.lock();
        if let Some((other, _)) = running.iter().find(|(other, _)| !operation.may_join(*other)) {
            return Err(in_progress(operation, *other));
        }
        if operation == ExclusiveOperation::DeviceReplace && self.has_running_scrub() {
            return Err(Error::refused(Errno::EINPROGRESS, "scrub is in progress"));
        }
        running.push((operation, Arc::clone(&progress)));
        drop(running);
        Ok(Exclusive { operations: Arc::clone(&self.0.exclusive_operations), progress })
    }

    /// Does something at a moment at which no device is being replaced, and none begins to be. The kernel's scrub and
    /// its replacement are one mechanism, so there they exclude each other; here a scrub would read and repair what
    /// changes its device.
    pub(super) fn while_none_is_replaced<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let running = self.0.exclusive_operations.running.lock();
        match running.iter().any(|(operation, _)| *operation == ExclusiveOperation::DeviceReplace) {
            true => Err(Error::refused(Errno::EINPROGRESS, "a device is being replaced")),
            false => act(),
        }
    }

    /// The operation that runs, the one on top where a device is added beside a paused balance.
    pub fn exclusive_operation(&self) -> Option<(ExclusiveOperation, Arc<OperationProgress>)> {
        let _alarm = self.0.engine.alarm();
        self.0.exclusive_operations.running.lock().last().cloned()
    }

    /// Waits until work that changes devices has noticed that the filesystem is being closed; not for ever.
    pub(super) fn wait_for_chunk_work(&self) {
        let deadline = self.0.engine.env().uptime() + PATIENCE;
        let operations = &self.0.exclusive_operations;
        let mut running = operations.running.lock();
        while running.iter().any(|(operation, _)| operation.changes_devices()) {
            let left = deadline.saturating_sub(self.0.engine.env().uptime());
            if left.is_zero() || operations.ended.wait_for(&mut running, left) {
                return;
            }
        }
    }

    /// Refuses what would take the right to write away from work on the devices.
    pub(super) fn must_not_change_devices(&self) -> Result<()> {
        let running = self.0.exclusive_operations.running.lock();
        match running.iter().find(|(operation, _)| operation.changes_devices()) {
            Some((operation, _)) => {
                let what = format!("the filesystem cannot become read-only while '{operation}' is in progress");
                Err(Error::refused_at(Errno::EBUSY, what))
            }
            None => Ok(()),
        }
    }

    /// Asks `operation` to stop. False when it does not run.
    pub fn cancel_exclusive(&self, operation: ExclusiveOperation) -> bool {
        let _alarm = self.0.engine.alarm();
        let running = self.0.exclusive_operations.running.lock();
        let found = running.iter().find(|(running, _)| *running == operation);
        found.inspect(|(_, progress)| progress.cancel()).is_some()
    }
}

fn in_progress(operation: ExclusiveOperation, other: ExclusiveOperation) -> Error {
    let sentence = format!("unable to start {operation}, another exclusive operation '{other}' in progress");
    Error::refused_at(Errno::EINPROGRESS, sentence)
}
