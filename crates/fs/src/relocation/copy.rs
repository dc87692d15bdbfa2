//! Copying data as it lies on disk, compressed or not, to another address. No lock and no handle is held.
//!
//! Every sector that has a checksum is compared with it; a sector that agrees in no copy is an error, and nothing of
//! its extent is moved. Sectors without one (`NODATASUM`, or preallocated and not written) are copied as they are.

use crate::error::{Error, Result};
use crate::extent::TreeItems;
use crate::extent::checksums::{self, Checksums, Layout};
use crate::extent::rows;
use crate::parallel::map_waiting;
use crate::relocation::closure::DataMove;
use crate::transaction::Core;
use butterfs_device::AlignedBuffer;
use butterfs_ondisk::Logical;
use butterfs_volume::Caching;
use std::sync::Arc;

/// Bytes that are in memory at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// The checksums of an extent.
pub(super) fn checksums_of(core: &Arc<Core>, at: Logical, len: u64) -> Result<Checksums> {
    let items = TreeItems::reading(core, &core.globals().csum);
    checksums::lookup(&items, Layout::of(core), at, len)
}

/// Copies extents to their new places, several pieces at a time.
pub(super) fn copy_data(core: &Arc<Core>, extents: &[DataMove]) -> Result<()> {
    let pieces = pieces(core, extents);
    let copied = map_waiting(core.env(), pieces.len(), |index| copy_piece(core, &pieces[index]));
    copied.into_iter().collect()
}

/// The same bytes in pieces: neighbours that stay neighbours go together.
fn pieces(core: &Core, extents: &[DataMove]) -> Vec<DataMove> {
    let chunks = core.volume().chunk_map();
    let follows = |last: &DataMove, from: Logical, to: Logical| {
        last.from.plus(last.len) == from
            && last.to.plus(last.len) == to
            && chunks.get(last.to).is_some_and(|chunk| to < chunk.end())
    };
    let mut pieces: Vec<DataMove> = Vec::new();
    for extent in extents {
        let (mut from, mut to, mut left) = (extent.from, extent.to, extent.len);
        while left > 0 {
            let len = match pieces.last_mut() {
                Some(last) if last.len < PIECE_BYTES && follows(last, from, to) => {
                    let len = left.min(PIECE_BYTES - last.len);
                    last.len += len;
                    len
                }
                _ => {
                    let len = left.min(PIECE_BYTES);
                    pieces.push(DataMove { from, to, len });
                    len
                }
            };
            (from, to, left) = (from.plus(len), to.plus(len), left - len);
        }
    }
    pieces
}

fn copy_piece(core: &Arc<Core>, piece: &DataMove) -> Result<()> {
    let mut buffer = AlignedBuffer::new(piece.len as usize);
    read_piece(core, piece.from, &mut buffer)?;
    // Rows with parity in which nothing was written yet may contradict their parity.
    rows::write(core, piece.to, &buffer, Caching::Avoided)
}

fn read_piece(core: &Arc<Core>, at: Logical, out: &mut [u8]) -> Result<()> {
    let sums = checksums_of(core, at, out.len() as u64)?;
    let (sector, caching) = (core.sectorsize() as usize, core.volume().caching_of_read(at, out.len()));
    let mut from = 0;
    while from < sums.len() {
        let known = sums.get(from).is_some();
        let to = (from..sums.len()).find(|index| sums.get(*index).is_some() != known).unwrap_or(sums.len());
        let (at, part) = (at.plus((from * sector) as u64), &mut out[from * sector..to * sector]);
        match known {
            true => read_verified(core, at, part, caching, (&sums, from))?,
            false => core.volume().read_unverified_as(at, part, caching)?,
        }
        from = to;
    }
    Ok(())
}

/// Reads sectors that all have checksums, the first one number `first` of `sums`.
fn read_verified(
    core: &Core,
    at: Logical,
    out: &mut [u8],
    caching: Caching,
    (sums, first): (&Checksums, usize),
) -> Result<()> {
    let sector = core.sectorsize() as usize;
    if core.volume().read_as(at, out, caching, &mut |data| agrees(core, at, data, sums, first)).is_ok() {
        return Ok(());
    }
    // No copy is good as a whole; perhaps every sector is good in one of them.
    for (index, into) in out.chunks_mut(sector).enumerate() {
        let at = at.plus((index * sector) as u64);
        core.volume().read(at, into, &mut |data| agrees(core, at, data, sums, first + index)).map_err(|error| {
            core.volume().report(Some(at), error.to_string());
            Error::from(error)
        })?;
    }
    Ok(())
}

fn agrees(core: &Core, at: Logical, data: &[u8], sums: &Checksums, first: usize) -> Result<(), String> {
    match sums.first_differing(data, first) {
        Some(index) => {
            let at = at.plus(index as u64 * u64::from(core.sectorsize()));
            Err(format!("the data at {at} does not match its {}", core.checksum_kind().name()))
        }
        None => Ok(()),
    }
}
