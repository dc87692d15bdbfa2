//! A limit for the time a test may take.
//!
//! Invariant: when the limit is reached the process says which test it was and aborts; a hang is a failure, never a
//! wait.

use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Runs while it lives.
#[derive(Debug)]
pub struct Watchdog {
    _stop: Sender<()>,
    doing: Arc<Mutex<String>>,
}

impl Watchdog {
    /// Aborts the process unless the result is dropped within `limit_s` seconds.
    pub fn new(test: &str, limit_s: u64) -> Watchdog {
        let (stop, stopped) = channel();
        let test = test.to_owned();
        let doing = Arc::new(Mutex::new(String::new()));
        let shown = Arc::clone(&doing);
        std::thread::spawn(move || {
            if stopped.recv_timeout(Duration::from_secs(limit_s)) == Err(RecvTimeoutError::Timeout) {
                let doing = shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let _ =
                    writeln!(std::io::stderr(), "test {test} ... still running after {limit_s} s: {doing} ... FAILED");
                // A core is written only when every thread has stopped, and one that waits for a mount that this very
                // process serves does not stop before the process has ended.
                let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
                std::process::abort();
            }
        });
        Watchdog { _stop: stop, doing }
    }

    /// Remembers what is being done, to be said when the limit is reached.
    pub fn note(&self, doing: &str) {
        doing.clone_into(&mut self.doing.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
