//! The faults of the device of a simulated life, besides power cuts.
//!
//! # The fault model
//! 1. All faults strike one device, chosen by the seed for the whole run. *Silent* ones strike reads and writes of one
//!    copy of what has several: of each DUP chunk one mirror, of other mirrored chunks the one on that device. A read
//!    fails, has a wrong bit, or brings the bytes of another place; a write is lost, torn, stored with a wrong bit, or
//!    stored at another place of such a mirror. Nobody who uses the filesystem may notice.
//! 2. They strike file data that has one copy too. Then an I/O error is allowed for what lies in a damaged sector, and
//!    for an operation that met a bad read. Other content, and other errors, never.
//! 3. *Told* faults: from one moment on, for one operation or for ever, writes fail anywhere, or flushes; after a flush
//!    has failed, all writes fail. Operations may then fail with an I/O error and change nothing, or the filesystem
//!    stops writing. What was promised before stays promised, and what fails promises nothing. Where the profile
//!    survives that one of several devices fails, nobody may notice.
//! 4. Writes of mirrors are only stored with a wrong bit, not lost, torn or misdirected, in the lives after the first:
//!    a commit that a crash cut off leaves blocks of the same addresses and the same generation as those of the next
//!    try, and nothing in the format tells one from the other.
//! 5. Tree blocks with one copy and primary superblocks are struck by told faults only: nothing can be done without
//!    them. Chunks that are made in a life are not struck silently in the same life.
//!
//! # Invariants
//! 1. Faults follow from the seed and the sequence of operations alone.
//! 2. Never are all copies of anything damaged but of data that has one.

use crate::plan::Plan;
use butterfs_device::{BlockDevice, Fault, FaultRule, FaultyDevice, Operation};
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_ondisk::superblock::{OFFSETS, SUPERBLOCK_LEN};
use butterfs_ondisk::{DeviceId, Logical};
use butterfs_testkit::rng::Rng;
use butterfs_volume::{Chunk, ChunkMap, Layout, StripeAddress};
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

const SECTOR: u64 = 4096;

/// How often what goes wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The one device that they strike, from 0.
    pub device: usize,
    /// Of a thousand writes to mirrors that may be damaged.
    pub copy_writes: u64,
    /// Of a thousand reads of them.
    pub copy_reads: u64,
    /// Of a thousand writes of data that has one copy.
    pub data_writes: u64,
    /// Of a thousand reads of it.
    pub data_reads: u64,
    /// The write or flush with this number fails.
    pub fails: Option<Failing>,
}

/// A told fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failing {
    /// Writes or flushes.
    pub on: Operation,
    /// The number of operations that succeed first.
    pub after: u64,
    /// All later ones fail too.
    pub for_ever: bool,
}

impl Faults {
    /// The faults that follow from a seed, for a filesystem on so many devices.
    pub fn of(seed: u64, devices: usize) -> Faults {
        let mut rng = Rng::new(seed ^ 0xfa17_5000_0000_0000);
        let often = [0, 20, 100, 300];
        let mut silent = |percent| if rng.chance(percent) { *rng.pick(&often) } else { 0 };
        let (copy_writes, copy_reads, data_writes, data_reads) = (silent(80), silent(60), silent(25), silent(25));
        let failing = rng.chance(40).then(|| Failing {
            on: *rng.pick(&[Operation::Write, Operation::Write, Operation::Flush]),
            after: rng.below(120),
            for_ever: rng.chance(50),
        });
        // Flushes are far fewer than writes.
        let fails = failing.map(|failing| match failing.on {
            Operation::Flush => Failing { after: failing.after / 8, ..failing },
            _ => failing,
        });
        Faults { device: rng.index(devices), copy_writes, copy_reads, data_writes, data_reads, fails }
    }

    /// Whether file data may be lost.
    pub fn loses_data(&self) -> bool {
        self.data_writes > 0
    }

    /// Whether operations may fail.
    pub fn is_told(&self) -> bool {
        self.fails.is_some() || self.data_writes > 0 || self.data_reads > 0
    }
}

