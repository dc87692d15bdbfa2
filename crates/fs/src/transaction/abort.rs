//! Aborting: nothing is written any more, and everybody who waits learns it.
//!
//! # Invariants
//! 1. After [`Core::abort`] has begun, no write of anybody begins, superblocks included: the volume refuses it.
//! 2. A panic aborts before anything that it left half-made can be committed. What a handle protects: when the handle
//!    is dropped. What is changed without one: when the panic leaves the public function or the thread, where each has
//!    an [`Alarm`]. A program that sets [`Core::halt_switch`] in a panic hook stops at the panic itself.
//! 3. Who waits for handles, for the end of freezing, for a superblock or for a log is woken.

use super::Core;
use crate::error::Error;
use crate::options::Canary;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Aborts when it is dropped by a panic that began after it was made.
#[must_use]
pub(crate) struct Alarm<'a> {
    core: &'a Core,
    armed: bool,
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if self.armed && std::thread::panicking() {
            self.core.abort_after_panic();
        }
    }
}

impl Core {
    /// See [`Alarm`]; for everything that can be called from outside, and for whole threads.
    pub(crate) fn alarm(&self) -> Alarm<'_> {
        Alarm { core: self, armed: !std::thread::panicking() }
    }

    /// Stops all writing for good. The first reason is kept.
    pub fn abort(&self, reason: &Error) {
        self.abort_because(&|| reason.to_string());
    }

    pub(super) fn abort_after_panic(&self) {
        if self.has_canary(Canary::PanicForgiven) {
            return;
        }
        let thread = std::thread::current();
        self.abort_because(&|| format!("the thread '{}' panicked in the engine", thread.name().unwrap_or("unnamed")));
    }

    fn abort_because(&self, reason: &dyn Fn() -> String) {
        self.volume.halt_switch().store(true, Ordering::Release);
        let (reason, first) = self.gate.abort(reason);
        if first {
            self.volume.report(None, format!("nothing is written any more: {reason}"));
        }
        if !self.has_canary(Canary::SuperblockAwaitedForEver) {
            self.order.stop();
        }
    }

    /// Why writing stopped, if it did.
    pub fn aborted(&self) -> Option<Error> {
        let reason = self.gate.aborted();
        // Whoever halts the volume has no time to say why.
        let halted = || self.halt_switch().load(Ordering::Acquire).then(|| "the program panicked".into());
        reason.or_else(halted).map(Error::Aborted)
    }

    /// A switch that makes every write fail from now on, without a lock: for a panic hook.
    pub(crate) fn halt_switch(&self) -> Arc<AtomicBool> {
        self.volume.halt_switch()
    }
}
