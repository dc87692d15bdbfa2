//! Reading ahead: threads that bring into a cache the bytes that a reader will ask for next.

use crate::room::Room;
use butterfs_store::{Cancel, Store};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Bytes that are read ahead of a reader that goes forward: twice what it has read, between these. All readers together
/// share the upper one and a quarter of the cache: what is given up before it is read is asked for twice.
const FIRST: u64 = 128 << 10;
const MOST: u64 = 24 << 20;
/// Bytes that are asked for in one go: a quarter of those, so that a far store has several requests on their way, and
/// few for each byte.
const STEPS: u64 = 4;
/// Readers that go forward and are known.
const STREAMS: usize = 8;
/// A reader has ended when the others have read so many bytes since its last read.
const ENDED: u64 = 64 << 20;
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
    /// Several reads were its own, one behind the other.
    goes_forward: bool,
    /// Bytes that all readers had read after its last read.
    at: u64,
}

#[derive(Default)]
struct Streams {
    known: VecDeque<Stream>,
    /// Bytes that all readers have read.
    read: u64,
}

/// The store that is read ahead from, whose calls end with the device, and the room for their bytes.
pub struct Source {
    /// The store.
    pub store: Store,
    /// The room.
    pub room: Arc<Room>,
    cancel: Cancel,
}

/// See the [module](self). When it is dropped, its threads end without an answer from the store.
pub struct Ahead {
    shared: Arc<Shared>,
    source: Arc<Source>,
    streams: Mutex<Streams>,
    /// Bytes that are read ahead, at most.
    most: u64,
    threads: Vec<JoinHandle<()>>,
}

impl Ahead {
    /// Starts the threads; `fetch` brings so many bytes from an offset into a cache of `cache` bytes.
    pub fn start(cache: u64, store: &Store, fetch: impl Fn(&Source, u64, u64) + Send + Sync + 'static) -> Ahead {
        let cancel = Cancel::default();
        let source = Arc::new(Source { store: store.until(&cancel), room: Arc::new(Room::new(MOST)), cancel });
        let (shared, fetch) = (Arc::new(Shared::default()), Arc::new(fetch));
        let thread = |_| {
            let (shared, source, fetch) = (shared.clone(), source.clone(), fetch.clone());
            std::thread::spawn(move || shared.serve(|offset, len| fetch(&source, offset, len)))
        };
        let threads = (0..THREADS).map(thread).collect();
        Ahead { shared, source, streams: Mutex::default(), most: (cache / 4).clamp(FIRST, MOST), threads }
    }

    /// The most bytes that were on their way at one time.
    pub fn most_on_the_way(&self) -> u64 {
        self.source.room.most_used()
    }

    /// Takes note of a read of a device with so many bytes; one that follows another goes on, most likely.
    pub fn note(&self, offset: u64, len: u64, device: u64) {
        let end = offset + len;
        let mut streams = self.streams.lock();
        streams.read += len;
        let read = streams.read;
        let mut stream = Stream { next: end, until: end, read: len, goes_forward: false, at: read };
        // Reads that were thought to be others' until now belong together.
        streams.known.retain(|before| {
            let is_one = before.takes(offset);
            if is_one {
                stream.next = stream.next.max(before.next);
                stream.until = stream.until.max(before.until).max(stream.next);
                stream.read += before.read;
                stream.goes_forward = true;
            }
            !is_one
        });
        if stream.goes_forward {
            let others = streams.known.iter().filter(|other| other.goes_forward && read - other.at < ENDED).count();
            let share = self.most / (others as u64 + 1);
            let window = (2 * stream.read).clamp(FIRST, share.max(FIRST));
            let step = (window / STEPS).max(FIRST);
            let wanted = (stream.next + window).min(device);
            // The next step when it is worth a request.
            while stream.until < wanted && (wanted - stream.until >= step || wanted == device) {
                let len = step.min(wanted - stream.until);
                self.ask(stream.until, len);
                stream.until += len;
            }
        }
        streams.known.push_back(stream);
        if streams.known.len() > STREAMS {
            streams.known.pop_front();
        }
    }

    /// Asks for bytes that will be read.
    pub fn ask(&self, offset: u64, len: u64) {
        const LONGEST: u64 = MOST / STEPS;
        let (mut at, end) = (offset, offset + len);
        let mut queue = self.shared.queue.lock();
        while at < end && queue.waiting.len() < MOST_WAITING {
            let len = LONGEST.min(end - at);
            queue.waiting.push_back((at, len));
            self.shared.more.notify_one();
            at += len;
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
        self.source.room.close();
        self.source.cancel.cancel();
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl Shared {
    fn serve(&self, fetch: impl Fn(u64, u64)) {
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
