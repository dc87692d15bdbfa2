//! Members of a simulated filesystem that leave, return stale, fail, or keep data without checksums.
//!
//! # The fault model
//! 1. A device is *away* for a whole life, or from one moment of it on: every read, write and flush fails then.
//! 2. Writes of one device fail, of data alone, of everything else alone, or of both; once or for ever; with nothing or a part
//!    stored. Flushes fail; after that no write of the device succeeds, because nobody knows what it has.
//! 3. This strikes any number of devices. As long as those that are away, behind or struck are no more than a profile
//!    survives, nobody may notice; beyond that operations fail, with `EIO` alone where only data was struck.
//! 4. A device that was away or struck is *behind* until a resync has ended with it. So long the profiles survive fewer others,
//!    and a filesystem that lacks too many whole devices may be refused. It never shows anything else than was promised.
//! 5. A life may end by a panic at any place of the engine, and everything that was written until then stays.
//!
//! # Invariants
//! 1. What is struck follows from the seed and the sequence of operations alone.
//! 2. What the engine may believe is judged from what happened to the devices, never from what the engine says.
//!
//! # Not here
//! Silent faults: nothing finds them in data without checksums. Slow devices: completions out of order and late are what
//! the cuts of a recording already show; how they meet other threads is the business of the interleaving harness.

use crate::faults::Struck;
use crate::parts;
use crate::plan::Plan;
use butterfs_device::{BlockDevice, MemoryDevice, Recorder, SECTOR};
use butterfs_fs::options::DataPolicy;
use butterfs_fs::{DeviceId, Options};
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_ondisk::profile::Profile;
use butterfs_testkit::rng::Rng;
use butterfs_volume::ChunkMap;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// Devices by number, from 0.
pub type Devices = BTreeSet<usize>;

/// Which devices are given when a filesystem is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Devices that are not.
    pub away: Devices,
    /// Devices whose content is given up (`-o stale=`).
    pub given_up: Devices,
}

impl Given {
    /// All but these devices.
    pub fn without(away: &Devices) -> Given {
        Given { away: away.clone(), given_up: Devices::new() }
    }

    /// One device alone.
    pub fn only(plan: &Plan, device: usize) -> Given {
        Given::without(&(0..plan.devices).filter(|other| *other != device).collect())
    }

    /// The same, with what is not given in the options.
    pub fn options(&self, options: Options) -> Options {
        let stale = self.given_up.iter().map(|device| DeviceId(*device as u64 + 1)).collect();
        Options { degraded: !self.away.is_empty(), stale, ..options }
    }

    /// The given devices of a disk.
    pub fn devices(&self, plan: &Plan, disk: &Arc<MemoryDevice>) -> Vec<Arc<dyn BlockDevice>> {
        let all = parts::parts(Arc::clone(disk) as Arc<dyn BlockDevice>, plan.devices);
        let given = all.into_iter().enumerate().filter(|(number, _)| !self.away.contains(number));
        given.map(|(_, device)| device).collect()
    }

    /// Whether a device's superblock may rule.
    pub fn believes(&self, device: usize) -> bool {
        !self.away.contains(&device) && !self.given_up.contains(&device)
    }
}

/// What becomes of the members in one life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attendance {
    /// Which are given.
    pub given: Given,
    /// What goes wrong with those.
    pub troubles: Vec<Trouble>,
    /// Nobody brings stale devices up to date but the steps of the workload.
    pub resync_is_a_step: bool,
    /// The engine panics at the place with this number, counted from 1.
    pub panics_at: Option<u64>,
    /// How new files are stored.
    pub data: DataPolicy,
}

/// Parts of a device that can fail without the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Chunks of data.
    Data,
    /// Tree blocks and superblocks.
    Metadata,
    /// Everything.
    All,
}

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failing {
    /// Writes; nothing is stored.
    Write,
    /// Writes; the first sectors are stored.
    TornWrite,
    /// Flushes, and all writes after the first.
    Flush,
    /// The device is gone: whatever is asked of it fails, for ever.
    Gone,
}

/// A told fault of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The device.
    pub device: usize,
    /// Where writes fail.
    pub part: Part,
    /// What fails.
    pub failing: Failing,
    /// So many such operations go well first.
    pub after: u64,
    /// All later ones fail too.
    pub for_ever: bool,
}

impl Attendance {
    /// What follows from the seed for a life of this plan.
    pub fn of(plan: &Plan, life: usize) -> Attendance {
        let mut rng = Rng::new(plan.seed.rotate_left(11) ^ 0x3e3b_e500 ^ ((life as u64) << 48));
        let most = tolerance(plan);
        let leave = if most > 0 && rng.chance(55) { 1 + rng.index(most) } else { 0 };
        let away: Devices = (0..leave).map(|_| rng.index(plan.devices)).collect();
        let count = *rng.pick(&[0, 0, 0, 1, 1, 2]);
        let troubles = (0..count).map(|_| Trouble::of(plan, &mut rng)).collect();
        let places = 1 << (3 + rng.below(9));
        let plain = DataPolicy { nodatasum: true, ..DataPolicy::default() };
        let in_place = DataPolicy { nodatacow: true, nodatasum: true, ..DataPolicy::default() };
        Attendance {
            given: Given::without(&away),
            troubles,
            resync_is_a_step: rng.chance(60),
            panics_at: rng.chance(15).then(|| 1 + rng.below(places)),
            data: *rng.pick(&[DataPolicy::default(), plain, in_place, in_place]),
        }
    }
}

