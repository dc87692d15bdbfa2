//! The order in which commits and logs become what is on disk, tried in many interleavings of threads.
//!
//! The two protocols run as they are in the engine; what they write is modelled. Invariants: (1) a superblock leads to
//! a log only on top of the commit before the log's transaction; (2) only when the log's blocks are durable; (3) blocks
//! of a log are never written once its transaction is durable, when they may belong to somebody else; (4) whoever
//! returns finds on disk what it logged, in a log or in a commit; (5) while primary superblocks are written, the
//! secondary ones show all that was promised.

mod sync_primitives {
    //! The engine's primitives, scheduled by the test.

    pub use butterfs_sync::order;
    use std::ops::{Deref, DerefMut};

    pub struct Mutex<T, const RANK: u8 = 0>(shuttle::sync::Mutex<T>);

    /// Empty only while its thread waits.
    pub struct Guard<'a, T>(Option<shuttle::sync::MutexGuard<'a, T>>);

    impl<T> Deref for Guard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect("its thread does not wait")
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("its thread does not wait")
        }
    }

    impl<T: Default, const RANK: u8> Default for Mutex<T, RANK> {
        fn default() -> Mutex<T, RANK> {
            Mutex::new(T::default())
        }
    }

    impl<T, const RANK: u8> Mutex<T, RANK> {
        pub fn new(value: T) -> Mutex<T, RANK> {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> Guard<'_, T> {
            Guard(Some(self.0.lock().expect("nobody panics while holding it")))
        }
    }

    #[derive(Default)]
    pub struct Condvar(shuttle::sync::Condvar);

    impl Condvar {
        pub fn wait<T>(&self, guard: &mut Guard<'_, T>) {
            let held = guard.0.take().expect("its thread does not wait");
            guard.0 = Some(self.0.wait(held).expect("nobody panics while holding it"));
        }

        pub fn notify_all(&self) {
            self.0.notify_all();
        }

        pub fn notify_one(&self) {
            self.0.notify_one();
        }
    }
}

#[allow(dead_code, unreachable_pub)]
#[path = "../src/tree_log/group.rs"]
mod group;
#[allow(dead_code, unreachable_pub)]
#[path = "../src/tree_log/lead.rs"]
mod lead;
#[allow(dead_code, unreachable_pub)]
#[path = "../src/superblock_order.rs"]
mod superblock_order;

use group::{Group, Joined, Reached};
use lead::{Lead, Next, Outcome};
use shuttle::sync::Arc;
use shuttle::thread;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use superblock_order::SuperblockOrder;
use sync_primitives::Mutex;

const COMMITS: u64 = 3;
/// Flushes of superblocks that were left to the next one who writes.
static LEFT_TO_OTHERS: AtomicU64 = AtomicU64::new(0);
const SYNCS: u64 = 2;
/// A device fails in this commit, so it gets no superblock.
const LEFT_TO_NEXT: u64 = 2;

#[derive(Default)]
struct Disk {
    /// The commit that the superblock is of, and the point of the log that it leads to.
    superblock: (u64, Option<u64>),
    /// The superblock that the last flush found: a crash may show any one from this to the last.
    durable: (u64, Option<u64>),
    /// The state that the secondary superblocks show once all writes are durable.
    secondary: (u64, Option<u64>),
    /// Points whose log blocks are durable.
    blocks: BTreeSet<u64>,
    /// Transactions whose log blocks somebody writes just now.
    writing: Vec<u64>,
}

struct Engine {
    running: Mutex<(u64, u64)>,
    committing: Mutex<()>,
    disk: Mutex<Disk>,
    order: SuperblockOrder,
    group: Group,
}

impl Engine {
    fn commit(&self) {
        let _one_at_a_time = self.committing.lock();
        self.commit_running();
    }

    /// The work of an `fsync` whose log cannot be written.
    fn commit_through(&self, generation: u64) {
        let _one_at_a_time = self.committing.lock();
        if self.running.lock().0 == generation {
            self.commit_running();
        }
        assert!(self.order.wait_durable(generation));
    }

