//! One writes for many: who wants what was logged up to a point to be durable either finds that it is, waits for whoever
//! is writing just now, or becomes the one who writes, for all who have come until then.
//!
//! Points are numbers that only grow, also from one transaction to the next.
//!
//! # Invariants
//! 1. One at a time leads.
//! 2. Who returns without an error: a leader that began after its point was logged has succeeded.
//! 3. A leader that fails fails for itself; who waited tries again.

use super::sync_primitives::{Condvar, Mutex};

#[derive(Default)]
struct State {
    /// Everything logged up to here is durable.
    durable: u64,
    leading: bool,
}

/// See the [module](self).
#[derive(Default)]
pub struct Group {
    state: Mutex<State>,
    changed: Condvar,
}

impl Group {
    /// Returns when everything up to `point` is durable. `lead` makes durable what is logged when it is called, and
    /// returns up to where that is, which is `point` or more.
    pub fn sync<E>(&self, point: u64, lead: impl FnOnce() -> Result<u64, E>) -> Result<(), E> {
        let mut state = self.state.lock();
        loop {
            if state.durable >= point {
                return Ok(());
            }
            if !state.leading {
                break;
            }
            state = self.changed.wait(state);
        }
        state.leading = true;
        drop(state);
        let led = lead();
        let mut state = self.state.lock();
        state.leading = false;
        if let Ok(reached) = &led {
            assert!(*reached >= point, "up to {reached} is durable, {point} was asked for");
            state.durable = state.durable.max(*reached);
        }
        drop(state);
        self.changed.notify_all();
        led.map(drop)
    }

    /// The point up to which everything is durable.
    pub fn durable(&self) -> u64 {
        self.state.lock().durable
    }
}