impl Trouble {
    fn of(plan: &Plan, rng: &mut Rng) -> Trouble {
        let failing = *rng.pick(&[Failing::Write, Failing::Write, Failing::TornWrite, Failing::Flush, Failing::Gone]);
        let part = *rng.pick(&[Part::Data, Part::Data, Part::Metadata, Part::All]);
        // Flushes are far fewer than writes.
        let after = rng.below(if failing == Failing::Flush { 20 } else { 120 });
        Trouble { device: rng.index(plan.devices), part, failing, after, for_ever: rng.chance(50) }
    }
}

/// How many devices all profiles of a plan survive.
pub fn tolerance(plan: &Plan) -> usize {
    survived(plan.metadata).min(survived(plan.data))
}

fn survived(profile: &str) -> usize {
    Profile::named(profile).map_or(0, |profile| profile.tolerated_failures)
}

/// Whether what was promised must be shown by these devices when those are behind; else they may be refused.
pub fn must_open(plan: &Plan, given: &Given, behind: &Devices) -> bool {
    given.away.is_empty() || given.away.union(behind).count() <= tolerance(plan)
}

/// Whether these devices can show what was promised: some device that has everything is among them.
pub fn can_show(plan: &Plan, given: &Given, behind: &Devices) -> bool {
    (0..plan.devices).any(|device| given.believes(device) && !behind.contains(&device))
}

/// Some set of devices to be without.
pub fn some_away(plan: &Plan, rng: &mut Rng) -> Devices {
    (0..1 + rng.index(tolerance(plan).max(1))).map(|_| rng.index(plan.devices)).collect()
}

/// What happened to the members of a life so far.
#[derive(Debug, Default)]
struct Happened {
    /// Devices that the profiles cannot count on now.
    doubtful: Devices,
    /// When each struck device was struck first, in events of the recording.
    struck: BTreeMap<usize, usize>,
    /// Ends of resyncs, in events.
    resynced: Vec<usize>,
    /// Faults so far.
    count: usize,
    /// Operations may fail with `EIO`.
    may_fail: bool,
    /// The filesystem may stop writing.
    may_stop: bool,
    /// Some device is gone.
    gone: bool,
}

/// What happened to the members of a life; clones share it.
#[derive(Clone, Debug)]
pub struct Watch {
    recorder: Recorder,
    happened: Arc<Mutex<Happened>>,
    /// Devices that were behind when the life began, or are away in it.
    first: Devices,
    away: Devices,
    tolerated: (usize, usize),
}

impl Watch {
    /// Of a life that begins with these devices behind.
    pub fn new(plan: &Plan, recorder: &Recorder, given: &Given, behind: &Devices) -> Watch {
        let first: Devices = given.away.union(behind).chain(&given.given_up).copied().collect();
        let happened = Happened { doubtful: first.clone(), ..Happened::default() };
        Watch {
            recorder: recorder.clone(),
            happened: Arc::new(Mutex::new(happened)),
            first,
            away: given.away.clone(),
            tolerated: (survived(plan.data), tolerance(plan)),
        }
    }

    fn happened(&self) -> MutexGuard<'_, Happened> {
        self.happened.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn strike(&self, device: usize, failing: Failing, part: Part) {
        let (now, mut happened) = (self.recorder.len(), self.happened());
        happened.struck.entry(device).or_insert(now);
        happened.doubtful.insert(device);
        happened.count += 1;
        happened.gone |= failing == Failing::Gone;
        let (of_data, of_all) = self.tolerated;
        let doubtful = happened.doubtful.len();
        happened.may_fail |= doubtful > if part == Part::Data { of_data } else { of_all };
        happened.may_stop |= part != Part::Data && doubtful > of_all;
    }

    /// All devices that are there have been brought up to date, as far as none of them was struck.
    pub fn resynced(&self) {
        let (now, mut happened) = (self.recorder.len(), self.happened());
        happened.resynced.push(now);
        let Happened { doubtful, struck, .. } = &mut *happened;
        doubtful.retain(|device| self.away.contains(device) || struck.contains_key(device));
    }

    /// The faults so far: those that nobody may notice are called mirrors'.
    pub fn struck(&self) -> Struck {
        let happened = self.happened();
        let is_told = happened.may_fail || happened.may_stop;
        let (told, mirrors) = if is_told { (happened.count, 0) } else { (0, happened.count) };
        Struck { told, mirrors, ..Struck::default() }
    }

