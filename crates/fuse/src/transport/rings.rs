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

use super::carriers::{self, Carrier, Shared};
use super::{DevFuse, Exchange};
use crate::Log;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

/// Entries of all queues together, unless there are many queues.
pub const ENTRIES: usize = 128;
/// Fewest entries of a queue. Half of them may wait for other requests.
pub const FEWEST_ENTRIES: usize = 8;
/// Most processors: each takes threads before the first request.
const MOST_QUEUES: usize = 256;
/// What the kernel says about itself.
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

/// The orders that a thread waits for.
struct Starter {
    register: SyncSender<RawFd>,
    serve: SyncSender<Arc<Shared>>,
}

/// Threads with rings and buffers, of which the kernel does not know yet.
pub struct Prepared {
    queues: usize,
    starters: Vec<(u16, Starter)>,
    reports: Receiver<io::Result<()>>,
}

/// Threads whose entries the kernel has; requests wait for [`Registered::serve`].
pub struct Registered {
    device: OwnedFd,
    prepared: Prepared,
}

/// A transport that serves.
pub struct Rings(Arc<Shared>);

impl Prepared {
    /// Sets up what every queue needs.
    pub fn new() -> io::Result<Prepared> {
        let possible = std::fs::read_to_string(POSSIBLE)?;
        let queues = last_of(&possible).map(|last| last + 1).filter(|queues| (1..=MOST_QUEUES).contains(queues));
        let queues = queues.ok_or_else(|| io::Error::other(format!("{} processors", possible.trim_end())))?;
        let (report, reports) = channel();
        let mut prepared = Prepared { queues, starters: Vec::new(), reports };
        let entries = (ENTRIES / queues).max(FEWEST_ENTRIES);
        for queue in 0..queues as u16 {
            for _ in 0..entries {
                prepared.add(queue, report.clone())?;
            }
        }
        prepared.all_report()?;
        Ok(prepared)
    }

    fn add(&mut self, queue: u16, report: Sender<io::Result<()>>) -> io::Result<()> {
        let (register, device) = sync_channel::<RawFd>(1);
        let (serve, shared) = sync_channel::<Arc<Shared>>(1);
        carriers::start(queue, move || {
            let made = Carrier::new(queue);
            let mut carrier = match made {
                Ok(carrier) => carrier,
                Err(error) => return drop(report.send(Err(error))),
            };
            let _ = report.send(Ok(()));
            let Ok(device) = device.recv() else { return };
            let registered = carrier.register(device);
            let failed = registered.is_err();
            let _ = report.send(registered);
            // An error: another thread could not; what the kernel has goes with the ring.
            let Some(shared) = shared.recv().ok().filter(|_| !failed) else { return };
            shared.run(carrier);
        })?;
        self.starters.push((queue, Starter { register, serve }));
        Ok(())
    }

    fn all_report(&self) -> io::Result<()> {
        for _ in &self.starters {
            let late = |_| io::Error::from(io::ErrorKind::TimedOut);
            self.reports.recv_timeout(SETUP).map_err(late)??;
        }
        Ok(())
    }

    /// Hands all entries to the kernel. INIT has agreed on it on the connection of `device`.
    pub fn register(self, device: &DevFuse) -> io::Result<Registered> {
        let device = device.duplicate()?;
        for (_, starter) in &self.starters {
            // A thread that has ended does not report.
            let _ = starter.register.send(device.as_raw_fd());
        }
        self.all_report()?;
        Ok(Registered { device, prepared: self })
    }
}

impl Registered {
    /// Starts serving.
    pub fn serve(self, exchange: Arc<dyn Exchange>, log: Log) -> Rings {
        let Registered { device, prepared } = self;
        let shared = Arc::new(Shared::new(device, exchange, log, prepared.queues));
        for (queue, starter) in prepared.starters {
            shared.enlist(queue);
            // It waits for this.
            let _ = starter.serve.send(Arc::clone(&shared));
        }
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
