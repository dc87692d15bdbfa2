//! Reading ahead: where data is read in the order in which it lies, what comes next is on its way before it is asked
//! for.
//!
//! Streams are told by addresses, not by files: what is written together lies together, so one mechanism serves a file
//! that is read from its start, compressed extents that are read one by one, and snapshots that are sent. A thread asks
//! the devices, because having a page cache read costs as much as copying out of it.
//!
//! # Invariants
//! 1. Nothing is read into memory of ours: devices get hints, and the page cache has its own bounds.
//! 2. At most so much is asked for ahead as a stream has read already, so that one that ends early costs twice at most,
//!    and reads at random next to nothing.

use crate::transaction::Core;
use butterfs_ondisk::Logical;
use butterfs_sync::{Condvar, Mutex, order};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Streams that are told apart.
const STREAMS: usize = 8;
/// A read this near to where a stream stands belongs to it: several threads read one stream.
const NEAR: u64 = 512 << 10;
/// Bytes that are asked for ahead at most.
const FARTHEST: u64 = 8 << 20;
/// Ranges that wait for the thread at most; older ones are of no use any more.
const QUEUED: usize = 8;

/// Data that is read in the order of its addresses.
struct Stream {
    /// Behind all that was read.
    next: u64,
    /// Behind all that was asked for.
    ahead: u64,
    /// Bytes that were read since it is known to be one.
    read: u64,
}

/// The most recent one is last.
#[derive(Default)]
struct Streams(Vec<Stream>);

impl Streams {
    /// Notes that `len` bytes at `at` are being read; returns what to ask for.
    fn note(&mut self, at: u64, len: u64) -> Option<Range<u64>> {
        let end = at.saturating_add(len);
        let Some(index) = self.0.iter().rposition(|stream| stream.next.abs_diff(at) <= NEAR) else {
            if self.0.len() == STREAMS {
                self.0.remove(0);
            }
            self.0.push(Stream { next: end, ahead: end, read: 0 });
            return None;
        };
        self.0[index..].rotate_left(1);
        let stream = self.0.last_mut().expect("one was found");
        stream.next = stream.next.max(end);
        stream.read = stream.read.saturating_add(len);
        let window = stream.read.min(FARTHEST);
        let from = stream.ahead.max(stream.next);
        let to = stream.next.saturating_add(window);
        // In large pieces: half of the window is left when the next one is asked for.
        if to.saturating_sub(from) < window / 2 {
            return None;
        }
        stream.ahead = to;
        Some(from..to)
    }
}

#[derive(Default)]
struct Queue {
    ranges: VecDeque<Range<u64>>,
    stopping: bool,
}

/// The state that the thread and the readers share.
struct Shared {
    core: Arc<Core>,
    queue: Mutex<Queue, { order::READ_AHEAD_QUEUE }>,
    wake: Condvar,
}

/// See the [module](self). Its thread begins when there is something to do, and ends when this is dropped.
pub(super) struct ReadAhead {
    shared: Arc<Shared>,
    streams: Mutex<Streams, { order::READ_AHEAD_STREAMS }>,
    thread: Mutex<Option<JoinHandle<()>>, { order::THREADS }>,
}

impl ReadAhead {
    /// Nothing was read yet.
    pub fn new(core: Arc<Core>) -> ReadAhead {
        let shared = Arc::new(Shared { core, queue: Mutex::default(), wake: Condvar::new() });
        ReadAhead { shared, streams: Mutex::default(), thread: Mutex::default() }
    }

    /// `len` bytes at `at` are about to be read.
    pub fn note(&self, at: Logical, len: u64) {
        if !self.shared.core.env().background() {
            return;
        }
        let Some(range) = self.streams.lock().note(at.0, len) else { return };
        let mut queue = self.shared.queue.lock();
        if queue.ranges.len() == QUEUED {
            queue.ranges.pop_front();
        }
        queue.ranges.push_back(range);
        drop(queue);
        self.shared.wake.notify_one();
        self.start();
    }

    fn start(&self) {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            // Without it everything is read when it is asked for.
            *thread = std::thread::Builder::new().name("read-ahead".to_owned()).spawn(move || shared.serve()).ok();
        }
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.shared.queue.lock().stopping = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// The thread's work.
    fn serve(&self) {
        loop {
            let mut queue = self.queue.lock();
            while queue.ranges.is_empty() && !queue.stopping {
                self.wake.wait(&mut queue);
            }
            if queue.stopping {
                return;
            }
            let range = queue.ranges.pop_front().expect("there is one");
            drop(queue);
            self.core.volume().begin_read(Logical(range.start), range.end - range.start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 128 << 10;

    #[test]
    fn a_stream_is_read_ahead_of_itself_and_never_twice() {
        let mut streams = Streams::default();
        let (mut asked, mut most) = (UNIT, 0);
        for index in 0..1000 {
            let end = (index + 1) * UNIT;
            if let Some(range) = streams.note(index * UNIT, UNIT) {
                assert!(range.start == asked.max(end) && range.end > range.start, "{index}: {range:?}, {asked}");
                assert!(range.end - end <= (index * UNIT).min(FARTHEST), "{index}: {range:?}");
                asked = range.end;
            }
            assert!(index < 4 || asked > end, "{index}: nothing is ahead");
            most = most.max(asked - end.min(asked));
        }
        assert_eq!(most, FARTHEST);
    }

    #[test]
    fn reads_of_several_threads_and_streams_in_turn_are_told_apart() {
        let mut streams = Streams::default();
        let bases = [0, 1 << 40, 1 << 41, 1 << 42];
        let mut asked = 0;
        for pair in 0..100 {
            for base in bases {
                // Two threads: the second of two pieces comes first.
                for index in [2 * pair + 1, 2 * pair] {
                    let range = streams.note(base + index * UNIT, UNIT);
                    asked += range.map_or(0, |range| range.end - range.start);
                }
            }
        }
        assert!(asked >= 4 * 200 * UNIT, "{asked}");
    }

    #[test]
    fn reads_at_random_ask_for_little() {
        let (mut streams, mut rng, mut asked) = (Streams::default(), butterfs_testkit::rng::Rng::new(1), 0);
        for _ in 0..10_000 {
            let range = streams.note(rng.below(64 << 20) / 4096 * 4096, 4096);
            asked += range.map_or(0, |range| range.end - range.start);
        }
        assert!(asked < 10_000 * 4096, "{asked}");
    }
}
