//! Pieces and shards as they are read: by ranges of segments, checked, and kept in a bounded cache. What is on its way
//! from the store is bounded too, apart for readers and for what is read ahead, so that no reader waits for the latter.

use crate::ahead::Source;
use crate::bytes_of::{Digest, digest};
use crate::failures::Failures;
use crate::local::{Kept, LocalFile, cache};
use crate::ranges::Run;
use crate::room::{FOR_READERS, Room, Taken};
use crate::table::{BLOCK, Piece, Place, Shard, Table, segment_key};
use butterfs_store::{Error, Kind, Result, Store};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Bytes of the longest range that is asked for at once: what is read ahead in one go.
const MOST_AT_ONCE: u64 = 8 << 20;
/// Ranges that one read asks for at the same time.
const RANGES_AT_ONCE: usize = 4;
/// Bytes of decoded shards that are kept.
const SHARD_CACHE: u64 = 64 << 20;

/// The place of a piece: the mount that put its segment, segment and byte.
type Spot = (u64, u64, u32);

#[derive(Clone)]
struct ByBytes;

impl Weighter<Spot, Kept> for ByBytes {
    fn weight(&self, _: &Spot, kept: &Kept) -> u64 {
        kept.room() + 100
    }
}

impl Weighter<Spot, Arc<Shard>> for ByBytes {
    fn weight(&self, _: &Spot, shard: &Arc<Shard>) -> u64 {
        (shard.runs.len() * size_of::<Run<Piece>>()) as u64 + 100
    }
}

/// A piece and the mount that put its segment. Both are of one moment: a later map may not have the segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stored {
    /// The piece.
    pub piece: Piece,
    /// The mount that put its segment.
    pub writer: u64,
}

impl Stored {
    fn spot(&self) -> Spot {
        (self.writer, self.piece.segment, self.piece.at)
    }
}

/// See the [module](self).
pub struct Pieces {
    store: Store,
    room: Arc<Room>,
    shared: Arc<Shared>,
}

/// The part that is the same for readers and for what is read ahead.
struct Shared {
    cache: Cache<Spot, Kept, ByBytes>,
    /// The file for what is kept, if it is not memory.
    file: Option<Arc<LocalFile>>,
    shards: Cache<Spot, Arc<Shard>, ByBytes>,
    /// Pieces that some thread is asking for.
    asked: Mutex<HashSet<Spot>>,
    answered: Condvar,
    failed: Failures<Spot>,
    requests: AtomicU64,
}

impl Pieces {
    /// With a cache of so many bytes, in a file or in memory.
    pub fn new(store: Store, cache_bytes: u64, file: Option<Arc<LocalFile>>) -> Pieces {
        let pieces = (cache_bytes / (16 * BLOCK)).max(64);
        let shared = Shared {
            cache: cache(pieces, cache_bytes, ByBytes),
            file,
            shards: Cache::with_weighter(1024, SHARD_CACHE, ByBytes),
            asked: Mutex::default(),
            answered: Condvar::new(),
            failed: Failures::default(),
            requests: AtomicU64::new(0),
        };
        Pieces { store, room: Arc::new(Room::new(FOR_READERS)), shared: Arc::new(shared) }
    }

    /// The same pieces for reading ahead.
    pub fn ahead(&self, source: &Source) -> Pieces {
        Pieces { store: source.store.clone(), room: source.room.clone(), shared: self.shared.clone() }
    }