/// The kind of content that silent faults may hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One copy of DUP, which survives no failed write.
    Twin,
    /// The copy on one of several devices.
    Mirror,
    /// The only copy of data.
    Data,
}

/// Sectors of 4 KiB of one device that were damaged at some time in a run.
#[derive(Clone, Debug, Default)]
pub struct Damaged {
    device: DeviceId,
    sectors: BTreeSet<u64>,
    /// Devices without which the others went on, so that they lack what was written since.
    stale: BTreeSet<DeviceId>,
}

impl Damaged {
    /// Devices that lack what was written while they were away.
    pub fn of_stale(devices: &BTreeSet<usize>) -> Damaged {
        let stale = devices.iter().map(|device| DeviceId(*device as u64 + 1)).collect();
        Damaged { stale, ..Damaged::default() }
    }

    /// Whether nothing was.
    pub fn is_empty(&self) -> bool {
        self.sectors.is_empty() && self.stale.is_empty()
    }

    /// Whether a device was marked failed or was missing.
    pub fn is_stale(&self) -> bool {
        !self.stale.is_empty()
    }

    /// Together with what was damaged of the same device later.
    pub fn add(&mut self, later: &Damaged) {
        self.device = later.device;
        self.stale.extend(&later.stale);
        self.sectors.extend(&later.sectors);
    }

    fn add_bytes(&mut self, at: u64, len: u64) {
        self.sectors.extend(at / SECTOR..(at + len).div_ceil(SECTOR));
    }

    /// Whether some of these bytes lie in a damaged sector, in this copy or, for none, in all.
    pub fn holds(&self, chunks: &ChunkMap, at: Logical, len: u64, copy: Option<usize>) -> bool {
        let Some(Ok(layout)) = chunks.get(at).map(Layout::of) else { return false };
        let touches = |address: StripeAddress, len: u64| {
            let sectors = address.physical.0 / SECTOR..(address.physical.0 + len).div_ceil(SECTOR);
            let device = layout.chunk().stripes[address.stripe].device;
            self.stale.contains(&device) || device == self.device && self.sectors.range(sectors).next().is_some()
        };
        layout.pieces(at, len as usize).any(|piece| {
            // What is computed may come from all devices of the row.
            if copy.is_some_and(|copy| copy >= layout.mirrors()) {
                return layout.chunk().stripes.iter().any(|stripe| self.stale.contains(&stripe.device));
            }
            let mut copies = (0..layout.mirrors()).filter(|mirror| copy.is_none_or(|copy| copy == *mirror));
            copies.all(|mirror| touches(layout.stripe_address(&piece, mirror), piece.range.len() as u64))
        })
    }
}

/// The number of faults that struck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Struck {
    /// Reads and writes of mirrors.
    pub mirrors: usize,
    /// Reads and writes of data with one copy.
    pub data: usize,
    /// Told ones.
    pub told: usize,
    /// Lives without some device.
    pub absences: usize,
    /// Times that too few devices were given, and refused.
    pub refusals: usize,
    /// Resyncs that ended.
    pub resyncs: usize,
    /// Panics.
    pub panics: usize,
    /// Work on chunks and devices that came to its end.
    pub maintained: usize,
    /// Devices that were lost for ever.
    pub lost: usize,
    /// Sides of a split that were refused together.
    pub splits: usize,
    /// Those that were accepted.
    pub joined: usize,
    /// Hosts that became the writer of a volume after another one.
    pub takeovers: usize,
    /// Hosts that were replaced while they worked.
    pub fenced: usize,
    /// Tables of volumes, besides those of hosts that became writers.
    pub tables: usize,
    /// Segments of volumes that were deleted.
    pub segments_deleted: usize,
    /// Looks at volumes beside their writers.
    pub looks: usize,
}

impl Struck {
    /// Together with others.
    pub fn add(&mut self, more: Struck) {
        self.mirrors += more.mirrors;
        self.data += more.data;
        self.told += more.told;
        self.absences += more.absences;
        self.refusals += more.refusals;
        self.resyncs += more.resyncs;
        self.panics += more.panics;
        self.maintained += more.maintained;
        self.lost += more.lost;
        self.splits += more.splits;
        self.joined += more.joined;
        self.takeovers += more.takeovers;
        self.fenced += more.fenced;
        self.tables += more.tables;
        self.segments_deleted += more.segments_deleted;
        self.looks += more.looks;
    }
}

