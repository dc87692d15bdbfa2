//! The free space of a group, and in groups with parity the part that can be used without sharing slices of rows.

use super::free_extents::FreeExtents;
use super::rows::{Rows, Sharing, Stream};

/// See the [module](self).
#[derive(Debug, Clone, Default)]
pub struct FreeSpace {
    all: FreeExtents,
    rows: Option<Rows>,
}

impl FreeSpace {
    /// Nothing is free yet in the group at `start`. `columns` is 0 where there is no parity.
    pub fn new(start: u64, columns: u64) -> FreeSpace {
        FreeSpace { all: FreeExtents::default(), rows: (columns > 0).then(|| Rows::new(start, columns)) }
    }

    /// Free bytes.
    pub fn total(&self) -> u64 {
        self.all.total()
    }

    /// Each free run: address and length.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.all.iter()
    }

    /// Free bytes that share a slice with nothing that is in use. All of them where there is no parity.
    pub fn fresh(&self) -> u64 {
        self.rows.as_ref().map_or(self.all.total(), Rows::fresh)
    }

    /// Whether any byte of `[at, at + len)` is free.
    pub fn touches(&self, at: u64, len: u64) -> bool {
        self.all.touches(at, len)
    }

    /// Whether all of `[at, at + len)` is free.
    pub fn covers(&self, at: u64, len: u64) -> bool {
        self.all.covers(at, len)
    }

    /// Whether `stream` can have exactly these bytes without sharing slices.
    pub fn offers(&self, stream: Stream, at: u64, len: u64) -> bool {
        self.all.covers(at, len) && self.rows.as_ref().is_none_or(|rows| rows.offers(stream, at, len))
    }

    /// The free bytes at or after `at` that come first, up to the end of their run.
    pub fn next_from(&self, at: u64) -> Option<(u64, u64)> {
        self.all.next_from(at)
    }

    /// Adds a run; it must not overlap what is free.
    pub fn insert(&mut self, at: u64, len: u64) {
        if len > 0 {
            self.all.insert(at, len);
            self.update(at, len);
        }
    }

    /// Takes whatever is free in `[at, at + len)` out.
    pub fn remove(&mut self, at: u64, len: u64) {
        if len > 0 {
            self.all.remove(at, len);
            self.update(at, len);
        }
    }

    fn update(&mut self, at: u64, len: u64) {
        let all = &self.all;
        self.rows.iter_mut().for_each(|rows| rows.update(all, at, len));
    }

    /// Up to `want` bytes, at least `min`, from the run that fits best.
    pub fn take_best_fit(&mut self, stream: Stream, sharing: Sharing, want: u64, min: u64) -> Option<(u64, u64)> {
        let (found, was_offered) = match (&self.rows, sharing) {
            (Some(rows), Sharing::Never) => (rows.find(stream, want, min), true),
            _ => (self.all.best_fit(want, min), false),
        };
        let (at, len) = found?;
        self.take(stream, at, len, was_offered);
        Some((at, len))
    }

    /// The first `len` bytes, aligned to `len`, at or after `from`; else anywhere.
    pub fn take_aligned(&mut self, stream: Stream, sharing: Sharing, len: u64, from: u64) -> Option<u64> {
        let (found, was_offered) = match (&self.rows, sharing) {
            (Some(rows), Sharing::Never) => (rows.find_aligned(stream, len, from), true),
            _ => (self.all.find_aligned(len, from).or_else(|| self.all.find_aligned(len, 0)), false),
        };
        let at = found?;
        self.take(stream, at, len, was_offered);
        Some(at)
    }

    /// Takes exactly these bytes, which are free.
    pub fn take(&mut self, stream: Stream, at: u64, len: u64, was_offered: bool) {
        self.all.remove(at, len);
        let all = &self.all;
        self.rows.iter_mut().for_each(|rows| rows.taken(all, stream, at, len, was_offered));
    }

    /// Closes the slices that a stream has opened.
    pub fn close(&mut self, stream: Stream) {
        self.rows.iter_mut().for_each(|rows| rows.close(stream));
    }
}
