//! FUSE over io_uring: a queue for each processor, and the threads that serve them.
//!
//! The kernel offers it from Linux 6.14 on where its parameter `enable_uring` is set. It goes beside the classic
//! transport: INIT, FORGET, INTERRUPT and everything that the server tells the kernel stay on `/dev/fuse`.
//!
//! # Invariants
//! 1. Once INIT has agreed on it, the kernel lets requests wait until every processor's queue has an entry. So
//!    everything that can fail for want of something is there before INIT is answered ([`Prepared`]).
//! 2. A transport that could not be set up after all is an error, and the mount has to go: nobody is served by it.
//!
//! # Memory
//! An entry has to have room for the largest request, about 1 MiB, of which only what was used takes memory. All
//! queues together have [`ENTRIES`], and each at least [`FEWEST_ENTRIES`].

use super::affinity::Affinity;
use super::carriers::{self, Carrier, Shared};
use super::{DevFuse, Exchange};
use crate::Log;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// Entries of all queues together, unless there are many queues: as many as the classic transport has threads at most.
pub const ENTRIES: usize = 64;
/// Fewest entries of a queue. All but one of them may wait for other requests.
pub const FEWEST_ENTRIES: usize = 8;
/// Most processors: each takes threads before the first request.
const MOST_QUEUES: usize = 64;
/// The kernel's parameter for io_uring.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
/// How long a thread may take to set up what it needs.
const SETUP: Duration = Duration::from_secs(10);

/// Whether preparing for it is worth while: the kernel's parameter is set.
pub fn may_be_offered() -> bool {
    std::fs::read_to_string(PARAMETER).is_ok_and(|value| value.trim_end() == "Y")
}

/// Why the kernel does not offer it, as a sentence.
pub fn why_not_offered() -> String {
    match std::fs::read_to_string(PARAMETER) {
        Ok(value) if value.trim_end() == "N" => {
            format!("the kernel does not offer FUSE over io_uring: {PARAMETER} is N")
        }
        Ok(_) => "the kernel does not offer FUSE over io_uring to this mount".to_owned(),
        Err(_) => "the kernel knows no FUSE over io_uring (Linux 6.14 does)".to_owned(),
    }
}

/// The progress, which the threads wait for.
enum SetupPhase {
    Prepare,
    Register(RawFd),
    Serve(Arc<Shared>),
    /// It is not to be served after all.
    Abandoned,
}

/// A meeting point of the threads and the thread that starts them.
struct Gate {
    state: Mutex<SetupState>,
    /// The number of threads wanted.
    threads: usize,
    advanced: Condvar,
    reported: Condvar,
}

struct SetupState {
    phase: SetupPhase,
    /// Threads that have done this phase, and why one could not.
    done: usize,
    failure: Option<io::Error>,
}

/// Threads with rings and buffers, of which the kernel does not know yet.
pub struct Prepared {
    queues: usize,
    gate: Arc<Gate>,
}

/// Threads whose entries the kernel has; requests wait for [`Registered::serve`].
pub struct Registered {
    device: OwnedFd,
    prepared: Prepared,
}

/// A transport that serves.
pub struct Rings(Arc<Shared>);

impl Gate {
    /// A thread has done this phase, or could not. Only the last one and failures wake who waits.
    fn report(&self, outcome: io::Result<()>) {
        let mut state = self.state.lock();
        state.done += 1;
        state.failure = state.failure.take().or(outcome.err());
        if state.done == self.threads || state.failure.is_some() {
            self.reported.notify_one();
        }
    }

