//! Time, randomness and other threads of a simulated filesystem.
//!
//! While a commit writes, the engine lets other threads go on in the next transaction. The simulator has one thread: at
//! each [`Point`] of a commit it runs what the others would do, and then the commit goes on. A life can end by a panic
//! at one of the places that the engine passes.

use butterfs_fs::Env;
use butterfs_fs::env::{Point, Source, Time};
use butterfs_testkit::rng::Rng;
use std::any::Any;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};

type Work = Box<dyn FnMut(Point)>;

thread_local! {
    static WORK: RefCell<Option<Work>> = const { RefCell::new(None) };
}

/// Has `work` done at every point that a commit of this thread, or work on chunks, reaches, until the result is
/// dropped.
pub fn during_commits(work: impl FnMut(Point) + 'static) -> Meanwhile {
    WORK.set(Some(Box::new(work)));
    Meanwhile(())
}

/// See [`during_commits`].
#[derive(Debug)]
pub struct Meanwhile(());

impl Drop for Meanwhile {
    fn drop(&mut self) {
        WORK.set(None);
    }
}

/// A clock that goes on by a fixed step each time it is asked, and random bytes from a seed.
struct Simulated {
    state: Mutex<(Time, Rng)>,
    /// Places that the engine passes before it panics, and one more; 0 for a life without a panic.
    until_panic: AtomicU64,
}

/// The environment of one life.
pub fn environment(seed: u64) -> Env {
    panicking(seed, None)
}

/// The environment of a life in which the engine panics at the place with this number, counted from 1.
pub fn panicking(seed: u64, at: Option<u64>) -> Env {
    let mut rng = Rng::new(seed);
    let start = Time { sec: 1_700_000_000 + rng.below(1 << 24) as i64, nsec: 0 };
    Env::new(Simulated { state: Mutex::new((start, rng)), until_panic: AtomicU64::new(at.unwrap_or(0)) })
}

/// The beginning of what planted panics say.
const PLANTED: &str = "planted: ";

/// Whether a panic is a planted one.
pub fn is_planted(panic: &(dyn Any + Send)) -> bool {
    panic.downcast_ref::<String>().is_some_and(|text| text.starts_with(PLANTED))
}

/// Planted panics are not printed.
pub fn hide_planted_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !is_planted(info.payload()) {
                before(info);
            }
        }));
    });
}

const TICK_NS: u32 = 1_000_007;

impl Source for Simulated {
    fn now(&self) -> Time {
        let (time, _) = &mut *self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        time.nsec += TICK_NS;
        if time.nsec >= 1_000_000_000 {
            (time.sec, time.nsec) = (time.sec + 1, time.nsec - 1_000_000_000);
        }
        *time
    }

    fn random(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner).1.fill(&mut bytes);
        bytes
    }

    fn threads(&self) -> usize {
        1
    }

    fn background(&self) -> bool {
        false
    }

    fn passes(&self, point: &'static str) {
        let left = self.until_panic.load(Ordering::Relaxed);
        if left > 0 {
            self.until_panic.store(left - 1, Ordering::Relaxed);
            assert!(left > 1, "{PLANTED}{point}");
        }
    }

    fn reached(&self, point: Point) {
        if !point.is_in_commit() && point != Point::PieceMoved {
            return;
        }
        // Taken out meanwhile: what it does must not begin another commit, and if it does, nothing runs inside that.
        if let Some(mut work) = WORK.take() {
            work(point);
            WORK.set(Some(work));
        }
    }
}