    /// The most bytes that were on their way at one time.
    pub fn most_on_the_way(&self) -> u64 {
        self.room.most_used()
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// How many ranges were asked for.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// The file for what is kept, if it is not memory.
    pub fn file(&self) -> Option<&Arc<LocalFile>> {
        self.shared.file.as_ref()
    }

    /// Takes note of a piece that was just put.
    pub fn keep(&self, stored: &Stored, bytes: &Bytes) {
        let kept = Kept::new(bytes, self.shared.file.as_ref());
        kept.into_iter().for_each(|kept| self.shared.cache.insert(stored.spot(), kept));
    }

    /// A piece from the cache.
    fn kept(&self, stored: &Stored) -> Option<Bytes> {
        let piece = &stored.piece;
        let kept = self.shared.cache.get(&stored.spot()).filter(|kept| kept.len() as u64 == piece.bytes())?;
        // The store still has what a disk cannot give back.
        kept.read().ok().filter(|bytes| !kept.is_on_disk() || digest(bytes) == piece.digest)
    }

    /// The shard at a place, whose blocks are `span`.
    pub fn shard(&self, place: &Place, index: u32, table: &Table) -> Result<Arc<Shard>> {
        let writer = table.segments.get(&place.segment).map_or(0, |segment| segment.writer);
        let spot = (writer, place.segment, place.at);
        if let Some(shard) = self.shared.shards.get(&spot) {
            return Ok(shard);
        }
        let key = segment_key(writer, place.segment);
        let range = u64::from(place.at)..u64::from(place.at) + u64::from(place.len);
        let bytes = self.checked_range(&key, range, &place.digest)?;
        let shard = Shard::decode(&bytes, table.span(index), table);
        let shard = Arc::new(shard.ok_or_else(|| self.damaged(&key, "has a part of the map that breaks its rules"))?);
        self.shared.shards.insert(spot, shard.clone());
        Ok(shard)
    }

    /// A range of an object with this digest.
    pub fn checked_range(&self, key: &str, range: std::ops::Range<u64>, wanted: &Digest) -> Result<Bytes> {
        self.shared.requests.fetch_add(1, Ordering::Relaxed);
        let shown = format!("bytes {} to {} are not those that were put", range.start, range.end);
        let _room = self.room.take(range.end - range.start)?;
        let bytes = self.store.get_range(key, range)?;
        if digest(&bytes) == *wanted { Ok(bytes) } else { Err(self.damaged(key, &shown)) }
    }

    /// An error that names an object and the rule that it breaks.
    pub fn damaged(&self, key: &str, rule: &str) -> Error {
        Error::new(Kind::Damaged, format!("{}: {rule}", self.store.shown(key)))
    }

    /// All blocks of each of these pieces, in their order.
    pub fn get(&self, pieces: &[Stored]) -> Result<Vec<Bytes>> {
        let begun = Instant::now();
        let mut found: Vec<Option<Bytes>> = vec![None; pieces.len()];
        loop {
            let mut missing: Vec<Stored> = Vec::new();
            for (stored, slot) in pieces.iter().zip(&mut found) {
                if slot.is_none() {
                    *slot = self.kept(stored);
                }
                if slot.is_none() {
                    missing.push(*stored);
                }
            }
            if missing.is_empty() {
                return Ok(found.into_iter().flatten().collect());
            }
            if let Some(error) = self.shared.failed.since(begun, missing.iter().map(Stored::spot)) {
                return Err(error);
            }
            let claimed = self.shared.claim(&missing);
            if claimed.is_empty() {
                self.shared.await_answer(&missing);
                continue;
            }
            let fetched = butterfs_store::each(&claimed, RANGES_AT_ONCE, |group| {
                let claimed = group.lock().take().expect("each is taken once");
                self.fetch(claimed)
            })?;
            for (stored, bytes) in fetched.into_iter().flatten() {
                for (wanted, slot) in pieces.iter().zip(&mut found) {
                    if wanted.spot() == stored.spot() {
                        *slot = Some(bytes.clone());
                    }
                }
            }
        }
    }

    /// Brings those of the pieces into the cache that are not there and not on their way.
    pub fn bring(&self, pieces: &[Stored]) -> Result<()> {
        let is_missing = |stored: &&Stored| self.shared.cache.peek(&stored.spot()).is_none();
        let groups = grouped(pieces.iter().filter(is_missing).copied().collect());
        let bring = |group: &Vec<Stored>| -> Result<()> {
            // A reader that needs one of them meanwhile does not wait for room here.
            let _room = self.room_for(group)?;
            for claimed in self.shared.claim(group) {
                self.fetch_now(claimed.into_inner().expect("it is new"))?;
            }
            Ok(())
        };
        butterfs_store::each(&groups, RANGES_AT_ONCE, bring).map(drop)
    }

    fn room_for(&self, group: &[Stored]) -> Result<Taken<'_>> {
        self.room.take(group.iter().map(|stored| stored.piece.bytes()).sum())
    }

