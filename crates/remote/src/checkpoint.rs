//! A new table: the map takes the changes of the log over, the log begins anew, and objects that nobody needs go.
//!
//! Runs beside writes and flushes, from a [`Snapshot`]: everything in it is in segments or in the log. In this order:
//! segments with its blocks, segments with pieces of segments that are mostly dead, changed shards, the table, and the
//! root, whose replacement makes them count. Only then are records of the log deleted. Segments that the new map does
//! not need are listed in it as dead; they are deleted when an hour has passed ([`Limits::keep`]), because a mount that
//! is only read, or a copy that is being made, may still need an older map.

use crate::bytes_of::digest;
use crate::pieces::Stored;
use crate::ranges::{Part, Ranges, Run, gaps};
use crate::record::Content;
use crate::root::{Root, TablePlace, root_key};
use crate::segment::{Builder, MOST_LIST, listed};
use crate::state::{Snapshot, contents};
use crate::table::{BLOCK, Dead, Piece, Place, SEGMENT_BYTES, Segment, Shard, Table, segment_key};
use crate::volume::{Limits, Volume, Writing};
use butterfs_store::{Error, Kind, Result, each};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes that one table moves out of segments that are mostly dead.
const MOST_MOVED: u64 = 32 << 20;
/// Objects that are deleted at the same time.
const DELETED_AT_ONCE: usize = 4;

/// A range whose content changes: to a piece, or to zeros.
type Edit = Run<Option<Piece>>;

/// Seconds since 1970 by this host's clock.
pub fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() as i64)
}

/// The care that a table takes of segments that the map does not need, or hardly.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Care {
    /// None: they are another volume's.
    None,
    /// They are listed, and those that were listed long ago are deleted.
    List,
    /// Before that, what is needed moves out of those that are needed least.
    Move,
}

/// A table that is in the store and that no root names yet.
pub struct Made {
    table: Table,
    /// Its place, for the root.
    pub place: TablePlace,
}

impl Volume {
    /// Makes the table of a moment and replaces the root with one that names it; see the [module](self).
    pub fn checkpoint(
        &self,
        writing: &Writing,
        snapshot: &Snapshot,
        care: Care,
        edit: impl FnOnce(&mut Root),
    ) -> Result<()> {
        let made = self.make_table(writing, snapshot, care)?;
        let (before, version) = writing.root.lock().clone();
        let mut next = Root { sequence: snapshot.logged.0, chain: hex::encode(snapshot.logged.1), ..before.clone() };
        (next.table, next.length) = (Some(made.place), made.table.length);
        edit(&mut next);
        let version = self.store().replace(&root_key(&self.name), next.encode(), &version)?;
        *writing.root.lock() = (next, version);
        let mut state = self.state.lock();
        state.recent.retain(|change| change.stamp > snapshot.stamp);
        state.segments.retain(|number, _| *number >= snapshot.next && !made.table.segments.contains_key(number));
        state.since_table = (state.logged.0.saturating_sub(snapshot.logged.0), 0);
        state.table = made.table.into();
        drop(state);
        self.forget_records(before.epoch, before.sequence + 1..=snapshot.logged.0);
        Ok(())
    }

    /// Puts the table of a moment, and everything that it needs.
    pub fn make_table(&self, writing: &Writing, snapshot: &Snapshot, care: Care) -> Result<Made> {
        let state = self.healthy().map_err(stopped)?;
        let state =
            self.await_homes(state, snapshot.stamp, snapshot.recent.iter().map(|run| run.value)).map_err(stopped)?;
        let (old, put) = (state.table.clone(), state.segments.clone());
        drop(state);
        let mut table = Table::clone(&old);
        table.segments.extend(put.iter().filter(|(number, _)| **number < snapshot.next).map(|(n, s)| (*n, *s)));
        let mut edits = Edits::new(&table);
        for run in snapshot.recent.iter() {
            let run = Run { start: run.start, blocks: run.blocks, value: run.value.clone() };
            for Run { start, blocks, value } in contents(&run)? {
                let value = match value {
                    Content::Zeros => None,
                    Content::Piece(piece) => Some(piece),
                    Content::Data(_) => unreachable!("everything of the snapshot is in segments"),
                };
                if let Some(segment) = value.and_then(|piece| put.get(&piece.segment).map(|put| (piece.segment, put))) {
                    table.segments.entry(segment.0).or_insert(*segment.1);
                }
                edits.add(Run { start, blocks, value });
            }
        }
        let mut dead = Vec::new();
        if care == Care::Move {
            self.compact(writing, snapshot, &old, &mut table, &mut edits)?;
        }
        if care != Care::None {
            dead = self.expire(std::mem::take(&mut table.dead))?;
        }
        self.put_shards(writing, &old, &mut table, edits)?;
        if care != Care::None {
            let listed = |number, writer| Dead { number, writer, since: now() };
            let before = writing.root.lock().0.table.clone();
            dead.extend(before.map(|place| listed(place.segment, place.writer())));
            let unused = table.segments.iter().filter(|(_, segment)| segment.live == 0);
            dead.extend(unused.map(|(number, segment)| listed(*number, segment.writer)));
        }
        table.segments.retain(|_, segment| segment.live > 0);
        table.dead = dead;
        let place = self.put_table(writing, &mut table)?;
        Ok(Made { table, place })
    }

