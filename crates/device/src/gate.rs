//! A device that holds chosen reads and writes back until a test lets them through.
//!
//! A held request has not reached the device beneath: its caller waits inside `read_at` or `write_at`. All others pass.

use crate::BlockDevice;
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A test that waits longer for a write to arrive has failed.
const PATIENCE: Duration = Duration::from_secs(120);

/// A request.
enum Request<'a> {
    Read,
    Write(&'a [u8]),
}

type Choice = Box<dyn Fn(u64, &Request<'_>) -> bool + Send>;

#[derive(Default)]
struct GateState {
    held_back: Option<Choice>,
    waiting: usize,
}

/// See the [module](self).
pub struct GateDevice {
    inner: Arc<dyn BlockDevice>,
    state: Mutex<GateState>,
    changed: Condvar,
}

impl GateDevice {
    /// An open gate.
    pub fn new(inner: Arc<dyn BlockDevice>) -> GateDevice {
        GateDevice { inner, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Holds back the writes that `choice` returns true for, from now on.
    pub fn close(&self, choice: impl Fn(u64, &[u8]) -> bool + Send + 'static) {
        let choice: Choice = Box::new(move |offset, request| match request {
            Request::Write(data) => choice(offset, data),
            Request::Read => false,
        });
        self.state.lock().held_back = Some(choice);
    }

    /// Holds back the reads that `choice` returns true for, by their offsets, from now on.
    pub fn close_for_reads(&self, choice: impl Fn(u64) -> bool + Send + 'static) {
        let choice: Choice = Box::new(move |offset, request| matches!(request, Request::Read) && choice(offset));
        self.state.lock().held_back = Some(choice);
    }

    /// Waits until `count` requests are held back. Panics after two minutes.
    pub fn wait_for(&self, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.state.lock();
        while state.waiting < count {
            let late = self.changed.wait_until(&mut state, deadline).timed_out();
            assert!(!late, "{} requests are held back, not {count}", state.waiting);
        }
    }

    /// The number of requests that are held back now.
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting
    }

    /// Lets all requests through, those that are held back first.
    pub fn open(&self) {
        self.state.lock().held_back = None;
        self.changed.notify_all();
    }

    fn pass(&self, offset: u64, request: &Request<'_>) {
        let mut state = self.state.lock();
        if !state.held_back.as_ref().is_some_and(|choice| choice(offset, request)) {
            return;
        }
        state.waiting += 1;
        self.changed.notify_all();
        while state.held_back.is_some() {
            self.changed.wait(&mut state);
        }
        state.waiting -= 1;
    }
}

impl fmt::Debug for GateDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateDevice").field("inner", &self.inner).field("waiting", &self.waiting()).finish()
    }
}

impl BlockDevice for GateDevice {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.pass(offset, &Request::Read);
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.pass(offset, &Request::Write(data));
        self.inner.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn begin_write_out(&self, offset: u64, len: u64) {
        self.inner.begin_write_out(offset, len);
    }

    fn begin_read(&self, offset: u64, len: u64) {
        self.inner.begin_read(offset, len);
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }

    fn supports_discard(&self) -> bool {
        self.inner.supports_discard()
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn a_held_write_arrives_when_the_gate_opens() {
        let memory = Arc::new(MemoryDevice::new(1 << 20));
        let gate = Arc::new(GateDevice::new(memory.clone()));
        let first = || {
            let mut byte = [0];
            memory.read_at(4096, &mut byte).unwrap();
            byte[0]
        };
        gate.close(|offset, data| offset == 4096 && data[0] == 7);
        gate.write_at(4096, &[5; 512]).unwrap();
        let writer = Arc::clone(&gate);
        let thread = std::thread::spawn(move || writer.write_at(4096, &[7; 512]));
        gate.wait_for(1);
        gate.flush().unwrap();
        assert_eq!(first(), 5);
        gate.open();
        thread.join().unwrap().unwrap();
        assert_eq!((first(), gate.waiting()), (7, 0));
    }
}
