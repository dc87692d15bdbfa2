//! The threads that carry requests over io_uring: each has a ring of its own with one entry of one queue.
//!
//! The kernel hands a request of a processor to any entry of that processor's queue that is not in use. So a thread
//! that waits, for a device or a commit, keeps nobody else waiting while its queue has another one. One system call
//! sends a reply and waits for the next request.
//!
//! All threads are there before the first request. An entry that is registered later does not take over what waits in
//! its queue already, only what a reply or a new request sets in motion; if all others waited for such a request,
//! nothing would.
//!
//! # Invariants
//! 1. Replies that need other requests to be served meanwhile hold at most seven eighths of a queue's entries: one more
//!    is refused with `EAGAIN`. So the requests they wait for find an entry, now or when another request is finished.
//! 2. A ring is used by the thread that made it, and dropped before the entry whose memory it refers to.

use super::affinity::Affinity;
use super::ring_entry::RingEntry;
use super::{Exchange, Served};
use crate::Log;
use crate::protocol::wire::{InHeader, OutHeader};
use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use zerocopy::FromBytes;

/// Longest request of which a copy is kept, to undo it when its reply is refused. Those that hand something over are
/// shorter.
const KEPT_REQUEST_BYTES: usize = 8 << 10;
/// Most memory that a buffer for replies keeps.
const KEPT_PAYLOAD_BYTES: usize = super::REQUEST_BUFFER_BYTES;
/// How long threads that only wait may take to notice that the connection has ended.
const NOTICE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);

/// One ring with one entry, of the thread that made it.
pub struct Carrier {
    ring: IoUring<Entry128, cqueue::Entry>,
    entry: RingEntry,
    /// A request came with the registration.
    has_request: bool,
}

/// The meaning of a completion.
enum Came {
    Request,
    /// A signal, or the kernel asks for patience: the same command again.
    Again,
    Ended,
    Failed(io::Error),
}

impl Carrier {
    /// A ring for an entry of `queue`; the kernel does not know of it yet.
    pub fn new(queue: u16) -> io::Result<Carrier> {
        let mut builder = IoUring::<Entry128, cqueue::Entry>::builder();
        let ring = builder.setup_single_issuer().setup_defer_taskrun().build(2)?;
        Ok(Carrier { ring, entry: RingEntry::new(queue)?, has_request: false })
    }

    /// The same, with its entry handed to the kernel.
    fn registered(queue: u16, device: RawFd) -> io::Result<Carrier> {
        let mut carrier = Carrier::new(queue)?;
        carrier.register(device)?;
        Ok(carrier)
    }

    /// Hands the entry to the kernel. A refusal comes at once.
    pub fn register(&mut self, device: RawFd) -> io::Result<()> {
        self.push(&self.entry.register(device))?;
        self.ring.submit()?;
        // The completion of a refused command is there when the call returns.
        match self.ring.completion().next().map(|completion| completion.result()) {
            None => {}
            Some(0) => self.has_request = true,
            Some(result) => return Err(io::Error::from_raw_os_error(-result)),
        }
        Ok(())
    }

    #[allow(unsafe_code)]
    fn push(&mut self, command: &Entry128) -> io::Result<()> {
        // SAFETY: what the command refers to lies in `self.entry`, which is dropped after the ring.
        unsafe { self.ring.submission().push(command) }.map_err(|_| io::Error::other("the ring is full"))
    }

    /// Submits what was pushed and waits for a completion.
    fn wait(&mut self) -> Came {
        if std::mem::take(&mut self.has_request) {
            return Came::Request;
        }
        loop {
            if let Some(completion) = self.ring.completion().next() {
                return match -completion.result() {
                    0 => Came::Request,
                    libc::EINTR | libc::EAGAIN => Came::Again,
                    libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED => Came::Ended,
                    number => Came::Failed(io::Error::from_raw_os_error(number)),
                };
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
                Err(error) => return Came::Failed(error),
            }
        }
    }
}

/// The threads of one queue, counted.
struct Queue {
    /// Entries that the kernel can use.
    idle: AtomicUsize,
    /// Threads there are.
    threads: AtomicUsize,
    /// Threads that finish a reply while others serve.
    finishing: AtomicUsize,
}

/// The state that carriers share.
pub struct Shared {
    /// The connection; commands name its descriptor.
    device: OwnedFd,
    exchange: Arc<dyn Exchange>,
    log: Log,
    queues: Vec<Queue>,
    /// Threads of all queues.
    running: Mutex<usize>,
    /// The last thread has ended.
    ended: Condvar,
}

impl Shared {
    /// For `queues` queues of the connection that `device` is a descriptor of, each with `threads` threads whose
    /// entries the kernel has.
    pub fn new(device: OwnedFd, exchange: Arc<dyn Exchange>, log: Log, queues: usize, threads: usize) -> Shared {
        let queue = || Queue { idle: threads.into(), threads: threads.into(), finishing: AtomicUsize::new(0) };
        let running = Mutex::new(queues * threads);
        let queues = (0..queues).map(|_| queue()).collect();
        Shared { device, exchange, log, queues, running, ended: Condvar::new() }
    }

    /// Counts a thread as ended that served no request at that moment.
    fn discharge(&self, queue: u16) {
        let queue = self.queue(queue);
        queue.threads.fetch_sub(1, Ordering::AcqRel);
        queue.idle.fetch_sub(1, Ordering::AcqRel);
        let mut running = self.running.lock();
        *running -= 1;
        if *running == 0 {
            self.ended.notify_all();
        }
    }

