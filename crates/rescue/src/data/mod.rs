//! Contents of files, compared with their checksums.
//!
//! Invariants: (1) bytes come in ascending order, each at most once, and exactly those of the ranges that
//! [`Content::ranges`] names; (2) every sector that has a checksum comes from a copy that fits it, where there is one;
//! else it comes from the first copy that can be read, or is zero, and is counted; (3) memory does not depend on what
//! lengths the disk names: a compressed extent is at most [`LARGEST_PACKED`] bytes, everything else is read in pieces;
//! (4) nor does time: an extent that no writer makes, or that no device has, is missing as a whole and not among the
//! ranges.

mod content;
mod packed;
mod references;

use crate::back_references::{ExtentTree, Users};
use crate::live::Since;
use crate::subvolume::{self, Extent};
use crate::tree::Tree;
use crate::trust::Doubts;
use butterfs_fs::file::codec;
use butterfs_fs::file_extent::{ExtentKind, FileExtent};
use butterfs_fs::options::Algorithm;
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Key, KeyType, Logical};
use std::cell::OnceCell;
use std::collections::VecDeque;
use std::io;
use std::ops::{ControlFlow, Range};
use std::rc::Rc;

pub use content::Content;
use content::covered;

/// The longest compressed extent, stored or unpacked; the format's own limit is 128 KiB.
pub const LARGEST_PACKED: u64 = 1 << 20;
/// The longest extent that any writer makes is 128 MiB; block groups have a few GiB.
const LARGEST_EXTENT: u64 = 1 << 30;
/// Bytes that are read at once.
const PIECE: u64 = 512 << 10;
/// Unpacked extents that are kept for their neighbours.
const KEPT: usize = 4;
/// Ranges that a report names.
const MOST_RANGES: usize = 32;

/// How sure a file's content is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// All of it is there, and fits its checksums.
    Verified,
    /// All of it is there; for some of it there is no checksum.
    Unverified,
    /// All of it seems to be there, but comes from damaged or older tree blocks, or is guessed: see [`Doubts`].
    Doubtful,
    /// Some of it does not fit its checksum, or is gone.
    Partial,
    /// Nothing of it is left.
    Lost,
}

/// The outcome of reading a file's content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes that fit their checksums, and those that need none: holes, inline data.
    pub verified: u64,
    /// Bytes for which there is no checksum.
    pub unverified: u64,
    /// Of these, the ones that must have had one.
    pub checksums_lost: u64,
    /// Of those without a checksum, the ones whose copies differ: nothing tells which copy is right.
    pub disputed: u64,
    /// Of those without a checksum, the ones of a deleted file: other files may have had their place since.
    pub unconfirmed: u64,
    /// Bytes that do not fit.
    pub damaged: u64,
    /// Of these, the ones whose place other files have got since.
    pub reused: u64,
    /// Bytes that no device gives; zeros stand for them.
    pub missing: u64,
    /// Extent items that say nothing that could be.
    pub bad_items: u64,
    /// Tree blocks that may have had more extents of it.
    pub lost_blocks: u64,
    /// Where the damaged and missing bytes are, the first of them.
    pub ranges: Vec<Range<u64>>,
    /// Other reasons why it may be wrong.
    pub doubts: Doubts,
}

impl Outcome {
    /// How sure that makes it.
    pub fn grade(&self) -> Grade {
        let sum = |numbers: &[u64]| numbers.iter().fold(0u64, |sum, number| sum.saturating_add(*number));
        let bad = sum(&[self.damaged, self.missing, self.bad_items, self.lost_blocks]);
        match (bad, sum(&[self.verified, self.unverified, self.damaged]), self.unverified) {
            (0, _, _) if !self.doubts.is_none() || self.disputed > 0 || self.unconfirmed > 0 => Grade::Doubtful,
            (0, _, 0) => Grade::Verified,
            (0, _, _) => Grade::Unverified,
            (_, 0, _) => Grade::Lost,
            _ => Grade::Partial,
        }
    }

