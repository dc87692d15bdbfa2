//! Opening a volume: its root, its table, its log; and becoming its one writer.
//!
//! A writer is replaced in two steps. Its log gets one more record, with the next key, that ends its epoch: from then
//! on its flushes fail, because the key of their record exists. Such a record is never deleted. Then the root is
//! replaced, by its version, with one of the next epoch, whose table has the whole log: of two hosts that try, one
//! succeeds. A writer that flushes faster than another host can read its log and write that record gets one some way
//! ahead, which it will meet.

use crate::bytes_of::Digest;
use crate::checkpoint::{Care, now};
use crate::local::{Kept, LocalFile};
use crate::pieces::Pieces;
use crate::record::{Content, MOST_BYTES, Record, record_key};
use crate::root::{Root, Writer, folder, is_name, root_key};
use crate::segment::MOST_LIST;
use crate::state::{Held, Snapshot, State};
use crate::table::{BLOCK, SEGMENT_BYTES, Segment, Table, segment_key};
use crate::volume::{Limits, PUTTERS, Volume, Writing};
use butterfs_store::{Error, Kind, Object, Result, Store, Version, each};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Attempts to read a root, a table and a log that belong together, or to become the writer.
const ATTEMPTS: usize = 8;
/// A writer that has not said for so long that it lives is gone.
pub const GONE_AFTER: Duration = Duration::from_secs(15);
/// Objects that no root names may be deleted when they are an hour old; so nothing that ends in a root may take so
/// long.
pub const MOST_TAKEN: Duration = Duration::from_secs(1800);
/// Records that are read at the same time.
const RECORDS_AT_ONCE: u64 = 32;
/// Records that a writer may add until it meets the end of its epoch, where it was faster than the one who ends it;
/// four times as many with each further attempt.
const AHEAD: u64 = 16;
/// Bytes of each of several records; a longer one is read alone.
const MOST_OF_SEVERAL: u64 = 8 << 20;
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How to open a volume.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its name.
    pub volume: String,
    /// How much of this machine it may use.
    pub limits: Limits,
    /// Take it over from a writer that still lives.
    pub takeover: bool,
    /// A file with the blocks that were read, and those written ones that 64 MiB of memory do not hold. The limits are
    /// of that file then.
    pub file: Option<Arc<LocalFile>>,
    /// For how long a writer must be silent to be gone.
    pub gone_after: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            volume: crate::root::DEFAULT_VOLUME.to_owned(),
            limits: Limits::default(),
            takeover: false,
            file: None,
            gone_after: GONE_AFTER,
        }
    }
}

/// Makes a volume of zeros.
pub fn make(store: &Store, name: &str, length: u64) -> Result<()> {
    check_name(name)?;
    if length == 0 || !length.is_multiple_of(BLOCK) || length / BLOCK > crate::table::MOST_BLOCKS {
        let rule = format!("a volume cannot have {length} bytes: it has a multiple of 4096, and 8 EiB at most");
        return Err(Error::new(Kind::Invalid, rule));
    }
    store.create(&root_key(name), Root::new(random(), length, now()).encode()).map(drop)
}

/// The error for a name that no volume can have.
pub fn check_name(name: &str) -> Result<()> {
    let rule = "letters, digits, '-', '_' and '.', at most 100, and no dot in front";
    match is_name(name) {
        true => Ok(()),
        false => Err(Error::new(Kind::Invalid, format!("'{name}' cannot be the name of a volume: {rule}"))),
    }
}

/// A volume that is only read, as it is now, and its root with the version of that.
pub fn reader(store: &Store, options: &Options) -> Result<(Volume, Root, Version)> {
    check_name(&options.volume)?;
    let pieces = pieces(store, options);
    let (root, _) = Root::read(store, &options.volume)?;
    let (state, root, version) = settled(&pieces, &options.volume, root, None)?;
    Ok((Volume::new(&options.volume, root.uuid(), pieces, state, None, options.limits), root, version))
}