    fn queue(&self, queue: u16) -> &Queue {
        &self.queues[usize::from(queue)]
    }

    /// Whether a thread serves a request.
    fn is_busy(&self) -> bool {
        self.queues.iter().any(|queue| queue.idle.load(Ordering::Acquire) < queue.threads.load(Ordering::Acquire))
    }

    /// Waits until every thread has ended. The connection has ended, so those that wait for a request are about to
    /// notice; those that serve one are waited for as long as it takes.
    pub fn wait(&self) {
        let mut running = self.running.lock();
        let mut limit = Instant::now() + NOTICE;
        while *running > 0 {
            self.ended.wait_for(&mut running, LOOK);
            if self.is_busy() {
                limit = Instant::now() + NOTICE;
            } else if Instant::now() > limit {
                (self.log)(&format!("{running} threads still wait for requests of a connection that has ended"));
                return;
            }
        }
    }

    /// One thread's life, from its registration on.
    pub fn run(&self, mut carrier: Carrier, affinity: Affinity) {
        let queue = carrier.entry.queue();
        if let Err(error) = self.carry(&mut carrier, affinity) {
            (self.log)(&format!("a thread that serves requests over io_uring ended: {error}"));
        }
        self.discharge(queue);
    }

    fn carry(&self, carrier: &mut Carrier, mut affinity: Affinity) -> io::Result<()> {
        let device = self.device.as_raw_fd();
        let queue = self.queue(carrier.entry.queue());
        let mut last = Last::default();
        let mut again = None;
        loop {
            match carrier.wait() {
                Came::Request => {}
                Came::Again => {
                    let command = again.clone().unwrap_or_else(|| carrier.entry.register(device));
                    carrier.push(&command)?;
                    continue;
                }
                Came::Ended => return Ok(()),
                Came::Failed(error) => {
                    self.refused(&last, &error);
                    *carrier = Carrier::registered(carrier.entry.queue(), device)?;
                    continue;
                }
            }
            queue.idle.fetch_sub(1, Ordering::AcqRel);
            carrier.entry.request().inspect(|request| affinity.prepare_for(request));
            self.serve(carrier, &mut last);
            carrier.entry.shrink();
            let answered = carrier.entry.answer(&last.header, &last.payload);
            if answered.is_err() {
                let error = -libc::EIO;
                let header = OutHeader { len: size_of::<OutHeader>() as u32, error, ..last.header };
                // It has no payload, so it has room.
                let _ = carrier.entry.answer(&header, &[]);
            }
            queue.idle.fetch_add(1, Ordering::AcqRel);
            let command = carrier.entry.commit(device);
            carrier.push(&command)?;
            again = Some(command);
        }
    }

    /// Serves the request in the entry; the reply is in `last`.
    fn serve(&self, carrier: &mut Carrier, last: &mut Last) {
        let number = carrier.entry.queue();
        last.payload.clear();
        last.payload.shrink_to(KEPT_PAYLOAD_BYTES);
        last.request.clear();
        let Some(request) = carrier.entry.request() else {
            // Nothing says which request it is; the kernel knows by the entry.
            last.header = refusal(0, libc::EIO);
            return;
        };
        if request.len() <= KEPT_REQUEST_BYTES {
            last.request.extend_from_slice(request);
        }
        let unique = InHeader::read_from_prefix(request).map_or(0, |(header, _)| header.unique);
        last.header = match self.exchange.serve(request, &mut last.payload) {
            Served::Reply(header) => header,
            // Over this transport every request has a reply.
            Served::Silent => OutHeader { len: size_of::<OutHeader>() as u32, error: 0, unique },
            Served::Later(later) => self.finish(number, later, unique, &mut last.payload),
        };
    }

    /// Finishes a reply on this thread, if enough others can serve.
    fn finish(&self, number: u16, later: super::Later, unique: u64, payload: &mut Vec<u8>) -> OutHeader {
        let queue = self.queue(number);
        let finishing = queue.finishing.fetch_add(1, Ordering::AcqRel) + 1;
        let threads = queue.threads.load(Ordering::Acquire);
        let has_room = finishing <= threads - threads.div_ceil(8);
        let header = if has_room { later(payload) } else { refusal(unique, libc::EAGAIN) };
        queue.finishing.fetch_sub(1, Ordering::AcqRel);
        header
    }

    /// The kernel did not take the last reply.
    fn refused(&self, last: &Last, error: &io::Error) {
        (self.log)(&format!("the kernel did not take the reply to request {}: {error}", last.header.unique));
        if !last.request.is_empty() {
            self.exchange.reply_refused(&last.request, &last.payload);
        }
    }
}

/// The reply on its way out, and the request it answers.
#[derive(Default)]
struct Last {
    header: OutHeader,
    payload: Vec<u8>,
    request: Vec<u8>,
}

fn refusal(unique: u64, error: i32) -> OutHeader {
    OutHeader { len: size_of::<OutHeader>() as u32, error: -error, unique }
}

/// Starts a thread that serves a queue.
pub fn spawn(queue: u16, life: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = std::thread::Builder::new().name(format!("fuse-ring-{queue}")).stack_size(super::STACK_BYTES);
    builder.spawn(life).map(drop)
}
