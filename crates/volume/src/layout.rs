//! The layout of the bytes of one chunk.
//!
//! A chunk is a table of rows and columns; an element is [`STRIPE_LEN`] bytes of one stripe. Profiles that do not
//! stripe have one column and one row as long as the chunk.
//!
//! ```text
//! single, DUP, RAID1*   one column;  copy m is stripe m
//! RAID0                 n columns;   column c is stripe c
//! RAID10                n/2 columns; copy m of column c is stripe 2c + m
//! RAID5, RAID6          d = n - parity columns; in row r column c is stripe (c + r) mod n,
//!                       P is (d + r) mod n, Q is (d + 1 + r) mod n
//! ```
//!
//! # Invariants
//! 1. A piece lies in one element, and all pieces of a request together are the request, in order.
//! 2. No stripe address lies outside of the stripe's device extent.
//!
//! Pure: no devices here.

use butterfs_ondisk::chunk::{Chunk, STRIPE_LEN};
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_ondisk::profile::Profile;
use butterfs_ondisk::{Logical, Physical};
use std::ops::Range;

/// A chunk read by its profile's rules.
#[derive(Clone, Copy, Debug)]
pub struct Layout<'a> {
    chunk: &'a Chunk,
    profile: &'static Profile,
    columns: u64,
    is_striped: bool,
}

/// The part of a request that lies in one element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which bytes of the request.
    pub range: Range<usize>,
    /// The row of elements.
    pub row: u64,
    /// The column, of those that hold data.
    pub column: usize,
    /// The offset in each stripe.
    pub depth: u64,
}

/// The place of a byte of a chunk on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeAddress {
    /// Index of the stripe in the chunk.
    pub stripe: usize,
    /// Address on the stripe's device.
    pub physical: Physical,
}

impl<'a> Layout<'a> {
    /// The layout of a chunk, or the rule that its shape breaks.
    pub fn of(chunk: &'a Chunk) -> Result<Layout<'a>, String> {
        let profile = Profile::of(chunk.kind).ok_or("more than one profile bit")?;
        let is_striped = profile.bit & (bits::RAID0 | bits::RAID10 | bits::RAID5 | bits::RAID6) != 0;
        check_stripe_count(profile, chunk.stripes.len(), is_striped)?;
        check_extents(chunk, profile, is_striped)?;
        let columns = profile.data_stripes(chunk.stripes.len()) as u64;
        Ok(Layout { chunk, profile, columns, is_striped })
    }

    /// The chunk.
    pub fn chunk(&self) -> &'a Chunk {
        self.chunk
    }

    /// Stripes of each row that hold data, each counted once.
    pub fn columns(&self) -> usize {
        self.columns as usize
    }

    /// Whether the bytes lie in short elements, one behind the other on the stripes in turn.
    pub fn is_striped(&self) -> bool {
        self.is_striped
    }

    /// Stripes of each row that hold parity.
    pub fn parity(&self) -> usize {
        self.profile.parity
    }

    /// Ways to read a byte: copies, and with parity also the ways to compute it.
    ///
    /// RAID5: 0 the data, 1 from P. RAID6: 0 the data, 1 from P, 2 from Q, then from both without one other column
    /// each.
    pub fn copies(&self) -> usize {
        match self.profile.parity {
            0 => self.profile.copies,
            1 => 2,
            _ => 2 + self.columns(),
        }
    }

    /// Copies that a write stores as they are.
    pub fn mirrors(&self) -> usize {
        self.profile.copies
    }

