//! Holding a mount writable while something is changed that was reached through it, as the kernel does for the time of
//! its ioctls: a remount to read-only fails meanwhile with `EBUSY`, for a bind mount as for the filesystem.
//!
//! The kernel counts open files that may be written, so the serving process opens one: a file without a name in the
//! directory that was reached. The request comes back to the same process, which knows the thread that made it, and
//! answers with a node that is nothing: the engine takes no part.
//!
//! # Invariants
//! 1. Nobody else can get such a node: its request comes from a thread that is in [`Holds::on`].
//! 2. Whoever holds has no lock of the engine, because requests are served meanwhile.

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, openat};
use rustix::thread::gettid;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Node ids that lead to no inode: the table of inodes that comes before them does not get so long.
const FIRST_NODE: u64 = 3 << 62;

/// The threads that are about to hold, and the nodes that they got.
#[derive(Debug, Default)]
pub struct Holds {
    threads: Mutex<Vec<u32>>,
    made: AtomicU64,
}

impl Holds {
    /// Holds the mount that a directory was reached through writable, as long as the descriptor is open.
    pub(super) fn on(&self, directory: &OwnedFd) -> rustix::io::Result<OwnedFd> {
        let thread = gettid().as_raw_nonzero().get() as u32;
        self.threads.lock().push(thread);
        let held = openat(directory, ".", OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        self.threads.lock().retain(|other| *other != thread);
        held
    }

    /// The node for a request for a file without a name, where a thread makes it that is about to hold.
    pub fn node_for(&self, thread: u32) -> Option<u64> {
        let is_holding = self.threads.lock().contains(&thread);
        is_holding.then(|| FIRST_NODE + self.made.fetch_add(1, Ordering::Relaxed))
    }
}
