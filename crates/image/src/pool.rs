//! Threads that compress and checksum pieces of files, with results in the order of the pieces.
//!
//! # Invariants
//! 1. The results do not depend on the number of threads: each piece is encoded alone, and results leave in order.
//! 2. Whoever waits for a result works too, so that no thread is needed at all.
//! 3. What waits is bounded: [`Pool::put`] does not return while too much does.

use butterfs_fs::file::codec::Encoder;
use butterfs_fs::options::Method;
use butterfs_ondisk::ChecksumKind;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Bytes of pieces that go to a thread together.
const BATCH_BYTES: usize = 256 << 10;
/// Pieces that go to a thread together.
const BATCH_PIECES: usize = 256;
/// Largest content inside of an item without compression, as the kernel has it by default (`max_inline`).
pub const MAX_INLINE: usize = 2048;
/// Bytes of a sector.
pub const SECTOR: usize = 4096;

/// The settings that all pieces share.
#[derive(Clone, Copy, Debug)]
pub struct Encoding {
    /// The checksum of data.
    pub checksum: ChecksumKind,
    /// Most bytes of a content inside of an item.
    pub max_inline: usize,
}

/// A part of a file.
pub struct Piece {
    /// Whose it is; handed back.
    pub owner: u32,
    /// Where it begins in the file; handed back.
    pub at: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// How to compress it.
    pub method: Option<Method>,
    /// Whether it has checksums.
    pub checksums: bool,
    /// Whether it is the whole file and may lie inside of an item.
    pub may_be_inline: bool,
}

/// A part of a file as it is stored.
pub struct Packed {
    /// Whose it is.
    pub owner: u32,
    /// Where it begins in the file.
    pub at: u64,
    /// Its bytes before compression.
    pub len: u32,
    /// As stored: whole sectors, unless it goes into an item.
    pub stored: Vec<u8>,
    /// `btrfs_file_extent_item`'s `compression`.
    pub compression: u8,
    /// Whether it goes into an item.
    pub is_inline: bool,
    /// Checksums of the stored sectors.
    pub checksums: Option<Vec<u8>>,
}

type Batch = Vec<Piece>;
type Results = Vec<Packed>;

/// Where a batch's results arrive.
#[derive(Default)]
struct Slot(Mutex<Option<Results>>, Condvar);

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Batch, Arc<Slot>)>,
    is_closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    encoding: Encoding,
}

/// See the [module](self).
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    encoder: Encoder,
    /// Pieces that no thread has been given yet.
    batch: Batch,
    batch_bytes: usize,
    /// In order.
    running: VecDeque<Arc<Slot>>,
    most_running: usize,
}

impl Pool {
    /// A pool of `threads` threads, the caller among them.
    pub fn new(threads: usize, encoding: Encoding) -> Pool {
        let shared = Arc::new(Shared { queue: Mutex::default(), changed: Condvar::new(), encoding });
        let work = |shared: Arc<Shared>| move || work(&shared);
        let workers = (1..threads.max(1)).map(|_| std::thread::spawn(work(shared.clone()))).collect();
        Pool {
            shared,
            workers,
            encoder: Encoder::default(),
            batch: Batch::new(),
            batch_bytes: 0,
            running: VecDeque::new(),
            most_running: threads.max(1) * 4,
        }
    }

    /// The checksums of the sectors of `stored`.
    pub fn checksum(&self, stored: &[u8]) -> Vec<u8> {
        self.shared.encoding.checksum.digests(stored, SECTOR)
    }

    /// Adds a piece; returns results that are ready meanwhile, in the order of their pieces.
    pub fn put(&mut self, piece: Piece) -> Results {
        self.batch_bytes += piece.bytes.len();
        self.batch.push(piece);
        if self.batch_bytes >= BATCH_BYTES || self.batch.len() >= BATCH_PIECES {
            self.hand_over();
        }
        let mut results = Results::new();
        while self.running.len() > self.most_running {
            results.extend(self.wait_for_first());
        }
        results
    }

    /// The results of everything that was put and has not been returned.
    pub fn finish(&mut self) -> Results {
        self.hand_over();
        let mut results = Results::new();
        while !self.running.is_empty() {
            results.extend(self.wait_for_first());
        }
        results
    }

    fn hand_over(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let slot = Arc::<Slot>::default();
        self.running.push_back(slot.clone());
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        lock(&self.shared.queue).waiting.push_back((batch, slot));
        self.shared.changed.notify_one();
    }

