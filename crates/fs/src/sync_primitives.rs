//! Mutex and condition variable as the protocols use them, in one place, so that a systematic test of interleavings can
//! put its own in their stead.

use parking_lot::{Condvar as RawCondvar, Mutex as RawMutex, MutexGuard as RawGuard};

/// A mutex.
#[derive(Default)]
pub struct Mutex<T>(RawMutex<T>);

/// Its guard.
pub type Guard<'a, T> = RawGuard<'a, T>;

impl<T> Mutex<T> {
    /// Not locked.
    pub fn new(value: T) -> Mutex<T> {
        Mutex(RawMutex::new(value))
    }

    /// Locks.
    pub fn lock(&self) -> Guard<'_, T> {
        self.0.lock()
    }
}

/// A condition variable.
#[derive(Default)]
pub struct Condvar(RawCondvar);

impl Condvar {
    /// Waits for a notification; the mutex is free meanwhile.
    pub fn wait<'a, T>(&self, mut guard: Guard<'a, T>) -> Guard<'a, T> {
        self.0.wait(&mut guard);
        guard
    }

    /// Wakes all who wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