    fn commit_running(&self) {
        let generation = {
            let mut running = self.running.lock();
            running.0 += 1;
            running.0 - 1
        };
        thread::yield_now();
        let committing = self.order.commit(generation);
        if committing.copies_behind() {
            let mut disk = self.disk.lock();
            disk.secondary = disk.superblock;
        }
        thread::yield_now();
        if generation == LEFT_TO_NEXT {
            self.order.leave_to_next(generation);
            drop(committing);
            return self.commit_running();
        }
        let mut disk = self.disk.lock();
        let last = if generation - 1 == LEFT_TO_NEXT { LEFT_TO_NEXT - 1 } else { generation - 1 };
        assert_eq!(disk.superblock.0, last);
        assert_eq!(disk.secondary, disk.superblock, "a torn superblock loses what was promised");
        assert!(disk.writing.iter().all(|log| *log > generation), "blocks of an ended log are still being written");
        disk.superblock = (generation, None);
        disk.durable = disk.superblock;
        disk.secondary = disk.superblock;
        drop(disk);
        committing.end();
    }

    fn fsync(&self) {
        let (generation, point) = {
            let mut running = self.running.lock();
            running.1 += 1;
            *running
        };
        while let Joined::Leads(leader) = self.group.join(point) {
            match self.lead(generation, point) {
                Ok(reached) => leader.end(reached),
                Err(()) => {
                    drop(leader);
                    self.commit_through(generation);
                    break;
                }
            }
        }
        let (durable, log) = self.disk.lock().durable;
        assert!(durable >= generation || durable + 1 == generation && log >= Some(point), "{point} is not on disk");
    }

    fn lead(&self, generation: u64, point: u64) -> Result<Reached, ()> {
        let (running, frozen) = *self.running.lock();
        if running > generation {
            return if self.order.wait_durable(generation) { Ok(Reached::Durable(point)) } else { Err(()) };
        }
        let mut lead = Lead::begin(&self.order, &self.group, generation, frozen);
        loop {
            match lead.next() {
                Next::WriteBlocks => self.write_blocks(generation, point)?,
                Next::FlushBlocks => {
                    self.flush()?;
                    self.disk.lock().blocks.insert(frozen);
                }
                Next::WriteSuperblock => {
                    let mut disk = self.disk.lock();
                    assert_eq!(disk.superblock.0 + 1, generation, "the log is not on top of its commit");
                    assert!(disk.blocks.contains(&frozen));
                    disk.superblock.1 = Some(frozen);
                }
                Next::FlushSuperblock => self.flush()?,
                Next::Ended(Outcome::Committed) => return Ok(Reached::Durable(frozen)),
                Next::Ended(Outcome::LeftToNext) => {
                    assert_eq!(generation, LEFT_TO_NEXT + 1);
                    return Err(());
                }
                Next::Ended(Outcome::Stopped) => panic!("nobody stops writing"),
                Next::Ended(Outcome::Led(reached)) => {
                    LEFT_TO_OTHERS.fetch_add(u64::from(matches!(reached, Reached::Written(_))), Ordering::Relaxed);
                    return Ok(reached);
                }
            }
        }
    }

    fn write_blocks(&self, generation: u64, point: u64) -> Result<(), ()> {
        let mut disk = self.disk.lock();
        assert!(disk.superblock.0 < generation, "blocks that belong to somebody else are written");
        disk.writing.push(generation);
        drop(disk);
        thread::yield_now();
        let mut disk = self.disk.lock();
        assert!(disk.superblock.0 < generation, "blocks that belong to somebody else are written");
        disk.writing.retain(|log| *log != generation);
        if point % 4 == 3 { Err(()) } else { Ok(()) }
    }

    /// Data written before it begins is durable when it ends.
    fn flush(&self) -> Result<(), ()> {
        let superblock = self.disk.lock().superblock;
        thread::yield_now();
        let mut disk = self.disk.lock();
        disk.durable = disk.durable.max(superblock);
        Ok(())
    }
}

fn run() {
    let engine = Arc::new(Engine {
        running: Mutex::new((1, 0)),
        committing: Mutex::new(()),
        disk: Mutex::default(),
        order: SuperblockOrder::new(0),
        group: Group::default(),
    });
    let spawn = |work: fn(&Engine), times: u64| {
        let engine = Arc::clone(&engine);
        thread::spawn(move || (0..times).for_each(|_| work(&engine)))
    };
    let threads = [
        spawn(Engine::commit, COMMITS),
        spawn(Engine::fsync, SYNCS),
        spawn(Engine::fsync, SYNCS),
        spawn(Engine::fsync, SYNCS),
    ];
    for thread in threads {
        thread.join().expect("no assertion fails");
    }
}

#[test]
fn random_interleavings() {
    shuttle::check_random(run, 3000);
    let left = LEFT_TO_OTHERS.load(Ordering::Relaxed);
    assert!(left > 100, "{left} flushes were left to others");
}

#[test]
fn rare_interleavings() {
    shuttle::check_pct(run, 3000, 3);
}
