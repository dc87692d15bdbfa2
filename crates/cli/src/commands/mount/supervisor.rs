//! The service manager, seen from a mount that runs in the foreground: systemd learns that the mount is usable and
//! alive, and its journal gets each message with a priority.
//!
//! Without `NOTIFY_SOCKET` in the environment nothing is sent. With a watchdog (`WATCHDOG_USEC`) a thread asks the
//! mount for its statistics twice per interval. This request passes through the kernel and reaches the engine, so a
//! server that answers nobody misses its deadline, and the service manager ends it.

use crate::report;
use butterfs_fuse::Log;
use sd_notify::NotifyState;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// Syslog's severity of a warning, as the journal reads it at the start of a line.
const WARNING_PREFIX: &str = "<4>";

/// Reports to the service manager until it is dropped.
#[derive(Debug)]
pub struct Supervisor {
    /// Dropping it ends the watchdog's thread. Nobody joins the thread, because it may wait for an answer of this very
    /// server.
    _watchdog: Option<mpsc::Sender<()>>,
}

impl Supervisor {
    /// Announces that the mount is usable, and starts the watchdog's thread where one is wanted.
    pub fn ready(mountpoint: &Path) -> Supervisor {
        notify(&[NotifyState::Ready, NotifyState::Status("mounted")]);
        let watchdog = sd_notify::watchdog_enabled().and_then(|deadline| {
            let mountpoint = mountpoint.to_owned();
            let (stop, stopped) = mpsc::channel();
            let work = move || report_alive(&mountpoint, deadline / 2, &stopped);
            let thread = std::thread::Builder::new().name("watchdog".to_owned()).spawn(work);
            thread.ok().map(|_| stop)
        });
        Supervisor { _watchdog: watchdog }
    }
}

fn report_alive(mountpoint: &Path, interval: Duration, stopped: &mpsc::Receiver<()>) {
    while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        if rustix::fs::statfs(mountpoint).is_ok() {
            notify(&[NotifyState::Watchdog]);
        }
    }
}

/// A service manager that cannot be reached is no reason to stop serving.
fn notify(state: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(state);
}

/// Warnings on standard error, with a priority where that is the journal.
pub fn log() -> Log {
    match is_journal() {
        true => Arc::new(|sentence: &str| report::line(&format!("{WARNING_PREFIX}{sentence}"))),
        false => Arc::new(report::warn),
    }
}

/// Whether standard error is the stream of the journal that the environment names, as `DEVICE:INODE`.
fn is_journal() -> bool {
    let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    rustix::fs::fstat(rustix::stdio::stderr()).is_ok_and(|stat| named == format!("{}:{}", stat.st_dev, stat.st_ino))
}