    /// Deletes records of the log, whose content is in a table. A record that stays because of an error only takes
    /// room.
    pub fn forget_records(&self, epoch: u64, records: std::ops::RangeInclusive<u64>) {
        let keys: Vec<String> = records.map(|number| self.record_key(epoch, number)).collect();
        let _ = each(&keys, DELETED_AT_ONCE, |key| self.store().delete(key));
    }

    /// Deletes segments that have been dead for long enough, unless another volume of the store may need them; returns
    /// the others.
    fn expire(&self, dead: Vec<Dead>) -> Result<Vec<Dead>> {
        let Limits { keep, .. } = self.limits;
        let (expired, kept): (Vec<Dead>, Vec<Dead>) =
            dead.into_iter().partition(|dead| now().saturating_sub(dead.since) >= keep.as_secs() as i64);
        if expired.is_empty() || crate::manage::names(self.store())?.len() > 1 {
            // With other volumes in the store, 'butterfs volume gc' finds those that nobody needs.
            return Ok(kept);
        }
        each(&expired, DELETED_AT_ONCE, |dead| self.store().delete(&segment_key(dead.writer, dead.number)))?;
        Ok(kept)
    }

    /// Moves pieces out of segments of which less than half is needed, and marks shards in them.
    fn compact(
        &self,
        writing: &Writing,
        snapshot: &Snapshot,
        known: &Table,
        table: &mut Table,
        edits: &mut Edits,
    ) -> Result<()> {
        let mostly_dead = |(_, segment): &(&u64, &Segment)| segment.live > 0 && segment.live < segment.len / 2;
        let mut chosen: Vec<(u64, Segment)> =
            known.segments.iter().filter(mostly_dead).map(|(number, segment)| (*number, *segment)).collect();
        chosen.sort_by_key(|(_, segment)| u64::from(segment.live) * 1000 / u64::from(segment.len));
        let mut moved = 0;
        let few = |(_, segment): &(u64, Segment)| {
            moved += u64::from(segment.live);
            moved <= MOST_MOVED
        };
        let chosen: BTreeMap<u64, Segment> = chosen.into_iter().take_while(few).collect();
        let mut builder: Option<Builder> = None;
        for (index, place) in &known.shards {
            if chosen.contains_key(&place.segment) {
                edits.touch(*index);
            }
        }
        for (number, segment) in chosen {
            let rest = self.rest_of(number, &segment, known, snapshot)?;
            let stored: Vec<Stored> = rest.iter().map(|run| known.stored(run.value)).collect();
            for (run, whole) in rest.iter().zip(self.pieces.get(&stored)?) {
                let skip = (u64::from(run.value.skip) * BLOCK) as usize;
                let bytes = whole.slice(skip..skip + (run.blocks * BLOCK) as usize);
                if builder.as_ref().is_some_and(|builder| builder.len() + bytes.len() as u64 > SEGMENT_BYTES) {
                    self.finish(writing, table, builder.take())?;
                }
                let builder = builder.get_or_insert_with(|| Builder::new(self.next_number()));
                // It was a part of one piece, so it is one.
                let value = builder.add(run.start, bytes).first().copied();
                edits.add(Run { value, start: run.start, blocks: run.blocks });
            }
        }
        self.finish(writing, table, builder)
    }

    fn finish(&self, writing: &Writing, table: &mut Table, builder: Option<Builder>) -> Result<()> {
        if let Some(builder) = builder {
            let number = builder.number();
            table.segments.insert(number, self.put_segment(writing, number, builder)?);
        }
        Ok(())
    }

