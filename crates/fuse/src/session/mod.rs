//! One connection: agrees with the kernel on what is spoken, then turns each request into one reply.
//!
//! # Invariants
//! 1. Every request that wants a reply gets exactly one: malformed and unknown ones an error, too.
//! 2. Only the features of [`handshake`]'s list are agreed on.
//! 3. `ENOSYS` is answered only for operations that are never served, because the kernel remembers it for the mount's
//!    life. (INTERRUPT needs no answer; ignoring it means that the interrupted call finishes.)
//! 4. A panic in the server is a broken invariant. The request fails with `EIO`, and so does every later one, without
//!    the server being asked again: nothing that a broken state computes reaches a user or the disk. The owner learns
//!    it from [`Session::wait`].

pub mod handshake;

pub use handshake::{Agreement, Connected, Refusal, connect, handshake};

use crate::Log;
use crate::protocol::request::DecodeError;
use crate::protocol::wire::{InHeader, OutHeader};
use crate::protocol::{Operation, Request};
use crate::transport::rings::{Registered, Rings};
use crate::transport::{DevFuse, Exchange, Pool, Served};
use rustix::io::Errno;
use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How a request ended.
pub enum Reply {
    /// Well; the answer is in the payload (which may be empty).
    Done,
    /// With an error.
    Failed(Errno),
    /// Not yet: the rest needs requests of the kernel to be served meanwhile, such as writing back its cache. It runs
    /// on a thread that serves no requests, one after the other, with an empty payload.
    Later(Rest),
}

/// The rest of serving a request.
pub type Rest = Box<dyn FnOnce(&mut Vec<u8>) -> Reply + Send>;

/// The server that answers requests. Called from several threads at once.
pub trait Server: Send + Sync + 'static {
    /// Serves one request. `payload` comes empty and takes the answer's body. For operations that want no reply, the
    /// result is ignored.
    fn handle(&self, request: &Request<'_>, payload: &mut Vec<u8>) -> Reply;

    /// The kernel refused the answer in `payload` because the caller had been interrupted. References that the answer
    /// handed over were not taken.
    fn reply_refused(&self, request: &Request<'_>, payload: &[u8]);

    /// Serving a request has panicked: nothing may be written any more.
    fn broke_down(&self, _why: &str) {}
}

/// A connection being served.
pub struct Session {
    pool: Pool,
    rings: Option<Rings>,
    broken: Arc<AtomicBool>,
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The filesystem was unmounted.
    Unmounted,
    /// The same, but before that the server had panicked: its state is not to be trusted.
    Broken,
}

impl Session {
    /// Serves `device`, on which the [`handshake`] is done, with `threads` threads and more while those wait.
    pub fn start(device: DevFuse, server: Arc<dyn Server>, threads: usize, log: Log) -> io::Result<Session> {
        Session::over(device, None, server, threads, log)
    }

    /// The same, with the queues of io_uring that [`connect`] has registered.
    pub fn over(
        device: DevFuse,
        rings: Option<Registered>,
        server: Arc<dyn Server>,
        threads: usize,
        log: Log,
    ) -> io::Result<Session> {
        let broken = Arc::new(AtomicBool::new(false));
        let guard = Guard { server, log: log.clone(), broken: broken.clone() };
        let dispatch = Arc::new(Dispatch(Arc::new(guard)));
        let pool = Pool::start(device, dispatch.clone(), threads, log.clone())?;
        let rings = rings.map(|rings| rings.serve(dispatch, log));
        Ok(Session { pool, rings, broken })
    }

    /// Waits until the filesystem has been unmounted and every request is finished.
    pub fn wait(&self) -> End {
        self.pool.wait();
        if let Some(rings) = &self.rings {
            rings.wait();
        }
        if self.broken.load(Ordering::Acquire) { End::Broken } else { End::Unmounted }
    }
}

/// Turns bytes into a call of the server and its result into a header.
struct Dispatch(Arc<Guard>);

/// The server, until it panics.
struct Guard {
    server: Arc<dyn Server>,
    log: Log,
    broken: Arc<AtomicBool>,
}

impl Exchange for Dispatch {
    fn serve(&self, bytes: &[u8], payload: &mut Vec<u8>) -> Served {
        match Request::decode(bytes) {
            Ok(request) => self.answer(&request, payload),
            Err(DecodeError::NoHeader) => Served::Silent,
            Err(DecodeError::Malformed { unique }) => Served::Reply(refusal(unique, Errno::INVAL)),
            Err(DecodeError::Unknown { unique }) => Served::Reply(refusal(unique, Errno::NOSYS)),
        }
    }

    fn reply_refused(&self, bytes: &[u8], payload: &[u8]) {
        if let Ok(request) = Request::decode(bytes) {
            self.0.run(&request.header, || self.0.server.reply_refused(&request, payload));
        }
    }
}

impl Dispatch {
    fn answer(&self, request: &Request<'_>, payload: &mut Vec<u8>) -> Served {
        let guard = &self.0;
        let header = request.header;
        let reply = match request.operation {
            Operation::Interrupt { .. } => return Served::Silent,
            // Sent once; a second one is not the kernel's.
            Operation::Init { .. } => Some(Reply::Failed(Errno::IO)),
            _ => guard.run(&header, || guard.server.handle(request, payload)),
        };
        if !request.wants_reply() {
            return Served::Silent;
        }
        match reply {
            Some(Reply::Later(rest)) => {
                let guard = Arc::clone(guard);
                Served::Later(Box::new(move |payload| guard.finish(&header, payload, rest)))
            }
            reply => Served::Reply(reply_header(header.unique, reply, payload)),
        }
    }
}

impl Guard {
    /// Runs `call` unless the server is broken; a panic in it breaks the server.
    fn run<T>(&self, header: &InHeader, call: impl FnOnce() -> T) -> Option<T> {
        if self.broken.load(Ordering::Acquire) {
            return None;
        }
        catch_unwind(AssertUnwindSafe(call)).map_err(|panic| self.break_down(header, &*panic)).ok()
    }

    fn break_down(&self, header: &InHeader, panic: &(dyn Any + Send)) {
        self.broken.store(true, Ordering::Release);
        let InHeader { opcode, nodeid, .. } = *header;
        let why = panic_message(panic);
        self.server.broke_down(why);
        (self.log)(&format!("operation {opcode} on node {nodeid} panicked, nothing more is written: {why}"));
    }

    fn finish(&self, header: &InHeader, payload: &mut Vec<u8>, rest: Rest) -> OutHeader {
        let reply = self.run(header, || rest(payload));
        reply_header(header.unique, reply, payload)
    }
}

/// The header for a reply; none at all, and one that is put off again, are broken servers'.
fn reply_header(unique: u64, reply: Option<Reply>, payload: &mut Vec<u8>) -> OutHeader {
    match reply {
        Some(Reply::Done) => OutHeader { len: (size_of::<OutHeader>() + payload.len()) as u32, error: 0, unique },
        Some(Reply::Failed(errno)) => {
            payload.clear();
            refusal(unique, errno)
        }
        Some(Reply::Later(_)) | None => {
            payload.clear();
            refusal(unique, Errno::IO)
        }
    }
}

fn refusal(unique: u64, errno: Errno) -> OutHeader {
    // The kernel takes error numbers up to 511 only, and hangs the caller on others.
    let number = errno.raw_os_error();
    let number = if (1..512).contains(&number) { number } else { Errno::IO.raw_os_error() };
    OutHeader { len: size_of::<OutHeader>() as u32, error: -number, unique }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
