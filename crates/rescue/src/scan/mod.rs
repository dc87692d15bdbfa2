//! Reads devices once, from the beginning to the end, and writes down every tree block that is there.
//!
//! Invariants: (1) memory is bounded: a few pieces of the device, and as many blocks as [`Limit`] allows; (2) what was
//! written down survives a kill at any moment, and the next run goes on behind it; (3) known-bad ranges are not
//! touched, and each range is read at most once more in smaller pieces when reading it fails; (4) holes of image files
//! are not read.

mod ddrescue;
mod finder;
mod map;

pub use ddrescue::Ddrescue;
pub use map::{DeviceState, Map};

use crate::index::{Found, Limit};
use crate::superblocks;
use crate::wreck::Identity;
use crate::{Error, Result};
use butterfs_device::{AlignedBuffer, BlockDevice};
use finder::Finder;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

/// Bytes that are read at once.
const PIECE: u64 = 1 << 20;
/// Pieces in memory. Few and small ones stay in the processor's caches: six of 4 MiB are slower by a fifth. One for
/// each reader would be slower still, because a device then writes where it has just written.
const BUFFERS: usize = 5;
/// Threads that read: a fast device has two requests at any time, also while one of the threads waits for a processor.
const READERS: usize = 3;
/// The largest tree block: so much of a piece is looked at with the next one.
const OVERLAP: usize = 64 << 10;
/// Bytes that are read at once where a piece cannot be read.
const SMALL: u64 = 64 << 10;
/// The smallest part that is given up.
const SECTOR: u64 = 4096;

/// How to scan.
#[derive(Debug, Default)]
pub struct Settings {
    /// How many blocks are kept.
    pub limit: Limit,
    /// For each device what is known about its storage.
    pub known: Vec<Option<Ddrescue>>,
}

/// How far a scan has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The device, by its place.
    pub device: usize,
    /// Bytes of it that were read, and all of its bytes.
    pub done: u64,
    /// All of its bytes.
    pub len: u64,
    /// Blocks that were found on all devices.
    pub found: usize,
}

/// Scans devices, going on where the map at `path` ends, or anew.
pub fn scan(
    devices: &[Arc<dyn BlockDevice>],
    path: &Path,
    settings: &Settings,
    tell: &mut dyn FnMut(Progress),
) -> Result<Map> {
    let states =
        devices.iter().map(|device| DeviceState { name: device.name(), len: device.len(), done: 0, bad: Vec::new() });
    let (mut map, mut file) = Map::resume(path, states.collect(), settings.limit)?;
    map.check_origin(path, devices)?;
    let mut finder = Finder::new(map.identities().to_vec());
    for identity in identities(devices) {
        finder.know(identity);
    }
    for (number, device) in devices.iter().enumerate() {
        let known = settings.known.get(number).and_then(Option::as_ref);
        scan_device(number, &**device, known, &mut map, &mut file, &mut finder, tell)?;
    }
    file.finish()?;
    Ok(map)
}

/// The filesystems that superblocks on the devices belong to.
fn identities(devices: &[Arc<dyn BlockDevice>]) -> Vec<Identity> {
    let copies = superblocks::copies(devices);
    let of = |copy: &superblocks::SuperblockCopy| {
        let sb = copy.content.as_ref().ok()?;
        let (fsid, nodesize) = (sb.block_fsid(), sb.nodesize.get());
        Some(Identity { fsid, nodesize, checksum: sb.checksum_kind()? })
    };
    let mut found: Vec<Identity> = Vec::new();
    for identity in copies.iter().filter_map(of) {
        if !found.contains(&identity) {
            found.push(identity);
        }
    }
    found
}

/// A piece of a device on its way from a thread that reads.
struct Piece {
    /// Counted in the order of the device.
    number: u64,
    at: u64,
    buffer: AlignedBuffer,
    filled: usize,
    bad: Vec<Range<u64>>,
}

/// Takes the parts of a device one after the other.
struct Next<'a> {
    device: &'a dyn BlockDevice,
    /// A range that a ddrescue map marks as bad stays bad, even if the copy has a hole there.
    skips_holes: bool,
    /// Buffers that come back.
    empty: Receiver<AlignedBuffer>,
    number: u64,
    at: u64,
}

