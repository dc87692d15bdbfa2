//! A value that is dropped without the interpreter lock.
//!
//! Dropping a handle can wait for a transaction of another thread, and closing a filesystem can wait for a device that
//! is a Python object. Both need the interpreter lock in the other thread, so whoever drops must not hold it.

use pyo3::Python;
use std::ops::Deref;

/// See the [module](self).
pub struct Detached<T: Send>(Option<T>);

impl<T: Send> Detached<T> {
    pub fn new(value: T) -> Detached<T> {
        Detached(Some(value))
    }
}

impl<T: Send> Deref for Detached<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("only drop takes the value")
    }
}

impl<T: Send> Drop for Detached<T> {
    fn drop(&mut self) {
        let value = self.0.take();
        // While the interpreter ends there is no lock to give up.
        let _ = Python::try_attach(|py| py.detach(|| drop(value)));
    }
}
