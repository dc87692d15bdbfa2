//! Writing through the volume where rows with parity may hold something wrong: such a row is repaired first, as far as
//! checksums and headers say what is right. Checking rows serves scrubs too.

use super::TreeItems;
use super::checksums::{self, Checksums, Layout};
use crate::error::Result;
use crate::transaction::Core;
use butterfs_ondisk::header::Header;
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_ondisk::{ChecksumKind, DeviceId, Logical};
use butterfs_volume::{BadRow, Caching, Confirmed, RowChecked, RowRepair, SourceReads, VolumeError};
use zerocopy::FromBytes;

/// Writes `data` at `at`, which lie in one chunk.
pub(crate) fn write(core: &Core, at: Logical, data: &[u8], caching: Caching) -> Result<()> {
    let volume = &core.volume;
    let mut outcome = match caching {
        Caching::Kept => volume.write(at, data),
        Caching::Avoided => volume.write_uncached(at, data),
    };
    let mut checked = Vec::new();
    while let Err(VolumeError::RowInconsistent { row }) = &outcome {
        if checked.contains(row) {
            break;
        }
        let found = check(core, *row, RowRepair::Write)?;
        volume.report(Some(*row), told(*row, found));
        checked.push(*row);
        outcome = volume.write_again(at, data, &checked);
    }
    Ok(outcome?)
}

fn told(row: Logical, found: RowChecked) -> String {
    let RowChecked { data, parity, lost } = found;
    format!(
        "the row at logical {row} contradicted its parity: {data} bytes of data and {parity} of parity were repaired, \
         {lost} are lost"
    )
}

/// Checks the row with parity that holds `at`, and repairs it if `repair` says so. Nothing is wrong where there is no
/// parity.
pub(crate) fn check(core: &Core, at: Logical, repair: RowRepair) -> Result<RowChecked> {
    let Some((start, len)) = core.volume.row_of(at) else { return Ok(RowChecked::default()) };
    let confirmer = Confirmer::of(core, start, len)?;
    let confirm = |at: Logical, bytes: &[u8]| confirmer.confirm_used(core, at, bytes);
    Ok(core.volume.check_row(start, confirmer.unit, repair, &confirm)?)
}

/// Copies what device `id` has of the row with parity that holds `at` to the device that takes over from it. A row that
/// has something wrong is repaired first. Returns how many sectors of data are lost.
pub(crate) fn copy_to_twin(core: &Core, id: DeviceId, at: Logical, reads: SourceReads) -> Result<u64> {
    let Some((start, len)) = core.volume.row_of(at) else { return Ok(0) };
    let confirmer = Confirmer::of(core, start, len)?;
    let confirm = |at: Logical, bytes: &[u8]| confirmer.confirm_used(core, at, bytes);
    let copy = |bad| core.volume.copy_row((id, start), reads, (confirmer.unit, &confirm), bad);
    match copy(BadRow::Left) {
        Ok(false) => {}
        Ok(true) => return Ok(0),
        Err(_) if core.volume.row_of(start).is_none() => return Ok(0),
        Err(error) => return Err(error.into()),
    }
    let lost = check(core, start, RowRepair::Write)?.lost;
    match copy(BadRow::Copied) {
        // Nobody needs it, or its chunk is gone.
        Err(_) if core.space.is_free(start, len) || core.volume.row_of(start).is_none() => return Ok(0),
        copied => copied?,
    };
    // A tree block that is not written yet looks bad, and is written to both.
    Ok(if confirmer.sums.is_some() { lost / u64::from(core.sectorsize()) } else { 0 })
}

/// Verifies the bytes of a range in one chunk by checksums and headers.
pub(crate) struct Confirmer {
    start: Logical,
    /// Bytes that are confirmed or not together.
    pub unit: usize,
    kind: ChecksumKind,
    fsid: [u8; 16],
    /// Checksums of its sectors, where it can have any.
    sums: Option<Checksums>,
    has_blocks: bool,
}

impl Confirmer {
    pub fn of(core: &Core, start: Logical, len: u64) -> Result<Confirmer> {
        let flags = core.volume.chunk_map().get(start).map_or(0, |chunk| chunk.kind);
        let (has_data, has_blocks) = (flags & bits::DATA != 0, flags & (bits::METADATA | bits::SYSTEM) != 0);
        let csum_tree = TreeItems::reading(core, &core.globals().csum);
        let sums = has_data.then(|| checksums::lookup(&csum_tree, Layout::of(core), start, len)).transpose()?;
        let unit = if has_data { core.sectorsize() } else { core.nodesize() } as usize;
        let (kind, fsid) = (core.checksum_kind(), core.superblock().block_fsid());
        Ok(Confirmer { start, unit, kind, fsid, sums, has_blocks })
    }

    /// The verdict about the bytes of a unit.
    pub fn confirm(&self, at: Logical, bytes: &[u8]) -> Confirmed {
        let Some(sums) = &self.sums else { return self.confirm_block(at, bytes) };
        match sums.get(((at.0 - self.start.0) / self.unit as u64) as usize) {
            Some(stored) if self.kind.matches(bytes, stored) => Confirmed::Yes(0),
            Some(_) => Confirmed::No,
            // In mixed groups a node is no larger than a sector.
            None if self.has_blocks && self.confirm_block(at, bytes) != Confirmed::No => self.confirm_block(at, bytes),
            None => Confirmed::Unknown,
        }
    }

    /// The same; what is free holds anything.
    pub fn confirm_used(&self, core: &Core, at: Logical, bytes: &[u8]) -> Confirmed {
        let is_free = core.space.is_free(at, bytes.len() as u64);
        if is_free { Confirmed::Unknown } else { self.confirm(at, bytes) }
    }

    /// A block that could be a tree block of this address.
    fn confirm_block(&self, at: Logical, bytes: &[u8]) -> Confirmed {
        let Ok((header, _)) = Header::read_from_prefix(bytes) else { return Confirmed::No };
        let is_block = header.bytenr.get() == at.0
            && header.fsid == self.fsid
            && self.kind.matches(&bytes[32..], &header.csum[..self.kind.len()]);
        if is_block { Confirmed::Yes(header.generation.get()) } else { Confirmed::No }
    }
}