    /// The pieces of `len` bytes at `at`; the caller has made sure that the chunk holds them.
    pub fn pieces(&self, at: Logical, len: usize) -> impl Iterator<Item = Piece> + use<'a> {
        let Layout { chunk, columns, is_striped, .. } = *self;
        let start = at.0 - chunk.start.0;
        let mut done = 0;
        std::iter::from_fn(move || {
            if done == len {
                return None;
            }
            let offset = start + done as u64;
            let (row, column, depth, left) = if is_striped {
                let (element, inside) = (offset / STRIPE_LEN, offset % STRIPE_LEN);
                let row = element / columns;
                (row, (element % columns) as usize, row * STRIPE_LEN + inside, STRIPE_LEN - inside)
            } else {
                (0, 0, offset, u64::MAX)
            };
            let range = done..done + left.min((len - done) as u64) as usize;
            done = range.end;
            Some(Piece { range, row, column, depth })
        })
    }

    /// The place of mirror `mirror` of a piece.
    pub fn stripe_address(&self, piece: &Piece, mirror: usize) -> StripeAddress {
        let stripe = match self.profile.bit {
            bits::RAID0 => piece.column,
            bits::RAID10 => 2 * piece.column + mirror,
            bits::RAID5 | bits::RAID6 => self.rotated(piece.column, piece.row),
            _ => mirror,
        };
        self.address_on(stripe, piece.depth)
    }

    /// The place of data column `column` of a row of a parity profile, at the same depth as `piece`.
    pub fn column_address(&self, piece: &Piece, column: usize) -> StripeAddress {
        self.element_address(piece.row, column, piece.depth)
    }

    /// The place of an element of a row of a parity profile at a depth: the data columns, then P, then Q.
    pub fn element_address(&self, row: u64, element: usize, depth: u64) -> StripeAddress {
        self.address_on(self.rotated(element, row), depth)
    }

    /// Which element of a row of a parity profile a stripe has.
    pub fn element_on(&self, row: u64, stripe: usize) -> usize {
        let stripes = self.chunk.stripes.len() as u64;
        ((stripe as u64 + stripes - row % stripes) % stripes) as usize
    }

    /// The logical address of data column `column` of a row of a parity profile at a depth.
    pub fn column_start(&self, row: u64, column: usize, depth: u64) -> Logical {
        let inside = depth - row * STRIPE_LEN;
        self.chunk.start.plus((row * self.columns + column as u64) * STRIPE_LEN + inside)
    }

    /// How far behind the start of the chunk a byte of a stripe is; `None` in parity.
    pub fn offset_on(&self, stripe: usize, depth: u64) -> Option<u64> {
        if !self.is_striped {
            return Some(depth);
        }
        let (row, inside) = (depth / STRIPE_LEN, depth % STRIPE_LEN);
        let column = match self.profile.bit {
            bits::RAID0 => stripe,
            bits::RAID10 => stripe / 2,
            _ => self.element_on(row, stripe),
        };
        (column < self.columns()).then(|| (row * self.columns + column as u64) * STRIPE_LEN + inside)
    }

    /// Bytes of data in a row, where rows are as long as elements.
    pub fn row_len(&self) -> u64 {
        self.columns * STRIPE_LEN
    }

    /// The place of parity `which` (0 P, 1 Q) of a piece.
    pub fn parity_address(&self, piece: &Piece, which: usize) -> StripeAddress {
        self.address_on(self.rotated(self.columns() + which, piece.row), piece.depth)
    }

    fn rotated(&self, slot: usize, row: u64) -> usize {
        ((slot as u64 + row) % self.chunk.stripes.len() as u64) as usize
    }

    fn address_on(&self, stripe: usize, depth: u64) -> StripeAddress {
        StripeAddress { stripe, physical: self.chunk.stripes[stripe].physical.plus(depth) }
    }
}

fn check_stripe_count(profile: &Profile, count: usize, is_striped: bool) -> Result<(), String> {
    let least = (profile.parity + 1).max(profile.copies);
    let legal = match is_striped {
        true => count >= least && count.is_multiple_of(profile.copies),
        false => count == profile.copies,
    };
    if legal { Ok(()) } else { Err(format!("{count} stripes in a chunk of profile {}", profile.name)) }
}

/// Addresses do not overflow, and the chunk is a whole number of rows, so that no element sticks out of its extent.
fn check_extents(chunk: &Chunk, profile: &Profile, is_striped: bool) -> Result<(), String> {
    let columns = profile.data_stripes(chunk.stripes.len()) as u64;
    let row = columns * STRIPE_LEN;
    if chunk.length == 0 || chunk.start.0.checked_add(chunk.length).is_none() {
        return Err(format!("length {}", chunk.length));
    }
    if chunk.stripe_len != STRIPE_LEN {
        return Err(format!("stripe length {}", chunk.stripe_len));
    }
    if is_striped && !chunk.length.is_multiple_of(row) {
        return Err(format!("length {} is not a whole number of rows of {row} bytes", chunk.length));
    }
    let fits = |physical: Physical| physical.0.checked_add(chunk.length / columns).is_some();
    match chunk.stripes.iter().find(|stripe| !fits(stripe.physical)) {
        None => Ok(()),
        Some(stripe) => Err(format!("stripe at {} of device {} overflows", stripe.physical, stripe.device)),
    }
}

#[cfg(test)]
mod tests;
