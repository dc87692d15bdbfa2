//! The threads that serve a connection: as many as there are processors, and more while those wait.
//!
//! A request may wait for a device or for a commit, and whoever makes the commit possible may be the next request.
//! So there is always a thread that reads: the thread that takes the last one's place starts another, up to a limit,
//! and threads beyond what an ordinary load needs end when they have nothing to do.
//!
//! One more thread finishes replies that need the others to serve requests meanwhile.

use super::dev_fuse::{DevFuse, Received, Sent};
use super::{Exchange, Later, REQUEST_BUFFER_BYTES, STACK_BYTES, Served};
use crate::Log;
use crate::protocol::wire::OutHeader;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Most threads of one connection.
const MOST_THREADS: usize = 64;
/// Threads that stay when there is nothing to do.
const IDLE_THREADS: usize = 8;
/// Replies up to this size keep their buffer for the next one.
const KEPT_PAYLOAD_BYTES: usize = REQUEST_BUFFER_BYTES;

/// See the [module](self).
pub struct Pool {
    shared: Arc<Shared>,
    finisher: Mutex<Option<JoinHandle<()>>>,
}

/// A reply to finish, and where to send it.
type Unfinished = (Arc<DevFuse>, Later);

struct Shared {
    device: DevFuse,
    exchange: Arc<dyn Exchange>,
    log: Log,
    /// Threads that stay when there is nothing to do.
    kept: usize,
    /// Takes replies to finish; gone when the connection has ended.
    unfinished: Mutex<Option<Sender<Unfinished>>>,
    /// Threads that wait for a request, or are about to.
    idle: AtomicUsize,
    /// Threads there are.
    threads: Mutex<usize>,
    ended: Condvar,
}

impl Pool {
    /// Starts serving `device` with `threads` threads.
    pub fn start(device: DevFuse, exchange: Arc<dyn Exchange>, threads: usize, log: Log) -> io::Result<Pool> {
        let threads = threads.clamp(2, MOST_THREADS);
        let (unfinished, work) = channel();
        let shared = Arc::new(Shared {
            device,
            exchange,
            log,
            kept: threads.max(IDLE_THREADS),
            unfinished: Mutex::new(Some(unfinished)),
            idle: AtomicUsize::new(0),
            threads: Mutex::new(0),
            ended: Condvar::new(),
        });
        let finisher = std::thread::Builder::new().name("fuse-later".into());
        let log = Arc::clone(&shared.log);
        let finisher = finisher.stack_size(STACK_BYTES).spawn(move || finish_all(&work, &log))?;
        for _ in 0..threads {
            shared.add_thread()?;
        }
        Ok(Pool { shared, finisher: Mutex::new(Some(finisher)) })
    }

    /// Waits until the kernel has ended the connection and every request that was taken is finished.
    pub fn wait(&self) {
        let mut threads = self.shared.threads.lock();
        while *threads > 0 {
            self.shared.ended.wait(&mut threads);
        }
        drop(threads);
        self.shared.unfinished.lock().take();
        if let Some(finisher) = self.finisher.lock().take() {
            // What it runs catches panics.
            let _ = finisher.join();
        }
    }
}

fn finish_all(work: &Receiver<Unfinished>, log: &Log) {
    for (channel, later) in work {
        let mut payload = Vec::new();
        let header = later(&mut payload);
        send(&channel, &header, &payload, log);
    }
}

/// Sends a reply. One that the kernel finds malformed fails that request, not the filesystem.
fn send(channel: &DevFuse, header: &OutHeader, payload: &[u8], log: &Log) -> Sent {
    channel.send(header, payload).unwrap_or_else(|error| {
        log(&format!("the kernel did not take the reply to request {}: {error}", header.unique));
        Sent::Refused
    })
}

impl Shared {
    fn add_thread(self: &Arc<Self>) -> io::Result<()> {
        let mut threads = self.threads.lock();
        if *threads >= MOST_THREADS {
            return Ok(());
        }
        let shared = Arc::clone(self);
        self.idle.fetch_add(1, Ordering::Relaxed);
        let started =
            std::thread::Builder::new().name("fuse".into()).stack_size(STACK_BYTES).spawn(move || shared.run());
        match started {
            Ok(_) => *threads += 1,
            Err(error) => {
                self.idle.fetch_sub(1, Ordering::Relaxed);
                return Err(error);
            }
        }
        Ok(())
    }

    /// One thread's life.
    fn run(self: Arc<Self>) {
        if let Err(error) = self.device.another().and_then(|channel| self.serve(&Arc::new(channel))) {
            (self.log)(&format!("a thread that serves requests ended: {error}"));
        }
        *self.threads.lock() -= 1;
        self.ended.notify_all();
    }

    fn serve(self: &Arc<Self>, channel: &Arc<DevFuse>) -> io::Result<()> {
        let mut buffer = vec![0; REQUEST_BUFFER_BYTES];
        let mut payload = Vec::new();
        loop {
            let len = match channel.receive(&mut buffer)? {
                Received::Request(len) => len,
                Received::Nothing => continue,
                Received::Ended => return Ok(()),
            };
            if self.idle.fetch_sub(1, Ordering::Relaxed) == 1 {
                // Too few threads are slower, not wrong.
                let _ = self.add_thread();
            }
            self.exchange_one(channel, &buffer[..len], &mut payload);
            if self.idle.fetch_add(1, Ordering::Relaxed) >= self.kept {
                self.idle.fetch_sub(1, Ordering::Relaxed);
                return Ok(());
            }
        }
    }

    fn exchange_one(&self, channel: &Arc<DevFuse>, request: &[u8], payload: &mut Vec<u8>) {
        payload.clear();
        payload.shrink_to(KEPT_PAYLOAD_BYTES);
        match self.exchange.serve(request, payload) {
            Served::Silent => {}
            Served::Reply(header) => {
                if send(channel, &header, payload, &self.log) == Sent::Refused {
                    self.exchange.reply_refused(request, payload);
                }
            }
            Served::Later(later) => {
                if let Some(unfinished) = &*self.unfinished.lock() {
                    // The finisher outlives every thread that is here.
                    let _ = unfinished.send((Arc::clone(channel), later));
                }
            }
        }
    }
}
