//! Where new tree blocks go: into space that nothing uses, by any root that can still be reached.
//!
//! Invariants: (1) what a tree of the last commit, of a backup root or of a log uses is never handed out; (2) nothing
//! is handed out twice, unless it was given back; (3) superblock copies are left out.

use crate::ranges::Ranges;
use butterfs_ondisk::Logical;
use butterfs_volume::ChunkMap;
use std::collections::BTreeMap;

/// The allocator of a repair.
#[derive(Debug, Default)]
pub(crate) struct Space {
    /// Space that must not be overwritten.
    pub busy: Ranges,
    /// Blocks of this repair that are not needed any more: chunk flag and address.
    given_back: Vec<(u64, u64)>,
    /// By chunk flag: start of the chunk that is being filled, and the address below which to look on.
    filling: BTreeMap<u64, (u64, u64)>,
}

impl Space {
    /// Leaves the superblock copies out.
    pub fn exclude_superblocks(&mut self, map: &ChunkMap) {
        for chunk in map.iter() {
            for range in map.superblock_exclusions(chunk) {
                self.busy.insert(range.start.get()..range.end.get());
            }
        }
    }

    /// A place for a block in a chunk with the flag `kind`: the last free one of the chunk in which most is free.
    pub fn allocate(&mut self, map: &ChunkMap, kind: u64, nodesize: u64) -> Option<Logical> {
        if let Some(index) = self.given_back.iter().position(|(flag, _)| *flag == kind) {
            let (_, at) = self.given_back.swap_remove(index);
            return Some(Logical(at));
        }
        if let Some(&(start, end)) = self.filling.get(&kind)
            && let Some(at) = self.last_free(start, end, nodesize)
        {
            return Some(self.hand_out(kind, start, at, nodesize));
        }
        let free = |start: u64, end: u64| (end - start) - self.busy.bytes_within(start..end);
        let mut chunks: Vec<(u64, u64, u64)> = map
            .iter()
            .filter(|chunk| chunk.kind & kind != 0)
            .map(|chunk| (free(chunk.start.get(), chunk.end().get()), chunk.start.get(), chunk.end().get()))
            .collect();
        chunks.sort_unstable_by(|a, b| b.cmp(a));
        let found = |(_, start, end)| Some((start, self.last_free(start, end, nodesize)?));
        let (start, at) = chunks.into_iter().find_map(found)?;
        Some(self.hand_out(kind, start, at, nodesize))
    }

    fn hand_out(&mut self, kind: u64, start: u64, at: u64, nodesize: u64) -> Logical {
        self.filling.insert(kind, (start, at));
        self.busy.insert(at..at + nodesize);
        Logical(at)
    }

    fn last_free(&self, start: u64, end: u64, nodesize: u64) -> Option<u64> {
        let mut at = (end / nodesize * nodesize).checked_sub(nodesize)?;
        while at >= start {
            match self.busy.last_overlap(at..at + nodesize) {
                None => return Some(at),
                Some(run) => at = (run.start / nodesize * nodesize).checked_sub(nodesize)?,
            }
        }
        None
    }

    /// Takes a block of this repair back.
    pub fn give_back(&mut self, kind: u64, at: Logical) {
        self.given_back.push((kind, at.get()));
    }
}
