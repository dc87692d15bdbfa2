//! File data in memory that is not on disk yet, as runs of whole sectors.
//!
//! # Invariants
//! 1. Runs do not overlap; each is a positive number of whole sectors. Neighbours need not be one run.
//! 2. A write costs the logarithm of the number of runs and the bytes that it copies: nothing is moved to make room
//!    but by growing the run before, which doubles.

use std::collections::BTreeMap;
use std::ops::Range;

/// A run grows by appending up to this length.
const LONGEST_APPENDED: usize = 1 << 20;

/// See the [module](self).
#[derive(Default, Debug)]
pub struct DirtyRuns {
    runs: BTreeMap<u64, Vec<u8>>,
    bytes: u64,
}

impl DirtyRuns {
    /// Bytes in all runs.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The runs in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.runs.iter().map(|(&at, data)| (at, data.as_slice()))
    }

    /// Whether the byte at `position` is in a run.
    pub fn contains(&self, position: u64) -> bool {
        self.runs.range(..=position).next_back().is_some_and(|(at, data)| position < at + data.len() as u64)
    }

    /// The pieces of runs that lie in `range`, in order.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &[u8])> {
        let first = self.first_touching(range.start);
        self.runs.range(first..range.end.max(first)).filter_map(move |(&at, data)| {
            let (from, to) = (at.max(range.start), (at + data.len() as u64).min(range.end));
            (from < to).then(|| (from, &data[(from - at) as usize..(to - at) as usize]))
        })
    }

    /// The run that `position` lies in, else the next one.
    pub fn next(&self, position: u64) -> Option<Range<u64>> {
        let from = self.first_touching(position);
        let spans = self.runs.range(from..).map(|(&at, data)| at..at + data.len() as u64);
        spans.take(2).find(|span| span.end > position)
    }

    /// The key of the run that `position` may lie in, else `position`.
    fn first_touching(&self, position: u64) -> u64 {
        self.runs.range(..=position).next_back().map_or(position, |(&at, _)| at)
    }

    /// The parts of `range` that no run covers, in order.
    pub fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let (mut gaps, mut at) = (Vec::new(), range.start);
        for (from, piece) in self.pieces(range.clone()) {
            if from > at {
                gaps.push(at..from);
            }
            at = from + piece.len() as u64;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }

    /// Writes `data` at `position`, over what is there. Where no run is, it must be whole sectors. Returns how many
    /// bytes were not in a run before.
    pub fn write(&mut self, position: u64, data: &[u8]) -> u64 {
        let range = position..position + data.len() as u64;
        let part = |r: &Range<u64>| &data[(r.start - position) as usize..(r.end - position) as usize];
        if self.append(position, data) {
            return data.len() as u64;
        }
        let gaps = self.gaps(range.clone());
        self.each_piece_mut(range, |at, piece| piece.copy_from_slice(part(&(at..at + piece.len() as u64))));
        let mut added = 0;
        for gap in gaps {
            added += gap.end - gap.start;
            if !self.append(gap.start, part(&gap)) {
                self.bytes += gap.end - gap.start;
                self.runs.insert(gap.start, part(&gap).to_vec());
            }
        }
        added
    }

    /// Appends to the run that ends at `position`, if it may grow and nothing follows that the data would cover.
    fn append(&mut self, position: u64, data: &[u8]) -> bool {
        let behind = self.runs.range(position..position + data.len() as u64).next().is_some();
        let Some((at, run)) = self.runs.range_mut(..position).next_back() else { return false };
        if behind || at + run.len() as u64 != position || run.len() + data.len() > LONGEST_APPENDED {
            return false;
        }
        run.extend_from_slice(data);
        self.bytes += data.len() as u64;
        true
    }

    /// Adds what of `data` is not in a run yet, below what is.
    pub fn write_below(&mut self, position: u64, data: &[u8]) {
        for gap in self.gaps(position..position + data.len() as u64) {
            let part = &data[(gap.start - position) as usize..(gap.end - position) as usize];
            self.write(gap.start, part);
        }
    }

    fn each_piece_mut(&mut self, range: Range<u64>, mut each: impl FnMut(u64, &mut [u8])) {
        let first = self.first_touching(range.start);
        for (&at, data) in self.runs.range_mut(first..range.end.max(first)) {
            let (from, to) = (at.max(range.start), (at + data.len() as u64).min(range.end));
            if from < to {
                each(from, &mut data[(from - at) as usize..(to - at) as usize]);
            }
        }
    }

    /// Makes what runs hold of `range` zero.
    pub fn zero(&mut self, range: Range<u64>) {
        self.each_piece_mut(range, |_, piece| piece.fill(0));
    }

    /// Forgets what runs hold of `range`, which is whole sectors. Returns how many bytes that was.
    pub fn cut(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let first = self.first_touching(range.start);
        let touched: Vec<u64> = self.runs.range(first..range.end.max(first)).map(|(&at, _)| at).collect();
        let before = self.bytes;
        for at in touched {
            let mut run = self.runs.remove(&at).expect("just listed");
            self.bytes -= run.len() as u64;
            if at + run.len() as u64 > range.end {
                let tail = run[(range.end - at) as usize..].to_vec();
                self.put(range.end, tail);
            }
            run.truncate(range.start.saturating_sub(at).min(run.len() as u64) as usize);
            self.put(at, run);
        }
        before - self.bytes
    }

    fn put(&mut self, at: u64, run: Vec<u8>) {
        if !run.is_empty() {
            self.bytes += run.len() as u64;
            self.runs.insert(at, run);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_testkit::rng::Rng;

    const SECTOR: u64 = 16;
    const FILE: usize = 4096;

    /// The runs and an array of bytes that are there or not.
    struct Pair {
        runs: DirtyRuns,
        model: Vec<Option<u8>>,
    }

    impl Pair {
        fn check(&self) {
            let mut seen = vec![None; FILE];
            let mut end = 0;
            for (at, data) in self.runs.iter() {
                assert!(
                    at >= end
                        && !data.is_empty()
                        && at.is_multiple_of(SECTOR)
                        && (data.len() as u64).is_multiple_of(SECTOR)
                );
                end = at + data.len() as u64;
                data.iter().enumerate().for_each(|(i, &byte)| seen[at as usize + i] = Some(byte));
            }
            assert!(seen == self.model);
            assert_eq!(self.runs.bytes(), self.model.iter().flatten().count() as u64);
        }
    }

    fn random_range(noise: &mut Rng, unit: u64) -> Range<u64> {
        let start = noise.below(FILE as u64 / unit - 1);
        let len = 1 + noise.below((FILE as u64 / unit - start).min(1 + 400 / unit));
        start * unit..(start + len) * unit
    }

    #[test]
    fn random_operations_agree_with_an_array_of_bytes() {
        for seed in 0..30 {
            let mut noise = Rng::new(seed);
            let mut pair = Pair { runs: DirtyRuns::default(), model: vec![None; FILE] };
            for step in 0..600u32 {
                let range = random_range(&mut noise, SECTOR);
                let span = range.start as usize..range.end as usize;
                match noise.below(8) {
                    0..=2 => {
                        let data = vec![step as u8; span.len()];
                        let new = pair.model[span.clone()].iter().filter(|byte| byte.is_none()).count();
                        assert_eq!(pair.runs.write(range.start, &data), new as u64);
                        pair.model[span].fill(Some(step as u8));
                    }
                    3 => {
                        let gone = pair.model[span.clone()].iter().flatten().count();
                        assert_eq!(pair.runs.cut(range), gone as u64);
                        pair.model[span].fill(None);
                    }
                    4 => {
                        pair.runs.write_below(range.start, &vec![99; span.len()]);
                        pair.model[span].iter_mut().for_each(|byte| *byte = byte.or(Some(99)));
                    }
                    5 => {
                        let range = random_range(&mut noise, 1);
                        pair.runs.zero(range.clone());
                        let span = range.start as usize..range.end as usize;
                        pair.model[span].iter_mut().flatten().for_each(|byte| *byte = 0);
                    }
                    6 => {
                        let range = random_range(&mut noise, 1);
                        let gaps = pair.runs.gaps(range.clone());
                        let covered = |at: &u64| !gaps.iter().any(|gap| gap.contains(at));
                        assert!(range.clone().all(|at| covered(&at) == pair.model[at as usize].is_some()));
                        assert!(range.clone().all(|at| pair.runs.contains(at) == covered(&at)));
                    }
                    _ => {
                        // Unaligned over what is there.
                        let range = random_range(&mut noise, 1);
                        if range.clone().all(|at| pair.runs.contains(at)) {
                            let span = range.start as usize..range.end as usize;
                            assert_eq!(pair.runs.write(range.start, &vec![7; span.len()]), 0);
                            pair.model[span].fill(Some(7));
                        }
                    }
                }
                pair.check();
            }
        }
    }

    #[test]
    fn appended_writes_become_few_runs() {
        let mut runs = DirtyRuns::default();
        for i in 0..4096u64 {
            runs.write(i * 4096, &[i as u8; 4096]);
        }
        assert_eq!((runs.runs.len(), runs.bytes()), (16, 16 << 20));
    }
}