    /// Why it is not certainly whole, in words.
    pub fn reasons(&self) -> Vec<String> {
        let first = self.ranges.first().map_or(String::new(), |range| format!(", first at {}", range.start));
        let mut reasons = Vec::new();
        let unfit = self.damaged - self.reused.min(self.damaged);
        if unfit + self.missing > 0 {
            let missing = self.missing;
            reasons.push(format!("{unfit} bytes do not fit their checksums, {missing} bytes are missing{first}"));
        }
        if self.reused > 0 {
            reasons.push(format!("the place of {} bytes was given to newer files{first}", self.reused));
        }
        if self.bad_items > 0 {
            reasons.push(format!("{} of its extents say nothing that could be", self.bad_items));
        }
        if self.lost_blocks > 0 {
            reasons.push(format!("{} tree blocks are lost that may have had extents of it", self.lost_blocks));
        }
        if self.checksums_lost > 0 {
            reasons.push(format!("the checksums of {} bytes are lost", self.checksums_lost));
        }
        if self.disputed > 0 {
            let bytes = self.disputed;
            let begin = if self.damaged + self.missing > 0 { String::new() } else { first };
            reasons.push(format!("the copies of {bytes} bytes differ, and nothing tells which one is right{begin}"));
        }
        if self.unconfirmed > 0 {
            let bytes = self.unconfirmed;
            reasons.push(format!("{bytes} bytes have no checksum, and other files may have had their place since"));
        }
        reasons.extend(self.doubts.reasons());
        reasons
    }

    fn note(&mut self, range: Range<u64>) {
        let is_full = self.ranges.len() >= MOST_RANGES;
        match self.ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ if is_full => {}
            _ => self.ranges.push(range),
        }
    }
}

/// How sure a sector is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sector {
    Verified,
    Unverified,
    /// It has no checksum, and its copies differ.
    Disputed,
    Damaged,
    /// It was allocated again after the file was deleted.
    Reused,
    Missing,
}

/// The key of an unpacked extent.
type Packed = (u64, u64, u64, u8);

/// Reads contents of one subvolume's files.
#[derive(Debug)]
pub struct Reader<'a> {
    tree: Tree<'a>,
    checksums: Option<Tree<'a>>,
    kept: VecDeque<(Packed, Vec<u8>, Sector)>,
    /// The extent tree of the same time.
    extents: Option<Rc<ExtentTree<'a>>>,
    /// The files by the extents that they use.
    users: OnceCell<Users>,
    /// Later allocations, for a subvolume of an earlier time.
    since: Option<Since>,
}