impl Next<'_> {
    /// The next piece, still to be read; none behind the end, or when nobody wants one any more.
    fn take(&mut self) -> Option<Piece> {
        let len = self.device.len();
        if self.at < len && self.skips_holes {
            self.at = behind_hole(self.device, self.at);
        }
        if self.at >= len {
            return None;
        }
        // A reader takes a buffer before its number, so the piece that the others wait for is always being read.
        let buffer = self.empty.recv().ok()?;
        let filled = (len - self.at).min(PIECE) as usize;
        let piece = Piece { number: self.number, at: self.at, buffer, filled, bad: Vec::new() };
        self.number += 1;
        self.at += PIECE;
        Some(piece)
    }
}

/// The end of a piece, in which blocks may begin whose rest is in the next one.
#[derive(Default)]
struct Seam {
    at: u64,
    bytes: Vec<u8>,
    bad: Vec<Range<u64>>,
}

impl Seam {
    /// The blocks that begin in it. The next piece may lie behind a hole.
    fn look(&mut self, next_at: u64, next: &[u8], finder: &mut Finder, device: u16) -> Vec<Found> {
        let own = self.bytes.len();
        if self.at + own as u64 == next_at {
            self.bytes.extend_from_slice(&next[..next.len().min(OVERLAP)]);
        }
        self.bytes.resize(own + OVERLAP, 0);
        finder.look(&self.bytes, own, self.at, device)
    }

    /// Takes the end of the next piece, which begins at `at`, and its bad ranges. Returns those before it.
    fn replace(&mut self, at: u64, bytes: &[u8], bad: Vec<Range<u64>>) -> Vec<Range<u64>> {
        self.at = at;
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        let all: Vec<Range<u64>> = std::mem::take(&mut self.bad).into_iter().chain(bad).collect();
        self.bad = all.iter().map(|range| range.start.max(at)..range.end).filter(|range| !range.is_empty()).collect();
        all.into_iter().map(|range| range.start..range.end.min(at)).filter(|range| !range.is_empty()).collect()
    }
}

fn scan_device(
    number: usize,
    device: &dyn BlockDevice,
    known: Option<&Ddrescue>,
    map: &mut Map,
    file: &mut map::Writer,
    finder: &mut Finder,
    tell: &mut dyn FnMut(Progress),
) -> Result<()> {
    let len = device.len();
    let start = map.devices()[number].done;
    // The same buffers go round, so that memory does not grow with what was read.
    let (sender, receiver) = sync_channel::<Piece>(BUFFERS);
    let (back, empty) = sync_channel::<AlignedBuffer>(BUFFERS);
    for _ in 0..BUFFERS {
        let _ = back.send(AlignedBuffer::new(PIECE as usize));
    }
    let next = Mutex::new(Next { device, skips_holes: known.is_none(), empty, number: 0, at: start });
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            let (next, sender) = (&next, sender.clone());
            scope.spawn(move || {
                loop {
                    let Some(mut piece) = next.lock().take() else { return };
                    piece.bad = read_piece(device, known, piece.at, &mut piece.buffer[..piece.filled]);
                    if sender.send(piece).is_err() {
                        return;
                    }
                }
            });
        }
        // The channels end with this function, and with them the threads, whatever the outcome.
        let back = back;
        drop(sender);
        let (mut early, mut wanted) = (BTreeMap::new(), 0);
        let in_order = receiver.into_iter().flat_map(|piece: Piece| {
            early.insert(piece.number, piece);
            while early.contains_key(&wanted) {
                wanted += 1;
            }
            let later = early.split_off(&wanted);
            std::mem::replace(&mut early, later).into_values()
        });
        let mut seam = Seam::default();
        for Piece { at, buffer, filled, bad, .. } in in_order {
            let piece = &buffer[..filled];
            let mut found = seam.look(at, piece, finder, number as u16);
            let own = if at + filled as u64 == len { filled } else { filled - OVERLAP };
            found.extend(finder.look(piece, own, at, number as u16));
            let done = at + own as u64;
            let bad = seam.replace(done, &piece[own..], bad);
            map.add(number, done, &found, &bad, finder.identities());
            file.append(number, done, &found, &bad, finder.identities())?;
            tell(Progress { device: number, done, len, found: map.len() });
            // The readers may be done.
            let _ = back.send(buffer);
        }
        Ok(())
    })
}

/// The piece behind those that are a hole from `at` on, where no tree block begins. The last one is always read.
fn behind_hole(device: &dyn BlockDevice, at: u64) -> u64 {
    let last = device.len() - 1;
    at + device.next_data(at).clamp(at, last).saturating_sub(at) / PIECE * PIECE
}

