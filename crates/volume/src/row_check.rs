//! Checking a row with parity, and repairing it: before a part of it is written, and for a scrub.
//!
//! Bad data is rebuilt in each way that is left, and the first way counts whose bytes the caller does not refuse.
//! Parity that does not fit good data is computed anew. What cannot be rebuilt stays as it is, and so does the parity
//! at its depths.

use crate::error::VolumeError;
use crate::layout::Layout;
use crate::member::{Caching, touched_superblock};
use crate::resync::Confirmed;
use crate::row::{Row, State};
use crate::stripe_read::Trust;
use crate::volume::Volume;
use butterfs_ondisk::Logical;
use butterfs_ondisk::chunk::STRIPE_LEN;
use std::ops::Range;

/// Whether what is wrong in a row is put right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowRepair {
    /// It is only counted.
    Count,
    /// It is overwritten.
    Write,
}

/// The result of checking a row, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct RowChecked {
    /// Data that was bad or unreadable and could be rebuilt.
    pub data: u64,
    /// Parity that did not fit the data.
    pub parity: u64,
    /// Data that is bad, and that nothing rebuilds.
    pub lost: u64,
}

impl RowChecked {
    /// Bytes that were put right.
    pub(crate) fn written(&self) -> u64 {
        self.data + self.parity
    }

    pub(crate) fn add(&mut self, other: RowChecked) {
        self.data += other.data;
        self.parity += other.parity;
        self.lost += other.lost;
    }
}

impl Volume {
    /// The first byte and the bytes of the row with parity that holds `at`; `None` in chunks without parity.
    pub fn row_of(&self, at: Logical) -> Option<(Logical, u64)> {
        let row = |layout: Layout<'_>| {
            let len = layout.row_len();
            let start = layout.chunk().start;
            Ok((layout.parity() > 0).then(|| (start.plus((at.0 - start.0) / len * len), len)))
        };
        self.located(at, 1, row).ok().flatten()
    }

    /// Checks the row with parity that holds `at`, in units of `unit` bytes, a power of two of at most 64 KiB, and
    /// repairs it if `repair` says so. `confirm` is asked about the bytes of a unit, by its address. Nobody writes into
    /// the row meanwhile.
    pub fn check_row(
        &self,
        at: Logical,
        unit: usize,
        repair: RowRepair,
        confirm: &dyn Fn(Logical, &[u8]) -> Confirmed,
    ) -> Result<RowChecked, VolumeError> {
        if repair == RowRepair::Write {
            self.check_writable()?;
        }
        self.located(at, 1, |layout| {
            let mut checked = RowChecked::default();
            if layout.parity() == 0 {
                return Ok(checked);
            }
            let number = (at.0 - layout.chunk().start.0) / layout.row_len();
            let _gate = self.gate.read();
            let _row = self.rows.write(layout.chunk(), number);
            let row = CheckedRow {
                volume: self,
                layout: &layout,
                number,
                repair,
                confirm,
                how: (Trust::Blind, Caching::Kept),
            };
            for depth in (number * STRIPE_LEN..(number + 1) * STRIPE_LEN).step_by(unit) {
                checked.add(row.check(&(depth..depth + unit as u64))?);
            }
            Ok(checked)
        })
    }
}

/// A row that is being checked.
pub(crate) struct CheckedRow<'a> {
    pub volume: &'a Volume,
    pub layout: &'a Layout<'a>,
    pub number: u64,
    pub repair: RowRepair,
    pub confirm: &'a dyn Fn(Logical, &[u8]) -> Confirmed,
    /// Whether stale devices are read, and caches believed.
    pub how: (Trust, Caching),
}

impl CheckedRow<'_> {
    /// Checks the row at these depths. It is locked, or nobody writes.
    pub fn check(&self, depths: &Range<u64>) -> Result<RowChecked, VolumeError> {
        let (columns, len) = (self.layout.columns(), depths.end - depths.start);
        let found = self.volume.read_row_as(self.layout, self.number, depths, self.how, &|_| true);
        let is_bad = |column: usize| !found.is_known(column) || self.confirmed(&found, column, depths) == Confirmed::No;
        let bad: Vec<usize> = (0..columns).filter(|&column| is_bad(column)).collect();
        let Some(good) = self.rebuilt(&found, &bad, depths) else {
            return Ok(RowChecked { lost: len * bad.len() as u64, ..RowChecked::default() });
        };
        let mut checked = RowChecked::default();
        for element in 0..columns + self.layout.parity() {
            let address = self.layout.element_address(self.number, element, depths.start);
            let is_there = self.volume.member_at(self.layout, address).is_some_and(|member| member.is_in_use());
            let differs = !found.is_known(element) || found.element(element) != good.element(element);
            if !differs || !is_there || touched_superblock(address.physical, len).is_some() {
                continue;
            }
            *if element < columns { &mut checked.data } else { &mut checked.parity } += len;
            if self.repair == RowRepair::Write {
                self.store(element, depths, good.element(element))?;
            }
        }
        Ok(checked)
    }

    fn confirmed(&self, row: &Row, column: usize, depths: &Range<u64>) -> Confirmed {
        (self.confirm)(self.layout.column_start(self.number, column, depths.start), row.element(column))
    }

    /// The row with its `bad` columns rebuilt and with parity that fits; `None` where no way to rebuild them is left.
    fn rebuilt(&self, found: &Row, bad: &[usize], depths: &Range<u64>) -> Option<Row> {
        let parities: Vec<usize> = found.parities().collect();
        let without: Vec<Option<usize>> = [None].into_iter().chain(parities.into_iter().rev().map(Some)).collect();
        without.into_iter().find_map(|without| {
            let mut row = found.clone();
            bad.iter().copied().chain(without).for_each(|element| row.forget(element));
            let is_whole = row.complete() != State::Lost;
            let is_accepted = |column: &usize| self.confirmed(&row, *column, depths) != Confirmed::No;
            if !is_whole || !bad.iter().all(is_accepted) {
                return None;
            }
            row.update_parity();
            Some(row)
        })
    }

    fn store(&self, element: usize, depths: &Range<u64>, bytes: &[u8]) -> Result<(), VolumeError> {
        let address = self.layout.element_address(self.number, element, depths.start);
        let at = self.layout.column_start(self.number, element.min(self.layout.columns() - 1), depths.start);
        self.volume.store_stripe(self.layout, at, address, bytes, Caching::Kept).inspect_err(|_| {
            // It may hold a part of it now.
            if let Some(member) = self.volume.member_at(self.layout, address) {
                self.volume.miss(&[member]);
            }
        })
    }
}
