//! Segments: objects of bounded size that hold pieces one after the other, named by the digest of their bytes.
//!
//! ```text
//! key     = segments/ two-hex-digits / 64-hex-digits
//! segment = "BFSEGM1\n" stored-piece…
//! ```

use crate::digest::Digest;
use crate::keys::Keys;
use crate::piece::{self, Encoder};
use crate::repository::Repository;
use butterfs_store::{Error, Kind, Result, Store};
use bytes::Bytes;
use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// The first bytes of every segment.
pub const MAGIC: &[u8; 8] = b"BFSEGM1\n";
/// A segment with so many bytes is full.
pub const SEGMENT_BYTES: usize = 8 << 20;
/// One with so many pieces is full too.
const SEGMENT_PIECES: usize = 1 << 16;
/// No segment is longer: one more piece, the codecs, and the magic.
pub const MAX_SEGMENT: u64 = 4 * SEGMENT_BYTES as u64;
/// Threads that compress and put segments.
const WORKERS: usize = 6;
/// Segments that are handed over and not acknowledged, at most.
const ON_WAY: usize = 8;

/// The key of a segment.
pub fn key(name: &Digest) -> String {
    let hex = name.to_string();
    format!("segments/{}/{hex}", &hex[..2])
}

/// The segment that a key names.
pub fn name_of(key: &str) -> Option<Digest> {
    let hex = key.strip_prefix("segments/")?.split_once('/')?.1;
    Digest::from_hex(hex)
}

/// Names of all segments in a store.
pub fn all(store: &Store) -> Result<HashSet<Digest>> {
    Ok(store.list("segments")?.iter().filter_map(|entry| name_of(&entry.key)).collect())
}

/// Names and lengths of all segments in a store.
pub fn lengths(store: &Store) -> Result<Vec<(Digest, u64)>> {
    Ok(store.list("segments")?.iter().filter_map(|entry| Some((name_of(&entry.key)?, entry.len))).collect())
}

/// How a segment ended: its name, and the place of each piece.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The segment.
    pub name: Digest,
    /// Offset and stored bytes of each piece, in the order in which they were given.
    pub pieces: Vec<(u32, u32)>,
}

/// A segment that is being filled: raw pieces, each with room for what is added when it is stored.
///
/// In one buffer, in which the stored pieces replace the raw ones: where nothing is compressed or sealed, the raw bytes
/// stay in their places.
#[derive(Default)]
pub struct Filling {
    bytes: Vec<u8>,
    /// The range of each piece's raw bytes in `bytes`.
    pieces: Vec<(u32, u32)>,
    room: usize,
}

impl Filling {
    /// An empty one in memory that is used again.
    pub fn new(keys: Option<&Keys>, mut bytes: Vec<u8>) -> Filling {
        bytes.clear();
        bytes.reserve(SEGMENT_BYTES + SEGMENT_BYTES / 32);
        bytes.extend_from_slice(MAGIC);
        Filling { bytes, pieces: Vec::new(), room: piece::most_added(keys) }
    }

    /// Begins a piece.
    pub fn begin(&mut self) {
        self.bytes.resize(self.bytes.len() + self.room, 0);
        self.pieces.push((self.bytes.len() as u32, self.bytes.len() as u32));
    }

    /// Appends raw bytes to the last piece.
    pub fn append(&mut self, raw: &[u8]) {
        self.bytes.extend_from_slice(raw);
        self.pieces.last_mut().expect("a piece was begun").1 = self.bytes.len() as u32;
    }

    /// Whether it should be handed over.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= SEGMENT_BYTES || self.pieces.len() >= SEGMENT_PIECES
    }

    /// How many pieces there are.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// The raw bytes of the last piece.
    pub fn last(&self) -> &[u8] {
        self.pieces.last().map_or(&[], |piece| &self.bytes[range(*piece)])
    }

    /// Takes the last piece out.
    pub fn take_back(&mut self) {
        if let Some((begin, _)) = self.pieces.pop() {
            self.bytes.truncate(begin as usize - self.room);
        }
    }

    /// The bytes of the segment, with offset and stored length of each piece.
    fn assemble(self, encoder: &mut Encoder, keys: Option<&Keys>) -> (Vec<u8>, Vec<(u32, u32)>) {
        let Filling { mut bytes, pieces, .. } = self;
        let mut places = Vec::with_capacity(pieces.len());
        let mut end = MAGIC.len();
        for raw in pieces.into_iter().map(range) {
            // A stored piece is at most `room` bytes longer than its raw bytes, so it does not reach the next one.
            let stored = match encoder.encode(&bytes[raw.clone()], keys) {
                Some(stored) => {
                    bytes[end..end + stored.len()].copy_from_slice(stored);
                    stored.len()
                }
                None => {
                    bytes[end] = 0;
                    if end + 1 != raw.start {
                        bytes.copy_within(raw.clone(), end + 1);
                    }
                    raw.len() + 1
                }
            };
            places.push((end as u32, stored as u32));
            end += stored;
        }
        bytes.truncate(end);
        (bytes, places)
    }
}

