//! Which free bytes of a group with parity can be written without touching parity that somebody else needs.
//!
//! A row is one element of each data column; a *slice* of it is one sector at the same depth of each column: the bytes
//! that share sectors of parity. While a slice is written, data and parity do not fit each other for a moment, and a
//! crash can leave it so. What else the slice holds is then lost with the next device. So new data gets slices in which
//! nothing is that must survive:
//!
//! - a slice is *fresh* while all of it is free;
//! - allocating a part of it *opens* the rest for the same [`Stream`], until the stream is closed, because what it has
//!   written is about to be needed;
//! - the rest of a slice that is closed is *shared*: used when space is short, and not before the whole slice is free
//!   again else.
//!
//! # Invariants
//! 1. Fresh bytes and the open bytes of each stream are free and disjoint.
//! 2. Whoever changes what is free says so ([`Rows::update`]).

use super::free_extents::FreeExtents;
use butterfs_ondisk::chunk::STRIPE_LEN;
use std::collections::BTreeMap;

/// Bytes of a sector of parity, the smallest there are.
const SLICE: u64 = 4096;
/// Slices of a row.
const SLICES: u64 = STRIPE_LEN / SLICE;

/// Those whose writes must not share slices, because what they write becomes needed at different moments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    /// Tree blocks of the running transaction.
    Trees,
    /// Blocks of logs.
    Logs,
    /// File data.
    Data,
    /// Space that is written again and again where it is.
    InPlace,
}

/// Whether an allocation may lie in slices that hold what somebody needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// It may not.
    Never,
    /// It may.
    Allowed,
}

/// The slices that a stream has opened.
#[derive(Default, Debug, Clone)]
struct Open {
    free: FreeExtents,
    /// By row: which slices, a bit each.
    slices: BTreeMap<u64, u16>,
}

/// See the [module](self).
#[derive(Debug, Clone)]
pub struct Rows {
    start: u64,
    columns: u64,
    fresh: FreeExtents,
    open: [Open; 4],
}

impl Rows {
    /// The rows of a group that starts at `start`, nothing of which is free.
    pub fn new(start: u64, columns: u64) -> Rows {
        assert!(columns > 0, "a row has data");
        Rows { start, columns, fresh: FreeExtents::default(), open: Default::default() }
    }

    fn row_len(&self) -> u64 {
        self.columns * STRIPE_LEN
    }

    /// Bytes of fresh slices.
    pub fn fresh(&self) -> u64 {
        self.fresh.total()
    }

    /// Closes the slices that a stream has opened.
    pub fn close(&mut self, stream: Stream) {
        self.open[stream as usize] = Open::default();
    }

    /// `all` lists what is free, and has changed in `[at, at + len)`.
    pub fn update(&mut self, all: &FreeExtents, at: u64, len: u64) {
        let (first, last) = (self.row_at(at), self.row_at(at + len - 1));
        let whole = (at - self.start).div_ceil(self.row_len())..(at + len - self.start) / self.row_len();
        if whole.end < whole.start + 2 {
            (first..=last).for_each(|row| self.update_row(all, row));
            return;
        }
        (first..whole.start).chain(whole.end..=last).for_each(|row| self.update_row(all, row));
        let (from, bytes) = (self.start + whole.start * self.row_len(), (whole.end - whole.start) * self.row_len());
        self.fresh.remove(from, bytes);
        for open in &mut self.open {
            open.free.remove(from, bytes);
            let closed: Vec<u64> = open.slices.range(whole.clone()).map(|(&row, _)| row).collect();
            for row in closed {
                open.slices.remove(&row);
            }
        }
        if all.covers(from, bytes) {
            self.fresh.insert(from, bytes);
        } else if all.touches(from, bytes) {
            whole.for_each(|row| self.update_row(all, row));
        }
    }

    /// Up to `want` bytes at least `min` long for `stream`, which are free. The caller takes them out of what is free
    /// and calls [`taken`](Self::taken).
    pub fn find(&self, stream: Stream, want: u64, min: u64) -> Option<(u64, u64)> {
        let (open, fresh) = (&self.open[stream as usize].free, &self.fresh);
        let row = self.row_len();
        if want >= row {
            // Whole rows are written without reading any.
            let aligned = |&(at, len): &(u64, u64)| {
                let first = self.start + (at - self.start).next_multiple_of(row);
                (first + want <= at + len).then_some((first, want))
            };
            if let Some(found) = fresh.runs_from(want).take(TRIES).find_map(|run| aligned(&run)) {
                return Some(found);
            }
        }
        open.best_fit(want, want).or_else(|| fresh.best_fit(want, want)).or_else(|| {
            let longest = [open, fresh].into_iter().filter_map(|free| free.best_fit(want, min));
            longest.max_by_key(|(_, len)| *len)
        })
    }

