//! An open volume: writes collect in memory, go into segments, and become durable with a record of the log.
//!
//! Threads: a few put segments, one makes tables ([`checkpoint`](crate::checkpoint)), one says that the writer lives.
//! Every durable change is a conditional put: a record of the log has a key of its own, which must not
//! exist, and the root is replaced by its version. So a writer that another one has replaced notices at its next flush.

use crate::ahead;
use crate::local::Kept;
use crate::pieces::{Pieces, Stored};
use crate::ranges::{Run, gaps};
use crate::record::{Body, Record, record_key};
use crate::root::{Root, folder};
use crate::segment::Builder;
use crate::state::{Change, Failure, Held, Snapshot, State, Write, contents};
use crate::table::{BLOCK, PIECE_BLOCKS, Piece, SEGMENT_BYTES, Segment, Table, segment_key};
use butterfs_store::{Error, Kind, Result, Store, Version};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes that a record of the log holds itself; more go into segments first.
const MOST_INLINE: u64 = 256 << 10;
/// A new table is made after so many bytes of records, or with so many changed ranges.
const RECORD_BYTES_PER_TABLE: u64 = 32 << 20;
const CHANGES_PER_TABLE: usize = 64 << 10;
/// Blocks that one change makes zeros.
const MOST_CLEARED: u64 = 1 << 31;
/// Bytes of written blocks that are in memory where a file has those beyond.
pub const MEMORY: u64 = 64 << 20;
/// Segments that are put at the same time.
pub const PUTTERS: usize = 4;
/// How often a writer says that it lives.
pub const ALIVE_EVERY: Duration = Duration::from_secs(5);

/// How much of this machine a volume may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of written blocks that are in no segment yet; a write beyond waits.
    pub write_back: u64,
    /// Bytes of blocks that were read or written and are kept.
    pub cache: u64,
    /// For how long objects that older maps need are kept.
    pub keep: Duration,
    /// A new table is made after so many records of the log.
    pub records: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { write_back: 64 << 20, cache: 128 << 20, keep: Duration::from_secs(3600), records: 256 }
    }
}

/// The writer's side of a volume.
pub struct Writing {
    /// The random number of this mount.
    pub id: u64,
    /// The mounts that have written, counted.
    pub epoch: u64,
    /// The root as it was written last.
    pub root: Mutex<(Root, Version)>,
    /// One flush at a time.
    flushing: Mutex<()>,
}

/// See the [module](self).
pub struct Volume {
    /// The name of the volume in its store.
    pub name: String,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Segments and their cache.
    pub pieces: Arc<Pieces>,
    /// Changes that the map does not have.
    pub state: Mutex<State>,
    /// Something has changed in `state`.
    pub changed: Condvar,
    /// `None` where nothing can be written.
    pub writing: Option<Writing>,
    /// The limits.
    pub limits: Limits,
    /// Puts of segments and records.
    puts: AtomicU64,
}

/// The source of the content of blocks.
#[derive(Clone, Debug)]
pub enum Source {
    /// They are zeros.
    Zeros,
    /// They are blocks of a write, from `skip` on.
    Write {
        /// The write.
        write: Arc<Write>,
        /// Its blocks in front.
        skip: u64,
    },
    /// They are in a segment.
    Piece(Stored),
}

impl Writing {
    /// Of a mount that has become the writer with this root.
    pub fn new(id: u64, root: Root, version: Version) -> Writing {
        let epoch = root.epoch;
        Writing { id, epoch, root: Mutex::new((root, version)), flushing: Mutex::default() }
    }
}

impl Volume {
    /// A volume that was read up to this state.
    pub fn new(
        name: &str,
        uuid: [u8; 16],
        pieces: Arc<Pieces>,
        state: State,
        writing: Option<Writing>,
        limits: Limits,
    ) -> Volume {
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Volume { name: name.to_owned(), uuid, pieces, state, changed, writing, limits, puts: AtomicU64::new(0) }
    }

    /// The store.
    pub fn store(&self) -> &Store {
        self.pieces.store()
    }

    /// How the volume is named in messages.
    pub fn shown(&self) -> String {
        self.store().shown(&folder(&self.name))
    }

    /// The key of a record of the log.
    pub fn record_key(&self, epoch: u64, sequence: u64) -> String {
        record_key(&self.name, &self.uuid, epoch, sequence)
    }

    /// Puts of segments and records so far, and ranges that were asked for.
    pub fn requests(&self) -> (u64, u64) {
        (self.puts.load(Ordering::Relaxed), self.pieces.requests())
    }