    /// Waits until every thread has done this phase.
    fn all_report(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        while state.failure.is_none() && state.done < self.threads {
            if self.reported.wait_for(&mut state, SETUP).timed_out() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        state.failure.take().map_or(Ok(()), Err)
    }

    fn advance(&self, phase: SetupPhase) {
        let mut state = self.state.lock();
        (state.phase, state.done) = (phase, 0);
        self.advanced.notify_all();
    }

    /// Waits for the connection to register with.
    fn device(&self) -> Option<RawFd> {
        let mut state = self.state.lock();
        self.advanced.wait_while(&mut state, |state| matches!(state.phase, SetupPhase::Prepare));
        if let SetupPhase::Register(device) = state.phase { Some(device) } else { None }
    }

    /// Waits for what is to be served.
    fn shared(&self) -> Option<Arc<Shared>> {
        let mut state = self.state.lock();
        self.advanced.wait_while(&mut state, |state| matches!(state.phase, SetupPhase::Register(_)));
        if let SetupPhase::Serve(shared) = &state.phase { Some(Arc::clone(shared)) } else { None }
    }

    /// A thread's life.
    fn live(&self, queue: u16, affinity: Affinity) {
        let mut carrier = match Carrier::new(queue) {
            Ok(carrier) => carrier,
            Err(error) => return self.report(Err(error)),
        };
        self.report(Ok(()));
        let Some(device) = self.device() else { return };
        let registered = carrier.register(device);
        let failed = registered.is_err();
        self.report(registered);
        // Failed or abandoned: what the kernel has goes with the ring.
        let Some(shared) = self.shared().filter(|_| !failed) else { return };
        shared.run(carrier, affinity);
    }
}

impl Prepared {
    /// Sets up what every queue needs.
    pub fn new() -> io::Result<Prepared> {
        let possible = std::fs::read_to_string(POSSIBLE)?;
        let queues = last_of(&possible).map(|last| last + 1).filter(|queues| (1..=MOST_QUEUES).contains(queues));
        let queues = queues.ok_or_else(|| io::Error::other(format!("{} processors", possible.trim_end())))?;
        let entries = (ENTRIES / queues).max(FEWEST_ENTRIES);
        let state = SetupState { phase: SetupPhase::Prepare, done: 0, failure: None };
        let (advanced, reported) = (Condvar::new(), Condvar::new());
        let gate = Arc::new(Gate { state: Mutex::new(state), threads: queues * entries, advanced, reported });
        let prepared = Prepared { queues, gate };
        for queue in 0..queues as u16 {
            start_queue(queue, entries, Arc::clone(&prepared.gate))?;
        }
        prepared.gate.all_report()?;
        Ok(prepared)
    }

    /// Hands all entries to the kernel. INIT has agreed on it on the connection of `device`.
    pub fn register(self, device: &DevFuse) -> io::Result<Registered> {
        let device = device.duplicate()?;
        self.gate.advance(SetupPhase::Register(device.as_raw_fd()));
        self.gate.all_report()?;
        Ok(Registered { device, prepared: self })
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if !matches!(self.gate.state.lock().phase, SetupPhase::Serve(_)) {
            self.gate.advance(SetupPhase::Abandoned);
        }
    }
}

/// Starts the threads of a queue: the first goes to the queue's processor, and starts the others there.
fn start_queue(queue: u16, entries: usize, gate: Arc<Gate>) -> io::Result<()> {
    carriers::spawn(queue, move || {
        let affinity = Affinity::at_home(queue);
        for _ in 1..entries {
            let same = Arc::clone(&gate);
            if let Err(error) = carriers::spawn(queue, move || same.live(queue, affinity)) {
                gate.report(Err(error));
            }
        }
        gate.live(queue, affinity);
    })
}

impl Registered {
    /// Starts serving.
    pub fn serve(self, exchange: Arc<dyn Exchange>, log: Log) -> Rings {
        let Registered { device, prepared } = self;
        let Prepared { queues, gate } = &prepared;
        let shared = Arc::new(Shared::new(device, exchange, log, *queues, gate.threads / queues));
        gate.advance(SetupPhase::Serve(Arc::clone(&shared)));
        Rings(shared)
    }
}

impl Rings {
    /// Waits until every request that was taken is finished, when the kernel has ended the connection.
    pub fn wait(&self) {
        self.0.wait();
    }
}

/// The last number of a list of ranges such as `0-3,8-11`.
fn last_of(list: &str) -> Option<usize> {
    list.trim_end().rsplit([',', '-']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_processor_is_found() {
        assert_eq!(last_of("0\n"), Some(0));
        assert_eq!(last_of("0-1\n"), Some(1));
        assert_eq!(last_of("0-3,8-11\n"), Some(11));
        assert_eq!(last_of("\n"), None);
    }
}
