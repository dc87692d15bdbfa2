//! Everything that is not determined by the calls made: time, randomness, how many threads to use.
//!
//! An `Env` is passed in when a filesystem is opened; nothing else in the engine asks a clock or a random source.

use butterfs_ondisk::items::Timespec;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A point in time, as inodes store it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time {
    /// Seconds since 1970; negative before.
    pub sec: i64,
    /// Nanoseconds, below 10^9.
    pub nsec: u32,
}

impl From<Time> for Timespec {
    fn from(time: Time) -> Timespec {
        Timespec { sec: time.sec.into(), nsec: time.nsec.into() }
    }
}

/// A moment at which a test lets other threads work. In a commit they work in the next transaction, and the caller
/// holds no lock but that of the commit.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Point {
    /// Tree blocks are written from now on.
    WritingNodes,
    /// Tree blocks are written, and flushed from now on.
    FlushingNodes,
    /// Tree blocks are durable; superblocks are written from now on.
    WritingSuperblock,
    /// The superblock is durable; what the generation freed is not yet free.
    Durable,
    /// A subvolume is about to be deleted, or a snapshot of one made by the next commit. Whoever asked for it has
    /// looked at what it likes; no lock is held.
    SubvolumeAsked,
    /// An operation on subvolumes was found possible and is about to change the trees. It holds its locks.
    SubvolumeChecked,
    /// Scrub knows which extents it is about to read.
    ScrubPlanned,
    /// A chunk moves, a device is replaced or a group is emptied, and a piece of it is done. Whoever does it holds no
    /// lock.
    PieceMoved,
}

impl Point {
    /// Whether a commit comes to it.
    pub fn is_in_commit(self) -> bool {
        use Point::{PieceMoved, ScrubPlanned, SubvolumeAsked, SubvolumeChecked};
        !matches!(self, SubvolumeAsked | SubvolumeChecked | ScrubPlanned | PieceMoved)
    }
}

/// The source of the answers of an [`Env`].
pub trait Source: Send + Sync {
    /// The wall clock.
    fn now(&self) -> Time;
    /// Time since some moment, for waiting: it never goes back. The wall clock, unless there is something better.
    fn uptime(&self) -> Duration {
        let now = self.now();
        Duration::new(now.sec.max(0) as u64, now.nsec)
    }
    /// Sixteen random bytes.
    fn random(&self) -> [u8; 16];
    /// Threads that may work at once, at least 1.
    fn threads(&self) -> usize;
    /// Whether the engine may start threads of its own (timer, write-back). A simulator says no and drives them.
    fn background(&self) -> bool {
        true
    }
    /// The engine has come to this point. A simulator runs what other threads do meanwhile.
    #[doc(hidden)]
    fn reached(&self, _point: Point) {}
    /// The engine is at a point where a panic would leave something half-made. A test panics.
    #[doc(hidden)]
    fn passes(&self, _point: &'static str) {}
}

/// See the [module](self).
#[derive(Clone)]
pub struct Env {
    source: Arc<dyn Source>,
    /// Asked once: the answer takes the system microseconds.
    threads: usize,
}

impl Env {
    /// An environment of one's own.
    pub fn new(source: impl Source + 'static) -> Env {
        let threads = source.threads().max(1);
        Env { source: Arc::new(source), threads }
    }

    /// The real world.
    pub fn system() -> Env {
        Env::new(System { begun: Instant::now() })
    }

    /// The wall clock.
    pub fn now(&self) -> Time {
        self.source.now()
    }

    /// Time since some moment, for waiting: it never goes back.
    pub fn uptime(&self) -> Duration {
        self.source.uptime()
    }

    /// A random (version 4) UUID.
    pub fn uuid(&self) -> [u8; 16] {
        *uuid::Builder::from_random_bytes(self.source.random()).as_uuid().as_bytes()
    }

    /// Threads that may work at once.
    pub fn threads(&self) -> usize {
        self.threads
    }

    pub(crate) fn reached(&self, point: Point) {
        butterfs_sync::order::as_another_thread(|| self.source.reached(point));
    }

    /// A point at which tests make the engine panic.
    pub(crate) fn passes(&self, point: &'static str) {
        self.source.passes(point);
    }

    /// Whether the engine may start threads of its own.
    pub fn background(&self) -> bool {
        self.source.background()
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Env")
    }
}

struct System {
    begun: Instant,
}

impl Source for System {
    fn uptime(&self) -> Duration {
        self.begun.elapsed()
    }

    fn now(&self) -> Time {
        // A clock before 1970 reads as 1970: nothing here depends on more.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Time { sec: since.as_secs() as i64, nsec: since.subsec_nanos() }
    }

    fn random(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the system has a source of randomness");
        bytes
    }

    fn threads(&self) -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }
}