    /// Nothing is written any more; the first reason counts.
    pub fn fail(&self, sentence: String, errno: i32) -> Failure {
        let mut state = self.state.lock();
        let failure = state.failed.get_or_insert(Failure { sentence, errno }).clone();
        self.changed.notify_all();
        failure
    }

    /// The failure of a request, after which nothing is written any more.
    pub fn failed(&self, error: &Error) -> Failure {
        match error.kind() {
            Kind::Exists | Kind::Conflict => self.fenced(),
            _ => self.fail(error.to_string(), error.errno()),
        }
    }

    fn fenced(&self) -> Failure {
        let sentence =
            format!("{}: another host has taken this volume over, so nothing is written any more", self.shown());
        self.fail(sentence, rustix::io::Errno::STALE.raw_os_error())
    }

    /// Takes whole blocks over, which becomes durable with the next flush.
    pub fn write(&self, start: u64, bytes: Bytes) -> std::result::Result<(), Failure> {
        let most = self.limits.write_back.max(BLOCK);
        let mut file = self.pieces.file();
        let in_memory = if file.is_some() { most.min(MEMORY) } else { most };
        let mut state = self.healthy()?;
        let kept = loop {
            let held = state.queued + state.putting;
            if held < in_memory {
                break Kept::Memory(bytes);
            }
            if let Some(file) = file.take_if(|_| held < most) {
                drop(state);
                let kept = file.keep(&bytes);
                state = self.healthy()?;
                match kept {
                    Ok(kept) => break kept,
                    // It has no room: memory alone must do for this write.
                    Err(_) => continue,
                }
            }
            state.wanted = state.stamp;
            self.changed.notify_all();
            self.changed.wait(&mut state);
            if let Some(failure) = &state.failed {
                return Err(failure.clone());
            }
        };
        let before = state.queued / SEGMENT_BYTES;
        state.write(start, kept, false);
        if state.queued / SEGMENT_BYTES > before {
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Makes blocks zeros, durable with the next flush.
    pub fn clear(&self, start: u64, blocks: u64) -> std::result::Result<(), Failure> {
        let mut state = self.state.lock();
        match &state.failed {
            Some(failure) => Err(failure.clone()),
            None => {
                let end = start + blocks;
                // A record has 32 bits for the blocks of a change.
                for from in (start..end).step_by(MOST_CLEARED as usize) {
                    state.set(from, MOST_CLEARED.min(end - from), Held::Zeros, false);
                }
                Ok(())
            }
        }
    }

    /// The sources of the content of these blocks, in order and without a gap.
    pub fn sources(&self, start: u64, blocks: u64) -> Result<Vec<Run<Source>>> {
        self.sources_by(&self.pieces, start, blocks)
    }

    fn sources_by(&self, pieces: &Pieces, start: u64, blocks: u64) -> Result<Vec<Run<Source>>> {
        let (recent, table) = {
            let state = self.state.lock();
            let source = |run: Run<Change>| {
                let value = match run.value.held {
                    Held::Zeros => Source::Zeros,
                    Held::Piece(piece) => Source::Piece(state.stored(piece)),
                    Held::Write { write, skip } => Source::Write { write, skip },
                };
                Run { start: run.start, blocks: run.blocks, value }
            };
            let recent: Vec<Run<Source>> = state.recent.over(start, blocks).into_iter().map(source).collect();
            (recent, state.table.clone())
        };
        let mut sources: Vec<Run<Source>> = Vec::with_capacity(recent.len());
        for (from, len) in gaps(&recent, start, blocks) {
            mapped(pieces, &table, from, len, &mut sources)?;
        }
        sources.extend(recent);
        sources.sort_unstable_by_key(|run| run.start);
        Ok(sources)
    }

    /// The first block from `start` on that has content.
    pub fn next_content(&self, start: u64) -> Result<Option<u64>> {
        let table = self.state.lock().table.clone();
        let (each, end) = (table.shard_blocks(), table.length / BLOCK);
        let mut at = start;
        while at < end {
            let until = ((at / each + 1) * each).min(end);
            let sources = self.sources(at, until - at)?;
            let content = sources.iter().find(|run| !matches!(run.value, Source::Zeros));
            if let Some(run) = content {
                return Ok(Some(run.start));
            }
            at = until;
        }
        Ok(None)
    }

    /// Fills `buf` with blocks from `start` on.
    pub fn read(&self, start: u64, buf: &mut [u8]) -> Result<()> {
        let sources = self.sources(start, buf.len() as u64 / BLOCK)?;
        let pieces = pieces_of(&sources);
        let mut read = self.pieces.get(&pieces)?.into_iter();
        for run in &sources {
            let at = ((run.start - start) * BLOCK) as usize;
            let place = &mut buf[at..at + (run.blocks * BLOCK) as usize];
            match &run.value {
                Source::Zeros => place.fill(0),
                Source::Write { write, skip } => place.copy_from_slice(&write.part(*skip, run.blocks)?),
                Source::Piece(Stored { piece, .. }) => {
                    let whole = read.next().expect("one for each piece");
                    let skip = (u64::from(piece.skip) * BLOCK) as usize;
                    place.copy_from_slice(&whole[skip..skip + place.len()]);
                }
            }
        }
        Ok(())
    }

    /// Brings blocks into the cache.
    pub fn prefetch(&self, source: &ahead::Source, start: u64, blocks: u64) {
        let pieces = self.pieces.ahead(source);
        // A reader of the blocks will be told of the failure.
        let Ok(sources) = self.sources_by(&pieces, start, blocks) else { return };
        let _ = pieces.bring(&pieces_of(&sources));
    }

    /// Makes durable whatever was written before.
    pub fn flush(&self, writing: &Writing) -> std::result::Result<(), Failure> {
        let state = self.healthy()?;
        let ticket = state.stamp;
        drop(state);
        let _turn = writing.flushing.lock();
        let mut state = self.healthy()?;
        if state.logged_stamp >= ticket {
            // The flush of another thread had it.
            return Ok(());
        }
        let stamp = state.stamp;
        let (records, bytes) = state.since_table;
        let is_due = records + 1 >= self.limits.records
            || bytes >= RECORD_BYTES_PER_TABLE
            || state.recent.len() >= CHANGES_PER_TABLE;
        let snapshot = (is_due && !state.checkpointing).then(|| (state.recent.clone(), state.next));
        let cut = state.cut();
        if cut.is_empty() {
            state.logged_stamp = stamp;
            return Ok(());
        }
        let in_memory = cut.iter().filter(|run| run.value.is_homeless()).map(|run| run.blocks * BLOCK).sum::<u64>();
        if in_memory > MOST_INLINE {
            state = self.await_homes(state, stamp, cut.iter().map(|run| &run.value))?;
        }
        // At one moment: a segment that comes later is not named, so no change may be said to be in it.
        let changes: Result<Vec<_>> = cut.iter().map(contents).collect();
        let segments = std::mem::take(&mut state.unnamed);
        if let Some((_, next)) = &snapshot {
            // The table that is due may not have these, and whoever reads it begins with the next record.
            let behind = segments.iter().filter(|(number, _)| number >= next);
            state.unnamed.extend(behind);
        }
        let (sequence, before) = (state.logged.0 + 1, state.logged.1);
        drop(state);
        let changes = changes.map_err(|error| self.failed(&error))?.into_iter().flatten().collect();
        let body = Some(Body { segments, changes });
        let record = Record { volume: self.uuid, epoch: writing.epoch, sequence, before, writer: writing.id, body };
        let (bytes, digest) = record.encode();
        let len = bytes.len() as u64;
        self.puts.fetch_add(1, Ordering::Relaxed);
        let put = self.store().create(&self.record_key(writing.epoch, sequence), bytes);
        put.map_err(|error| self.failed(&error))?;
        let mut state = self.state.lock();
        state.logged = (sequence, digest);
        state.logged_stamp = stamp;
        state.since_table = (state.since_table.0 + 1, state.since_table.1 + len);
        if let Some((recent, next)) = snapshot {
            state.checkpointing = true;
            state.due = Some(Snapshot { stamp, recent, next, logged: state.logged });
            self.changed.notify_all();
        }
        Ok(())
    }

    /// The state, unless nothing is written any more.
    pub fn healthy(&self) -> std::result::Result<MutexGuard<'_, State>, Failure> {
        let state = self.state.lock();
        match &state.failed {
            Some(failure) => Err(failure.clone()),
            None => Ok(state),
        }
    }

    /// Waits until these changes, none of them after `stamp`, are in segments.
    pub fn await_homes<'a, 'b>(
        &self,
        mut state: MutexGuard<'a, State>,
        stamp: u64,
        changes: impl Iterator<Item = &'b Change>,
    ) -> std::result::Result<MutexGuard<'a, State>, Failure> {
        state.wanted = state.wanted.max(stamp);
        self.changed.notify_all();
        for change in changes {
            while change.is_homeless() {
                if let Some(failure) = &state.failed {
                    return Err(failure.clone());
                }
                if state.closing {
                    // No thread puts segments any more.
                    let errno = rustix::io::Errno::SHUTDOWN.raw_os_error();
                    return Err(Failure { sentence: format!("{} is closed", self.shown()), errno });
                }
                self.changed.wait(&mut state);
            }
        }
        Ok(state)
    }

