//! A reader-writer lock.

use crate::scheduler::{Object, Released, is_scheduled, take, try_take};
use std::ops::{Deref, DerefMut};

/// A reader-writer lock without poisoning.
#[derive(Default, Debug)]
pub struct RwLock<T> {
    raw: parking_lot::RwLock<T>,
}

/// Shares a [`RwLock`] until it is dropped.
#[derive(Debug)]
pub struct RwLockReadGuard<'a, T> {
    raw: parking_lot::RwLockReadGuard<'a, T>,
    /// Dropped behind the guard.
    _released: Released,
}

/// Holds a [`RwLock`] alone until it is dropped.
#[derive(Debug)]
pub struct RwLockWriteGuard<'a, T> {
    raw: parking_lot::RwLockWriteGuard<'a, T>,
    /// Dropped behind the guard.
    _released: Released,
}

impl<T> RwLock<T> {
    /// Not locked.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock { raw: parking_lot::RwLock::new(value) }
    }

    /// Waits until nobody holds it alone, and shares it.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let object = Object::of(self);
        let raw = if is_scheduled() { take(object, true, || self.raw.try_read()) } else { self.raw.read() };
        RwLockReadGuard { raw, _released: Released(object) }
    }

    /// Waits until nobody else has it, and holds it alone.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let object = Object::of(self);
        let raw = if is_scheduled() { take(object, false, || self.raw.try_write()) } else { self.raw.write() };
        RwLockWriteGuard { raw, _released: Released(object) }
    }

    /// Holds it alone unless somebody has it.
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let object = Object::of(self);
        let raw = if is_scheduled() { try_take(object, || self.raw.try_write()) } else { self.raw.try_write() };
        raw.map(|raw| RwLockWriteGuard { raw, _released: Released(object) })
    }

    /// The value of a lock that nobody else can take.
    pub fn get_mut(&mut self) -> &mut T {
        self.raw.get_mut()
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.raw.into_inner()
    }
}

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.raw
    }
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.raw
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.raw
    }
}