    /// The pieces of a segment that the map needs and the snapshot does not replace.
    fn rest_of(&self, number: u64, segment: &Segment, table: &Table, snapshot: &Snapshot) -> Result<Vec<Run<Piece>>> {
        let key = segment_key(segment.writer, number);
        let len = u64::from(segment.len);
        let end = self.store().get_range(&key, len.saturating_sub(MOST_LIST)..len)?;
        let pieces = listed(&end).ok_or_else(|| self.pieces.damaged(&key, "has no list of its pieces at its end"))?;
        let mut rest = Vec::new();
        for (start, at, blocks) in pieces {
            if start >= table.length / BLOCK {
                return Err(self.pieces.damaged(&key, "lists a piece outside of the device"));
            }
            let index = (start / table.shard_blocks()) as u32;
            let mut until = u64::from(blocks);
            let mut from = start;
            // A piece can reach into the next shard.
            for index in index..=index + 1 {
                let (_, end) = table.span(index);
                let len = until.min(end.saturating_sub(from));
                let Some(place) = table.shards.get(&index).filter(|_| len > 0) else {
                    (from, until) = (from + len, until - len);
                    continue;
                };
                let runs = self.pieces.shard(place, index, table)?.over(from, len);
                let own = runs.into_iter().filter(|run| (run.value.segment, run.value.at) == (number, at));
                for run in own {
                    let replaced = snapshot.recent.over(run.start, run.blocks);
                    let gaps = gaps(&replaced, run.start, run.blocks);
                    rest.extend(gaps.into_iter().filter_map(|(start, blocks)| run.within(start, start + blocks)));
                }
                (from, until) = (from + len, until - len);
            }
        }
        Ok(rest)
    }

    /// Puts every shard that changes, one after the other, and counts the bytes that the map needs.
    fn put_shards(&self, writing: &Writing, old: &Table, table: &mut Table, edits: Edits) -> Result<()> {
        let mut builder: Option<Builder> = None;
        for (index, edits) in edits.by_shard {
            let place = old.shards.get(&index);
            let shard = place.map(|place| self.pieces.shard(place, index, old)).transpose()?;
            let mut ranges = Ranges::default();
            for run in shard.iter().flat_map(|shard| &shard.runs) {
                ranges.insert(run.start, run.blocks, run.value);
            }
            for Run { start, blocks, value } in edits {
                let before = match value {
                    Some(piece) => ranges.insert(start, blocks, piece),
                    None => ranges.remove(start, blocks),
                };
                before.iter().for_each(|run| table.count(run.value.segment, run.blocks * BLOCK, false));
                if let Some(piece) = value {
                    table.count(piece.segment, blocks * BLOCK, true);
                }
            }
            if let Some(place) = table.shards.remove(&index) {
                table.count(place.segment, u64::from(place.len), false);
            }
            if ranges.is_empty() {
                continue;
            }
            let runs = ranges.iter().map(|Run { start, blocks, value }| Run { start, blocks, value: *value }).collect();
            let bytes = Shard { runs }.encode();
            if builder.as_ref().is_some_and(|builder| builder.len() + bytes.len() as u64 > SEGMENT_BYTES) {
                self.finish_map(writing, table, builder.take())?;
            }
            let builder = builder.get_or_insert_with(|| Builder::new(self.next_number()));
            let at = builder.add_map(&bytes);
            let place = Place { segment: builder.number(), at, len: bytes.len() as u32, digest: digest(&bytes) };
            table.shards.insert(index, place);
        }
        self.finish_map(writing, table, builder)
    }

    fn finish_map(&self, writing: &Writing, table: &mut Table, builder: Option<Builder>) -> Result<()> {
        let Some(builder) = builder else { return Ok(()) };
        let (number, live) = (builder.number(), builder.len() as u32);
        let segment = self.put_segment(writing, number, builder)?;
        table.segments.insert(number, Segment { live, ..segment });
        Ok(())
    }

    fn put_table(&self, writing: &Writing, table: &mut Table) -> Result<TablePlace> {
        let number = self.next_number();
        table.next = self.state.lock().next;
        let bytes = table.encode();
        let place = Place { segment: number, at: 0, len: bytes.len() as u32, digest: digest(&bytes) };
        self.store().create(&segment_key(writing.id, number), bytes)?;
        Ok(TablePlace::of(&place, writing.id))
    }
}

/// The changes of a new map, by shard.
struct Edits {
    shard_blocks: u64,
    by_shard: BTreeMap<u32, Vec<Edit>>,
}

impl Edits {
    fn new(table: &Table) -> Edits {
        Edits { shard_blocks: table.shard_blocks(), by_shard: BTreeMap::new() }
    }

    fn add(&mut self, edit: Edit) {
        let (mut at, end) = (edit.start, edit.end());
        while at < end {
            let index = (at / self.shard_blocks) as u32;
            let until = ((u64::from(index) + 1) * self.shard_blocks).min(end);
            let value = edit.value.map(|piece| piece.part(at - edit.start));
            self.by_shard.entry(index).or_default().push(Run { start: at, blocks: until - at, value });
            at = until;
        }
    }

    /// The shard is written anew, even if nothing in it changes.
    fn touch(&mut self, index: u32) {
        self.by_shard.entry(index).or_default();
    }
}

/// The error of work that is given up because nothing is written any more.
fn stopped(failure: crate::state::Failure) -> Error {
    Error::new(Kind::Unreachable, failure.sentence)
}