    /// The first `len` bytes for `stream`, aligned to `len`, at or after `from`, else anywhere.
    pub fn find_aligned(&self, stream: Stream, len: u64, from: u64) -> Option<u64> {
        let places = [&self.open[stream as usize].free, &self.fresh];
        places.into_iter().find_map(|free| free.find_aligned(len, from).or_else(|| free.find_aligned(len, 0)))
    }

    /// Whether `stream` may have exactly these bytes, which are free, without sharing slices.
    pub fn offers(&self, stream: Stream, at: u64, len: u64) -> bool {
        self.fresh.covers(at, len) || self.open[stream as usize].free.covers(at, len)
    }

    /// `stream` has taken bytes, which are not in `all` any more. Opens the rest of their slices for it if they were
    /// offered to it.
    pub fn taken(&mut self, all: &FreeExtents, stream: Stream, at: u64, len: u64, was_offered: bool) {
        if was_offered {
            let (first, last) = (self.row_at(at), self.row_at(at + len - 1));
            for row in [first, last] {
                let slices = self.slices_in(row, at, len);
                *self.open[stream as usize].slices.entry(row).or_default() |= slices;
            }
        }
        self.update(all, at, len);
    }

    fn row_at(&self, at: u64) -> u64 {
        (at - self.start) / self.row_len()
    }

    fn column_start(&self, row: u64, column: u64) -> u64 {
        self.start + row * self.row_len() + column * STRIPE_LEN
    }

    /// The slices of a row of which some byte of `[at, at + len)` is part.
    fn slices_in(&self, row: u64, at: u64, len: u64) -> u16 {
        (0..self.columns).fold(0, |slices, column| {
            let start = self.column_start(row, column);
            let (from, to) = (at.max(start), (at + len).min(start + STRIPE_LEN));
            if from < to { slices | bits((from - start) / SLICE, (to - start).div_ceil(SLICE)) } else { slices }
        })
    }

    fn update_row(&mut self, all: &FreeExtents, row: u64) {
        let start = self.column_start(row, 0);
        self.fresh.remove(start, self.row_len());
        self.open.iter_mut().for_each(|open| open.free.remove(start, self.columns * STRIPE_LEN));
        if all.covers(start, self.row_len()) {
            self.fresh.insert(start, self.row_len());
            for open in &mut self.open {
                open.slices.remove(&row);
            }
            return;
        }
        let free: Vec<u16> = (0..self.columns).map(|column| free_slices(all, self.column_start(row, column))).collect();
        let whole = free.iter().fold(u16::MAX, |whole, free| whole & free);
        for (column, free) in (0..).zip(&free) {
            let start = self.column_start(row, column);
            insert_slices(&mut self.fresh, start, whole);
            for open in &mut self.open {
                let opened = open.slices.get(&row).copied().unwrap_or(0);
                insert_slices(&mut open.free, start, opened & !whole & free);
            }
        }
        for open in &mut self.open {
            if let Some(slices) = open.slices.get_mut(&row) {
                *slices &= !whole;
                if *slices == 0 {
                    open.slices.remove(&row);
                }
            }
        }
    }
}

/// Runs that are tried for whole rows.
const TRIES: usize = 16;

/// Bits `from` to `to`, without the last.
fn bits(from: u64, to: u64) -> u16 {
    ((1u32 << to) - (1u32 << from)) as u16
}

/// The slices of an element that are free.
fn free_slices(all: &FreeExtents, start: u64) -> u16 {
    all.within(start, STRIPE_LEN).fold(0, |slices, (at, len)| {
        let (from, to) = ((at - start).div_ceil(SLICE), (at + len - start) / SLICE);
        if from < to { slices | bits(from, to) } else { slices }
    })
}