/// The same volume as it is now, which shares the cache of what was read, with its root; none when nothing has changed
/// since `seen`, the root of `reader`.
pub fn newer(reader: &Volume, seen: &Root) -> Result<Option<(Volume, Root)>> {
    let (root, _) = Root::read(reader.store(), &reader.name)?;
    let mut known = None;
    if root.has_map_of(seen) {
        let mut state = reader.state.lock().copy();
        let logged = state.logged;
        // A log that cannot be read may have been replaced meanwhile: everything is read once more then.
        let replayed = root.writer.is_none() || replay(&reader.pieces, &reader.name, &root, &mut state).is_ok();
        if replayed && state.logged == logged {
            return Ok(None);
        }
        known = replayed.then_some(state);
    }
    let (state, root, _) = settled(&reader.pieces, &reader.name, root, known)?;
    if root.uuid() != reader.uuid {
        return Err(Error::new(Kind::Damaged, format!("{} is another volume now", reader.shown())));
    }
    let volume = Volume::new(&reader.name, reader.uuid, reader.pieces.clone(), state, None, reader.limits);
    Ok(Some((volume, root)))
}

/// The state of a volume, of one root that stood while it was read; `known` where that of `root` has been read already.
fn settled(pieces: &Pieces, name: &str, mut root: Root, mut known: Option<State>) -> Result<(State, Root, Version)> {
    let store = pieces.store();
    for _ in 0..ATTEMPTS {
        let read = known.take().map_or_else(|| read(pieces, name, &root).map(|(state, _)| state), Ok);
        let (again, version) = Root::read(store, name)?;
        // Objects of an older root may be gone, and records of its log.
        if again.has_map_of(&root) {
            return Ok((read?, again, version));
        }
        root = again;
    }
    let shown = store.shown(&folder(name));
    Err(Error::new(Kind::Conflict, format!("cannot read {shown}: its root changes faster than it can be read")))
}

/// Becomes the writer of a volume. Its threads are the caller's to start.
pub fn writer(store: &Store, options: &Options) -> Result<Volume> {
    check_name(&options.volume)?;
    let name = &options.volume;
    let mut silent: Option<u64> = None;
    let mut conflict = None;
    let mut end = 0;
    for attempt in 0..ATTEMPTS {
        let (root, version) = Root::read(store, name)?;
        let shown = store.shown(&folder(name));
        if root.frozen {
            return Err(Error::new(Kind::Permission, format!("{shown} is a snapshot, which nobody can write to")));
        }
        if silent.is_some_and(|epoch| epoch != root.epoch) {
            return Err(Error::new(Kind::Conflict, format!("another host has just taken {shown} over")));
        }
        if let Some(writer) = root.writer.as_ref().filter(|_| !options.takeover && silent.is_none()) {
            await_silence(store, options, writer, &root)?;
        }
        silent = Some(root.epoch);
        if attempt > 0 && root.writer.is_some() {
            let sequence = root.sequence.max(end) + (AHEAD << (2 * (attempt - 1)));
            // If the writer has passed that record already, the next attempt chooses a later one.
            let _ = end_epoch(store, name, &root, sequence, Digest::default());
        }
        match claim(store, options, root, version, &mut end) {
            Err(error) if matches!(error.kind(), Kind::Conflict | Kind::Exists) => conflict = Some(error),
            outcome => return outcome,
        }
    }
    Err(conflict.expect("all attempts met one"))
}

fn pieces(store: &Store, options: &Options) -> Arc<Pieces> {
    Arc::new(Pieces::new(store.clone(), options.limits.cache, options.file.clone()))
}

/// Puts the record with this number in a log, which ends the epoch.
fn end_epoch(store: &Store, name: &str, root: &Root, sequence: u64, before: Digest) -> Result<()> {
    let (volume, epoch) = (root.uuid(), root.epoch);
    let end = Record { volume, epoch, sequence, before, writer: u64::from_le_bytes(random()), body: None };
    store.create(&record_key(name, &volume, epoch, sequence), end.encode().0).map(drop)
}