    /// Puts segments; the work of each of a few threads, until the volume is closed or nothing is written any more.
    pub fn put_segments(&self, writing: &Writing) {
        loop {
            let mut state = self.state.lock();
            let mut writes = loop {
                if state.failed.is_some() || state.closing {
                    return;
                }
                let queued = state.queued;
                let writes = state.take_for_segment(SEGMENT_BYTES);
                if !writes.is_empty() {
                    break writes;
                }
                if state.queued < queued {
                    // Nobody needs what was queued, so there is room for a writer that waits.
                    self.changed.notify_all();
                }
                self.changed.wait(&mut state);
            };
            let number = state.next;
            state.next += 1;
            drop(state);
            // Neighbours on the device are neighbours in the segment, so that one range has both.
            writes.sort_unstable_by_key(|write| write.start);
            let mut builder = Builder::new(number);
            let contents: Result<Vec<Bytes>> = writes.iter().map(|write| write.part(0, write.blocks())).collect();
            let put = contents.and_then(|contents| {
                let homes: Vec<Vec<Piece>> = writes
                    .iter()
                    .zip(&contents)
                    .map(|(write, bytes)| builder.add(write.start, bytes.clone()))
                    .collect();
                Ok((self.put_segment(writing, number, builder)?, contents, homes))
            });
            match put {
                Ok((segment, contents, homes)) => {
                    // Read back soon, more often than not.
                    for (bytes, home) in contents.iter().zip(&homes) {
                        for (piece, chunk) in home.iter().zip(bytes.chunks((PIECE_BLOCKS * BLOCK) as usize)) {
                            // A part of a longer write would keep all of it in memory.
                            let is_whole = chunk.len() == bytes.len();
                            let own = if is_whole { bytes.clone() } else { Bytes::copy_from_slice(chunk) };
                            self.pieces.keep(&Stored { piece: *piece, writer: writing.id }, &own);
                        }
                    }
                    let mut state = self.state.lock();
                    writes.iter().zip(homes).for_each(|(write, home)| drop(write.home.set(home)));
                    state.settled(number, segment, &writes);
                    self.changed.notify_all();
                }
                Err(error) => {
                    self.failed(&error);
                    return;
                }
            }
        }
    }