/// Adds these slices of an element.
fn insert_slices(free: &mut FreeExtents, start: u64, slices: u16) {
    let mut at = 0;
    while at < SLICES {
        let rest = u64::from(slices) >> at;
        let skip = u64::from(rest.trailing_zeros()).min(SLICES - at);
        at += skip;
        let run = u64::from((rest.checked_shr(skip as u32).unwrap_or(0)).trailing_ones()).min(SLICES - at);
        if run > 0 {
            free.insert(start + at * SLICE, run * SLICE);
        }
        at += run;
        if rest == 0 {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: u64 = 3;
    const ROWS: u64 = 5;
    const START: u64 = 7 << 20;

    fn all_free() -> (FreeExtents, Rows) {
        let (mut all, mut rows) = (FreeExtents::default(), Rows::new(START, COLUMNS));
        let len = ROWS * rows.row_len();
        all.insert(START, len);
        rows.update(&all, START, len);
        (all, rows)
    }

    fn take(all: &mut FreeExtents, rows: &mut Rows, stream: Stream, at: u64, len: u64) {
        let was_offered = rows.offers(stream, at, len);
        all.remove(at, len);
        rows.taken(all, stream, at, len, was_offered);
    }

    #[test]
    fn the_rest_of_a_slice_is_for_the_stream_that_opened_it() {
        let (mut all, mut rows) = all_free();
        take(&mut all, &mut rows, Stream::Trees, START, 16384);
        let other = START + STRIPE_LEN;
        assert!(rows.offers(Stream::Trees, other, 16384) && !rows.offers(Stream::Logs, other, 16384));
        assert!(rows.offers(Stream::Logs, other + 16384, 16384), "another slice");
        assert_eq!(rows.find_aligned(Stream::Trees, 16384, 0), Some(other), "what is open comes first");
        assert_eq!(rows.find_aligned(Stream::Logs, 16384, 0), Some(START + 16384));
        rows.close(Stream::Trees);
        assert!(!rows.offers(Stream::Trees, other, 4096));
        all.insert(START, 16384);
        rows.update(&all, START, 16384);
        assert!(rows.offers(Stream::Logs, START, ROWS * COLUMNS * STRIPE_LEN), "all is free again");
    }

    #[test]
    fn long_runs_are_whole_rows() {
        let (mut all, mut rows) = all_free();
        let row = rows.row_len();
        take(&mut all, &mut rows, Stream::Data, START, 4096);
        assert_eq!(rows.find(Stream::Data, 2 * row, 4096), Some((START + row, 2 * row)));
        assert_eq!(rows.find(Stream::Data, 8192, 4096).map(|(_, len)| len), Some(8192));
        assert_eq!(
            rows.find(Stream::Data, ROWS * row, 4096),
            Some((START + STRIPE_LEN * 2 + 4096, 4 * row + STRIPE_LEN - 4096))
        );
    }

    /// Against a map with an entry for each sector.
    #[test]
    fn random_changes_agree_with_a_map() {
        let streams = [Stream::Trees, Stream::Logs, Stream::Data, Stream::InPlace];
        let sectors = (ROWS * COLUMNS * SLICES) as usize;
        let (mut all, mut rows) = all_free();
        let (mut free, mut owner) = (vec![true; sectors], vec![None; (ROWS * SLICES) as usize]);
        let slice_of =
            |sector: usize| sector / (COLUMNS * SLICES) as usize * SLICES as usize + sector % SLICES as usize;
        let cells = |slice: usize| {
            let first = slice / SLICES as usize * (COLUMNS * SLICES) as usize + slice % SLICES as usize;
            (0..COLUMNS as usize).map(move |column| first + column * SLICES as usize)
        };
        let mut random = butterfs_testkit::rng::Rng::new(11);
        for _ in 0..20_000 {
            let seed = random.bits();
            let stream = streams[(seed >> 60) as usize % 4];
            let at = (seed >> 33) as usize % sectors;
            let most = if seed >> 20 & 7 == 0 { sectors } else { 8 };
            let range = at..(at + 1 + (seed >> 10) as usize % most).min(sectors);
            let (start, len) = (START + at as u64 * SLICE, range.len() as u64 * SLICE);
            if seed >> 50 & 31 == 0 {
                rows.close(stream);
                owner.iter_mut().filter(|owner| **owner == Some(stream)).for_each(|owner| *owner = None);
            } else if range.clone().all(|sector| free[sector]) {
                let was_offered = rows.offers(stream, start, len);
                take(&mut all, &mut rows, stream, start, len);
                for sector in range {
                    free[sector] = false;
                    if was_offered {
                        owner[slice_of(sector)] = Some(stream);
                    }
                }
            } else if range.clone().all(|sector| !free[sector]) {
                all.insert(start, len);
                rows.update(&all, start, len);
                range.clone().for_each(|sector| free[sector] = true);
                for slice in range.map(slice_of) {
                    if cells(slice).all(|cell| free[cell]) {
                        owner[slice] = None;
                    }
                }
            }
            for (sector, is_free) in free.iter().enumerate() {
                let slice = slice_of(sector);
                let is_fresh = cells(slice).all(|cell| free[cell]);
                for stream in streams {
                    let expected = *is_free && (is_fresh || owner[slice] == Some(stream));
                    let at = START + sector as u64 * SLICE;
                    assert_eq!(rows.offers(stream, at, SLICE), expected, "sector {sector} for {stream:?}");
                }
            }
        }
    }
}
