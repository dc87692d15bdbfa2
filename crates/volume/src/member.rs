//! One device of the filesystem: its identity, its counters, and how far its content is believed.

use butterfs_device::BlockDevice;
use butterfs_ondisk::items::DevItem;
use butterfs_ondisk::superblock::{OFFSETS, SUPERBLOCK_LEN, Superblock};
use butterfs_ondisk::{DeviceId, Physical};
use butterfs_sync::{Mutex, order};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The counters of a device, as the device tree keeps them.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct DeviceStats {
    /// Writes that failed.
    pub write_errors: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Flushes that failed.
    pub flush_errors: u64,
    /// Bytes that were read but are wrong.
    pub corruption_errors: u64,
    /// Tree blocks of another generation than their parent says; counted as corruption here.
    pub generation_errors: u64,
}

impl DeviceStats {
    /// The number of times that something went wrong that may have left old or wrong bytes on the device.
    pub fn doubt(&self) -> u64 {
        let errors = [self.write_errors, self.flush_errors, self.corruption_errors, self.generation_errors];
        errors.into_iter().fold(0, u64::saturating_add)
    }
}

/// How far a device's content is believed.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Condition {
    /// It has what was written.
    #[default]
    Whole,
    /// It has missed writes, before it was opened or since. It is written as ever, and what was written to it stays on
    /// it; but nothing counts on it until it has been brought up to date: it is read last, and only where a checksum or
    /// a generation confirms what is read.
    Stale,
    /// It failed while it was in use, and every chunk survives without it: nothing is written to it any more, its
    /// superblock neither, by which the next mount knows what it has missed.
    Failed,
}

/// Nothing before this address of a device is discarded: boot loaders and partition tables live there.
const FIRST_DISCARDED: u64 = 1 << 20;

const CONDITIONS: [Condition; 3] = [Condition::Whole, Condition::Stale, Condition::Failed];

/// Whether a device keeps in its cache what is read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caching {
    /// It does, where it has one.
    Kept,
    /// Nobody needs it there soon. See [`BlockDevice::read_uncached`] and [`BlockDevice::write_uncached`].
    Avoided,
}

#[derive(Default, Debug)]
struct Counters {
    write: AtomicU64,
    read: AtomicU64,
    flush: AtomicU64,
    corruption: AtomicU64,
    generation: AtomicU64,
}

/// The primary superblock on a device, as this process knows it.
#[derive(Default, Debug)]
struct KnownSuperblock {
    /// The one that it last read or wrote, if it knows.
    bytes: Option<Arc<[u8]>>,
    /// Writes of it that have begun. While one is on its way, `bytes` is `None`.
    writes: u64,
}

/// The filesystem that another one has sprouted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed {
    /// The UUID in its blocks.
    pub fsid: [u8; 16],
    /// Its last commit; unknown while a filesystem is sprouting from it.
    pub generation: Option<u64>,
}

/// A device of the filesystem.
#[derive(Debug)]
pub struct Member {
    /// Its number.
    pub id: DeviceId,
    /// The device itself.
    pub device: Arc<dyn BlockDevice>,
    /// The device item in its superblocks.
    item: Mutex<DevItem, { order::DEVICE_ITEM }>,
    counters: Counters,
    condition: AtomicU8,
    known_superblock: Mutex<KnownSuperblock, { order::KNOWN_SUPERBLOCK }>,
    /// The trees that the next superblock leads to say that this device is stale.
    is_recorded: AtomicBool,
    /// It did not take a superblock since it was opened.
    refuses_superblocks: AtomicBool,
    /// Writes that it has missed since it was opened.
    missed: AtomicU64,
    /// It was written without the others: nothing on it is believed.
    is_foreign: AtomicBool,
    /// The trees that the last superblock leads to do not know it: it is about to join, or to leave.
    is_unknown: AtomicBool,
    /// It has joined and has no superblock yet.
    is_new: AtomicBool,
    /// It belongs to a filesystem from which this one has sprouted, with this UUID and generation: it is only read.
    seed: OnceLock<Seed>,
    /// Its superblock as it was when the device was opened.
    opened_as: OnceLock<Box<Superblock>>,
    /// Superblock copies that were not valid when it was opened, and have been rewritten.
    repaired_superblocks: Mutex<Vec<Physical>, { order::DEVICE_ITEM }>,
}

