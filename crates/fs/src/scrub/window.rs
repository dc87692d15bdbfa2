//! One window of a device: read, verified, repaired.

use super::damage::{Cause, Content, Damage, Outcome};
use super::plan::{Holds, Part, Plan, Window, plan};
use super::{Counters, Selection};
use crate::env::Point;
use crate::error::Result;
use crate::transaction::Core;
use butterfs_device::AlignedBuffer;
use butterfs_ondisk::header::Header;
use butterfs_ondisk::{ChecksumKind, DeviceId, Logical, Physical};
use butterfs_volume::{Caching, CopyPlace, FoundErrors, Rewritten, Run};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Parts with less between them are read together.
const BRIDGED: u64 = 16 << 10;
/// Bytes that are repaired at a time.
const REPAIRED_AT_ONCE: u64 = 64 << 10;

/// The result of one window.
#[derive(Default, Debug)]
pub(super) struct WindowResult {
    pub counters: Counters,
    pub damages: Vec<Damage>,
    /// Bytes that were read from the device.
    pub bytes_read: u64,
    /// Rows whose data has to be repaired before their parity can be compared.
    pub deferred: Vec<Window>,
}

/// A worker's order for each window.
pub(super) struct Order<'a> {
    pub core: &'a Arc<Core>,
    pub device: DeviceId,
    pub only: Option<&'a Selection>,
    /// Whether damage is repaired.
    pub repairs: bool,
    /// Data has been repaired as far as it can be.
    pub is_last: bool,
}

/// Bad bytes of a part, whole sectors.
struct Bad {
    /// In the part.
    range: Range<u64>,
    cause: Cause,
}

