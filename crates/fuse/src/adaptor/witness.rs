//! Whether a mount leads to this server: a thread asks the mount something, and the request comes back to the same
//! process.
//!
//! A loop device whose last mount is gone may belong to another filesystem by now, under the same number.

use parking_lot::Mutex;
use rustix::fs::fstatfs;
use rustix::thread::gettid;
use std::os::fd::AsFd;

/// Threads that ask, and whether their requests have come.
#[derive(Default)]
pub struct Witness(Mutex<Vec<(u32, bool)>>);

impl Witness {
    /// Whether the requests that are made through `mount` come here. Not for threads that serve requests.
    pub fn is_asked_by(&self, mount: impl AsFd) -> bool {
        let own = gettid().as_raw_nonzero().get() as u32;
        self.0.lock().push((own, false));
        // Whatever the answer is: STATFS is never answered from a cache.
        let _ = fstatfs(mount);
        let mut threads = self.0.lock();
        let index = threads.iter().position(|(thread, _)| *thread == own);
        index.is_some_and(|index| threads.swap_remove(index).1)
    }

    /// A STATFS of this thread has come.
    pub fn note(&self, thread: u32) {
        self.0.lock().iter_mut().filter(|(asking, _)| *asking == thread).for_each(|(_, seen)| *seen = true);
    }
}
