//! The order in which a thread takes the engine's locks, written once, and its check.
//!
//! A lock's rank is part of its type. In a debug build a thread that waits for a lock while it holds one of a later
//! rank panics and names both; so does one that waits for a second lock of a rank of which it may hold one. Release
//! builds check nothing and store nothing.
//!
//! A transaction handle is no lock, but a commit waits for whoever holds one; so it has a rank too ([`Held::of`]). A
//! thread that only tries to take a lock waits for nobody and may do so in any order.

#[cfg(debug_assertions)]
use std::cell::RefCell;

macro_rules! order {
    ($($(#[doc = $doc:literal])* $name:ident $($several:ident)?,)*) => {
        #[expect(non_camel_case_types, clippy::upper_case_acronyms, reason = "the names of constants")]
        enum Rank { Unranked, $($name),* }

        /// Not in the order.
        pub const UNRANKED: u8 = Rank::Unranked as u8;
        $($(#[doc = $doc])* pub const $name: u8 = Rank::$name as u8;)*

        /// Name, and whether a thread may hold several locks of the rank; their order is said where they are taken.
        #[cfg(debug_assertions)]
        const RANKS: &[(&str, bool)] = &[
            ("UNRANKED", true),
            $((stringify!($name), false $(|| !stringify!($several).is_empty())?)),*
        ];
    };
}

order! {
    /// An operation is under way, or one transaction of several.
    OPERATIONS several,
    /// One thread looks after deleted subvolumes.
    UPKEEP,
    /// Names that a running receive works on.
    CLAIMS,
    /// The state of a balance.
    BALANCE,
    /// Which snapshots are known.
    SNAPSHOTS,
    /// Which operation runs that excludes others.
    EXCLUSIVE_OPERATION,
    /// Which reports were passed on.
    TOLD,
    /// The scrub that is under way.
    SCRUBS,
    /// Its threads.
    SCRUB_THREADS,
    /// How fast it may be on each device.
    SCRUB_LIMITS,
    /// One rename of a directory at a time.
    RENAMES,
    /// A file is changed in several steps, or written.
    WHOLE,
    /// Which extents a file has; of two files by their ids.
    MAPPING several,
    /// Extents of a group are moved by one at a time.
    RELOCATION,
    /// Data is written back because space is short.
    SHORTAGE,
    /// The last of the reserve is given to one at a time.
    SCARCITY,
    /// Writers wait for memory.
    WAITING_WRITERS,
    /// The requests to the write-back thread.
    WRITE_BACK_THREAD,
    /// How much is buffered.
    PRESSURE,
    /// One commit at a time.
    COMMIT,
    /// One thread books references ahead of the commit.
    BOOKING_TURN,
    /// A transaction handle, or the end of all of them.
    HANDLE,
    /// The writes in place.
    IN_PLACE,
    /// The inodes that are logged.
    LOG_SET,
    /// Names change, or are logged.
    NAMES,
    /// An inode; of several by their ids.
    INODE several,
    /// The handles of background threads.
    THREADS,
    /// The set of subvolumes.
    SUBVOLUME_TABLE,
    /// The superblock that this process last saw on a device.
    KNOWN_SUPERBLOCK,
    /// The leader of a log group.
    LOG_GROUP,
    /// The message to a waiter for a log.
    LOG_WAITER,
    /// Counts of logs.
    LOG_STATS,
    /// The blocks of the logs.
    LOG_BLOCKS,
    /// Stale devices as the device tree has them.
    STALE_ITEMS,
    /// The replacement of a device, as the device tree is to have it.
    REPLACEMENT,
    /// Free space of the devices.
    DEVICE_SPACE,
    /// The work of the running transaction's commit.
    BOOKS,
    /// Device items of the last commit.
    COMMITTED_DEVICES,
    /// A device's item.
    DEVICE_ITEM,
    /// A device's error counters.
    DEVICE_STATS,
    /// The last commits.
    LAST_STATES,
    /// Directories that stand in for subvolumes.
    PLACEHOLDERS,
    /// Subvolumes whose orphans were deleted.
    CLEANED_TREES,
    /// The queue of read-ahead.
    READ_AHEAD_QUEUE,
    /// The sequential readers.
    READ_AHEAD_STREAMS,
    /// Requests are on their way to the devices, or all that began are waited for.
    REQUESTS,
    /// A copy is repaired, or written.
    REPAIR_GATE,
    /// Rows with parity are written, or elements of them computed.
    ROWS,
    /// Decompressed extents.
    UNPACKED,
    /// Encoders that are not in use.
    ENCODERS,
    /// A device reads or writes: no lock from here on is held meanwhile.
    DEVICE,
    /// Damage that scrub has found.
    SCRUB_FOUND,
    /// The progress of the scrub of a device.
    SCRUB_LANE,
    /// The buffer of a file.
    BUFFER,
    /// Inodes in memory.
    INODE_CACHE,
    /// The fields of an inode item.
    INODE_STATE,
    /// Inodes that are not written yet.
    DIRTY_INODES,
    /// How far a dropped tree has full back references.
    FULL_BACKREFS,
    /// Subvolumes that got another place.
    PLACED_IN,
    /// Trees whose root items are to be written.
    UNRECORDED,
    /// The trees that are open.
    OPEN_TREES,
    /// A tree's root item.
    ROOT_ITEM,
    /// The root item on disk.
    RECORDED_ROOT,
    /// A subvolume's tree.
    SUBVOLUME_TREE,
    /// Another tree.
    TREE,
    /// The free space tree.
    FREE_SPACE_TREE,
    /// The references of a shared block are looked up and changed.
    SHARING,
    /// The extent tree.
    EXTENT_TREE,
    /// Logged inodes of a tree that changed since.
    WATCHED,
    /// Extents that have got another address.
    MOVED,
    /// How new data is stored.
    DATA_POLICY,
    /// How freed space is discarded.
    DISCARD_MODE,
    /// The ranges that wait to be discarded.
    FREED,
    /// Discards that are under way.
    DISCARD_TRAFFIC,
    /// The last committed superblock.
    SUPERBLOCK,
    /// The chunk map.
    CHUNK_MAP,
    /// The set of devices.
    DEVICE_SET,
    /// Chunks that get other stripes.
    MOVES,
    /// The range that is being copied to another place.
    COPY_WINDOW,
    /// Changes of references that wait.
    REFERENCES,
    /// Two that contradict each other.
    REFERENCE_CONFLICT,
    /// Extents that have lost a user.
    UNSHARED,
    /// Free and reserved space.
    SPACE,
    /// Tree blocks in memory.
    NODES,
    /// Commits and cleaning that were asked for.
    BACKGROUND_REQUESTS,
    /// The order of superblock writers. From here on: locks that whoever stops all writing takes, with any other one
    /// held.
    SUPERBLOCK_ORDER,
    /// Reports of bad copies.
    REPORTS,
    /// Which transaction runs, and how many handles it has.
    PROGRESS,
    /// The identity of the filesystem in every tree block.
    NODE_IDENTITY,
}

#[cfg(debug_assertions)]
thread_local! {
    /// The ranks of what this thread holds.
    static HELD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Something ranked that a thread holds, until it is dropped by the same thread.
#[derive(Debug)]
pub struct Held {
    #[cfg(debug_assertions)]
    rank: u8,
}

impl Held {
    /// The thread is about to wait for something of this rank, and has it afterwards.
    #[inline]
    pub fn of(rank: u8) -> Held {
        check(rank);
        Held::without_waiting(rank)
    }

    #[cfg(debug_assertions)]
    fn without_waiting(rank: u8) -> Held {
        if rank != UNRANKED {
            HELD.with_borrow_mut(|held| held.push(rank));
        }
        Held { rank }
    }

    #[cfg(not(debug_assertions))]
    #[inline]
    fn without_waiting(_: u8) -> Held {
        Held {}
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        let forget = |held: &RefCell<Vec<u8>>| {
            let mut held = held.borrow_mut();
            if let Some(last) = held.iter().rposition(|rank| *rank == self.rank) {
                held.remove(last);
            }
        };
        // A thread that ends has no list any more.
        let _ = HELD.try_with(forget);
    }
}

/// The thread is about to wait for something of this rank, which it does not hold afterwards. Panics, in a debug build,
/// when it holds something of a later rank, or of this one.
#[inline]
pub fn check(rank: u8) {
    #[cfg(debug_assertions)]
    if rank != UNRANKED && !std::thread::panicking() {
        let too_late = |held: &u8| *held > rank || (*held == rank && !RANKS[usize::from(rank)].1);
        let found = HELD.with_borrow(|held| held.iter().copied().find(too_late));
        if let Some(found) = found {
            let name = |rank: u8| RANKS[usize::from(rank)].0;
            panic!("a thread that holds {} waits for {}, against the order of locks", name(found), name(rank));
        }
    }
    #[cfg(not(debug_assertions))]
    let _ = rank;
}

/// The names of the ranks that this thread holds, in the order in which it took them. None in a release build.
pub fn held() -> Vec<&'static str> {
    #[cfg(debug_assertions)]
    let held = HELD.with_borrow(|held| held.iter().map(|rank| RANKS[usize::from(*rank)].0).collect());
    #[cfg(not(debug_assertions))]
    let held = Vec::new();
    held
}

/// Does what stands for another thread, in a simulator that runs it in this one.
pub fn as_another_thread<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(debug_assertions)]
    let _own = {
        struct Own(Vec<u8>);
        impl Drop for Own {
            fn drop(&mut self) {
                HELD.set(std::mem::take(&mut self.0));
            }
        }
        Own(HELD.take())
    };
    work()
}

/// A lock's rank. Nothing in a release build.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranked<const RANK: u8> {
    #[cfg(debug_assertions)]
    rank: u8,
}

impl<const RANK: u8> Ranked<RANK> {
    pub const fn new() -> Ranked<RANK> {
        Ranked::at(RANK)
    }

    #[cfg(debug_assertions)]
    pub const fn at(rank: u8) -> Ranked<RANK> {
        Ranked { rank }
    }

    #[cfg(not(debug_assertions))]
    pub const fn at(_: u8) -> Ranked<RANK> {
        Ranked {}
    }

    #[cfg(debug_assertions)]
    fn rank(&self) -> u8 {
        self.rank
    }

    #[cfg(not(debug_assertions))]
    fn rank(&self) -> u8 {
        RANK
    }

    /// Before waiting for the lock.
    #[inline]
    pub fn wait(&self) -> Held {
        Held::of(self.rank())
    }

    /// The lock was free.
    #[inline]
    pub fn take(&self) -> Held {
        Held::without_waiting(self.rank())
    }
}

impl<const RANK: u8> Default for Ranked<RANK> {
    fn default() -> Ranked<RANK> {
        Ranked::new()
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::{Condvar, Mutex, RwLock};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    /// The sentence of a panic.
    fn refused<T>(work: impl FnOnce() -> T) -> Option<String> {
        let result = catch_unwind(AssertUnwindSafe(|| drop(work())));
        result.err().map(|panic| *panic.downcast::<String>().expect("a sentence"))
    }

    #[test]
    fn the_order_is_checked() {
        let (first, last) = (Mutex::<_, { COMMIT }>::new(()), RwLock::<_, { SPACE }>::new(()));
        let both = (first.lock(), last.read());
        drop(both);
        let held = last.write();
        let sentence = refused(|| first.lock()).unwrap();
        assert_eq!(sentence, "a thread that holds SPACE waits for COMMIT, against the order of locks");
        assert!(first.try_lock().is_some(), "who only tries waits for nobody");
        drop(held);
        assert_eq!(refused(|| drop(first.lock())), None);
        // Locks may be released in any order.
        let (one, other) = (first.lock(), last.read());
        drop(one);
        assert!(refused(|| first.lock()).is_some());
        drop(other);
        assert_eq!(refused(|| drop(first.lock())), None);
    }

    #[test]
    fn one_lock_of_a_rank_unless_the_table_says_several() {
        let shards = [Mutex::<_, { NODES }>::new(()), Mutex::new(())];
        let held = shards[0].lock();
        assert!(refused(|| shards[1].lock()).is_some());
        drop(held);
        let inodes = [RwLock::<_, { INODE }>::new(()), RwLock::new(())];
        drop((inodes[0].read(), inodes[1].write()));
    }

    #[test]
    fn handles_devices_and_other_ranks_count() {
        let names = Mutex::<_, { NAMES }>::new(());
        let inner = RwLock::<_, { TREE }>::new(()).with_rank(EXTENT_TREE);
        let handle = Held::of(HANDLE);
        assert_eq!(refused(|| drop(names.lock())), None);
        check(DEVICE);
        let tree = inner.read();
        assert!(refused(|| check(DEVICE)).unwrap().contains("EXTENT_TREE waits for DEVICE"));
        drop((handle, tree));
        let held = names.lock();
        assert!(refused(|| Held::of(HANDLE)).is_some());
        drop(held);
        let free = Mutex::<_>::new(());
        let _held = names.lock();
        assert_eq!(refused(|| drop(free.lock())), None, "what has no rank is not checked");
    }

    #[test]
    fn a_stand_in_for_another_thread_holds_nothing() {
        let (first, last) = (Mutex::<_, { COMMIT }>::new(()), Mutex::<_, { SPACE }>::new(()));
        let held = last.lock();
        as_another_thread(|| drop(first.lock()));
        assert!(refused(|| first.lock()).is_some());
        drop(held);
    }

    #[test]
    fn a_wait_keeps_the_rank() {
        let (mutex, changed) = (Mutex::<_, { PROGRESS }>::new(()), Condvar::new());
        let mut held = mutex.lock();
        changed.wait_for(&mut held, Duration::from_millis(1));
        let commit = Mutex::<_, { COMMIT }>::new(());
        assert!(refused(|| commit.lock()).is_some());
        drop(held);
        assert_eq!(refused(|| drop(commit.lock())), None);
    }
}