/// One attempt to become the writer. `end` gets the number of the last record that was found.
fn claim(store: &Store, options: &Options, root: Root, version: Version, end: &mut u64) -> Result<Volume> {
    let begun = Instant::now();
    let name = &options.volume;
    let pieces = pieces(store, options);
    let (state, ended) = read(&pieces, name, &root)?;
    let id = u64::from_le_bytes(random());
    *end = state.logged.0;
    if root.writer.is_some() && !ended {
        end_epoch(store, name, &root, state.logged.0 + 1, state.logged.1)?;
    }
    let take = |root: &mut Root| {
        (root.epoch, root.sequence, root.chain) = (root.epoch + 1, 0, hex::encode(Digest::default()));
        root.writer = Some(this_process(id));
    };
    let has_log = !state.recent.is_empty();
    let mut volume =
        Volume::new(name, root.uuid(), pieces, state, Some(Writing::new(id, root, version)), options.limits);
    let writing = volume.writing.as_ref().expect("just given");
    if has_log {
        // Moving segments can wait until there is a writer.
        volume.with_putters(writing, || volume.checkpoint(writing, &volume.moment(), Care::List, take))?;
    } else {
        let (mut next, version) = writing.root.lock().clone();
        take(&mut next);
        let version = store.replace(&root_key(name), next.encode(), &version)?;
        *writing.root.lock() = (next, version);
    }
    if begun.elapsed() > MOST_TAKEN {
        let sentence = format!("taking {} over has taken too long; try again", volume.shown());
        return Err(Error::new(Kind::Unreachable, sentence));
    }
    volume.begin_epoch();
    Ok(volume)
}

impl Volume {
    /// Everything that is written now, all of which the log has.
    pub fn moment(&self) -> Snapshot {
        let state = self.state.lock();
        Snapshot { stamp: state.stamp, recent: state.recent.clone(), next: state.next, logged: state.logged }
    }

    /// Runs `work` while threads put segments.
    pub fn with_putters<T>(&self, writing: &Writing, work: impl FnOnce() -> Result<T>) -> Result<T> {
        std::thread::scope(|scope| {
            (0..PUTTERS).for_each(|_| drop(scope.spawn(|| self.put_segments(writing))));
            let done = work();
            self.state.lock().closing = true;
            self.changed.notify_all();
            done
        })
    }

    /// The log begins anew, behind the root that was just written.
    fn begin_epoch(&mut self) {
        let writing = self.writing.as_mut().expect("it has become the writer");
        writing.epoch = writing.root.lock().0.epoch;
        let mut state = self.state.lock();
        (state.logged, state.since_table, state.closing) = ((0, Digest::default()), (0, 0), false);
        state.unnamed.clear();
    }
}

/// The table and the log of a root; and whether the log says that its epoch has ended.
fn read(pieces: &Pieces, name: &str, root: &Root) -> Result<(State, bool)> {
    let table = match &root.table {
        None => Table::new(root.length),
        Some(place) => {
            let key = segment_key(place.writer(), place.segment);
            let bytes = pieces.checked_range(&key, place.at..place.at + place.len, &place.digest())?;
            let table = Table::decode(&bytes).filter(|table| table.length == root.length);
            table.ok_or_else(|| pieces.damaged(&key, "is no table of this volume"))?
        }
    };
    let mut state = State::new(table.into());
    state.logged = (root.sequence, root.chain());
    // A writer that has closed the volume leaves no log.
    let ended = root.writer.is_some() && replay(pieces, name, root, &mut state)?;
    Ok((state, ended))
}

fn replay(pieces: &Pieces, name: &str, root: &Root, state: &mut State) -> Result<bool> {
    let (mut waiting, mut at_once) = (VecDeque::new(), 1);
    loop {
        let sequence = state.logged.0 + 1;
        let key = record_key(name, &root.uuid(), root.epoch, sequence);
        if waiting.is_empty() {
            // Most often there is none. Where there are many, a writer must not be faster than this.
            let several = records(pieces, name, root, sequence..sequence.saturating_add(at_once), MOST_OF_SEVERAL);
            waiting = match several {
                Err(error) if error.kind() == Kind::Length => {
                    records(pieces, name, root, sequence..sequence + 1, MOST_BYTES)?
                }
                several => several?,
            };
            at_once = (4 * at_once).min(RECORDS_AT_ONCE);
        }
        let Some(object) = waiting.pop_front().flatten() else { return Ok(false) };
        let (record, digest) = Record::decode(&object.bytes).map_err(|rule| pieces.damaged(&key, rule))?;
        if (record.volume, record.epoch, record.sequence) != (root.uuid(), root.epoch, sequence) {
            return Err(pieces.damaged(&key, "is a record of another place"));
        }
        // The one who ends an epoch ahead of its writer knows no record before.
        let is_ahead = record.body.is_none() && record.before == Digest::default();
        if record.before != state.logged.1 && !is_ahead {
            return Err(pieces.damaged(&key, "does not follow the record before it"));
        }
        let Some(body) = record.body else { return Ok(true) };
        for (number, len) in body.segments {
            // One that was on its way while the table was made can be in both.
            let known = state.table.segments.get(&number).or(state.segments.get(&number));
            if known.map_or(u64::from(len) > SEGMENT_BYTES + MOST_LIST, |known| known.len != len) {
                return Err(pieces.damaged(&key, "names a segment that cannot be"));
            }
            if known.is_some() {
                continue;
            }
            state.segments.insert(number, Segment { writer: record.writer, len, live: 0 });
            state.next = state.next.max(number.saturating_add(1));
        }
        for change in body.changes {
            if change.end() > root.length / BLOCK {
                return Err(pieces.damaged(&key, "changes blocks outside of the device"));
            }
            match change.value {
                Content::Zeros => state.set(change.start, change.blocks, Held::Zeros, true),
                Content::Data(bytes) => state.write(change.start, Kept::Memory(bytes), true),
                Content::Piece(piece) => {
                    let segment =
                        state.segments.get(&piece.segment).or_else(|| state.table.segments.get(&piece.segment));
                    if !segment.is_some_and(|segment| piece.is_sound(change.blocks, segment.len)) {
                        return Err(pieces.damaged(&key, "has a piece that its segment cannot have"));
                    }
                    state.set(change.start, change.blocks, Held::Piece(piece), true);
                }
            }
        }
        state.logged = (sequence, digest);
    }
}