/// The devices beside the one that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// There are none.
    None,
    /// All have what the last commit wrote.
    Whole,
    /// A crash between superblocks left one of them behind: a device that fails beside it is one too many.
    Behind,
}

/// A device that goes wrong as the model says.
#[derive(Debug)]
pub struct FaultyLife {
    device: FaultyDevice,
    others: Others,
    /// There may be blocks of a commit that a crash has cut off.
    after_crash: bool,
    faults: Faults,
    zones: Vec<(Range<u64>, Kind)>,
    state: Mutex<FaultyLifeState>,
}

#[derive(Debug)]
struct FaultyLifeState {
    rng: Rng,
    counts: [u64; 2],
    struck: Struck,
    damaged: Damaged,
}

impl FaultyLife {
    /// Faults over the device that they strike, where the chunks are `chunks`.
    pub fn new(
        inner: Arc<dyn BlockDevice>,
        faults: Faults,
        (chunks, others): (&ChunkMap, Others),
        plan: &Plan,
        life: u64,
    ) -> FaultyLife {
        let device = DeviceId(faults.device as u64 + 1);
        let state = FaultyLifeState {
            rng: Rng::new(plan.seed.rotate_left(23) ^ life ^ 0xfa17),
            counts: [0; 2],
            struck: Struck::default(),
            damaged: Damaged { device, ..Damaged::default() },
        };
        let zones = chunks.iter().filter_map(|chunk| zone(chunk, device, plan.seed)).collect();
        let device = FaultyDevice::new(inner);
        FaultyLife { device, others, after_crash: life > 0, faults, zones, state: Mutex::new(state) }
    }

    /// The number of faults that struck so far.
    pub fn struck(&self) -> Struck {
        self.state().struck
    }

    /// Everything that was damaged so far.
    pub fn damaged(&self) -> Damaged {
        self.state().damaged.clone()
    }

