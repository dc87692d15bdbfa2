//! Requests to the background threads: a commit soon, or something to clean.

use crate::env::Env;
use butterfs_sync::{Condvar, Mutex, order};
use std::time::Duration;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct BackgroundRequests {
    commit: (Mutex<bool, { order::BACKGROUND_REQUESTS }>, Condvar),
    cleaning: (Mutex<bool, { order::BACKGROUND_REQUESTS }>, Condvar),
}

impl BackgroundRequests {
    /// Asks the background thread for a commit soon.
    pub fn request_commit(&self) {
        *self.commit.0.lock() = true;
        self.commit.1.notify_all();
    }

    /// Wakes the cleaner: a subvolume was deleted, or the filesystem is being closed.
    pub fn request_cleaning(&self) {
        *self.cleaning.0.lock() = true;
        self.cleaning.1.notify_all();
    }

    /// Waits until there may be something to clean.
    pub fn wait_for_cleaning(&self) {
        let mut wanted = self.cleaning.0.lock();
        while !std::mem::take(&mut *wanted) {
            self.cleaning.1.wait(&mut wanted);
        }
    }

    /// Waits until somebody wants a commit, at most `interval`. True when the time was up.
    pub fn wait_for_commit(&self, env: &Env, interval: Duration) -> bool {
        let deadline = env.uptime() + interval;
        let mut wanted = self.commit.0.lock();
        while !*wanted {
            let left = deadline.saturating_sub(env.uptime());
            if left.is_zero() || self.commit.1.wait_for(&mut wanted, left) {
                break;
            }
        }
        !std::mem::take(&mut *wanted)
    }
}