impl Member {
    pub fn new(item: DevItem, device: Arc<dyn BlockDevice>) -> Member {
        let (id, item) = (DeviceId(item.devid.get()), Mutex::new(item));
        let (counters, condition, known_superblock) = Default::default();
        let (is_recorded, refuses_superblocks, missed, is_foreign, is_unknown, is_new, opened_as) = Default::default();
        let (seed, repaired_superblocks) = Default::default();
        Member {
            id,
            device,
            item,
            counters,
            condition,
            known_superblock,
            is_recorded,
            refuses_superblocks,
            missed,
            is_foreign,
            is_unknown,
            is_new,
            seed,
            opened_as,
            repaired_superblocks,
        }
    }

    /// From now on it is only read.
    pub fn make_seed(&self, seed: Seed) {
        self.seed.get_or_init(|| seed);
    }

    /// The seed filesystem that it belongs to.
    pub fn seed(&self) -> Option<&Seed> {
        self.seed.get()
    }

    /// Its superblock as it was when the device was opened; `None` for a filesystem that is being made.
    pub fn opened_as(&self) -> Option<&Superblock> {
        self.opened_as.get().map(|sb| &**sb)
    }

    pub fn set_opened_as(&self, sb: Superblock) {
        self.opened_as.get_or_init(|| Box::new(sb));
    }

    /// Nothing on it is believed until it has been brought up to date.
    pub fn make_foreign(&self) {
        self.is_foreign.store(true, Ordering::Release);
        self.worsen(Condition::Stale);
    }

    pub fn is_foreign(&self) -> bool {
        self.is_stale() && self.is_foreign.load(Ordering::Acquire)
    }

    /// Records the primary superblock that this process read.
    pub fn know_superblock(&self, bytes: &[u8]) {
        self.known_superblock.lock().bytes = Some(bytes.into());
    }

    /// The primary superblock that this process last read or wrote, if it knows.
    pub fn known_superblock(&self) -> Option<Superblock> {
        let known = self.known_superblock.lock().bytes.clone();
        known.and_then(|bytes| Superblock::parse(&bytes, OFFSETS[0]).ok())
    }

    /// Whether the primary superblock is the one that this process last read or wrote, as `read` finds it. One that
    /// nobody knows, that cannot be read, or that this process writes meanwhile, is no sign of anything: a writer has
    /// looked before, and the next one looks again. Nobody waits here for a write that is on its way.
    pub fn superblock_is_known(&self, read: impl FnOnce(&mut [u8]) -> io::Result<()>) -> bool {
        let (known, writes) = {
            let known = self.known_superblock.lock();
            (known.bytes.clone(), known.writes)
        };
        let Some(known) = known else { return true };
        let mut found = [0; SUPERBLOCK_LEN];
        read(&mut found).is_err() || found == *known || self.known_superblock.lock().writes != writes
    }

    pub fn condition(&self) -> Condition {
        CONDITIONS[usize::from(self.condition.load(Ordering::Acquire))]
    }

    /// A condition only gets worse, but for [`recover`](Self::recover). True when this one is new.
    pub fn worsen(&self, condition: Condition) -> bool {
        // What it has never changes.
        if self.seed().is_some() {
            return false;
        }
        self.condition.fetch_max(condition as u8, Ordering::AcqRel) < condition as u8
    }

    pub fn is_whole(&self) -> bool {
        self.condition() == Condition::Whole
    }

    pub fn is_stale(&self) -> bool {
        self.condition() == Condition::Stale
    }

