//! A set of addresses as ranges that do not touch.

use std::collections::BTreeMap;
use std::ops::Range;

/// Start and end of each range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a range.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&from, &to)) = self.0.range(..=end).next_back().filter(|(_, to)| **to >= start) {
            self.0.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.0.insert(start, end);
    }

    /// Takes a range out.
    pub fn remove(&mut self, range: Range<u64>) {
        while let Some((&from, &to)) = self.0.range(..range.end).next_back().filter(|(_, to)| **to > range.start) {
            self.0.remove(&from);
            if to > range.end {
                self.0.insert(range.end, to);
            }
            if from < range.start {
                self.0.insert(from, range.start);
            }
        }
    }

    /// The last range of the set that has an address of `range`.
    pub fn last_overlap(&self, range: Range<u64>) -> Option<Range<u64>> {
        let (&from, &to) = self.0.range(..range.end).next_back()?;
        (to > range.start).then_some(from..to)
    }

    /// The parts that lie within `range`, ascending.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let before = self.0.range(..range.start).next_back().filter(|(_, to)| **to > range.start);
        let (start, end) = (range.start, range.end);
        let all = before.into_iter().chain(self.0.range(range));
        all.map(move |(&from, &to)| from.max(start)..to.min(end))
    }

    /// The parts of `range` that are not in the set.
    pub fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let (mut gaps, mut at) = (Vec::new(), range.start);
        for run in self.within(range.clone()) {
            if at < run.start {
                gaps.push(at..run.start);
            }
            at = run.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }

    /// How many addresses of `range` are in.
    pub fn bytes_within(&self, range: Range<u64>) -> u64 {
        self.within(range).map(|run| run.end - run.start).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(ranges: &Ranges) -> Vec<Range<u64>> {
        ranges.within(0..1000).collect()
    }

    #[test]
    fn ranges_join_and_part() {
        let mut set = Ranges::default();
        for range in [10..20, 30..40, 20..25, 50..60, 24..31] {
            set.insert(range);
        }
        assert_eq!(all(&set), [10..40, 50..60]);
        set.remove(15..55);
        assert_eq!(all(&set), [10..15, 55..60]);
        assert_eq!(set.gaps(0..100), [0..10, 15..55, 60..100]);
        assert_eq!(set.last_overlap(0..12), Some(10..15));
        assert_eq!(set.last_overlap(15..55), None);
        assert_eq!(set.bytes_within(12..57), 5);
        assert_eq!(set.within(12..57).collect::<Vec<_>>(), [12..15, 55..57]);
    }
}
