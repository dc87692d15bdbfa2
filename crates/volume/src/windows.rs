//! The ranges that are being copied to another place, and the writes that meet them.
//!
//! ```text
//! open ─► Reading ─► Storing ─► dropped
//!            │ a write to the range begins: the copy is worth nothing, and is read again
//!            └ Storing: a write to the range waits until the window is closed
//! ```
//!
//! # Invariants
//! 1. A write says so, with the gate held, before it stores anything; a window opens before its copier waits for all
//!    that hold the gate. So a write and a copier of the same bytes always learn of each other.
//! 2. A write waits for a window without the gate, so that copiers wait for no write that waits for one of them.
//! 3. No two windows overlap: the pieces of a move do not.

use butterfs_ondisk::Logical;
use butterfs_sync::{Condvar, Mutex, order};
use std::ops::Range;

/// The state of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its copier reads.
    Reading,
    /// The same, and somebody has written since.
    Touched,
    /// Its copier stores what it has read, and nobody else may write.
    Storing,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Windows {
    state: Mutex<State, { order::COPY_WINDOW }>,
    closed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    open: Vec<(Range<u64>, Phase)>,
    /// Why the move cannot be completed.
    failure: Option<String>,
}

impl State {
    fn overlapping(&mut self, range: &Range<u64>) -> impl Iterator<Item = &mut Phase> {
        let range = range.clone();
        let overlaps = move |open: &Range<u64>| open.start < range.end && range.start < open.end;
        self.open.iter_mut().filter(move |(open, _)| overlaps(open)).map(|(_, phase)| phase)
    }
}

/// A window that is open. It closes when it is dropped.
#[must_use]
pub(crate) struct Window<'a> {
    windows: &'a Windows,
    range: Range<u64>,
}

impl Windows {
    /// Opens a window.
    pub fn open(&self, at: Logical, len: usize, phase: Phase) -> Window<'_> {
        let range = range_of(at, len);
        self.state.lock().open.push((range.clone(), phase));
        Window { windows: self, range }
    }

    /// A write to these bytes begins; the gate is held. False where it must [wait](Self::wait) without the gate, and
    /// ask again.
    pub fn admits_write(&self, at: Logical, len: usize) -> bool {
        let range = range_of(at, len);
        let mut state = self.state.lock();
        if state.overlapping(&range).any(|phase| *phase == Phase::Storing) {
            return false;
        }
        state.overlapping(&range).for_each(|phase| *phase = Phase::Touched);
        true
    }

    /// Waits until no copier stores anything there.
    pub fn wait(&self, at: Logical, len: usize) {
        let range = range_of(at, len);
        let mut state = self.state.lock();
        while state.overlapping(&range).any(|phase| *phase == Phase::Storing) {
            self.closed.wait(&mut state);
        }
    }

    /// Why the move that runs cannot be completed, if it cannot.
    pub fn failure(&self) -> Option<String> {
        self.state.lock().failure.clone()
    }

    /// The move cannot be completed. The first reason counts.
    pub fn fail(&self, sentence: String) {
        self.state.lock().failure.get_or_insert(sentence);
    }

    /// Another move begins.
    pub fn forget_failure(&self) {
        self.state.lock().failure = None;
    }
}

impl Window<'_> {
    /// From now on writes to the range wait. False where one has begun since the window was opened.
    pub fn begin_to_store(&self) -> bool {
        let mut state = self.windows.state.lock();
        let phase = state.overlapping(&self.range).next().expect("it is open");
        let is_whole = *phase != Phase::Touched;
        *phase = Phase::Storing;
        is_whole
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        self.windows.state.lock().open.retain(|(range, _)| *range != self.range);
        self.windows.closed.notify_all();
    }
}

fn range_of(at: Logical, len: usize) -> Range<u64> {
    at.0..at.0 + len as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    const AT: Logical = Logical(4096);

    #[test]
    fn a_write_makes_what_was_read_before_it_worthless() {
        let windows = Windows::default();
        let window = windows.open(AT, 4096, Phase::Reading);
        assert!(windows.admits_write(Logical(0), 4096) && windows.admits_write(Logical(8192), 1), "neighbours");
        let other = windows.open(Logical(8192), 4096, Phase::Reading);
        assert!(windows.admits_write(Logical(8191), 1));
        assert!(!window.begin_to_store(), "written since");
        assert!(other.begin_to_store(), "nobody wrote there");
        drop((window, other));
        assert!(windows.open(AT, 4096, Phase::Reading).begin_to_store(), "the next attempt knows nothing of it");
    }

    #[test]
    fn a_write_waits_while_a_copy_is_stored() {
        let windows = Windows::default();
        let stored = AtomicBool::new(false);
        let window = windows.open(AT, 4096, Phase::Storing);
        assert!(!windows.admits_write(AT, 1) && windows.admits_write(Logical(0), 4096));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                windows.wait(AT, 1);
                stored.load(Ordering::Acquire)
            });
            std::thread::sleep(Duration::from_millis(20));
            stored.store(true, Ordering::Release);
            drop(window);
            assert!(writer.join().unwrap(), "it went on only when the window was closed");
        });
        assert!(windows.admits_write(AT, 1));
    }
}