    fn wait_for_first(&mut self) -> Results {
        let slot = self.running.pop_front().expect("the caller has looked");
        loop {
            if let Some(results) = lock(&slot.0).take() {
                return results;
            }
            let job = lock(&self.shared.queue).waiting.pop_front();
            match job {
                Some((batch, other)) => finish_batch(&mut self.encoder, &self.shared.encoding, batch, &other),
                None => {
                    let guard = slot.1.wait_while(lock(&slot.0), |results| results.is_none());
                    return guard.unwrap_or_else(PoisonError::into_inner).take().expect("waited for them");
                }
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut queue = lock(&self.shared.queue);
        queue.is_closed = true;
        queue.waiting.clear();
        drop(queue);
        self.shared.changed.notify_all();
        self.workers.drain(..).for_each(|worker| drop(worker.join()));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work(shared: &Shared) {
    let mut encoder = Encoder::default();
    loop {
        let guard =
            shared.changed.wait_while(lock(&shared.queue), |queue| queue.waiting.is_empty() && !queue.is_closed);
        let Some((batch, slot)) = guard.unwrap_or_else(PoisonError::into_inner).waiting.pop_front() else { return };
        finish_batch(&mut encoder, &shared.encoding, batch, &slot);
    }
}

fn finish_batch(encoder: &mut Encoder, encoding: &Encoding, batch: Batch, slot: &Slot) {
    let results = batch.into_iter().map(|piece| pack(encoder, encoding, piece)).collect();
    *lock(&slot.0) = Some(results);
    slot.1.notify_all();
}

fn pack(encoder: &mut Encoder, encoding: &Encoding, piece: Piece) -> Packed {
    let Piece { owner, at, bytes, method, checksums, may_be_inline } = piece;
    let len = bytes.len() as u32;
    let mut packed = Packed { owner, at, len, stored: bytes, compression: 0, is_inline: false, checksums: None };
    if may_be_inline && try_inline(encoder, encoding, method, &mut packed) {
        return packed;
    }
    if let Some(method) = method
        && let Some(stream) = encoder.compress(method, &packed.stored, SECTOR as u32)
    {
        (packed.stored, packed.compression) = (stream, method.algorithm.raw());
    }
    packed.stored.resize(packed.stored.len().next_multiple_of(SECTOR), 0);
    packed.checksums = checksums.then(|| encoding.checksum.digests(&packed.stored, SECTOR));
    packed
}

/// Puts a small file inside of an item if it fits: compressed where that is smaller.
fn try_inline(encoder: &mut Encoder, encoding: &Encoding, method: Option<Method>, packed: &mut Packed) -> bool {
    let len = packed.stored.len();
    if len > SECTOR || encoding.max_inline == 0 {
        return false;
    }
    if let Some(method) = method
        && let Some(stream) = encoder.compress_inline(method, &packed.stored, encoding.max_inline, SECTOR as u32)
    {
        (packed.stored, packed.compression, packed.is_inline) = (stream, method.algorithm.raw(), true);
    } else {
        packed.is_inline = len <= encoding.max_inline;
    }
    packed.is_inline
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_fs::options::Algorithm;

    fn results(threads: usize) -> Vec<(u32, u64, u8, bool, Vec<u8>)> {
        let mut pool = Pool::new(threads, Encoding { checksum: ChecksumKind::Crc32c, max_inline: MAX_INLINE });
        let mut out = Vec::new();
        for owner in 0..3000u32 {
            let bytes = (0..owner * 7 % 9000).map(|n| (n / 50 * owner) as u8).collect();
            let method = (owner % 3 > 0).then(|| Algorithm::Zstd.into());
            let piece = Piece { owner, at: 0, bytes, method, checksums: true, may_be_inline: owner % 5 > 0 };
            out.extend(pool.put(piece));
        }
        out.extend(pool.finish());
        out.into_iter().map(|it| (it.owner, it.at, it.compression, it.is_inline, it.stored)).collect()
    }

    #[test]
    fn results_do_not_depend_on_the_threads_and_come_in_order() {
        let alone = results(1);
        assert!(alone.iter().map(|it| it.0).eq(0..3000));
        assert!(alone.iter().any(|it| it.2 > 0 && it.3) && alone.iter().any(|it| it.2 > 0 && !it.3));
        for threads in [2, 3, 8] {
            assert!(results(threads) == alone, "{threads} threads");
        }
    }
}
