//! A reader-writer lock.

use crate::order::{Held, Ranked, UNRANKED};
use crate::scheduler::{Object, Released, is_scheduled, take, try_take};
use std::ops::{Deref, DerefMut};

/// A reader-writer lock without poisoning. `RANK` is its place in the [order](crate::order).
#[derive(Default, Debug)]
pub struct RwLock<T, const RANK: u8 = UNRANKED> {
    raw: parking_lot::RwLock<T>,
    rank: Ranked<RANK>,
}

/// Shares a [`RwLock`] until it is dropped.
#[derive(Debug)]
pub struct RwLockReadGuard<'a, T> {
    raw: parking_lot::RwLockReadGuard<'a, T>,
    /// Dropped behind the guard.
    _released: Released,
    _held: Held,
}

/// Holds a [`RwLock`] alone until it is dropped.
#[derive(Debug)]
pub struct RwLockWriteGuard<'a, T> {
    raw: parking_lot::RwLockWriteGuard<'a, T>,
    /// Dropped behind the guard.
    _released: Released,
    _held: Held,
}

impl<T, const RANK: u8> RwLock<T, RANK> {
    /// Not locked.
    pub const fn new(value: T) -> RwLock<T, RANK> {
        RwLock { raw: parking_lot::RwLock::new(value), rank: Ranked::new() }
    }

    /// The same lock at another place in the order: for locks whose place depends on what they protect.
    pub fn with_rank(mut self, rank: u8) -> RwLock<T, RANK> {
        self.rank = Ranked::at(rank);
        self
    }

    /// Waits until nobody holds it alone, and shares it.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let object = Object::of(self);
        let held = self.rank.wait();
        let raw = if is_scheduled() { take(object, true, || self.raw.try_read()) } else { self.raw.read() };
        RwLockReadGuard { raw, _released: Released(object), _held: held }
    }

    /// Waits until nobody else has it, and holds it alone.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let object = Object::of(self);
        let held = self.rank.wait();
        let raw = if is_scheduled() { take(object, false, || self.raw.try_write()) } else { self.raw.write() };
        RwLockWriteGuard { raw, _released: Released(object), _held: held }
    }

    /// Holds it alone unless somebody has it.
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let object = Object::of(self);
        let raw = if is_scheduled() { try_take(object, || self.raw.try_write()) } else { self.raw.try_write() };
        raw.map(|raw| RwLockWriteGuard { raw, _released: Released(object), _held: self.rank.take() })
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