    /// Whether operations may fail with `EIO`.
    pub fn may_fail(&self) -> bool {
        self.happened().may_fail
    }

    /// Whether nothing may be readable any more.
    pub fn may_be_unreadable(&self) -> bool {
        let happened = self.happened();
        happened.gone && happened.may_fail
    }

    /// Whether the filesystem may have stopped writing.
    pub fn may_stop(&self) -> bool {
        self.happened().may_stop
    }

    /// The devices that were behind after so many events.
    pub fn behind(&self, prefix: usize) -> Devices {
        let happened = self.happened();
        let resynced = happened.resynced.iter().any(|ended| *ended <= prefix);
        let still = self.first.iter().filter(|device| !resynced || self.away.contains(*device));
        let struck = happened.struck.iter().filter(|(_, at)| **at <= prefix).map(|(device, _)| device);
        still.chain(struck).copied().collect()
    }

    /// How many resyncs have ended.
    pub fn resyncs(&self) -> usize {
        self.happened().resynced.len()
    }
}

/// A member to which things happen.
#[derive(Debug)]
pub struct Member {
    inner: Arc<dyn BlockDevice>,
    number: usize,
    watch: Watch,
    /// Ranges of chunks of data.
    data: Vec<Range<u64>>,
    /// Each with the number of operations that it has seen.
    troubles: Mutex<Vec<(Trouble, u64)>>,
}

impl Member {
    /// Device `number` of a life, where the chunks are `chunks`.
    pub fn new(
        inner: Arc<dyn BlockDevice>,
        number: usize,
        troubles: &[Trouble],
        chunks: &ChunkMap,
        watch: &Watch,
    ) -> Member {
        let own = troubles.iter().filter(|trouble| trouble.device == number).map(|trouble| (*trouble, 0)).collect();
        let is_data = |kind: u64| kind & bits::DATA != 0 && kind & bits::METADATA == 0;
        let stripes = chunks.iter().filter(|chunk| is_data(chunk.kind)).flat_map(|chunk| {
            let own = chunk.stripes.iter().filter(|stripe| stripe.device.0 == number as u64 + 1);
            own.map(|stripe| stripe.physical.0..stripe.physical.0 + chunk.stripe_length())
        });
        Member { inner, number, watch: watch.clone(), data: stripes.collect(), troubles: Mutex::new(own) }
    }

    /// Where a range lies: in a chunk of data that was there when the life began, or not.
    fn part(&self, range: &Range<u64>) -> Part {
        let is_data = self.data.iter().any(|data| data.start <= range.start && range.end <= data.end);
        if is_data { Part::Data } else { Part::Metadata }
    }

    /// Counts an operation on a part; what fails, if it does.
    fn strike(&self, is_flush: bool, part: Part) -> Option<Failing> {
        let mut troubles = self.troubles.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut strikes = None;
        for (trouble, seen) in troubles.iter_mut() {
            let concerns = match trouble.failing {
                Failing::Write | Failing::TornWrite => !is_flush && (trouble.part == Part::All || trouble.part == part),
                // The writes after a failed flush fail too.
                Failing::Flush => is_flush || *seen > trouble.after,
                Failing::Gone => true,
            };
            if !concerns {
                continue;
            }
            *seen += 1;
            let ended = trouble.failing != Failing::Flush && trouble.failing != Failing::Gone && !trouble.for_ever;
            if *seen == trouble.after + 1 || *seen > trouble.after && !ended {
                strikes = Some(trouble.failing);
            }
        }
        let failing = strikes?;
        let whole = matches!(failing, Failing::Flush | Failing::Gone);
        self.watch.strike(self.number, failing, if whole { Part::All } else { part });
        Some(failing)
    }

    fn is_gone(&self) -> bool {
        let troubles = self.troubles.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        troubles.iter().any(|(trouble, seen)| trouble.failing == Failing::Gone && *seen > trouble.after)
    }
}

fn failed(what: &str) -> io::Error {
    io::Error::other(format!("injected fault: {what}"))
}

impl BlockDevice for Member {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.is_gone() { Err(failed("the device is gone")) } else { self.inner.read_at(offset, buf) }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match self.strike(false, self.part(&(offset..offset + data.len() as u64))) {
            None => self.inner.write_at(offset, data),
            Some(Failing::TornWrite) => {
                let stored = data.len() as u64 / SECTOR / 2 * SECTOR;
                self.inner.write_at(offset, &data[..stored as usize])?;
                Err(failed("the write is torn"))
            }
            Some(_) => Err(failed("the write fails")),
        }
    }

    fn flush(&self) -> io::Result<()> {
        match self.strike(true, Part::All) {
            None => self.inner.flush(),
            Some(_) => Err(failed("the flush fails")),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.is_gone() { Err(failed("the device is gone")) } else { self.inner.discard(offset, len) }
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}
