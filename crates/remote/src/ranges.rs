//! Values of ranges of blocks: the newest value of a block counts.

use std::collections::BTreeMap;

/// A value that a part of its range can have, too.
pub trait Part: Clone {
    /// The value of the part that begins `skip` blocks later.
    fn part(&self, skip: u64) -> Self;
}

impl Part for () {
    fn part(&self, _skip: u64) {}
}

/// A range and its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run<T> {
    /// The first block.
    pub start: u64,
    /// How many blocks, at least one.
    pub blocks: u64,
    /// The value.
    pub value: T,
}

impl<T> Run<T> {
    /// The block behind the last.
    pub fn end(&self) -> u64 {
        self.start + self.blocks
    }
}

impl<T: Part> Run<T> {
    /// The part inside of these blocks, if there is one.
    pub fn within(&self, start: u64, end: u64) -> Option<Run<T>> {
        let (from, to) = (self.start.max(start), self.end().min(end));
        let part = || Run { start: from, blocks: to - from, value: self.value.part(from - self.start) };
        (from < to).then(part)
    }
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Ranges<T> {
    runs: BTreeMap<u64, (u64, T)>,
}

impl<T> Default for Ranges<T> {
    fn default() -> Ranges<T> {
        Ranges { runs: BTreeMap::new() }
    }
}

impl<T: Part> Ranges<T> {
    /// Whether no block has a value.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many ranges there are.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Gives these blocks a value; returns the values that they had.
    pub fn insert(&mut self, start: u64, blocks: u64, value: T) -> Vec<Run<T>> {
        let before = self.remove(start, blocks);
        if blocks > 0 {
            self.runs.insert(start, (blocks, value));
        }
        before
    }

    /// Takes the values of these blocks away and returns them.
    pub fn remove(&mut self, start: u64, blocks: u64) -> Vec<Run<T>> {
        let end = start + blocks;
        let mut removed = Vec::new();
        let touched: Vec<u64> = self.keys_over(start, end);
        for key in touched {
            let (blocks, value) = self.runs.remove(&key).expect("the key was just found");
            let run = Run { start: key, blocks, value };
            if let Some(head) = run.within(0, start) {
                self.runs.insert(head.start, (head.blocks, head.value));
            }
            if let Some(tail) = run.within(end, u64::MAX) {
                self.runs.insert(tail.start, (tail.blocks, tail.value));
            }
            removed.extend(run.within(start, end));
        }
        removed
    }

    /// The values of these blocks, cut at both ends, in order.
    pub fn over(&self, start: u64, blocks: u64) -> Vec<Run<T>> {
        let end = start + blocks;
        let run = |key: u64| self.get(key).and_then(|run| run.within(start, end));
        self.keys_over(start, end).into_iter().filter_map(run).collect()
    }

    /// All ranges in order.
    pub fn iter(&self) -> impl Iterator<Item = Run<&T>> {
        self.runs.iter().map(|(start, (blocks, value))| Run { start: *start, blocks: *blocks, value })
    }

    /// Keeps the ranges of which `keep` says so.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.runs.retain(|_, (_, value)| keep(value));
    }

    fn get(&self, key: u64) -> Option<Run<T>> {
        self.runs.get(&key).map(|(blocks, value)| Run { start: key, blocks: *blocks, value: value.clone() })
    }

    fn keys_over(&self, start: u64, end: u64) -> Vec<u64> {
        if start >= end {
            return Vec::new();
        }
        let before = self.runs.range(..start).next_back();
        let before = before.filter(|(key, (blocks, _))| **key + *blocks > start).map(|(key, _)| *key);
        before.into_iter().chain(self.runs.range(start..end).map(|(key, _)| *key)).collect()
    }
}

/// The gaps that `runs`, which are in order, leave in these blocks.
pub fn gaps<T>(runs: &[Run<T>], start: u64, blocks: u64) -> Vec<(u64, u64)> {
    let mut at = start;
    let mut gaps = Vec::new();
    for run in runs {
        if run.start > at {
            gaps.push((at, run.start - at));
        }
        at = run.end();
    }
    if at < start + blocks {
        gaps.push((at, start + blocks - at));
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of a value, and the blocks in front of this part of it.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct From(u64, u64);

    impl Part for From {
        fn part(&self, skip: u64) -> From {
            From(self.0, self.1 + skip)
        }
    }

    #[test]
    fn ranges_agree_with_a_list_of_blocks() {
        let mut ranges = Ranges::default();
        let mut model = vec![None; 64];
        let mut random = 1u64;
        for stamp in 0..4000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (start, blocks) = ((random >> 20) % 60, (random >> 40) % 5);
            let blocks = blocks.min(64 - start);
            let value = (random >> 60 > 3).then_some(From(stamp, 0));
            let before = match value {
                Some(value) => ranges.insert(start, blocks, value),
                None => ranges.remove(start, blocks),
            };
            let told: u64 = before.iter().map(|run| run.blocks).sum();
            let had = model[start as usize..(start + blocks) as usize].iter().flatten().count();
            assert_eq!(told, had as u64);
            for block in 0..blocks {
                model[(start + block) as usize] = value.map(|value: From| value.part(block));
            }
            let mut seen = vec![None; 64];
            for run in ranges.over(0, 64) {
                for block in 0..run.blocks {
                    seen[(run.start + block) as usize] = Some(run.value.part(block));
                }
            }
            assert_eq!(seen, model);
            let missing: u64 = gaps(&ranges.over(7, 40), 7, 40).iter().map(|(_, blocks)| blocks).sum();
            assert_eq!(missing, model[7..47].iter().filter(|value| value.is_none()).count() as u64);
        }
    }
}
