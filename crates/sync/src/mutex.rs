//! A mutex.

use crate::order::{Held, Ranked, UNRANKED};
use crate::scheduler::{Object, Released, is_scheduled, take, try_take};
use std::ops::{Deref, DerefMut};

/// A mutex without poisoning. `RANK` is its place in the [order](crate::order).
#[derive(Default, Debug)]
pub struct Mutex<T, const RANK: u8 = UNRANKED> {
    raw: parking_lot::Mutex<T>,
    rank: Ranked<RANK>,
}

/// Holds a [`Mutex`] until it is dropped.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    pub(crate) raw: parking_lot::MutexGuard<'a, T>,
    /// Dropped behind the guard.
    released: Released,
    _held: Held,
}

impl<T, const RANK: u8> Mutex<T, RANK> {
    /// Not locked.
    pub const fn new(value: T) -> Mutex<T, RANK> {
        Mutex { raw: parking_lot::Mutex::new(value), rank: Ranked::new() }
    }

    /// Waits for the lock and takes it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let object = Object::of(self);
        let held = self.rank.wait();
        let raw = if is_scheduled() { take(object, false, || self.raw.try_lock()) } else { self.raw.lock() };
        MutexGuard { raw, released: Released(object), _held: held }
    }

    /// Takes the lock unless somebody has it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let object = Object::of(self);
        let raw = if is_scheduled() { try_take(object, || self.raw.try_lock()) } else { self.raw.try_lock() };
        raw.map(|raw| MutexGuard { raw, released: Released(object), _held: self.rank.take() })
    }

    /// The value of a mutex that nobody else can lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.raw.get_mut()
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.raw.into_inner()
    }
}

impl<T> MutexGuard<'_, T> {
    pub(crate) fn object(&self) -> Object {
        self.released.0
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.raw
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.raw
    }
}
