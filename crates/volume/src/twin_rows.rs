//! Rows with parity, of which a device is replaced: what it has of them, copied to the device that takes over from it.
//!
//! Data that nobody calls bad is copied as it lies. Parity, and what is not read from the old device, is copied from a
//! row whose data nobody calls bad and that fits its parity.

use crate::error::VolumeError;
use crate::layout::Layout;
use crate::member::{Caching, touched_superblock};
use crate::migration::SourceReads;
use crate::resync::Confirmed;
use crate::row::State;
use crate::stripe_read::Trust;
use crate::volume::Volume;
use butterfs_ondisk::chunk::STRIPE_LEN;
use butterfs_ondisk::{DeviceId, Logical};

/// The treatment of a row that has something wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadRow {
    /// Nothing.
    Left,
    /// The element that the device has, or that the others make of it: the row has been repaired as far as possible.
    Copied,
}

/// An element of a row that is copied.
struct Element<'a> {
    layout: &'a Layout<'a>,
    row: u64,
    element: usize,
    /// Bytes that are confirmed together, and whether they are right.
    unit: usize,
    confirm: &'a dyn Fn(Logical, &[u8]) -> Confirmed,
}

impl Volume {
    /// Copies what device `id` has of the row with parity that holds `at` to the device that takes over from it. False,
    /// and nothing is copied, where something of the row is wrong and `bad` says so. `confirm` is asked about the bytes
    /// of a `unit`, by its address.
    pub fn copy_row(
        &self,
        (id, at): (DeviceId, Logical),
        reads: SourceReads,
        (unit, confirm): (usize, &dyn Fn(Logical, &[u8]) -> Confirmed),
        bad: BadRow,
    ) -> Result<bool, VolumeError> {
        self.check_writable()?;
        let _request = self.requests.read();
        self.located(at, 1, |layout| {
            let row = (at.0 - layout.chunk().start.0) / layout.row_len();
            let _gate = self.gate.read();
            let _row = self.rows.write(layout.chunk(), row);
            let stripes = layout.chunk().stripes.iter().enumerate();
            for (stripe, _) in stripes.filter(|(_, stripe)| stripe.device == id) {
                let element = layout.element_on(row, stripe);
                let element = Element { layout: &layout, row, element, unit, confirm };
                let Some(bytes) = self.element_to_copy(&element, reads, bad)? else { return Ok(false) };
                self.store_element_on_twin(id, &element, &bytes);
            }
            Ok(true)
        })
    }

    fn element_to_copy(
        &self,
        of: &Element<'_>,
        reads: SourceReads,
        bad: BadRow,
    ) -> Result<Option<Vec<u8>>, VolumeError> {
        if reads == SourceReads::Avoided
            && let Some(made) = self.made_by(of, false)
        {
            return Ok(Some(made));
        }
        let address = of.layout.element_address(of.row, of.element, of.row * STRIPE_LEN);
        let mut held = vec![0; STRIPE_LEN as usize];
        let is_held = self.fetch_stripe(of.layout, 0, address, (Trust::Blind, Caching::Kept), &mut held).is_ok();
        if is_held && of.element < of.layout.columns() && of.is_right(of.element, &held) {
            return Ok(Some(held));
        }
        match self.made_by(of, is_held) {
            Some(made) => Ok(Some(made)),
            None if bad == BadRow::Left => Ok(None),
            None if is_held => Ok(Some(held)),
            None => self.made_of_a_bad_row(of).map(Some),
        }
    }

    /// The element as a consistent row makes it whose data nobody calls bad.
    fn made_by(&self, of: &Element<'_>, with_own: bool) -> Option<Vec<u8>> {
        let depths = of.row * STRIPE_LEN..(of.row + 1) * STRIPE_LEN;
        let mut row = self.read_row(of.layout, of.row, &depths, &|other| other != of.element || with_own);
        let is_right = row.complete() == State::Consistent
            && (0..of.layout.columns()).all(|column| of.is_right(column, row.element(column)));
        is_right.then(|| row.element(of.element).to_vec())
    }

    fn made_of_a_bad_row(&self, of: &Element<'_>) -> Result<Vec<u8>, VolumeError> {
        let depths = of.row * STRIPE_LEN..(of.row + 1) * STRIPE_LEN;
        let mut row = self.read_row(of.layout, of.row, &depths, &|other| other != of.element);
        if row.complete() == State::Lost {
            let at = of.layout.column_start(of.row, 0, depths.start);
            return Err(VolumeError::NoGoodCopy { at, len: of.layout.row_len(), failures: Vec::new() });
        }
        row.update_parity();
        Ok(row.element(of.element).to_vec())
    }

    fn store_element_on_twin(&self, id: DeviceId, of: &Element<'_>, bytes: &[u8]) {
        let address = of.layout.element_address(of.row, of.element, of.row * STRIPE_LEN);
        let step = match touched_superblock(address.physical, STRIPE_LEN) {
            Some(_) => of.unit.min(4096),
            None => bytes.len(),
        };
        for (index, part) in bytes.chunks(step).enumerate() {
            let at = address.physical.plus((index * step) as u64);
            if touched_superblock(at, part.len() as u64).is_none() {
                self.store_on_twin(id, at, part, Caching::Avoided);
            }
        }
    }
}

impl Element<'_> {
    /// Whether nobody calls a column of the row bad.
    fn is_right(&self, column: usize, bytes: &[u8]) -> bool {
        bytes.chunks(self.unit).enumerate().all(|(index, part)| {
            let depth = self.row * STRIPE_LEN + (index * self.unit) as u64;
            (self.confirm)(self.layout.column_start(self.row, column, depth), part) != Confirmed::No
        })
    }
}