    /// Writes that it has missed since it was opened.
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Acquire)
    }

    /// It has missed a write. True when it was whole before.
    pub fn miss(&self) -> bool {
        self.missed.fetch_add(1, Ordering::AcqRel);
        self.worsen(Condition::Stale)
    }

    /// A stale device has been brought up to date, unless it has missed more than `missed` writes. Says whether it is
    /// whole.
    pub fn recover(&self, missed: u64) -> bool {
        let (stale, whole) = (Condition::Stale as u8, Condition::Whole as u8);
        if self.missed() == missed {
            self.is_foreign.store(false, Ordering::Release);
            let _ = self.condition.compare_exchange(stale, whole, Ordering::AcqRel, Ordering::Acquire);
            // Whoever counts a miss in between makes it stale again behind it.
            if self.missed() != missed {
                self.worsen(Condition::Stale);
            }
        }
        self.is_whole()
    }

    pub fn set_recorded(&self, is_recorded: bool) {
        self.is_recorded.store(is_recorded, Ordering::Release);
    }

    /// Whether it lacks something, and the trees that the next superblock leads to do not say so.
    pub fn lacks_unrecorded(&self) -> bool {
        !self.is_whole() && !self.is_recorded.load(Ordering::Acquire)
    }

    /// Whether the trees that superblocks lead to know it.
    pub fn set_known(&self, is_known: bool) {
        self.is_unknown.store(!is_known, Ordering::Release);
    }

    /// It joins: its first superblock is durable before the others get theirs.
    pub fn set_new(&self, is_new: bool) {
        self.is_new.store(is_new, Ordering::Release);
    }

    pub fn is_new(&self) -> bool {
        self.is_new.load(Ordering::Acquire)
    }

    pub fn refuse_superblocks(&self) {
        self.refuses_superblocks.store(true, Ordering::Release);
    }

    /// Whether superblocks may be written to it: whoever opens it later must learn what it lacks.
    pub fn takes_superblocks(&self) -> bool {
        let is_told = self.is_recorded.load(Ordering::Acquire) && !self.refuses_superblocks.load(Ordering::Acquire);
        !self.is_unknown.load(Ordering::Acquire)
            && self.seed().is_none()
            && (self.is_whole() || self.is_stale() && is_told)
    }

    /// Whether it is written and read.
    pub fn is_in_use(&self) -> bool {
        self.condition() != Condition::Failed
    }

    /// The device item of the next superblock.
    pub fn item(&self) -> DevItem {
        *self.item.lock()
    }

    pub fn set_item(&self, item: DevItem) {
        *self.item.lock() = item;
    }

    pub fn stats(&self) -> DeviceStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DeviceStats {
            write_errors: get(&self.counters.write),
            read_errors: get(&self.counters.read),
            flush_errors: get(&self.counters.flush),
            corruption_errors: get(&self.counters.corruption),
            generation_errors: get(&self.counters.generation),
        }
    }

    pub fn set_stats(&self, stats: DeviceStats) {
        let set = |counter: &AtomicU64, value| counter.store(value, Ordering::Relaxed);
        set(&self.counters.write, stats.write_errors);
        set(&self.counters.read, stats.read_errors);
        set(&self.counters.flush, stats.flush_errors);
        set(&self.counters.corruption, stats.corruption_errors);
        set(&self.counters.generation, stats.generation_errors);
    }

    pub fn count_corruption(&self) {
        self.counters.corruption.fetch_add(1, Ordering::Relaxed);
    }

    pub fn count_generation(&self) {
        self.counters.generation.fetch_add(1, Ordering::Relaxed);
    }

    pub fn count_repaired_superblock(&self, at: Physical) {
        self.repaired_superblocks.lock().push(at);
    }

    /// The superblock copies that were rewritten when the device was opened, once.
    pub fn take_repaired_superblocks(&self) -> Vec<Physical> {
        std::mem::take(&mut *self.repaired_superblocks.lock())
    }

    /// Adds errors that scrub has found.
    pub fn count_found(&self, reads: u64, corruptions: u64, generations: u64) {
        self.counters.read.fetch_add(reads, Ordering::Relaxed);
        self.counters.corruption.fetch_add(corruptions, Ordering::Relaxed);
        self.counters.generation.fetch_add(generations, Ordering::Relaxed);
    }

    pub fn read(&self, at: Physical, buf: &mut [u8], caching: Caching) -> io::Result<()> {
        let read = match caching {
            Caching::Kept => self.device.read_at(at.0, buf),
            Caching::Avoided => self.device.read_uncached(at.0, buf),
        };
        read.inspect_err(|_| count(&self.counters.read))
    }

    /// Writes anything but a superblock.
    pub fn write(&self, at: Physical, data: &[u8], caching: Caching) -> io::Result<()> {
        if self.seed().is_some() {
            return Err(io::Error::other("it is a seed device, which is only read"));
        }
        if let Some(copy) = touched_superblock(at, data.len() as u64) {
            return Err(io::Error::other(format!("it would overwrite the superblock copy at {copy}")));
        }
        let written = match caching {
            Caching::Kept => self.device.write_at(at.0, data),
            Caching::Avoided => self.device.write_uncached(at.0, data),
        };
        written.inspect_err(|_| count(&self.counters.write))
    }

    pub fn write_superblock(&self, at: Physical, bytes: &[u8]) -> io::Result<()> {
        let write = || self.device.write_at(at.0, bytes).inspect_err(|_| count(&self.counters.write));
        if at != OFFSETS[0] {
            return write();
        }
        let this_write = {
            let mut known = self.known_superblock.lock();
            known.bytes = None;
            known.writes += 1;
            known.writes
        };
        let written = write();
        let mut known = self.known_superblock.lock();
        // After a failed write, or beside another one, nobody knows what is there.
        known.bytes = (written.is_ok() && known.writes == this_write).then(|| bytes.into());
        written
    }

    pub fn flush(&self) -> io::Result<()> {
        if self.seed().is_some() {
            return Ok(());
        }
        self.device.flush().inspect_err(|_| count(&self.counters.flush))
    }

    /// Makes sure that later writes are not durable before earlier ones.
    pub fn order(&self) -> io::Result<()> {
        if self.seed().is_some() {
            return Ok(());
        }
        self.device.order().inspect_err(|_| count(&self.counters.flush))
    }

    /// Says that a range will be read soon.
    pub fn begin_read(&self, at: Physical, len: u64) {
        if self.is_in_use() {
            self.device.begin_read(at.0, len);
        }
    }

    /// Begins to make a range durable.
    pub fn begin_write_out(&self, at: Physical, len: u64) {
        if self.is_in_use() {
            self.device.begin_write_out(at.0, len);
        }
    }

    /// Discards a range, but for the copies of the superblock and what lies before the first chunk. Returns how many
    /// bytes the device took; a failure changes nothing, because nobody needs them.
    pub fn discard(&self, at: Physical, len: u64) -> u64 {
        if !self.is_in_use() || self.seed().is_some() || !self.device.supports_discard() {
            return 0;
        }
        let end = at.0.saturating_add(len).min(self.device.len());
        let mut done = 0;
        let mut from = at.0.max(FIRST_DISCARDED);
        while from < end {
            let copy = touched_superblock(Physical(from), end - from);
            let until = copy.map_or(end, |copy| copy.0.max(from));
            if until > from && self.device.discard(from, until - from).is_ok() && self.device.supports_discard() {
                done += until - from;
            }
            from = copy.map_or(end, |copy| copy.0 + SUPERBLOCK_LEN as u64);
        }
        done
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The place of the first superblock copy in a range.
pub(crate) fn touched_superblock(at: Physical, len: u64) -> Option<Physical> {
    OFFSETS.into_iter().find(|copy| at.0 < copy.0 + SUPERBLOCK_LEN as u64 && copy.0 < at.0.saturating_add(len))
}
