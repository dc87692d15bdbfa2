//! Bringing a stale device up to date in chunks with parity: what it holds of a row is compared with what the other
//! devices make of it.

use crate::error::VolumeError;
use crate::layout::{Layout, StripeAddress};
use crate::member::{Caching, touched_superblock};
use crate::resync::{Confirmed, Resynced};
use crate::row::{Row, State};
use crate::row_check::{CheckedRow, RowRepair};
use crate::stripe_read::Trust;
use crate::volume::Volume;
use butterfs_ondisk::chunk::STRIPE_LEN;
use butterfs_ondisk::{DeviceId, Logical};
use std::ops::Range;

/// The part of a row on a device.
struct Own<'a> {
    layout: &'a Layout<'a>,
    row: u64,
    element: usize,
}

impl Own<'_> {
    fn address(&self, depth: u64) -> StripeAddress {
        self.layout.element_address(self.row, self.element, depth)
    }

    /// The logical address of its bytes, or of other bytes of the row where it is parity.
    fn at(&self, depth: u64) -> Logical {
        self.layout.column_start(self.row, self.element.min(self.layout.columns() - 1), depth)
    }

    fn is_data(&self) -> bool {
        self.element < self.layout.columns()
    }
}

impl Volume {
    /// Makes what device `id` holds of the rows of `len` bytes at `at` fit what the other devices hold. Nobody writes
    /// meanwhile.
    pub(crate) fn resync_rows(
        &self,
        layout: &Layout<'_>,
        (id, at, len): (DeviceId, Logical, usize),
        (unit, confirm): (usize, &dyn Fn(Logical, &[u8]) -> Confirmed),
    ) -> Result<Resynced, VolumeError> {
        let mut done = Resynced::default();
        let start = at.0 - layout.chunk().start.0;
        let rows = start / layout.row_len()..(start + len as u64).div_ceil(layout.row_len());
        for row in rows {
            let stripes = layout.chunk().stripes.iter().enumerate();
            for (stripe, _) in stripes.filter(|(_, stripe)| stripe.device == id) {
                let own = Own { layout, row, element: layout.element_on(row, stripe) };
                self.resync_element(&own, (unit, confirm), &mut done)?;
            }
        }
        Ok(done)
    }

    fn resync_element(
        &self,
        own: &Own<'_>,
        (unit, confirm): (usize, &dyn Fn(Logical, &[u8]) -> Confirmed),
        done: &mut Resynced,
    ) -> Result<(), VolumeError> {
        let depths = own.row * STRIPE_LEN..(own.row + 1) * STRIPE_LEN;
        let (held, made) = (self.held(own, &depths), self.made(own, &depths));
        if let (Some(held), Some(made)) = (&held, &made)
            && *held == made.element(own.element)
        {
            return Ok(());
        }
        for depth in depths.step_by(unit) {
            let depths = depth..depth + unit as u64;
            if touched_superblock(own.address(depth).physical, unit as u64).is_some() {
                continue;
            }
            let (held, made) = (self.held(own, &depths), self.made(own, &depths));
            let own_rank = match &held {
                Some(held) if own.is_data() => confirm(own.at(depth), held),
                _ => Confirmed::No,
            };
            let Some(made) = made else {
                done.unreadable += if own_rank > Confirmed::Unknown { 0 } else { unit as u64 };
                continue;
            };
            let made = made.element(own.element);
            if held.is_some_and(|held| held == made) {
                continue;
            }
            if own.is_data() && own_rank > Confirmed::Unknown && confirm(own.at(depth), made) < own_rank {
                // Only what the device holds is right: another one has something bad.
                let (layout, number) = (own.layout, own.row);
                let (repair, how) = (RowRepair::Write, (Trust::Verified, Caching::Kept));
                done.written +=
                    CheckedRow { volume: self, layout, number, repair, confirm, how }.check(&depths)?.written();
                continue;
            }
            // Wrong bytes that fit the parity are better than others: the rest of the row depends on them.
            self.store_resynced(own.layout, own.at(depth), own.address(depth), made)?;
            done.written += unit as u64;
        }
        Ok(())
    }

    fn held(&self, own: &Own<'_>, depths: &Range<u64>) -> Option<Vec<u8>> {
        let mut held = vec![0; (depths.end - depths.start) as usize];
        let read =
            self.fetch_stripe(own.layout, 0, own.address(depths.start), (Trust::Verified, Caching::Kept), &mut held);
        read.is_ok().then_some(held)
    }

    /// The row as the other devices make it; `None` where they are too few.
    fn made(&self, own: &Own<'_>, depths: &Range<u64>) -> Option<Row> {
        let mut row = self.read_row(own.layout, own.row, depths, &|element| element != own.element);
        if row.complete() == State::Lost {
            return None;
        }
        if !own.is_data() {
            row.update_parity();
        }
        Some(row)
    }
}