    fn state(&self) -> MutexGuard<'_, FaultyLifeState> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn zone(&self, range: &Range<u64>) -> Option<Kind> {
        let holds = |zone: &&(Range<u64>, Kind)| zone.0.start <= range.start && range.end <= zone.0.end;
        self.zones.iter().find(holds).filter(|_| !touches_superblock(range)).map(|(_, kind)| *kind)
    }

    /// Counts an operation that can fail for all to see, and says whether it does.
    fn is_told(&self, on: Operation, range: &Range<u64>) -> bool {
        let mut state = self.state();
        let count = &mut state.counts[usize::from(on == Operation::Flush)];
        *count += 1;
        let number = *count - 1;
        let fails = self.faults.fails.filter(|failing| failing.on == on);
        let strikes =
            fails.is_some_and(|failing| number == failing.after || failing.for_ever && number > failing.after);
        if strikes {
            // Of mirrors on several devices, and superblocks of several, one may fail.
            let has_mirrors = self.zone(range) == Some(Kind::Mirror) || touches_superblock(range);
            match has_mirrors && self.others == Others::Whole {
                true => state.struck.mirrors += 1,
                false => state.struck.told += 1,
            }
            state.damaged.add_bytes(range.start, range.end - range.start);
            if self.others != Others::None {
                let device = state.damaged.device;
                state.damaged.stale.insert(device);
            }
        }
        strikes
    }

    fn strike(&self, on: Operation, range: &Range<u64>) -> Option<Fault> {
        let kind = self.zone(range)?;
        let rate = match (kind, on) {
            (Kind::Twin | Kind::Mirror, Operation::Read) => self.faults.copy_reads,
            (Kind::Twin | Kind::Mirror, _) => self.faults.copy_writes,
            (Kind::Data, Operation::Read) => self.faults.data_reads,
            (Kind::Data, _) => self.faults.data_writes,
        };
        let mut state = self.state();
        if rate == 0 || state.rng.below(1000) >= rate {
            return None;
        }
        match kind {
            Kind::Twin | Kind::Mirror => state.struck.mirrors += 1,
            Kind::Data => state.struck.data += 1,
        }
        let number = state.rng.bits();
        let elsewhere = self.elsewhere(kind, range, &mut state.rng);
        let fault = match (on, state.rng.below(4)) {
            (Operation::Write, _) if self.after_crash && kind != Kind::Data => Fault::Flip { bit: number },
            (Operation::Read, 0) => Fault::Fail,
            (Operation::Read, 1 | 2) | (_, 0) => Fault::Flip { bit: number },
            (_, 1) => Fault::Lost,
            (Operation::Write, 2) => Fault::Torn { sectors: number },
            _ => elsewhere.map_or(Fault::Flip { bit: number }, |to| self.misdirect(range, to)),
        };
        if on == Operation::Write {
            let also = elsewhere.filter(|_| matches!(fault, Fault::Misdirect { .. }));
            let len = range.end - range.start;
            let damaged = [Some(range.start), also].into_iter().flatten();
            damaged.for_each(|at| state.damaged.add_bytes(at, len));
        }
        Some(fault)
    }

    /// A place of the same kind, for as many bytes.
    fn elsewhere(&self, kind: Kind, range: &Range<u64>, rng: &mut Rng) -> Option<u64> {
        let len = range.end - range.start;
        let fits = |zone: &&(Range<u64>, Kind)| zone.1 == kind && zone.0.end - zone.0.start > len;
        let zones: Vec<_> = self.zones.iter().filter(fits).collect();
        let (zone, _) = zones.get(rng.index(zones.len().max(1)))?;
        // Near the start, where most is.
        let sectors = ((zone.end - zone.start - len) / SECTOR).clamp(1, 512);
        let at = zone.start + rng.below(sectors) * SECTOR;
        (!touches_superblock(&(at..at + len))).then_some(at)
    }

    fn misdirect(&self, range: &Range<u64>, to: u64) -> Fault {
        let offsets = self.len() - (range.end - range.start) + 1;
        Fault::Misdirect { distance: (to + offsets - range.start) % offsets }
    }

    /// Has a fault strike the next operation of this kind.
    fn rule(&self, on: Operation, fault: Fault) {
        self.device.add_rule(FaultRule::always(on, fault).after(0, 1));
    }
}

/// The part of a chunk on the one device that silent faults may hit.
fn zone(chunk: &Chunk, device: DeviceId, run: u64) -> Option<(Range<u64>, Kind)> {
    let stripe = |index: usize| {
        let start = chunk.stripes[index].physical.0;
        start..start + chunk.stripe_length()
    };
    let own = chunk.stripes.iter().position(|stripe| stripe.device == device)?;
    let is_data = chunk.kind & (bits::METADATA | bits::SYSTEM) == 0;
    match chunk.profile().name {
        "DUP" => Some((stripe(Rng::new(run ^ chunk.start.0).index(2)), Kind::Twin)),
        "single" | "RAID0" => is_data.then(|| (stripe(own), Kind::Data)),
        _ => Some((stripe(own), Kind::Mirror)),
    }
}

fn touches_superblock(range: &Range<u64>) -> bool {
    OFFSETS.iter().any(|copy| range.start < copy.0 + SUPERBLOCK_LEN as u64 && copy.0 < range.end)
}

impl BlockDevice for FaultyLife {
    fn len(&self) -> u64 {
        self.device.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if let Some(fault) = self.strike(Operation::Read, &(offset..offset + buf.len() as u64)) {
            self.rule(Operation::Read, fault);
        }
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.is_told(Operation::Write, &(offset..offset + data.len() as u64)) {
            self.rule(Operation::Write, Fault::Fail);
        } else if let Some(fault) = self.strike(Operation::Write, &(offset..offset + data.len() as u64)) {
            self.rule(Operation::Write, fault);
        }
        self.device.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        if self.is_told(Operation::Flush, &(0..0)) {
            // Nothing is known about earlier writes.
            self.device.fail_writes();
        }
        self.device.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.device.discard(offset, len)
    }

    fn supports_discard(&self) -> bool {
        self.device.supports_discard()
    }

    fn name(&self) -> String {
        self.device.name()
    }
}
