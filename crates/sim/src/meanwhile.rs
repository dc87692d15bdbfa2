//! Time, randomness and other threads of a simulated filesystem.
//!
//! While a commit writes, the engine lets other threads go on in the next transaction. The simulator has one thread: at
//! each [`Point`] of a commit it runs what the others would do, and then the commit goes on.

use butterfs_fs::Env;
use butterfs_fs::env::{Point, Source, Time};
use butterfs_testkit::rng::Rng;
use std::cell::RefCell;
use std::sync::Mutex;

type Work = Box<dyn FnMut(Point)>;

thread_local! {
    static WORK: RefCell<Option<Work>> = const { RefCell::new(None) };
}

/// Has `work` done at every point that a commit of this thread reaches, until the result is dropped.
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
struct Simulated(Mutex<(Time, Rng)>);

/// The environment of one life.
pub fn environment(seed: u64) -> Env {
    let mut rng = Rng::new(seed);
    let start = Time { sec: 1_700_000_000 + rng.below(1 << 24) as i64, nsec: 0 };
    Env::new(Simulated(Mutex::new((start, rng))))
}

const TICK_NS: u32 = 1_000_007;

impl Source for Simulated {
    fn now(&self) -> Time {
        let (time, _) = &mut *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        time.nsec += TICK_NS;
        if time.nsec >= 1_000_000_000 {
            (time.sec, time.nsec) = (time.sec + 1, time.nsec - 1_000_000_000);
        }
        *time
    }

    fn random(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).1.fill(&mut bytes);
        bytes
    }

    fn threads(&self) -> usize {
        1
    }

    fn background(&self) -> bool {
        false
    }

    fn reached(&self, point: Point) {
        if !point.is_in_commit() {
            return;
        }
        // Taken out meanwhile: what it does must not begin another commit, and if it does, nothing runs inside that.
        if let Some(mut work) = WORK.take() {
            work(point);
            WORK.set(Some(work));
        }
    }
}
