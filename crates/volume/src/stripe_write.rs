//! Writing to every mirror, and what every write has in common. Rows with parity:
//! [`parity_write`](crate::parity_write).
//!
//! Invariant: a write is attempted everywhere, and is an error when it failed on more devices than the profile
//! survives. So a device that fails does not stop a mirror, and DUP, which survives no device, wants both of its
//! copies, as in the kernel. A device that has missed a write is stale from then on, and what is written to a stale
//! device is not counted.

use crate::error::VolumeError;
use crate::layout::{Layout, StripeAddress};
use crate::member::Caching;
use crate::volume::Volume;
use butterfs_ondisk::Logical;
use butterfs_ondisk::profile::Profile;
use std::io;

impl Volume {
    pub(crate) fn store_mirrors(
        &self,
        layout: &Layout<'_>,
        at: Logical,
        data: &[u8],
        caching: Caching,
    ) -> Result<(), VolumeError> {
        for piece in layout.pieces(at, data.len()) {
            let part = &data[piece.range.clone()];
            let written = (0..layout.mirrors()).map(|mirror| {
                let address = layout.stripe_address(&piece, mirror);
                (address, self.store_stripe(layout, at.plus(piece.range.start as u64), address, part, caching))
            });
            self.tolerate(layout, written)?;
        }
        Ok(())
    }

    /// The first error of a write, if it was not stored on as many devices as the profile demands, of which those on
    /// stale devices do not count. Else a device that failed is told, and is stale from now on.
    pub(crate) fn tolerate(
        &self,
        layout: &Layout<'_>,
        outcomes: impl Iterator<Item = (StripeAddress, Result<(), VolumeError>)>,
    ) -> Result<(), VolumeError> {
        let (mut errors, mut uncounted) = (Vec::new(), 0);
        for (address, outcome) in outcomes {
            match outcome {
                Ok(()) => uncounted += usize::from(self.lacks_something(layout, address)),
                Err(error) => errors.push((address, error)),
            }
        }
        if errors.is_empty() {
            return Ok(());
        }
        let survives = errors.len() + uncounted <= survivable(layout);
        // That a device is gone was told once.
        let device = |address: &StripeAddress| layout.chunk().stripes[address.stripe].device;
        let news: Vec<_> = errors.iter().filter(|(_, error)| !error.is_absence()).collect();
        let failed: Vec<_> = news.iter().filter_map(|(address, _)| self.member(device(address))).collect();
        if !survives || !self.miss(&failed) {
            return Err(errors.swap_remove(0).1);
        }
        news.iter().for_each(|(_, error)| self.tell(format!("{error}; the other devices go on")));
        Ok(())
    }

    pub(crate) fn store_stripe(
        &self,
        layout: &Layout<'_>,
        at: Logical,
        address: StripeAddress,
        data: &[u8],
        caching: Caching,
    ) -> Result<(), VolumeError> {
        let id = layout.chunk().stripes[address.stripe].device;
        self.store_on_twin(id, address.physical, data, caching);
        let (device, written) = match self.member(id) {
            Some(member) if member.is_in_use() => (member.device.name(), member.write(address.physical, data, caching)),
            Some(member) => (member.device.name(), Err(absent())),
            None => (format!("device {id}"), Err(absent())),
        };
        written.map_err(|error| VolumeError::Write { at: Some(at), device, physical: address.physical, error })
    }
}

fn absent() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the device is missing")
}

/// The number of devices of a chunk that may fail.
fn survivable(layout: &Layout<'_>) -> usize {
    Profile::of(layout.chunk().kind).map_or(0, |profile| profile.tolerated_failures)
}
