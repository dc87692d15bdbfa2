//! Rows with parity (RAID5, RAID6): bad elements are rebuilt, and parity that does not fit good data is computed anew,
//! before anything else is written, because a write into a part of a row takes the rest of it for right.
//!
//! Invariant: data that has a checksum, and tree blocks that the extent tree names, are believed only when they fit.

use crate::action::Pass;
use crate::checksums;
use crate::forest::Forest;
use crate::trouble::Result;
use butterfs_check::Finding;
use butterfs_ondisk::header::Header;
use butterfs_ondisk::{Key, KeyType, Logical, TreeId};
use butterfs_volume::{Confirmed, RowRepair};
use std::collections::BTreeSet;
use zerocopy::FromBytes;

/// Repairs the rows in which a check has found a bad copy.
pub(crate) fn repair(forest: &mut Forest, findings: &[Finding]) -> Result<()> {
    let rows: BTreeSet<u64> = findings
        .iter()
        .filter_map(|finding| match finding {
            Finding::DataBad { at, .. } | Finding::BlockCopyBad { at, .. } => row_of(forest, *at),
            _ => None,
        })
        .collect();
    for row in rows {
        let checked = settle(forest, Logical(row))?;
        if checked > 0 {
            let what = format!("rebuilds {checked} bytes of the row with parity at {row} from the rest of it");
            forest.did(Pass::Copies, what);
        }
    }
    Ok(())
}

/// Makes the rows right into which the new blocks go.
pub(crate) fn prepare(forest: &Forest) -> Result<()> {
    let rows: BTreeSet<u64> = forest.store.made().into_iter().filter_map(|at| row_of(forest, at)).collect();
    rows.into_iter().try_for_each(|row| settle(forest, Logical(row)).map(drop))
}

fn row_of(forest: &Forest, at: Logical) -> Option<u64> {
    forest.store.volume.row_of(at).map(|(start, _)| start.get())
}

/// Checks and repairs a row; returns how many bytes were wrong.
fn settle(forest: &Forest, row: Logical) -> Result<u64> {
    let volume = &forest.store.volume;
    let map = volume.chunk_map();
    let Some(chunk) = map.get(row) else { return Ok(0) };
    let holds_blocks = chunk.kind & butterfs_ondisk::items::block_group_flags::DATA == 0;
    let unit = if holds_blocks { forest.store.nodesize() } else { forest.store.sectorsize() };
    let confirm = |at: Logical, bytes: &[u8]| match holds_blocks {
        true => block(forest, at, bytes),
        false => data(forest, at, bytes),
    };
    let checked = volume.check_row(row, unit as usize, RowRepair::Write, &confirm)?;
    Ok(checked.data + checked.parity)
}

fn data(forest: &Forest, at: Logical, bytes: &[u8]) -> Confirmed {
    match checksums::digest_at(forest, at.get()) {
        Some(digest) if forest.store.identity.checksum.matches(bytes, &digest) => Confirmed::Yes(0),
        Some(_) => Confirmed::No,
        None => Confirmed::Unknown,
    }
}

fn block(forest: &Forest, at: Logical, bytes: &[u8]) -> Confirmed {
    let identity = &forest.store.identity;
    let header = Header::read_from_prefix(bytes).ok().map(|(header, _)| header);
    let is_good = |header: &Header| {
        header.bytenr.get() == at.get()
            && header.fsid == identity.fsid
            && identity.checksum.matches(&bytes[32..], &header.csum)
    };
    match header.filter(is_good) {
        Some(header) => Confirmed::Yes(header.generation.get()),
        None if is_in_use(forest, at.get()) => Confirmed::No,
        None => Confirmed::Unknown,
    }
}

/// Whether the extent tree has a tree block there, as far as it can be read.
fn is_in_use(forest: &Forest, at: u64) -> bool {
    let (first, last) = (Key::new(at, KeyType::EXTENT_ITEM, 0), Key::new(at, KeyType::METADATA_ITEM, u64::MAX));
    forest.ptr(TreeId::EXTENT).is_ok() && forest.range(TreeId::EXTENT, first, last).is_ok_and(|items| !items.is_empty())
}
