//! The volumes of a store: their list, clones and snapshots, removal, and objects that none of them needs.

use crate::checkpoint::{Care, now};
use crate::open::{self, Options, check_name, random};
use crate::record::{MOST_BYTES, Record, record_key};
use crate::root::{Root, Writer, folder, root_key};
use crate::table::{BLOCK, parse_segment_key};
use crate::volume::{Volume, Writing};
use butterfs_store::{Error, Kind, Result, Store, each};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Objects that are deleted at the same time.
const DELETED_AT_ONCE: usize = 8;

/// A volume in a list.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Bytes of its device.
    pub length: u64,
    /// Bytes of objects that its map and its log need, at most; other volumes may share them.
    pub used: u64,
    /// Nobody can write to it.
    pub frozen: bool,
    /// Seconds since 1970.
    pub made: i64,
    /// The process that writes, unless it has closed the volume.
    pub writer: Option<Writer>,
}

/// The names of all volumes, in order.
pub fn names(store: &Store) -> Result<Vec<String>> {
    let name = |key: &str| Some(key.strip_prefix("volumes/")?.strip_suffix("/root")?.to_owned());
    let mut names: Vec<String> = store.list("volumes")?.iter().filter_map(|entry| name(&entry.key)).collect();
    names.sort();
    Ok(names)
}

/// All volumes, by name; of a damaged one the error that says so.
pub fn list(store: &Store) -> Result<Vec<Result<Listed>>> {
    Ok(names(store)?.into_iter().map(|name| look_at(store, name)).collect())
}

fn look_at(store: &Store, name: String) -> Result<Listed> {
    let (Volume { state, .. }, root, _) = open::reader(store, &options_of(&name))?;
    let state = state.into_inner();
    let Root { length, frozen, made, writer, .. } = root;
    let mapped: u64 = state.table.segments.values().map(|segment| u64::from(segment.live)).sum();
    let logged: u64 = state.recent.iter().filter(|run| !run.value.is_zeros()).map(|run| run.blocks * BLOCK).sum();
    Ok(Listed { name, length, used: mapped + logged, frozen, made, writer })
}

fn options_of(name: &str) -> Options {
    Options { volume: name.to_owned(), ..Options::default() }
}

/// Makes `to` a volume with the content that `from` has now; both share all segments. With `frozen` it is a snapshot.
pub fn clone(store: &Store, from: &str, to: &str, frozen: bool) -> Result<()> {
    check_name(to)?;
    let begun = Instant::now();
    if let Some(other) = Some(to).filter(|to| names(store).is_ok_and(|names| names.iter().any(|name| name == to))) {
        return Err(Error::new(Kind::Exists, format!("{} exists already", store.shown(&folder(other)))));
    }
    let (Volume { pieces, state, limits, .. }, before, version) = open::reader(store, &options_of(from))?;
    let mut root = Root::new(random(), before.length, now());
    root.frozen = frozen;
    let id = u64::from_le_bytes(random());
    let writing = Writing::new(id, root.clone(), version);
    let volume = Volume::new(to, root.uuid(), pieces, state.into_inner(), None, limits);
    let made = volume.with_putters(&writing, || volume.make_table(&writing, &volume.moment(), Care::None))?;
    root.table = Some(made.place);
    if begun.elapsed() > open::MOST_TAKEN {
        let sentence = format!("cloning {} has taken too long; try again", store.shown(&folder(from)));
        return Err(Error::new(Kind::Unreachable, sentence));
    }
    store.create(&root_key(to), root.encode()).map(drop)
}

/// Removes a volume, after taking it over. Segments that only it needed stay until [`gc`], and records that end an
/// epoch for ever: a writer that has slept since must meet them, or its flushes would succeed. With
/// [`takeover`](Options::takeover) a volume goes whose root is damaged, too.
pub fn remove(store: &Store, options: &Options) -> Result<()> {
    let name = &options.volume;
    match Root::read(store, name) {
        Ok((root, _)) if root.frozen => {}
        // From now on no writer's flush succeeds.
        Ok(_) => drop(open::writer(store, options)?),
        Err(error) if error.kind() == Kind::Damaged && options.takeover => {}
        Err(error) => return Err(error),
    }
    store.delete(&root_key(name))?;
    let entries = store.list(&folder(name))?;
    each(&entries, DELETED_AT_ONCE, |entry| {
        let is_end = entry.len == Record::END_BYTES
            && store
                .get(&entry.key, entry.len)
                .is_ok_and(|object| Record::decode(&object.bytes).is_ok_and(|(record, _)| record.body.is_none()));
        if is_end { Ok(()) } else { store.delete(&entry.key) }
    })
    .map(drop)
}

/// The result of [`gc`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Garbage {
    /// Objects that no volume needs.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that no volume needs and that are too young to be deleted.
    pub young: u64,
}

/// Deletes segments that no volume needs and that are older than `older_than` by the store's clock; with `dry_run` they
/// are only counted.
pub fn gc(store: &Store, older_than: Duration, dry_run: bool) -> Result<Garbage> {
    let clock = "clock/now";
    store.put(clock, now().to_string())?;
    let its_now = store.list("clock")?.into_iter().find(|entry| entry.key == clock).map(|entry| entry.modified);
    let its_now = its_now.ok_or_else(|| Error::new(Kind::NotFound, format!("{} is gone", store.shown(clock))))?;
    // First the list: whatever is put later is not in it.
    let segments = store.list("segments")?;
    let (mut needed, mut writers) = (BTreeSet::new(), BTreeSet::new());
    for name in names(store)? {
        let (Volume { state, .. }, root, _) = open::reader(store, &options_of(&name))?;
        let state = state.into_inner();
        needed.extend(state.table.segments.iter().map(|(number, segment)| (segment.writer, *number)));
        needed.extend(state.segments.iter().map(|(number, segment)| (segment.writer, *number)));
        needed.extend(state.table.dead.iter().map(|dead| (dead.writer, dead.number)));
        needed.extend(root.table.as_ref().map(|place| (place.writer(), place.segment)));
        // It has objects on their way that nothing names yet.
        writers.extend(root.writer.and_then(|writer| u64::from_str_radix(&writer.id, 16).ok()));
    }
    let mut garbage = Garbage::default();
    let mut keys = Vec::new();
    for entry in segments {
        let Some((writer, number)) = parse_segment_key(&entry.key) else { continue };
        if needed.contains(&(writer, number)) || writers.contains(&writer) {
            continue;
        }
        if its_now.saturating_sub(entry.modified) < older_than.as_secs() as i64 {
            garbage.young += 1;
            continue;
        }
        (garbage.objects, garbage.bytes) = (garbage.objects + 1, garbage.bytes + entry.len);
        keys.push(entry.key);
    }
    if !dry_run {
        each(&keys, DELETED_AT_ONCE, |key| store.delete(key))?;
    }
    Ok(garbage)
}

/// The records of a log that are in the store, for tests and curious people: sequence and whether it ends the epoch.
pub fn log(store: &Store, name: &str) -> Result<Vec<(u64, bool)>> {
    let (root, _) = Root::read(store, name)?;
    let mut records = Vec::new();
    for sequence in root.sequence + 1.. {
        match store.get(&record_key(name, &root.uuid(), root.epoch, sequence), MOST_BYTES) {
            Err(error) if error.kind() == Kind::NotFound => break,
            object => {
                let record = Record::decode(&object?.bytes).map_err(|rule| Error::new(Kind::Damaged, rule))?.0;
                records.push((sequence, record.body.is_none()));
            }
        }
    }
    Ok(records)
}
