//! The chunk map: which chunk holds a logical address. A value; whoever changes it makes a new one and swaps it in.

use crate::layout::Layout;
use butterfs_ondisk::Logical;
use butterfs_ondisk::chunk::Chunk;
use std::fmt;
use std::sync::Arc;

/// All chunks, in the order of their addresses.
///
/// # Invariants
/// 1. Chunks do not overlap.
/// 2. Every chunk has a [`Layout`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkMap {
    chunks: Vec<Arc<Chunk>>,
}

/// Why a chunk cannot be in a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkMapError(String);

impl ChunkMapError {
    pub(crate) fn new(rule: String) -> ChunkMapError {
        ChunkMapError(rule)
    }
}

impl fmt::Display for ChunkMapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ChunkMapError {}

impl ChunkMap {
    /// A map without chunks.
    pub fn new() -> ChunkMap {
        ChunkMap::default()
    }

    /// A map of these chunks, in any order. A chunk that is there twice and maps alike counts once.
    pub fn from_chunks(chunks: impl IntoIterator<Item = Chunk>) -> Result<ChunkMap, ChunkMapError> {
        let mut sorted: Vec<Arc<Chunk>> = chunks.into_iter().map(Arc::new).collect();
        sorted.sort_by_key(|chunk| chunk.start);
        sorted.dedup_by(|second, first| first.maps_like(second));
        sorted.iter().try_for_each(|chunk| check_shape(chunk))?;
        match sorted.windows(2).find(|pair| pair[0].end() > pair[1].start) {
            None => Ok(ChunkMap { chunks: sorted }),
            Some(pair) => Err(overlap(&pair[0], &pair[1])),
        }
    }

    /// The chunk that holds this address.
    pub fn get(&self, at: Logical) -> Option<&Chunk> {
        let after = self.chunks.partition_point(|chunk| chunk.start <= at);
        let chunk = self.chunks.get(after.checked_sub(1)?)?;
        (at < chunk.end()).then_some(chunk)
    }

    /// The chunk that holds all of `len` bytes at `at`.
    pub fn get_range(&self, at: Logical, len: u64) -> Option<&Chunk> {
        let chunk = self.get(at)?;
        (len <= chunk.end().0 - at.0).then_some(chunk)
    }

    /// Adds a chunk. It must not overlap another one, and its shape must fit its profile.
    pub fn insert(&mut self, chunk: Chunk) -> Result<(), ChunkMapError> {
        check_shape(&chunk)?;
        let index = self.chunks.partition_point(|other| other.start <= chunk.start);
        let before = index.checked_sub(1).map(|index| &self.chunks[index]);
        if let Some(other) = before.filter(|other| other.end() > chunk.start) {
            return Err(overlap(other, &chunk));
        }
        if let Some(other) = self.chunks.get(index).filter(|other| other.start < chunk.end()) {
            return Err(overlap(&chunk, other));
        }
        self.chunks.insert(index, Arc::new(chunk));
        Ok(())
    }

    /// Removes the chunk that starts at `start` and returns it.
    pub fn remove(&mut self, start: Logical) -> Option<Arc<Chunk>> {
        let index = self.chunks.binary_search_by_key(&start, |chunk| chunk.start).ok()?;
        Some(self.chunks.remove(index))
    }

    /// All chunks, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Chunk> + ExactSizeIterator {
        self.chunks.iter().map(|chunk| &**chunk)
    }

    /// Chunks.
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
}

fn check_shape(chunk: &Chunk) -> Result<(), ChunkMapError> {
    match Layout::of(chunk) {
        Ok(_) => Ok(()),
        Err(rule) => Err(ChunkMapError(format!("chunk {}: {rule}", chunk.start))),
    }
}

fn overlap(first: &Chunk, second: &Chunk) -> ChunkMapError {
    ChunkMapError(format!("chunk {} ends at {}, after chunk {} begins", first.start, first.end(), second.start))
}

#[cfg(test)]
mod tests;
