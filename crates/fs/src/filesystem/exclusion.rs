//! The exclusion of operations in a filesystem: any number of operations, or one
//! [transaction of several](super::Filesystem::transaction).
//!
//! # Invariants
//! 1. Every public function that may touch trees is inside an [`Operation`] while it runs, and so is each step of the
//!    threads in the background. An operation within one waits for nobody.
//! 2. Being let in comes before every lock and every handle: whoever waits here holds none.

use crate::transaction::{Alarm, Core};
use butterfs_sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, order};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Doors. A thread always takes the same one, so that threads on several cores do not wait for each other's counts.
const DOORS: usize = 8;

/// Threads that have taken a door so far.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Filesystems that a thread is inside at the same time, at most: callbacks of one may ask another.
const AT_ONCE: usize = 4;

/// Where a thread is.
struct Whereabouts {
    /// The filesystems that it is inside, 0 for none.
    inside: [Cell<usize>; AT_ONCE],
    /// Its door, counted from 1; 0 until it takes one.
    door: Cell<usize>,
}

thread_local! {
    static THREAD: Whereabouts =
        const { Whereabouts { inside: [const { Cell::new(0) }; AT_ONCE], door: Cell::new(0) } };
}

impl Whereabouts {
    fn is_inside(&self, filesystem: usize) -> bool {
        self.inside.iter().any(|slot| slot.get() == filesystem)
    }

    fn door(&self) -> usize {
        if self.door.get() == 0 {
            self.door.set(THREADS.fetch_add(1, Ordering::Relaxed) % DOORS + 1);
        }
        self.door.get() - 1
    }

    fn enter(&self, filesystem: usize) -> Inside {
        let slot = self.inside.iter().position(|slot| slot.get() == 0).expect("a thread is inside few filesystems");
        self.inside[slot].set(filesystem);
        Inside { slot }
    }
}

/// See the [module](self).
pub(super) struct Exclusion {
    doors: [Door; DOORS],
}

/// On cache lines of its own, also where the processor fetches two at once.
#[repr(align(128))]
struct Door {
    lock: RwLock<(), { order::OPERATIONS }>,
    /// Operations that went in here.
    begun: AtomicU64,
}

/// One thread is inside until this is dropped.
struct Inside {
    /// Its index in [`Whereabouts::inside`].
    slot: usize,
}

impl Drop for Inside {
    fn drop(&mut self) {
        THREAD.with(|thread| thread.inside[self.slot].set(0));
    }
}

/// An operation that is under way. A panic in it stops all writing.
#[must_use]
pub(crate) struct Operation<'a> {
    _alarm: Alarm<'a>,
    /// None within another one.
    _inside: Option<(Inside, RwLockReadGuard<'a, ()>)>,
}

/// Nobody else is inside until this is dropped.
#[must_use]
pub(super) struct Alone<'a> {
    _inside: Inside,
    _doors: Vec<RwLockWriteGuard<'a, ()>>,
}

impl Exclusion {
    /// Nobody is inside.
    pub(super) fn new() -> Exclusion {
        Exclusion { doors: std::array::from_fn(|_| Door { lock: RwLock::new(()), begun: AtomicU64::new(0) }) }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Whether this thread is inside.
    pub(super) fn is_inside(&self) -> bool {
        THREAD.with(|thread| thread.is_inside(self.address()))
    }

    /// Begins an operation; waits while somebody is alone inside, unless that is this thread.
    #[inline]
    pub(super) fn begin<'a>(&'a self, core: &'a Core) -> Operation<'a> {
        let inside = THREAD.with(|thread| {
            (!thread.is_inside(self.address())).then(|| {
                let door = &self.doors[thread.door()];
                let inside = door.lock.read();
                door.begun.fetch_add(1, Ordering::Relaxed);
                (thread.enter(self.address()), inside)
            })
        });
        Operation { _alarm: core.alarm(), _inside: inside }
    }

    /// The number of operations that have been begun; those within another one do not count.
    pub(super) fn begun(&self) -> u64 {
        self.doors.iter().map(|door| door.begun.load(Ordering::Relaxed)).sum()
    }

    /// Waits until nobody is inside, and lets nobody else in.
    pub(super) fn alone(&self) -> Alone<'_> {
        let doors = self.doors.iter().map(|door| door.lock.write()).collect();
        Alone { _inside: THREAD.with(|thread| thread.enter(self.address())), _doors: doors }
    }
}
