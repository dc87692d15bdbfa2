//! Segments: objects of bounded size that hold pieces one after the other, named by the digest of their bytes.
//!
//! ```text
//! key     = segments/ two-hex-digits / 64-hex-digits
//! segment = "BFSEGM1\n" stored-piece…
//! ```

use crate::digest::Digest;
use crate::piece;
use crate::repository::Repository;
use butterfs_store::{Result, Store};
use std::collections::HashSet;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// The first bytes of every segment.
pub const MAGIC: &[u8; 8] = b"BFSEGM1\n";
/// A segment with so many raw bytes is complete.
pub const SEGMENT_BYTES: usize = 8 << 20;
/// No segment is longer: one more piece, the codecs, and the magic.
pub const MAX_SEGMENT: u64 = 4 * SEGMENT_BYTES as u64;
/// Threads that compress and put segments.
const WORKERS: usize = 4;

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

/// A segment that waits: its number, and the raw pieces.
struct Job {
    number: usize,
    pieces: Vec<Vec<u8>>,
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

#[derive(Default)]
struct Shared {
    placed: Mutex<(Vec<Option<Placed>>, Sent)>,
    failed: Mutex<Option<butterfs_store::Error>>,
}

/// Compresses segments and puts them, several at a time, with bounded memory: a segment for each worker and one for
/// each that waits.
pub struct Uploads {
    jobs: Option<SyncSender<Job>>,
    workers: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
    existing: Arc<HashSet<Digest>>,
    begun: usize,
}

impl Uploads {
    /// Workers for a store that has these segments already. Level 0 does not compress.
    pub fn new(repository: &Repository, existing: HashSet<Digest>, level: i32) -> Uploads {
        let (jobs, receiver) = sync_channel::<Job>(1);
        let receiver = Arc::new(Mutex::new(receiver));
        let shared = Arc::new(Shared::default());
        let existing = Arc::new(existing);
        let worker = |_| {
            let (repository, receiver, shared, existing) =
                (repository.clone(), receiver.clone(), shared.clone(), existing.clone());
            std::thread::spawn(move || work(&repository, &receiver, &shared, &existing, level))
        };
        Uploads { jobs: Some(jobs), workers: (0..WORKERS).map(worker).collect(), shared, existing, begun: 0 }
    }

    /// Hands over a segment; returns its number. Waits while the workers are busy.
    pub fn begin(&mut self, pieces: Vec<Vec<u8>>) -> Result<usize> {
        self.check()?;
        let number = self.begun;
        self.begun += 1;
        self.shared.placed.lock().expect(LOCK).0.push(None);
        let jobs = self.jobs.as_ref().expect("the workers run until they are waited for");
        if jobs.send(Job { number, pieces }).is_err() {
            self.check()?;
        }
        Ok(number)
    }

    /// Segments that were handed over; the number of the next one.
    pub fn begun(&self) -> usize {
        self.begun
    }

    /// Segments and bytes that were sent until now.
    pub fn sent(&self) -> Sent {
        self.shared.placed.lock().expect(LOCK).1
    }

    /// Waits until everything is acknowledged; returns where each segment's pieces are, by number, what was sent, and
    /// the segments that were there before.
    pub fn finish(mut self) -> Result<(Vec<Placed>, Sent, Arc<HashSet<Digest>>)> {
        self.join();
        self.check()?;
        let (placed, sent) = std::mem::take(&mut *self.shared.placed.lock().expect(LOCK));
        let placed = placed.into_iter().map(|placed| placed.expect("no worker failed")).collect();
        Ok((placed, sent, self.existing.clone()))
    }

    fn check(&self) -> Result<()> {
        let failed = self.shared.failed.lock().expect(LOCK).clone();
        failed.map_or(Ok(()), Err)
    }

    fn join(&mut self) {
        self.jobs = None;
        self.workers.drain(..).for_each(|worker| {
            if let Err(panic) = worker.join() {
                std::panic::resume_unwind(panic);
            }
        });
    }
}

impl Drop for Uploads {
    fn drop(&mut self) {
        self.jobs = None;
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

const LOCK: &str = "no thread panics with the lock";

fn work(repository: &Repository, jobs: &Mutex<Receiver<Job>>, shared: &Shared, existing: &HashSet<Digest>, level: i32) {
    loop {
        let job = jobs.lock().expect(LOCK).recv();
        let Ok(Job { number, pieces }) = job else { return };
        if shared.failed.lock().expect(LOCK).is_some() {
            continue;
        }
        let (bytes, places) = assemble(repository, &pieces, level);
        drop(pieces);
        let name = Digest::of(&bytes);
        match put(repository.store(), &name, bytes, existing) {
            Ok(sent) => {
                let mut placed = shared.placed.lock().expect(LOCK);
                placed.0[number] = Some(Placed { name, pieces: places });
                placed.1.segments += sent.segments;
                placed.1.bytes += sent.bytes;
                placed.1.found += sent.found;
            }
            Err(error) => {
                shared.failed.lock().expect(LOCK).get_or_insert(error);
            }
        }
    }
}

/// The bytes of a segment, with offset and stored length of each piece.
fn assemble(repository: &Repository, pieces: &[Vec<u8>], level: i32) -> (Vec<u8>, Vec<(u32, u32)>) {
    let mut bytes = MAGIC.to_vec();
    let mut places = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let offset = bytes.len() as u32;
        places.push((offset, piece::store(piece, level, repository.keys(), &mut bytes)));
    }
    (bytes, places)
}

/// Puts a segment that the store does not have.
pub fn put(store: &Store, name: &Digest, bytes: Vec<u8>, existing: &HashSet<Digest>) -> Result<Sent> {
    if existing.contains(name) {
        return Ok(Sent { found: 1, ..Sent::default() });
    }
    let len = bytes.len() as u64;
    store.create(&key(name), bytes)?;
    Ok(Sent { segments: 1, bytes: len, found: 0 })
}
