//! The free runs of one block group, by offset and by size.
//!
//! # Invariants
//! 1. Runs do not overlap and do not touch: neighbours are merged.
//! 2. `total` is the sum of their lengths.

use std::collections::{BTreeMap, BTreeSet};

/// See the [module](self). Addresses and lengths are logical bytes.
#[derive(Default, Debug, Clone)]
pub struct FreeExtents {
    by_offset: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    total: u64,
}

impl FreeExtents {
    /// Free bytes.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// All runs by offset.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_offset.iter().map(|(&at, &len)| (at, len))
    }

    fn put(&mut self, at: u64, len: u64) {
        self.by_offset.insert(at, len);
        self.by_size.insert((len, at));
        self.total += len;
    }

    fn drop_run(&mut self, at: u64, len: u64) {
        self.by_offset.remove(&at);
        self.by_size.remove(&(len, at));
        self.total -= len;
    }

    /// Whether any byte of `[at, at + len)` is free.
    pub fn touches(&self, at: u64, len: u64) -> bool {
        let before = self.by_offset.range(..at.saturating_add(len)).next_back();
        before.is_some_and(|(&run, &run_len)| run + run_len > at)
    }

    /// Adds a run; it must not overlap what is free.
    pub fn insert(&mut self, mut at: u64, mut len: u64) {
        if len == 0 {
            return;
        }
        let before = self.by_offset.range(..at).next_back().map(|(&at, &len)| (at, len));
        if let Some((prev, prev_len)) = before {
            assert!(prev + prev_len <= at, "run {at}+{len} is freed twice");
            if prev + prev_len == at {
                self.drop_run(prev, prev_len);
                at = prev;
                len += prev_len;
            }
        }
        let after = self.by_offset.range(at..).next().map(|(&at, &len)| (at, len));
        if let Some((next, next_len)) = after {
            assert!(at + len <= next, "run {at}+{len} is freed twice");
            if at + len == next {
                self.drop_run(next, next_len);
                len += next_len;
            }
        }
        self.put(at, len);
    }

    /// Takes whatever is free in `[at, at + len)` out.
    pub fn remove(&mut self, at: u64, len: u64) {
        let end = at + len;
        let start = self.by_offset.range(..=at).next_back().map_or(at, |(&start, _)| start);
        let touched: Vec<(u64, u64)> =
            self.by_offset.range(start..end).map(|(&at, &len)| (at, len)).filter(|&(s, l)| s + l > at).collect();
        for (run, run_len) in touched {
            self.drop_run(run, run_len);
            if run < at {
                self.put(run, at - run);
            }
            if run + run_len > end {
                self.put(end, run + run_len - end);
            }
        }
    }

    /// Whether all of `[at, at + len)` is free.
    pub fn covers(&self, at: u64, len: u64) -> bool {
        let run = self.by_offset.range(..=at).next_back();
        run.is_some_and(|(&start, &run_len)| at + len <= start + run_len)
    }

    /// The smallest run of at least `want` bytes, cut to `want`; else the largest one, if it has at least `min`.
    pub fn best_fit(&self, want: u64, min: u64) -> Option<(u64, u64)> {
        let fits = self.by_size.range((want, 0)..).next().copied();
        let (run_len, at) = fits.or_else(|| self.by_size.last().copied().filter(|&(len, _)| len >= min))?;
        Some((at, want.min(run_len)))
    }

    /// The runs of at least `len` bytes, small ones first.
    pub fn runs_from(&self, len: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_size.range((len, 0)..).map(|&(len, at)| (at, len))
    }

    /// The free ranges in `[at, at + len)`, by offset.
    pub fn within(&self, at: u64, len: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let start = self.by_offset.range(..=at).next_back().map_or(at, |(&start, _)| start);
        let clipped = move |(&run, &run_len): (&u64, &u64)| {
            let (from, to) = (run.max(at), (run + run_len).min(at + len));
            (from < to).then(|| (from, to - from))
        };
        self.by_offset.range(start..at + len).filter_map(clipped)
    }

    /// The first `len` bytes, aligned to `len`, at or after `from`.
    pub fn find_aligned(&self, len: u64, from: u64) -> Option<u64> {
        let start = self.by_offset.range(..=from).next_back().map_or(from, |(&start, _)| start);
        self.by_offset.range(start..).find_map(|(&run, &run_len)| {
            let at = run.max(from).next_multiple_of(len);
            (at + len <= run + run_len).then_some(at)
        })
    }

    /// The free bytes at or after `at` that come first, up to the end of their run.
    pub fn next_from(&self, at: u64) -> Option<(u64, u64)> {
        let here = self.by_offset.range(..=at).next_back().filter(|(start, len)| *start + **len > at);
        let (&start, &len) = here.or_else(|| self.by_offset.range(at..).next())?;
        let from = start.max(at);
        Some((from, start + len - from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_merge_and_split_like_a_bitmap() {
        let (mut free, mut model) = (FreeExtents::default(), vec![false; 256]);
        let mut random = butterfs_testkit::rng::Rng::new(7);
        for _ in 0..20_000 {
            let seed = random.bits();
            let (at, len) = ((seed >> 40) % 200, (seed >> 20) % 16 + 1);
            let range = at as usize..(at + len) as usize;
            match seed % 4 {
                0 if !model[range.clone()].contains(&true) => {
                    free.insert(at, len);
                    model[range].fill(true);
                }
                1 => {
                    free.remove(at, len);
                    model[range].fill(false);
                }
                2 => {
                    if let Some((at, got)) = free.best_fit(len, 1) {
                        free.remove(at, got);
                        let range = at as usize..(at + got) as usize;
                        assert!(model[range.clone()].iter().all(|&bit| bit));
                        model[range].fill(false);
                    }
                }
                _ => {
                    if let Some(at) = free.find_aligned(4, at).or_else(|| free.find_aligned(4, 0)) {
                        free.remove(at, 4);
                        assert_eq!(at % 4, 0);
                        let range = at as usize..at as usize + 4;
                        assert!(model[range.clone()].iter().all(|&bit| bit));
                        model[range].fill(false);
                    }
                }
            }
            assert_eq!(free.total() as usize, model.iter().filter(|&&bit| bit).count());
        }
        let from_runs: u64 = free.iter().map(|(_, len)| len).sum();
        assert_eq!(from_runs, free.total());
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn freeing_twice_stops_the_program() {
        let mut free = FreeExtents::default();
        free.insert(0, 8);
        free.insert(4, 8);
    }
}