impl Order<'_> {
    /// Scrubs a window. The error is one of planning.
    pub fn carry_out(&self, window: &Window, buffer: &mut AlignedBuffer) -> Result<WindowResult> {
        let Some(plan) = plan(self.core, window, self.only)? else { return Ok(WindowResult::default()) };
        let mut result = WindowResult::default();
        if !plan.parts.is_empty() || !plan.rows.is_empty() {
            self.core.env().reached(Point::ScrubPlanned);
        }
        let unreadable = self.read(window, &plan, buffer, &mut result);
        for part in &plan.parts {
            self.verify(part, &plan, (window, &*buffer), &unreadable, &mut result);
        }
        self.check_rows(window, &plan, &mut result);
        let counters = &mut result.counters;
        (counters.data_extents, counters.tree_extents) = plan.units;
        let end = |part: &Part| {
            let depth = part.run.physical.0 + part.run.len - window.extent.physical.0;
            window.extent.physical.0 + depth.next_multiple_of(super::UNIT).min(window.extent.len)
        };
        counters.last_physical = plan.parts.iter().map(end).max().unwrap_or(0);
        self.core.volume().count_errors(self.device, found_errors(&result));
        Ok(result)
    }

    /// Reads all parts to their places in the buffer. Returns the sectors that cannot be read.
    fn read(&self, window: &Window, plan: &Plan, buffer: &mut [u8], result: &mut WindowResult) -> BTreeSet<Physical> {
        let mut unreadable = BTreeSet::new();
        for range in reads(plan.parts.iter().map(|part| part.run)) {
            let place = (range.start.0 - window.start().0) as usize..(range.end.0 - window.start().0) as usize;
            result.bytes_read += place.len() as u64;
            if self.core.volume().read_device(self.device, range.start, &mut buffer[place]).is_err() {
                for run in plan.parts.iter().map(|part| part.run) {
                    let (from, to) = (run.physical.max(range.start), run.physical.plus(run.len).min(range.end));
                    self.read_sectors(window, from.0..to.0, buffer, &mut unreadable);
                }
            }
        }
        unreadable
    }

    fn read_sectors(&self, window: &Window, range: Range<u64>, buffer: &mut [u8], unreadable: &mut BTreeSet<Physical>) {
        let sector = u64::from(self.core.sectorsize());
        for at in range.step_by(sector as usize).map(Physical) {
            let from = (at.0 - window.start().0) as usize;
            let part = &mut buffer[from..from + sector as usize];
            if self.core.volume().read_device(self.device, at, part).is_err() {
                part.fill(0);
                unreadable.insert(at);
            }
        }
    }

    fn verify(
        &self,
        part: &Part,
        plan: &Plan,
        (window, buffer): (&Window, &[u8]),
        unreadable: &BTreeSet<Physical>,
        result: &mut WindowResult,
    ) {
        let from = (part.run.physical.0 - window.start().0) as usize;
        let bytes = &buffer[from..from + part.run.len as usize];
        match part.holds {
            Holds::Data => {
                let bad = self.bad_data(part, bytes, unreadable, result);
                if plan.mirrors > 1 && part.run.copy == 0 {
                    self.compare(part, bytes, result);
                }
                for bad in bad {
                    self.treat_data(part, &bad, result);
                }
            }
            Holds::Block { .. } => self.verify_block(part, bytes, unreadable, result),
        }
    }

    /// The bad sectors of data, adjacent ones with one cause together.
    fn bad_data(
        &self,
        part: &Part,
        bytes: &[u8],
        unreadable: &BTreeSet<Physical>,
        result: &mut WindowResult,
    ) -> Vec<Bad> {
        let sector = self.core.sectorsize() as usize;
        let differing = part.sums.as_ref().map(|sums| sums.differing(bytes)).unwrap_or_default();
        let mut bad: Vec<Bad> = Vec::new();
        for index in 0..bytes.len() / sector {
            let into = (index * sector) as u64;
            let has_sum = part.sums.as_ref().is_some_and(|sums| sums.get(index).is_some());
            let cause = match has_sum {
                _ if unreadable.contains(&part.run.physical.plus(into)) => Cause::Unreadable,
                true if differing.binary_search(&index).is_ok() => Cause::Checksum,
                true => continue,
                false if part.sums_lost.is_some() => {
                    Cause::Header(format!("its checksum is lost: {}", part.sums_lost.as_deref().unwrap_or_default()))
                }
                false => {
                    result.counters.no_csum += 1;
                    continue;
                }
            };
            match bad.last_mut() {
                Some(last)
                    if last.range.end == into && last.cause == cause && into - last.range.start < REPAIRED_AT_ONCE =>
                {
                    last.range.end = into + sector as u64;
                }
                _ => bad.push(Bad { range: into..into + sector as u64, cause }),
            }
        }
        result.counters.data_bytes += part.run.len;
        bad
    }

    /// Looks for good copies of bad sectors, and takes them where they are found.
    fn treat_data(&self, part: &Part, bad: &Bad, result: &mut WindowResult) {
        let (volume, sector) = (self.core.volume(), u64::from(self.core.sectorsize()));
        let at = part.run.at.plus(bad.range.start);
        let len = (bad.range.end - bad.range.start) as usize;
        let sectors = len as u64 / sector;
        let own = Run { at, len: len as u64, physical: part.run.physical.plus(bad.range.start), copy: part.run.copy };
        if !volume.still_lies(self.device, &own) {
            return;
        }
        match bad.cause {
            Cause::Unreadable => result.counters.read_errors += sectors,
            Cause::Checksum => result.counters.csum_errors += sectors,
            _ => {}
        }
        let first = bad.range.start / sector;
        let is_good = |index: u64, bytes: &[u8]| {
            let stored = part.sums.as_ref().and_then(|sums| sums.get((first + index) as usize));
            stored.is_some_and(|stored| self.core.checksum_kind().matches(bytes, stored))
        };
        let has_sum = |index: u64| part.sums.as_ref().is_some_and(|sums| sums.get((first + index) as usize).is_some());
        let mut good = vec![0; len];
        let sources = self.find_good(&own, &mut good, &is_good, &has_sum);
        let mut from = 0;
        for run in sources.chunk_by(|a, b| a == b) {
            let range = from * sector..(from + run.len() as u64) * sector;
            from += run.len() as u64;
            let piece = Run {
                at: own.at.plus(range.start),
                len: range.end - range.start,
                physical: own.physical.plus(range.start),
                copy: own.copy,
            };
            let bytes = &good[range.start as usize..range.end as usize];
            self.settle(&piece, Content::Data, bad.cause.clone(), run[0], bytes, result);
        }
    }

    /// For each sector of a run the copy that is good, with its bytes in `good`.
    fn find_good(
        &self,
        own: &Run,
        good: &mut [u8],
        is_good: &dyn Fn(u64, &[u8]) -> bool,
        has_sum: &dyn Fn(u64) -> bool,
    ) -> Vec<Option<usize>> {
        let (volume, sector) = (self.core.volume(), self.core.sectorsize() as usize);
        let mut sources = vec![None; good.len() / sector];
        let mut found = vec![0; good.len()];
        for copy in volume.preferred_copies(own.at, good.len()).into_iter().filter(|copy| *copy != own.copy) {
            let is_whole = volume.read_copy(own.at, copy, &mut found).is_ok();
            for (index, source) in sources.iter_mut().enumerate().filter(|(_, source)| source.is_none()) {
                let range = index * sector..(index + 1) * sector;
                let at = own.at.plus(range.start as u64);
                let bytes = &mut found[range.clone()];
                let is_read = is_whole || volume.read_copy(at, copy, bytes).is_ok();
                // Without a checksum only a device that has missed nothing is believed.
                let is_believed = match has_sum(index as u64) {
                    true => is_good(index as u64, bytes),
                    false => volume.read_unverified(at, bytes).is_ok(),
                };
                if is_read && is_believed {
                    good[range].copy_from_slice(bytes);
                    *source = Some(copy);
                }
            }
        }
        sources
    }

    fn verify_block(&self, part: &Part, bytes: &[u8], unreadable: &BTreeSet<Physical>, result: &mut WindowResult) {
        let Holds::Block { level, generation } = part.holds else { return };
        let (volume, sector) = (self.core.volume(), u64::from(self.core.sectorsize()));
        if part.run.len < u64::from(self.core.nodesize()) {
            // Blocks of old converted filesystems can lie across two elements; ordinary reads verify them.
            return;
        }
        result.counters.tree_bytes += part.run.len;
        let sectors = part.run.len / sector;
        let lost = unreadable.range(part.run.physical..part.run.physical.plus(part.run.len)).count() as u64;
        let cause = match self.check_block(part.run.at, generation, bytes) {
            _ if lost > 0 => Cause::Unreadable,
            Ok(()) => return,
            Err(cause) => cause,
        };
        if !volume.still_lies(self.device, &part.run) {
            return;
        }
        match cause {
            Cause::Unreadable => result.counters.read_errors += lost,
            _ => result.counters.verify_errors += sectors,
        }
        let mut good = vec![0; bytes.len()];
        let copies = volume.preferred_copies(part.run.at, bytes.len());
        let source = copies.into_iter().filter(|copy| *copy != part.run.copy).find(|copy| {
            volume.read_copy(part.run.at, *copy, &mut good).is_ok()
                && self.check_block(part.run.at, generation, &good).is_ok()
        });
        self.settle(&part.run, Content::TreeBlock(level), cause, source, &good, result);
    }

    pub(super) fn check_block(&self, at: Logical, generation: u64, bytes: &[u8]) -> std::result::Result<(), Cause> {
        let identity = self.core.nodes.identity();
        let header = |rule: String| Cause::Header(rule);
        let (found, _) = Header::read_from_prefix(bytes).map_err(|_| header("too short".to_owned()))?;
        if found.bytenr.get() != at.0 {
            return Err(header(format!("its address is {} instead of {at}", found.bytenr.get())));
        }
        if !identity.has_blocks_of(&found.fsid) {
            return Err(header("it is of another filesystem".to_owned()));
        }
        if found.chunk_tree_uuid != identity.chunk_tree_uuid {
            return Err(header("it has the UUID of another chunk tree".to_owned()));
        }
        let kind: ChecksumKind = identity.checksum;
        if !kind.matches(&bytes[32..], &found.csum[..kind.len()]) {
            return Err(Cause::Checksum);
        }
        match found.generation.get() {
            same if same == generation => Ok(()),
            other => Err(Cause::Generation { found: other, expected: generation }),
        }
    }

    /// Repairs a run for which copy `source` holds `good`, if there is one, and writes down what became of it.
    fn settle(
        &self,
        run: &Run,
        content: Content,
        cause: Cause,
        source: Option<usize>,
        good: &[u8],
        result: &mut WindowResult,
    ) {
        let sectors = run.len / u64::from(self.core.sectorsize());
        let outcome = match source {
            None => Outcome::Lost(self.why_lost(run)),
            Some(source) => self.repair(run, source, good),
        };
        if outcome.is_corrected() {
            result.counters.corrected += sectors;
        } else {
            result.counters.uncorrectable += sectors;
        }
        result.damages.push(self.damage(run, content, cause, outcome));
    }

    fn why_lost(&self, run: &Run) -> String {
        let has_others = self.core.volume().copies(run.at) > 1;
        if has_others { "no other copy is good" } else { "there is no other copy" }.to_owned()
    }

    fn repair(&self, run: &Run, source: usize, good: &[u8]) -> Outcome {
        let volume = self.core.volume();
        let place = |copy| -> Option<CopyPlace> { volume.place_of(run.at, copy) };
        if !self.repairs {
            return place(source).map_or_else(|| Outcome::Lost("its chunk is gone".to_owned()), Outcome::Repairable);
        }
        self.core.env().passes("scrub repairs a copy");
        match volume.rewrite(run.at, run.copy, good) {
            Ok(Rewritten::From(place)) => Outcome::Repaired(place),
            Ok(Rewritten::WasGood) => {
                place(source).map_or_else(|| Outcome::Lost("its chunk is gone".to_owned()), Outcome::Repaired)
            }
            Ok(Rewritten::NoSource) => Outcome::Lost("no device that has missed nothing holds it now".to_owned()),
            Ok(Rewritten::NotKept(why)) => Outcome::Lost(why),
            Err(error) => Outcome::Lost(error.to_string()),
        }
    }

    fn damage(&self, run: &Run, content: Content, cause: Cause, outcome: Outcome) -> Damage {
        Damage {
            device: self.device,
            device_name: self.core.volume().device_name(self.device),
            physical: run.physical,
            at: Some(run.at),
            len: run.len,
            content,
            cause,
            outcome,
        }
    }

    /// Compares sectors without checksums with the other copies, which nothing else would notice.
    fn compare(&self, part: &Part, bytes: &[u8], result: &mut WindowResult) {
        let (volume, sector) = (self.core.volume(), self.core.sectorsize() as usize);
        let is_bare = |index: usize| part.sums.as_ref().is_none_or(|sums| sums.get(index).is_none());
        let sectors: Vec<usize> = (0..bytes.len() / sector).filter(|index| is_bare(*index)).collect();
        for group in sectors.chunk_by(|a, b| a + 1 == *b) {
            let range = group[0] * sector..(group[group.len() - 1] + 1) * sector;
            let (at, mut other) = (part.run.at.plus(range.start as u64), vec![0; range.len()]);
            for copy in (1..volume.copies(at)).filter(|_| part.sums_lost.is_none()) {
                let read = volume.read_copy_as(at, copy, Caching::Avoided, &mut other);
                if read.is_ok() && other != bytes[range.clone()] {
                    self.tell_differences(part, &bytes[range.clone()], &other, range.start as u64, result);
                }
            }
        }
    }

    fn tell_differences(&self, part: &Part, own: &[u8], other: &[u8], from: u64, result: &mut WindowResult) {
        let sector = self.core.sectorsize() as usize;
        let pairs = own.chunks(sector).zip(other.chunks(sector)).enumerate();
        for (index, _) in pairs.filter(|(_, (own, other))| own != other) {
            let into = from + (index * sector) as u64;
            let run = Run {
                at: part.run.at.plus(into),
                len: sector as u64,
                physical: part.run.physical.plus(into),
                copy: part.run.copy,
            };
            // A write may have been on its way.
            if let Ok(false) = self.core.volume().copies_agree(run.at, sector) {
                match result.damages.last_mut() {
                    Some(last)
                        if last.cause == Cause::CopiesDiffer
                            && last.at.is_some_and(|at| at.plus(last.len) == run.at) =>
                    {
                        last.len += sector as u64;
                    }
                    _ => result.damages.push(self.damage(&run, Content::Data, Cause::CopiesDiffer, Outcome::Noticed)),
                }
            }
        }
    }
}

/// The reads that bring these runs, ascending: together what is close together.
fn reads(runs: impl Iterator<Item = Run>) -> Vec<Range<Physical>> {
    let mut reads: Vec<Range<Physical>> = Vec::new();
    for run in runs {
        let end = run.physical.plus(run.len);
        match reads.last_mut() {
            Some(last) if run.physical.0 <= last.end.0 + BRIDGED => last.end = end,
            _ => reads.push(run.physical..end),
        }
    }
    reads
}

fn found_errors(result: &WindowResult) -> FoundErrors {
    let of_generation = |damage: &&Damage| matches!(damage.cause, Cause::Generation { .. });
    FoundErrors {
        reads: result.counters.read_errors,
        corruptions: result.counters.csum_errors,
        generations: result.damages.iter().filter(of_generation).count() as u64,
    }
}
