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
use std::sync::atomic::{AtomicUsize, Ordering};

/// Doors. A thread always takes the same one, so that threads on several cores do not wait for each other's counts.
const DOORS: usize = 8;

/// Threads that have taken a door so far.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Filesystems that a thread is inside at the same time, at most: callbacks of one may ask another.
const AT_ONCE: usize = 4;

thread_local! {
    /// Of which filesystems this thread is inside, 0 for none.
    static INSIDE: Cell<[usize; AT_ONCE]> = const { Cell::new([0; AT_ONCE]) };
    /// The thread's door.
    static DOOR: usize = THREADS.fetch_add(1, Ordering::Relaxed) % DOORS;
}

/// See the [module](self).
pub(super) struct Exclusion {
    doors: [Door; DOORS],
}

/// On cache lines of its own, also where the processor fetches two at once.
#[repr(align(128))]
struct Door(RwLock<(), { order::OPERATIONS }>);

/// One thread is inside until this is dropped.
struct Inside {
    /// Its index in [`INSIDE`].
    slot: usize,
}

impl Inside {
    fn enter(filesystem: usize) -> Inside {
        let mut inside = INSIDE.get();
        let slot = inside.iter().position(|filesystem| *filesystem == 0).expect("a thread is inside few filesystems");
        inside[slot] = filesystem;
        INSIDE.set(inside);
        Inside { slot }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut inside = INSIDE.get();
        inside[self.slot] = 0;
        INSIDE.set(inside);
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
        Exclusion { doors: std::array::from_fn(|_| Door(RwLock::new(()))) }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Whether this thread is inside.
    pub(super) fn is_inside(&self) -> bool {
        INSIDE.get().contains(&self.address())
    }

    /// Begins an operation; waits while somebody is alone inside, unless that is this thread.
    pub(super) fn begin<'a>(&'a self, core: &'a Core) -> Operation<'a> {
        let enter = || {
            let door = self.doors[DOOR.with(|door| *door)].0.read();
            (Inside::enter(self.address()), door)
        };
        Operation { _alarm: core.alarm(), _inside: (!self.is_inside()).then(enter) }
    }

    /// Waits until nobody is inside, and lets nobody else in.
    pub(super) fn alone(&self) -> Alone<'_> {
        let doors = self.doors.iter().map(|door| door.0.write()).collect();
        Alone { _inside: Inside::enter(self.address()), _doors: doors }
    }
}