    /// Puts a segment.
    pub fn put_segment(&self, writing: &Writing, number: u64, builder: Builder) -> Result<Segment> {
        let (content, _) = builder.finish();
        let segment = Segment { writer: writing.id, len: content.content_length() as u32, live: 0 };
        self.puts.fetch_add(1, Ordering::Relaxed);
        self.store().create(&segment_key(writing.id, number), content)?;
        Ok(segment)
    }

    /// A number for a segment.
    pub fn next_number(&self) -> u64 {
        let mut state = self.state.lock();
        state.next += 1;
        state.next - 1
    }
}

/// The sources of the content of these blocks, by the map alone.
fn mapped(pieces: &Pieces, table: &Table, start: u64, blocks: u64, sources: &mut Vec<Run<Source>>) -> Result<()> {
    let (mut at, end) = (start, start + blocks);
    while at < end {
        let index = (at / table.shard_blocks()) as u32;
        let until = (table.span(index).0 + table.shard_blocks()).min(end);
        let runs = match table.shards.get(&index) {
            Some(place) => pieces.shard(place, index, table)?.over(at, until - at),
            None => Vec::new(),
        };
        let zeros = gaps(&runs, at, until - at);
        sources.extend(zeros.into_iter().map(|(start, blocks)| Run { start, blocks, value: Source::Zeros }));
        let stored =
            runs.into_iter().map(|Run { start, blocks, value }| (start, blocks, Source::Piece(table.stored(value))));
        sources.extend(stored.map(|(start, blocks, value)| Run { start, blocks, value }));
        at = until;
    }
    Ok(())
}

/// The pieces among sources.
fn pieces_of(sources: &[Run<Source>]) -> Vec<Stored> {
    let piece = |run: &Run<Source>| if let Source::Piece(stored) = &run.value { Some(*stored) } else { None };
    sources.iter().filter_map(piece).collect()
}
