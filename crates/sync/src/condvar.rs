//! A condition variable.

use crate::mutex::MutexGuard;
use crate::scheduler::{Object, is_scheduled, with};
use std::time::Duration;

/// A condition variable. Who waits may also be woken for nothing, so it looks again.
#[derive(Default, Debug)]
pub struct Condvar {
    raw: parking_lot::Condvar,
}

impl Condvar {
    /// Nobody waits.
    pub const fn new() -> Condvar {
        Condvar { raw: parking_lot::Condvar::new() }
    }

    /// Waits for a notification; the mutex is free meanwhile.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if is_scheduled() {
            self.wait_scheduled(guard, false);
        } else {
            self.raw.wait(&mut guard.raw);
        }
    }

    /// The same, at most so long. True when the time was up.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, most: Duration) -> bool {
        if is_scheduled() {
            self.wait_scheduled(guard, true)
        } else {
            self.raw.wait_for(&mut guard.raw, most).timed_out()
        }
    }

    #[cold]
    fn wait_scheduled<T>(&self, guard: &mut MutexGuard<'_, T>, may_time_out: bool) -> bool {
        let mutex = parking_lot::MutexGuard::mutex(&guard.raw);
        let (object, of_mutex) = (Object::of(self), guard.object());
        parking_lot::MutexGuard::unlocked(&mut guard.raw, || {
            with(|scheduler| {
                scheduler.changed(of_mutex);
                let timed_out = scheduler.wait(object, may_time_out);
                // No other thread runs between here and the lock that follows.
                while mutex.is_locked() {
                    scheduler.wait(of_mutex, false);
                }
                timed_out
            })
        })
    }

    /// Wakes one who waits.
    pub fn notify_one(&self) {
        self.tell();
        self.raw.notify_one();
    }

    /// Wakes all who wait.
    pub fn notify_all(&self) {
        self.tell();
        self.raw.notify_all();
    }

    #[inline]
    fn tell(&self) {
        if is_scheduled() {
            with(|scheduler| scheduler.changed(Object::of(self)));
        }
    }
}