/// Records of a log, those that are there.
fn records(
    pieces: &Pieces,
    name: &str,
    root: &Root,
    sequences: Range<u64>,
    most: u64,
) -> Result<VecDeque<Option<Object>>> {
    let get = |sequence: &u64| {
        let key = record_key(name, &root.uuid(), root.epoch, *sequence);
        match pieces.store().get(&key, most) {
            Err(error) if error.kind() == Kind::NotFound => Ok((*sequence, None)),
            object => object.map(|object| (*sequence, Some(object))),
        }
    };
    let sequences: Vec<u64> = sequences.collect();
    let mut records = each(&sequences, sequences.len(), get)?;
    records.sort_unstable_by_key(|(sequence, _)| *sequence);
    Ok(records.into_iter().map(|(_, object)| object).collect())
}

/// Waits until a writer has been silent for long enough; an error when it lives.
fn await_silence(store: &Store, options: &Options, writer: &Writer, root: &Root) -> Result<()> {
    if is_gone(writer) {
        return Ok(());
    }
    let alive = |store: &Store| match store.head(&alive_key(&options.volume)) {
        Ok((_, version)) => Ok(Some(version)),
        Err(error) if error.kind() == Kind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    let first = alive(store)?;
    let begun = Instant::now();
    while begun.elapsed() < options.gone_after && !is_gone(writer) {
        std::thread::sleep(LOOK_EVERY.min(options.gone_after));
        let moved = alive(store)? != first;
        let now = Root::read(store, &options.volume)?.0;
        if now.writer.is_none() && now.epoch == root.epoch {
            // It has closed the volume.
            return Ok(());
        }
        if moved || now.epoch != root.epoch {
            let place = store.shown(&folder(&options.volume));
            let who = format!("process {} on {}", writer.pid, writer.host);
            return Err(Error::new(Kind::Exists, format!("{place} is mounted by {who}, which lives")));
        }
    }
    Ok(())
}

/// The key by which a writer says that it lives.
pub fn alive_key(name: &str) -> String {
    format!("volumes/{name}/alive")
}

/// Whether a writer was a process of this host that has ended; its parent may not have heard of that.
fn is_gone(writer: &Writer) -> bool {
    let here = this_process(0);
    let state = |stat: String| stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    let ended = || match std::fs::read_to_string(format!("/proc/{}/stat", writer.pid)) {
        Ok(stat) => matches!(state(stat), Some('Z' | 'X')),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    };
    !here.boot.is_empty() && (&here.boot, &here.host) == (&writer.boot, &writer.host) && ended()
}

fn this_process(id: u64) -> Writer {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    // Process numbers are those of a namespace.
    let names = std::fs::read_link("/proc/self/ns/pid").map(|link| link.display().to_string()).unwrap_or_default();
    let boot = if boot.is_empty() { boot } else { format!("{} {names}", boot.trim()) };
    Writer { id: format!("{id:016x}"), host, boot, pid: std::process::id() }
}

/// Random bytes.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system has random bytes");
    bytes
}
