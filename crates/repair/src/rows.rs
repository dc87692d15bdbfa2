//! Rows with parity (RAID5, RAID6): bad elements are rebuilt, and parity that does not fit good data is computed anew,
//! before anything else is written, because a write into a part of a row takes the rest of it for right.
//!
//! Invariants: (1) data that has a checksum, and tree blocks that the extent tree names, are believed only when they
//! fit; (2) where neither the checksum nor the extent tree can be read, nothing is believed; (3) a row that cannot be
//! put right keeps its bytes, and stops no other one.

use crate::action::Pass;
use crate::checksums;
use crate::forest::Forest;
use crate::trouble::Result;
use crate::walk;
use butterfs_check::Finding;
use butterfs_ondisk::header::Header;
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_ondisk::{Key, KeyType, Logical, TreeId};
use butterfs_volume::{Confirmed, RowChecked, RowRepair};
use std::cell::Cell;
use std::collections::BTreeSet;
use zerocopy::FromBytes;

/// Repairs the rows in which a check has found a bad copy. Where there is one, parity elsewhere may be bad too: of all
/// rows that hold something it is compared with what it belongs to, with data only if `reads_data`.
pub(crate) fn repair(forest: &mut Forest, findings: &[Finding], reads_data: bool) -> Result<()> {
    let bad: BTreeSet<u64> = findings
        .iter()
        .filter_map(|finding| match finding {
            Finding::DataBad { at, .. } | Finding::BlockCopyBad { at, .. } | Finding::BlockBad { at, .. } => {
                row_of(forest, *at)
            }
            _ => None,
        })
        .collect();
    let rows = if bad.is_empty() { BTreeSet::new() } else { used_rows(forest, reads_data) };
    let mut parities = 0;
    for row in bad.iter().copied().chain(rows.into_iter().filter(|row| !bad.contains(row))) {
        let (checked, is_unsure) = settle(forest, Logical(row))?;
        if checked.data > 0 {
            let what = format!("rebuilds {} bytes of the row with parity at {row} from the rest of it", checked.data);
            forest.did(Pass::Copies, what);
        }
        if checked.lost > 0 {
            let what = format!("leaves the row with parity at {row} as it is");
            forest.lose(Pass::Copies, what, format!("{} bytes of it, which nothing rebuilds", checked.lost));
        }
        if checked.parity > 0 && is_unsure {
            let what = format!("computes the parity of the row at {row} from data without checksums");
            forest.lose(Pass::Copies, what, "whether that data is right, which its parity contradicted");
        }
        parities += u64::from(checked.parity > 0 && !is_unsure);
    }
    if parities > 0 {
        forest.did(Pass::Copies, format!("computes the parity of {parities} rows anew from their data"));
    }
    Ok(())
}

/// The rows with parity in which the extent tree has something.
fn used_rows(forest: &Forest, reads_data: bool) -> BTreeSet<u64> {
    let (map, nodesize) = (forest.store.volume.chunk_map(), forest.store.nodesize());
    let mut rows = BTreeSet::new();
    let Ok(extents) = forest.ptr(TreeId::EXTENT) else { return rows };
    walk::items(&forest.store, &extents, &mut |key, _| {
        let len = match key.kind {
            KeyType::EXTENT_ITEM => key.offset,
            KeyType::METADATA_ITEM => nodesize,
            _ => return,
        };
        let mut at = Logical(key.objectid);
        let is_read =
            map.get(at).is_some_and(|chunk| chunk.profile().parity > 0 && (reads_data || !is_data(chunk.kind)));
        let end = key.objectid.saturating_add(len);
        while is_read && at.get() < end {
            let Some((start, len)) = forest.store.volume.row_of(at) else { break };
            rows.insert(start.get());
            at = start.plus(len);
        }
    });
    rows
}

fn is_data(kind: u64) -> bool {
    kind & bits::METADATA == 0 && kind & bits::DATA != 0
}

/// Makes the rows right into which the new blocks go, as far as they can be; returns them.
pub(crate) fn prepare(forest: &Forest) -> Result<Vec<Logical>> {
    let rows: BTreeSet<u64> = forest.store.made().into_iter().filter_map(|at| row_of(forest, at)).collect();
    rows.iter().try_for_each(|row| settle(forest, Logical(*row)).map(drop))?;
    Ok(rows.into_iter().map(Logical).collect())
}

fn row_of(forest: &Forest, at: Logical) -> Option<u64> {
    forest.store.volume.row_of(at).map(|(start, _)| start.get())
}

/// Checks and repairs a row; says also whether it has data without checksums.
fn settle(forest: &Forest, row: Logical) -> Result<(RowChecked, bool)> {
    let (volume, is_unsure) = (&forest.store.volume, Cell::new(false));
    let map = volume.chunk_map();
    let Some(chunk) = map.get(row) else { return Ok(Default::default()) };
    let holds_blocks = !is_data(chunk.kind);
    let unit = if holds_blocks { forest.store.nodesize() } else { forest.store.sectorsize() };
    let confirm = |at: Logical, bytes: &[u8]| match holds_blocks {
        true => block(forest, at, bytes),
        false => data(forest, at, bytes, &is_unsure),
    };
    let checked = volume.check_row(row, unit as usize, RowRepair::Write, &confirm)?;
    Ok((checked, is_unsure.get()))
}

fn data(forest: &Forest, at: Logical, bytes: &[u8], is_unsure: &Cell<bool>) -> Confirmed {
    match checksums::digest_at(forest, at.get()) {
        Ok(Some(digest)) if forest.store.identity.checksum.matches(bytes, &digest) => Confirmed::Yes(0),
        Ok(None) => {
            is_unsure.set(is_unsure.get() || holds_data(forest, at.get()));
            Confirmed::Unknown
        }
        Ok(Some(_)) | Err(_) => Confirmed::No,
    }
}

/// Whether the extent tree has data there, as far as it can be read.
fn holds_data(forest: &Forest, at: u64) -> bool {
    let before = forest.before(TreeId::EXTENT, Key::new(at, KeyType::EXTENT_ITEM, u64::MAX).successor());
    let holds = |key: Key| key.kind == KeyType::EXTENT_ITEM && at < key.objectid.saturating_add(key.offset);
    before.is_ok_and(|key| key.is_some_and(holds))
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
        // Nothing is there yet of a block that this repair has made.
        None if !forest.store.is_made(at) && may_be_in_use(forest, at.get()) => Confirmed::No,
        None => Confirmed::Unknown,
    }
}

/// Whether the extent tree has a tree block there, or cannot be read.
fn may_be_in_use(forest: &Forest, at: u64) -> bool {
    let (first, last) = (Key::new(at, KeyType::EXTENT_ITEM, 0), Key::new(at, KeyType::METADATA_ITEM, u64::MAX));
    forest.range(TreeId::EXTENT, first, last).map_or(true, |items| !items.is_empty())
}