/// Fills the buffer from `at` on; returns what could not be read, which is zero then, or was not touched.
fn read_piece(device: &dyn BlockDevice, known: Option<&Ddrescue>, at: u64, buffer: &mut [u8]) -> Vec<Range<u64>> {
    let end = at + buffer.len() as u64;
    let mut bad: Vec<Range<u64>> = Vec::new();
    for range in known.map_or_else(|| vec![(at..end, true)], |known| known.split(at..end)) {
        let (range, may_be_read) = range;
        let part = &mut buffer[(range.start - at) as usize..(range.end - at) as usize];
        if !may_be_read {
            part.fill(0);
            push(&mut bad, range);
        } else if device.read_uncached(range.start, part).is_err() {
            read_small(device, range, part, &mut bad);
        }
    }
    bad
}

fn read_small(device: &dyn BlockDevice, range: Range<u64>, part: &mut [u8], bad: &mut Vec<Range<u64>>) {
    for unit in units(&range, SMALL) {
        let into = &mut part[(unit.start - range.start) as usize..(unit.end - range.start) as usize];
        if device.read_at(unit.start, into).is_ok() {
            continue;
        }
        for sector in units(&unit, SECTOR) {
            let into = &mut into[(sector.start - unit.start) as usize..(sector.end - unit.start) as usize];
            if device.read_at(sector.start, into).is_err() {
                into.fill(0);
                push(bad, sector);
            }
        }
    }
}

/// The parts of a range that begin at multiples of `size`.
fn units(range: &Range<u64>, size: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let (mut at, end) = (range.start, range.end);
    std::iter::from_fn(move || {
        let next = ((at / size + 1) * size).min(end);
        let unit = at..next;
        at = next;
        (!unit.is_empty()).then_some(unit)
    })
}

fn push(bad: &mut Vec<Range<u64>>, range: Range<u64>) {
    match bad.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => bad.push(range),
    }
}

impl Map {
    /// Refuses a map of other filesystems than those whose superblocks are on the devices. Devices without any could be
    /// anybody's.
    pub fn check_origin(&self, path: &Path, devices: &[Arc<dyn BlockDevice>]) -> Result<()> {
        let (own, known) = (identities(devices), self.identities());
        if own.is_empty() || known.is_empty() || own.iter().any(|own| known.iter().any(|it| it.fsid == own.fsid)) {
            return Ok(());
        }
        crate::error(format!("{} is a map of another filesystem; give another file, or remove it", path.display()))
    }

    /// The newest generation of the tree blocks of a filesystem that were found.
    pub fn newest_generation(&self, fsid: [u8; 16]) -> Option<u64> {
        let of = |found: &&Found| self.identities()[usize::from(found.family)].fsid == fsid;
        self.collection().iter().filter(of).map(|found| found.generation).max()
    }

    /// The index of one of the filesystems: that of a superblock with this UUID in its blocks, and of the seeds with
    /// these; else the one with most blocks.
    pub fn into_index(self, fsids: Option<([u8; 16], Vec<[u8; 16]>)>) -> Result<(crate::Index, Identity)> {
        let (fsid, seeds) = fsids.map_or((None, Vec::new()), |(fsid, seeds)| (Some(fsid), seeds));
        let count =
            |number: usize| self.collection().iter().filter(|found| usize::from(found.family) == number).count();
        let all = self.identities();
        let by_fsid = fsid.and_then(|fsid| all.iter().position(|identity| identity.fsid == fsid));
        let by_count = || (0..all.len()).max_by_key(|number| count(*number)).filter(|number| count(*number) > 0);
        let number = by_fsid.or_else(by_count);
        let number = number.ok_or_else(|| Error("the scan has found no tree block".to_owned()))?;
        let identity = all[number];
        let is_of_kind = |other: &Identity| (other.nodesize, other.checksum) == (identity.nodesize, identity.checksum);
        let is_seed = |other: &Identity| by_fsid.is_some() && seeds.contains(&other.fsid) && is_of_kind(other);
        let seeds = (0..all.len()).filter(|other| is_seed(&all[*other]));
        let families: Vec<u8> = [number].into_iter().chain(seeds).map(|number| number as u8).collect();
        Ok((self.into_collection().into_index(&families), identity))
    }
}

#[cfg(test)]
mod tests;