    /// Pieces that follow each other, which are in the cache then.
    fn fetch(&self, claimed: Claimed<'_>) -> Result<Vec<(Stored, Bytes)>> {
        let _room = self.room_for(&claimed.pieces)?;
        self.fetch_now(claimed)
    }

    fn fetch_now(&self, claimed: Claimed<'_>) -> Result<Vec<(Stored, Bytes)>> {
        let read = self.read(&claimed.pieces).inspect_err(|error| {
            if error.kind() != Kind::Cancelled {
                self.shared.failed.note(claimed.pieces.iter().map(Stored::spot), error);
            }
        })?;
        read.iter().for_each(|(stored, bytes)| self.keep(stored, bytes));
        Ok(read)
    }

    /// Pieces that follow each other, from the store.
    fn read(&self, group: &[Stored]) -> Result<Vec<(Stored, Bytes)>> {
        let first = &group[0].piece;
        let key = segment_key(group[0].writer, first.segment);
        self.shared.requests.fetch_add(1, Ordering::Relaxed);
        let lens: Vec<usize> = group.iter().map(|stored| stored.piece.bytes() as usize).collect();
        // A part of one answer would keep all of it in memory.
        let read = self.store.get_runs(&key, first.at.into(), &lens)?;
        for (Stored { piece, .. }, bytes) in group.iter().zip(&read) {
            if digest(bytes) != piece.digest {
                let to = u64::from(piece.at) + piece.bytes();
                return Err(self.damaged(&key, &format!("bytes {} to {to} are not those that were put", piece.at)));
            }
        }
        Ok(group.iter().copied().zip(read).collect())
    }
}

/// Groups of pieces that follow each other and are asked for at once.
fn grouped(mut pieces: Vec<Stored>) -> Vec<Vec<Stored>> {
    pieces.sort_unstable_by_key(Stored::spot);
    pieces.dedup_by_key(|stored| stored.spot());
    let mut groups: Vec<Vec<Stored>> = Vec::new();
    for stored in pieces {
        let Stored { piece, writer } = stored;
        let follows = |group: &Vec<Stored>| {
            let (first, last) = (&group[0].piece, &group[group.len() - 1].piece);
            let end = u64::from(last.at) + last.bytes();
            let is_next = (group[0].writer, last.segment, end) == (writer, piece.segment, u64::from(piece.at));
            is_next && end + piece.bytes() - u64::from(first.at) <= MOST_AT_ONCE
        };
        match groups.last_mut().filter(|group| follows(group)) {
            Some(group) => group.push(stored),
            None => groups.push(vec![stored]),
        }
    }
    groups
}

/// Pieces that follow each other, which one thread asks for and no other.
struct Claimed<'a> {
    owner: &'a Shared,
    pieces: Vec<Stored>,
}

impl Shared {
    /// Those of the pieces that no other thread asks for, in groups that are asked for at once.
    fn claim(&self, pieces: &[Stored]) -> Vec<Mutex<Option<Claimed<'_>>>> {
        let mut asked = self.asked.lock();
        let pieces = pieces.iter().filter(|stored| asked.insert(stored.spot())).copied().collect();
        drop(asked);
        let claimed = |pieces| Mutex::new(Some(Claimed { owner: self, pieces }));
        grouped(pieces).into_iter().map(claimed).collect()
    }

    /// Waits for an answer to another thread, unless none asks for any of these pieces.
    fn await_answer(&self, pieces: &[Stored]) {
        let mut asked = self.asked.lock();
        if pieces.iter().any(|stored| asked.contains(&stored.spot())) {
            self.answered.wait(&mut asked);
        }
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        let mut asked = self.owner.asked.lock();
        for stored in &self.pieces {
            asked.remove(&stored.spot());
        }
        self.owner.answered.notify_all();
    }
}
