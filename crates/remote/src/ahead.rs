//! Reading ahead: threads that bring into a cache the bytes that a reader will ask for next.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Bytes that are read ahead of a reader that goes forward: twice what it has read, between these, and no more than a
/// quarter of the cache.
const FIRST: u64 = 128 << 10;
const MOST: u64 = 32 << 20;
/// Bytes that are asked for in one go: a quarter of those, so that a far store has several requests on their way, and
/// few for each byte.
const STEPS: u64 = 4;
/// Readers that go forward and are known.
const STREAMS: usize = 8;
/// A read that begins so little behind the end of another one goes on with it; so does one among the bytes that were
/// read ahead, or so far in front of the end: threads that read one file overtake each other.
const NEAR: u64 = 128 << 10;
const OVERTAKEN: u64 = 4 << 20;
const THREADS: usize = 4;
/// Requests that wait; more are forgotten.
const MOST_WAITING: usize = 64;

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(u64, u64)>,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    more: Condvar,
}

/// A reader, which may go forward.
#[derive(Clone, Copy)]
struct Stream {
    /// The end of what it has read.
    next: u64,
    /// The offset up to which it was read ahead.
    until: u64,
    /// Bytes that it has read.
    read: u64,
}

/// See the [module](self). Its threads end when it is dropped.
pub struct Ahead {
    shared: Arc<Shared>,
    streams: Mutex<VecDeque<Stream>>,
    /// Bytes that are read ahead, at most.
    most: u64,
    threads: Vec<JoinHandle<()>>,
}

impl Ahead {
    /// Starts the threads; `fetch` brings so many bytes from an offset into a cache of `cache` bytes.
    pub fn start(cache: u64, fetch: impl Fn(u64, u64) + Send + Sync + 'static) -> Ahead {
        let (shared, fetch) = (Arc::new(Shared::default()), Arc::new(fetch));
        let thread = |_| {
            let (shared, fetch) = (shared.clone(), fetch.clone());
            std::thread::spawn(move || shared.serve(&*fetch))
        };
        let threads = (0..THREADS).map(thread).collect();
        Ahead { shared, streams: Mutex::default(), most: (cache / 4).clamp(FIRST, MOST), threads }
    }

    /// Takes note of a read of a device with so many bytes; one that follows another goes on, most likely.
    pub fn note(&self, offset: u64, len: u64, device: u64) {
        let end = offset + len;
        let mut streams = self.streams.lock();
        let mut stream = Stream { next: end, until: end, read: len };
        let known = streams.len();
        // Reads that were thought to be others' until now belong together.
        streams.retain(|before| {
            let is_one = before.takes(offset);
            if is_one {
                stream.next = stream.next.max(before.next);
                stream.until = stream.until.max(before.until).max(stream.next);
                stream.read += before.read;
            }
            !is_one
        });
        if streams.len() < known {
            let window = (2 * stream.read).clamp(FIRST, self.most);
            let step = (window / STEPS).max(FIRST);
            let wanted = (stream.next + window).min(device);
            // The next step when it is worth a request.
            while stream.until < wanted && (wanted - stream.until >= step || wanted == device) {
                let len = step.min(wanted - stream.until);
                self.ask(stream.until, len);
                stream.until += len;
            }
        }
        streams.push_back(stream);
        if streams.len() > STREAMS {
            streams.pop_front();
        }
    }

    /// Asks for bytes that will be read.
    pub fn ask(&self, offset: u64, len: u64) {
        let mut queue = self.shared.queue.lock();
        if queue.waiting.len() < MOST_WAITING {
            queue.waiting.push_back((offset, len));
            self.shared.more.notify_one();
        }
    }
}

impl Stream {
    /// Whether a read from this offset on is one of this reader's.
    fn takes(&self, offset: u64) -> bool {
        let from = self.next.saturating_sub(self.read.min(OVERTAKEN));
        from <= offset && offset < self.until.max(self.next + NEAR)
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.more.notify_all();
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl Shared {
    fn serve(&self, fetch: &impl Fn(u64, u64)) {
        loop {
            let mut queue = self.queue.lock();
            let (offset, len) = loop {
                match queue.waiting.pop_front() {
                    _ if queue.closed => return,
                    Some(next) => break next,
                    None => self.more.wait(&mut queue),
                }
            };
            drop(queue);
            fetch(offset, len);
        }
    }
}