impl<'a> Reader<'a> {
    /// A reader of a subvolume, with the checksum tree of the same time where there is one.
    pub fn new(tree: Tree<'a>, checksums: Option<Tree<'a>>) -> Reader<'a> {
        Reader { tree, checksums, kept: VecDeque::new(), extents: None, users: OnceCell::new(), since: None }
    }

    /// With the extent tree of the same commit: it confirms extents, and fills gaps.
    pub(crate) fn with_extents(self, extents: Option<Rc<ExtentTree<'a>>>) -> Reader<'a> {
        Reader { extents, ..self }
    }

    /// For a subvolume of an earlier time, with the extents that are in use now.
    pub(crate) fn with_since(self, since: Option<Since>) -> Reader<'a> {
        Reader { since, ..self }
    }

    /// The subvolume.
    pub fn tree(&self) -> Tree<'a> {
        self.tree
    }

    fn extents(&self) -> Option<Tree<'a>> {
        self.extents.as_ref().map(|extents| extents.tree)
    }

    /// Hands the bytes of all ranges to `take`.
    pub fn read(
        &mut self,
        content: &Content,
        take: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<Outcome> {
        let bad_items = content.bad_items;
        let (lost_blocks, doubts) = (content.losses.blocks(), content.doubts);
        let mut outcome = Outcome { lost_blocks, bad_items, doubts, ..Outcome::default() };
        let holes = content.size.saturating_sub(covered(&content.ranges));
        outcome.verified = holes - content.unaccounted;
        outcome.missing = content.unaccounted;
        if content.unaccounted > 0 && content.unaccounted == holes {
            content.holes().for_each(|hole| outcome.note(hole));
        }
        let (tree, mut result) = (self.tree, Ok(()));
        let mut recovered = content.recovered.iter().peekable();
        subvolume::extents(&tree, content.ino, &mut |Extent { extent, inline, .. }| {
            if content.skipped.contains(&extent.start) {
                return ControlFlow::Continue(());
            }
            while let Some(before) = recovered.next_if(|before| before.start < extent.start && result.is_ok()) {
                result = self.read_extent(content, before, &[], &mut outcome, take);
            }
            result = std::mem::replace(&mut result, Ok(()))
                .and_then(|()| self.read_extent(content, &extent, &inline, &mut outcome, take));
            if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        for rest in recovered {
            result = result.and_then(|()| self.read_extent(content, rest, &[], &mut outcome, take));
        }
        outcome.checksums_lost = if content.has_no_checksums { 0 } else { outcome.unverified };
        outcome.unconfirmed = if self.since.is_some() { outcome.unverified } else { 0 };
        result.map(|()| outcome)
    }

    fn read_extent(
        &mut self,
        content: &Content,
        extent: &FileExtent,
        inline: &[u8],
        outcome: &mut Outcome,
        take: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let sector = self.tree.wreck.sectorsize();
        let is_unmarked = content.unmarked.binary_search(&extent.start).is_ok();
        match extent.kind {
            ExtentKind::Prealloc if is_unmarked => {
                let extent = FileExtent { kind: ExtentKind::Regular, ..*extent };
                return self.read_extent(content, &extent, inline, outcome, take);
            }
            ExtentKind::Prealloc => return Ok(()),
            ExtentKind::Regular if extent.is_hole() => return Ok(()),
            ExtentKind::Inline => {
                let end = extent.ram_bytes.min(sector).min(content.size);
                let (bytes, state) = unpack_inline(extent, inline, end as usize, sector);
                return deliver(0..end, &bytes, &[state], sector, outcome, take);
            }
            ExtentKind::Regular => {}
        }
        let end = extent.end().min(content.size);
        if extent.start >= end {
            return Ok(());
        }
        if !self.is_reachable(extent) {
            outcome.missing += end - extent.start;
            outcome.note(extent.start..end);
            return Ok(());
        }
        if extent.compression != 0 {
            let (bytes, state) = self.unpacked(content, extent);
            let from = (extent.offset as usize).min(bytes.len());
            let mut part = bytes[from..].to_vec();
            part.resize((end - extent.start) as usize, 0);
            let states = vec![state; part.len().div_ceil(sector as usize)];
            return deliver(extent.start..end, &part, &states, sector, outcome, take);
        }
        let mut at = extent.start;
        while at < end {
            let len = (end - at).min(PIECE);
            let from = Logical(extent.at.0 + extent.offset + (at - extent.start));
            let (bytes, states) = self.stored(from, len.next_multiple_of(sector), !content.has_no_checksums);
            deliver(at..at + len, &bytes[..len as usize], &states, sector, outcome, take)?;
            at += len;
        }
        Ok(())
    }

    /// A compressed extent, unpacked. It is as sure as its worst sector; what cannot be unpacked is missing.
    fn unpacked(&mut self, content: &Content, extent: &FileExtent) -> (Vec<u8>, Sector) {
        let identity = (extent.at.0, extent.disk_len, extent.ram_bytes, extent.compression);
        if let Some((_, bytes, state)) = self.kept.iter().find(|(known, ..)| *known == identity) {
            return (bytes.clone(), *state);
        }
        let unpacked = self.unpack(content, extent);
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back((identity, unpacked.0.clone(), unpacked.1));
        unpacked
    }

    fn unpack(&self, content: &Content, extent: &FileExtent) -> (Vec<u8>, Sector) {
        if extent.disk_len > LARGEST_PACKED || extent.ram_bytes > LARGEST_PACKED {
            return (Vec::new(), Sector::Missing);
        }
        let sector = self.tree.wreck.sectorsize() as u32;
        let (stored, states) = self.stored(extent.at, extent.disk_len, !content.has_no_checksums);
        let worst = [Sector::Missing, Sector::Reused, Sector::Damaged, Sector::Disputed, Sector::Unverified];
        let worst = worst.into_iter().find(|one| states.contains(one));
        let mut bytes = vec![0; extent.ram_bytes as usize];
        let is_unpacked = Algorithm::from_raw(extent.compression)
            .is_some_and(|method| codec::decompress(method, &stored, &mut bytes, sector).is_ok());
        match worst {
            Some(Sector::Missing) => (Vec::new(), Sector::Missing),
            _ if is_unpacked => (bytes, worst.unwrap_or(Sector::Verified)),
            Some(_) => (Vec::new(), Sector::Missing),
            // Nobody keeps what packing makes longer: the mark is wrong, and the bytes are as they were.
            None if extent.disk_len >= extent.ram_bytes => (stored, Sector::Verified),
            None => match unpacked_by_any(&stored, bytes.len(), sector) {
                Some((_, bytes)) => (bytes, Sector::Verified),
                None => (Vec::new(), Sector::Missing),
            },
        }
    }

    /// The compression of an extent that fits its checksums and unpacks to this length.
    fn method_of(&self, at: Logical, disk_len: u64, ram_bytes: u64) -> Option<u8> {
        let (stored, states) = self.stored(at, disk_len, true);
        let is_sound = states.iter().all(|state| *state == Sector::Verified);
        let unpacked =
            is_sound.then(|| unpacked_by_any(&stored, ram_bytes as usize, self.tree.wreck.sectorsize() as u32));
        unpacked.flatten().map(|(method, _)| method)
    }

    /// Bytes as they are stored, whole sectors, each from the first copy that fits its checksum.
    fn stored(&self, at: Logical, len: u64, is_checked: bool) -> (Vec<u8>, Vec<Sector>) {
        let wreck = self.tree.wreck;
        let sector = wreck.sectorsize() as usize;
        let mut bytes = vec![0; len as usize];
        let mut states = vec![Sector::Missing; bytes.len() / sector];
        let sums = if is_checked { self.sums(at, len) } else { vec![Vec::new(); states.len()] };
        let judge = |part: &[u8], sums: &[Vec<u8>]| match sums {
            [] => Sector::Unverified,
            sums if sums.iter().any(|sum| wreck.checksum().matches(part, sum)) => Sector::Verified,
            _ => Sector::Damaged,
        };
        let is_old = |copy: usize, place: Logical| wreck.is_on_device_behind(place, copy);
        if !wreck.has_devices_behind() && wreck.volume().read_copy(at, 0, &mut bytes).is_ok() {
            for (number, part) in bytes.chunks(sector).enumerate() {
                states[number] = judge(part, &sums[number]);
            }
        } else {
            bytes.fill(0);
        }
        let mut part = vec![0; sector];
        for number in 0..states.len() {
            let place = Logical(at.0 + (number * sector) as u64);
            let mut copies: Vec<usize> = (0..wreck.volume().copies(place)).collect();
            copies.sort_by_key(|copy| is_old(*copy, place));
            for copy in copies {
                if matches!(states[number], Sector::Verified | Sector::Unverified) {
                    break;
                }
                if wreck.volume().read_copy(place, copy, &mut part).is_err() {
                    continue;
                }
                let state = judge(&part, &sums[number]);
                if states[number] == Sector::Missing || state != Sector::Damaged {
                    states[number] = state;
                    bytes[number * sector..][..sector].copy_from_slice(&part);
                }
            }
        }
        self.compare_copies(at, &bytes, &mut states);
        self.mark_reused(at, &mut states);
        (bytes, states)
    }

    /// Finds sectors that other files have got since, unless they fit the checksums of their own time.
    fn mark_reused(&self, at: Logical, states: &mut [Sector]) {
        let Some(since) = &self.since else { return };
        let sector = self.tree.wreck.sectorsize();
        for (number, state) in states.iter_mut().enumerate() {
            let start = at.0 + number as u64 * sector;
            let is_proved = *state == Sector::Verified && since.has_own_checksums;
            if !is_proved && *state != Sector::Missing && since.is_reused(start..start + sector) {
                *state = Sector::Reused;
            }
        }
    }

    /// Finds sectors without a checksum of which another copy has other bytes.
    fn compare_copies(&self, at: Logical, bytes: &[u8], states: &mut [Sector]) {
        let volume = self.tree.wreck.volume();
        let sector = self.tree.wreck.sectorsize() as usize;
        let copies = volume.copies(at);
        if copies < 2 || !states.contains(&Sector::Unverified) {
            return;
        }
        let mut other = vec![0; bytes.len()];
        for copy in (0..copies).filter(|copy| !self.tree.wreck.is_on_device_behind(at, *copy)) {
            let is_read = volume.read_copy(at, copy, &mut other).is_ok();
            for (number, state) in states.iter_mut().enumerate().filter(|(_, state)| **state == Sector::Unverified) {
                let (inside, place) = (number * sector, Logical(at.0 + (number * sector) as u64));
                let part = &mut other[inside..inside + sector];
                let is_there = is_read || volume.read_copy(place, copy, part).is_ok();
                if is_there && *part != bytes[inside..inside + sector] {
                    *state = Sector::Disputed;
                }
            }
        }
    }

    /// Whether all bytes of an extent fit their checksums, as far as the checksum tree can be read there.
    fn fits_checksums(&self, at: Logical, len: u64) -> bool {
        (0..len).step_by(PIECE as usize).all(|done| {
            let (place, len) = (Logical(at.0.saturating_add(done)), (len - done).min(PIECE));
            let (_, states) = self.stored(place, len, true);
            let fits = |state: &Sector| match state {
                Sector::Verified => true,
                Sector::Unverified => !self.has_all_checksums(place, len),
                _ => false,
            };
            states.iter().all(fits)
        })
    }

    /// Whether all of these bytes have checksums, and fit them.
    fn is_verified(&self, at: Logical, len: u64) -> bool {
        (0..len).step_by(PIECE as usize).all(|done| {
            let (_, states) = self.stored(Logical(at.0.saturating_add(done)), (len - done).min(PIECE), true);
            states.iter().all(|state| *state == Sector::Verified)
        })
    }

    /// Whether any of these bytes has a checksum.
    fn has_any_checksum(&self, at: Logical, len: u64) -> bool {
        let Some(tree) = &self.checksums else { return false };
        let wreck = self.tree.wreck;
        let (sector, width) = (wreck.sectorsize(), wreck.checksum().len());
        // No item is longer than a leaf.
        let reach = wreck.nodesize() as u64 / width as u64 * sector;
        let key = |offset| Key::new(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM, offset);
        let (first, last) = (key(at.0.saturating_sub(reach)), key(at.0.saturating_add(len - 1)));
        let mut has_any = false;
        tree.scan(first, last, &mut |key, data, _| {
            let end = key.offset.saturating_add((data.len() / width) as u64 * sector);
            has_any = key.offset >= at.0 || end > at.0;
            if has_any { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        has_any
    }

    /// Whether the checksum tree can be read where it has the checksums of these bytes.
    fn has_all_checksums(&self, at: Logical, len: u64) -> bool {
        let Some(tree) = &self.checksums else { return false };
        let key = |offset| Key::new(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM, offset);
        let mut pass = |_: Key, _: &[u8], _| ControlFlow::Continue(());
        tree.scan(key(at.0), key(at.0.saturating_add(len - 1)), &mut pass).is_none()
    }

    /// The checksums of each sector; several where items overlap.
    fn sums(&self, at: Logical, len: u64) -> Vec<Vec<Vec<u8>>> {
        let wreck = self.tree.wreck;
        let (sector, width) = (wreck.sectorsize(), wreck.checksum().len());
        let mut sums = vec![Vec::new(); (len / sector) as usize];
        let Some(tree) = &self.checksums else { return sums };
        // No item is longer than a leaf.
        let reach = wreck.nodesize() as u64 / width as u64 * sector;
        let key = |offset| Key::new(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM, offset);
        tree.scan(key(at.0.saturating_sub(reach)), key(at.0 + (len - 1)), &mut |key, data, _| {
            let skipped = at.0.saturating_sub(key.offset) / sector;
            for (index, sum) in data.chunks_exact(width).enumerate().skip(skipped as usize) {
                let place = key.offset + index as u64 * sector;
                match place.checked_sub(at.0).map(|inside| (inside / sector) as usize) {
                    Some(number) if number < sums.len() => sums[number].push(sum.to_vec()),
                    Some(_) => break,
                    None => {}
                }
            }
            ControlFlow::Continue(())
        });
        sums
    }
}

/// The bytes and the compression by which a stream unpacks to as many sectors as `len` has.
fn unpacked_by_any(stored: &[u8], len: usize, sector: u32) -> Option<(u8, Vec<u8>)> {
    let mut bytes = vec![0; len];
    let method = (1..=3).find(|raw| {
        let unpacked = Algorithm::from_raw(*raw).map(|method| codec::decompress(method, stored, &mut bytes, sector));
        unpacked.and_then(Result::ok).is_some_and(|given| given.next_multiple_of(sector as usize) == len)
    })?;
    Some((method, bytes))
}

fn unpack_inline(extent: &FileExtent, inline: &[u8], len: usize, sector: u64) -> (Vec<u8>, Sector) {
    let mut bytes = vec![0; len.max(extent.ram_bytes.min(sector) as usize)];
    let state = match Algorithm::from_raw(extent.compression) {
        None if extent.compression != 0 => Sector::Missing,
        None => {
            let have = inline.len().min(bytes.len());
            bytes[..have].copy_from_slice(&inline[..have]);
            Sector::Verified
        }
        Some(algorithm) => match codec::decompress(algorithm, inline, &mut bytes, sector as u32) {
            Ok(_) => Sector::Verified,
            Err(_) => Sector::Missing,
        },
    };
    bytes.resize(len, 0);
    (bytes, state)
}

/// Hands bytes over and counts them; `states` has one entry for each sector, the last one for all that follow.
fn deliver(
    range: Range<u64>,
    bytes: &[u8],
    states: &[Sector],
    sector: u64,
    outcome: &mut Outcome,
    take: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    for (number, part) in bytes.chunks(sector as usize).enumerate() {
        let (start, len) = (range.start + number as u64 * sector, part.len() as u64);
        match states.get(number).or(states.last()) {
            Some(Sector::Verified) => outcome.verified += len,
            Some(Sector::Unverified) => outcome.unverified += len,
            Some(Sector::Disputed) => {
                outcome.unverified += len;
                outcome.disputed += len;
                outcome.note(start..start + len);
            }
            Some(Sector::Damaged) => {
                outcome.damaged += len;
                outcome.note(start..start + len);
            }
            Some(Sector::Reused) => {
                outcome.damaged += len;
                outcome.reused += len;
                outcome.note(start..start + len);
            }
            Some(Sector::Missing) | None => {
                outcome.missing += len;
                outcome.note(start..start + len);
            }
        }
    }
    if bytes.is_empty() { Ok(()) } else { take(range.start, bytes) }
}