fn range((begin, end): (u32, u32)) -> Range<usize> {
    begin as usize..end as usize
}

/// Counts of segments and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Segments and bytes that were put.
    pub segments: u64,
    /// In bytes.
    pub bytes: u64,
    /// Segments that the store had already.
    pub found: u64,
}

impl Sent {
    /// Counts more.
    pub fn add(&mut self, more: Sent) {
        self.segments += more.segments;
        self.bytes += more.bytes;
        self.found += more.found;
    }
}

/// Segments on their way, and where the others are.
#[derive(Default)]
struct State {
    full: VecDeque<(usize, Filling)>,
    /// Segments that are not acknowledged yet.
    on_way: usize,
    /// Memory of segments that were acknowledged: memory that is new costs the kernel more than filling it.
    spare: Vec<Vec<u8>>,
    /// No further segment will come.
    is_complete: bool,
    placed: Vec<Option<Placed>>,
    sent: Sent,
    failed: Option<Error>,
}

struct Shared {
    repository: Repository,
    existing: Arc<HashSet<Digest>>,
    level: i32,
    state: Mutex<State>,
    changed: Condvar,
}

/// Compresses segments, names them, and puts them, several at a time. Memory is bounded: [`ON_WAY`] segments.
pub struct Uploads {
    workers: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
    begun: usize,
}

impl Uploads {
    /// Workers for a store that has these segments already. Level 0 does not compress.
    pub fn new(repository: &Repository, existing: HashSet<Digest>, level: i32) -> Uploads {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let existing = Arc::new(existing);
        let shared = Arc::new(Shared { repository: repository.clone(), existing, level, state, changed });
        let worker = |_| {
            let shared = shared.clone();
            std::thread::spawn(move || shared.work())
        };
        Uploads { workers: (0..WORKERS).map(worker).collect(), shared, begun: 0 }
    }

    /// Hands over a segment; returns its number. Waits while too many are on their way.
    pub fn begin(&mut self, filled: Filling) -> Result<usize> {
        let mut state = self.shared.lock();
        while state.on_way >= ON_WAY && state.failed.is_none() {
            state = self.shared.changed.wait(state).expect(LOCK);
        }
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let number = self.begun;
        self.begun += 1;
        state.on_way += 1;
        state.placed.push(None);
        state.full.push_back((number, filled));
        self.shared.changed.notify_all();
        Ok(number)
    }

    /// Memory for a segment that will be filled.
    pub fn spare(&self) -> Vec<u8> {
        self.shared.lock().spare.pop().unwrap_or_default()
    }

    /// Segments that were handed over; the number of the next one.
    pub fn begun(&self) -> usize {
        self.begun
    }

    /// Segments and bytes that were sent until now.
    pub fn sent(&self) -> Sent {
        self.shared.lock().sent
    }

    /// Waits until everything is acknowledged; returns where each segment's pieces are, by number, what was sent, and
    /// the segments that were there before.
    pub fn finish(mut self) -> Result<(Vec<Placed>, Sent, Arc<HashSet<Digest>>)> {
        self.complete();
        for worker in self.workers.drain(..) {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        let mut state = self.shared.lock();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let placed = std::mem::take(&mut state.placed).into_iter();
        let placed = placed.map(|placed| placed.expect("no worker failed")).collect();
        Ok((placed, state.sent, self.shared.existing.clone()))
    }

    fn complete(&self) {
        self.shared.lock().is_complete = true;
        self.shared.changed.notify_all();
    }
}

/// Without [`Uploads::finish`] nobody needs the rest.
impl Drop for Uploads {
    fn drop(&mut self) {
        self.shared.fail(Error::new(Kind::Broken, "the put was given up"));
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

const LOCK: &str = "no thread panics with the lock";

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect(LOCK)
    }

