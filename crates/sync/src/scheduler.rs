//! The seam: which accesses a scheduler is asked about, and how a thread comes under one.

#[cfg(feature = "scheduler")]
use std::cell::Cell;
use std::cell::RefCell;
use std::sync::Arc;

/// Something that threads share, told from all others that exist at the same time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Object(pub usize);

impl Object {
    pub(crate) fn of<T>(lock: &T) -> Object {
        Object(std::ptr::from_ref(lock).addr())
    }
}

/// A thread is about to use an object. Two shared accesses to one object may change places; others may not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Of what.
    pub object: Object,
    /// Whether another shared access may happen before or after it alike.
    pub shared: bool,
}

/// Decides which of its threads goes on. See the [crate](crate) for what a thread asks it.
pub trait Scheduler: Send + Sync {
    /// The calling thread is about to do this. Returns when it may.
    fn reach(&self, access: Access);

    /// The calling thread cannot go on before `object` has changed. Returns when it is to try again; with true where
    /// `may_time_out` and its time is up.
    fn wait(&self, object: Object, may_time_out: bool) -> bool;

    /// The calling thread has released or notified `object`. It goes on.
    fn changed(&self, object: Object);
}

thread_local! {
    /// Apart from the scheduler, so that threads without one look at a plain value.
    #[cfg(feature = "scheduler")]
    static SCHEDULED: Cell<bool> = const { Cell::new(false) };
    static SCHEDULER: RefCell<Option<Arc<dyn Scheduler>>> = const { RefCell::new(None) };
}

/// Does `work` in this thread under a scheduler.
#[cfg(feature = "scheduler")]
pub fn under<T>(scheduler: Arc<dyn Scheduler>, work: impl FnOnce() -> T) -> T {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            SCHEDULED.set(false);
            SCHEDULER.set(None);
        }
    }
    SCHEDULER.set(Some(scheduler));
    SCHEDULED.set(true);
    let _leave = Leave;
    work()
}

/// The calling thread is about to use something that is no lock: a device.
pub fn access(access: Access) {
    if is_scheduled() {
        with(|scheduler| scheduler.reach(access));
    }
}

#[inline]
pub(crate) fn is_scheduled() -> bool {
    #[cfg(feature = "scheduler")]
    return SCHEDULED.get();
    #[cfg(not(feature = "scheduler"))]
    false
}

/// Asks the scheduler of this thread, which has one.
#[cold]
pub(crate) fn with<T>(ask: impl FnOnce(&dyn Scheduler) -> T) -> T {
    let scheduler = SCHEDULER.with_borrow(|scheduler| scheduler.clone());
    ask(&*scheduler.expect("a scheduled thread has a scheduler"))
}

/// Takes a lock with `attempt`, as the scheduler decides.
#[cold]
pub(crate) fn take<G>(object: Object, shared: bool, attempt: impl Fn() -> Option<G>) -> G {
    with(|scheduler| {
        scheduler.reach(Access { object, shared });
        loop {
            if let Some(guard) = attempt() {
                return guard;
            }
            scheduler.wait(object, false);
        }
    })
}

/// Tries to take a lock once.
#[cold]
pub(crate) fn try_take<G>(object: Object, attempt: impl Fn() -> Option<G>) -> Option<G> {
    with(|scheduler| scheduler.reach(Access { object, shared: false }));
    attempt()
}

/// Tells the scheduler, when it is dropped, that a lock was released: the last field of each guard.
#[derive(Debug)]
pub(crate) struct Released(pub(crate) Object);

impl Drop for Released {
    #[inline]
    fn drop(&mut self) {
        if is_scheduled() {
            with(|scheduler| scheduler.changed(self.0));
        }
    }
}