    fn fail(&self, error: Error) {
        self.lock().failed.get_or_insert(error);
        self.changed.notify_all();
    }

    /// Makes segments of full ones and puts them, until there is none or one fails.
    fn work(&self) {
        let _panics = Panics(self);
        let mut encoder = Encoder::new(self.level);
        let mut state = self.lock();
        while state.failed.is_none() {
            let Some((number, filled)) = state.full.pop_front() else {
                if state.is_complete {
                    return;
                }
                state = self.changed.wait(state).expect(LOCK);
                continue;
            };
            drop(state);
            let (bytes, pieces) = filled.assemble(&mut encoder, self.repository.keys());
            let (name, bytes) = (Digest::of(&bytes), Bytes::from(bytes));
            let put = put(self.repository.store(), &name, bytes.clone(), &self.existing);
            state = self.lock();
            state.spare.extend(bytes.try_into_mut().map(Vec::from));
            match put {
                Ok(sent) => {
                    state.placed[number] = Some(Placed { name, pieces });
                    state.sent.add(sent);
                }
                Err(error) => {
                    state.failed.get_or_insert(error);
                }
            }
            state.on_way -= 1;
            self.changed.notify_all();
        }
    }
}

/// Ends the other workers when one panics.
struct Panics<'s>(&'s Shared);

impl Drop for Panics<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(Error::new(Kind::Broken, "a thread of the put panicked"));
        }
    }
}

/// Puts a segment that the store does not have.
pub fn put(store: &Store, name: &Digest, bytes: Bytes, existing: &HashSet<Digest>) -> Result<Sent> {
    if existing.contains(name) {
        return Ok(Sent { found: 1, ..Sent::default() });
    }
    let len = bytes.len() as u64;
    store.create(&key(name), bytes)?;
    Ok(Sent { segments: 1, bytes: len, found: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::piece::PieceRef;
    use butterfs_testkit::rng::Rng;

    /// Pieces that shrink and pieces that do not, with and without keys, of which some are taken out again.
    #[test]
    fn stored_pieces_replace_raw_ones_in_place() {
        let mut rng = Rng::new(1);
        let mut raw: Vec<Vec<u8>> = Vec::new();
        for number in 0..60 {
            let mut piece = vec![7; [1, 100, 5000, 131_072][number % 4] + number];
            if number % 3 > 0 {
                rng.fill(&mut piece);
            }
            if number % 3 > 1 {
                piece.extend_from_slice(&[0; 70_000]);
            }
            raw.push(piece);
        }
        let keys = Keys::of(&[5; 32]);
        for keys in [None, Some(&keys)] {
            let mut filling = Filling::new(keys, vec![9; 100]);
            let mut kept = Vec::new();
            for (number, piece) in raw.iter().enumerate() {
                filling.begin();
                piece.chunks(1000).for_each(|part| filling.append(part));
                assert!(filling.last() == piece);
                if number % 5 == 1 {
                    filling.take_back();
                } else {
                    kept.push(piece);
                }
            }
            assert_eq!(filling.pieces(), kept.len());
            let (bytes, places) = filling.assemble(&mut Encoder::new(3), keys);
            let total: usize = kept.iter().map(|piece| piece.len()).sum();
            assert!(bytes.starts_with(MAGIC) && bytes.len() < total * 3 / 4, "{} of {total}", bytes.len());
            let bytes = Bytes::from(bytes);
            let reference = |(piece, (offset, stored)): (&&Vec<u8>, &(u32, u32))| {
                let digest = piece::digest(piece, keys);
                PieceRef { offset: *offset, stored: *stored, raw: piece.len() as u32, digest, ..PieceRef::default() }
            };
            let references: Vec<PieceRef> = kept.iter().zip(&places).map(reference).collect();
            let stored = |at: &PieceRef| bytes.slice(at.offset as usize..(at.offset + at.stored) as usize);
            for (at, piece) in references.iter().zip(kept) {
                assert!(piece::load(stored(at), at, keys).unwrap() == piece);
                let wrong = PieceRef { digest: Digest::default(), ..*at };
                assert!(piece::load(stored(at), &wrong, keys).unwrap_err().contains("digest"));
            }
        }
    }
}
