//! The free space tree against the truth: the complement of the extents in each block group.
//!
//! Superblock copies are listed as free, as the format has it.

use crate::extents::{ExtentScan, Runs};
use crate::finding::Finding;
use crate::session::Session;
use crate::walk::items;
use butterfs_ondisk::features::compat_ro;
use butterfs_ondisk::items::FreeSpaceInfo;
use butterfs_ondisk::{Key, KeyType, Logical};
use butterfs_tree::NodePtr;
use std::collections::BTreeMap;
use zerocopy::FromBytes;

/// The free space of one group according to the tree.
#[derive(Default)]
struct Listed {
    info: Option<FreeSpaceInfo>,
    free: Runs,
    /// Ranges given, before neighbours are joined: the tree keeps them maximal.
    ranges: u64,
    bitmaps: bool,
}

/// Checks the free space tree at `root`.
pub(crate) fn check(session: &Session<'_>, root: NodePtr, scan: &ExtentScan) {
    let mut listed: BTreeMap<u64, Listed> = BTreeMap::new();
    let complete = items(session, root, &mut |key, data| {
        let group = scan.groups.range(..=key.objectid).next_back();
        let group = group
            .filter(|(start, group)| key.objectid.saturating_add(key.offset) <= start.saturating_add(group.length));
        match group {
            // A summary is found by the whole key.
            Some((&start, group))
                if key.kind == KeyType::FREE_SPACE_INFO && (key.objectid, key.offset) != (start, group.length) =>
            {
                session.report(Finding::FreeSpaceStray { key });
            }
            Some((&start, _)) => add(listed.entry(start).or_default(), key, data, session.sectorsize()),
            None => session.report(Finding::FreeSpaceStray { key }),
        }
    });
    if session.sb.compat_ro_flags.get() & compat_ro::FREE_SPACE_TREE_VALID == 0 {
        return session.note("the free space tree is marked invalid and was not compared");
    }
    if complete && scan.complete {
        for (&start, group) in &scan.groups {
            compare(
                session,
                scan,
                start..start.saturating_add(group.length),
                listed.remove(&start).unwrap_or_default(),
            );
        }
    }
}

fn add(listed: &mut Listed, key: Key, data: &[u8], sector: u64) {
    match key.kind {
        KeyType::FREE_SPACE_INFO => {
            listed.info = FreeSpaceInfo::read_from_bytes(data).ok();
        }
        KeyType::FREE_SPACE_EXTENT => {
            listed.ranges += 1;
            listed.free.push(key.objectid..key.objectid.saturating_add(key.offset));
        }
        KeyType::FREE_SPACE_BITMAP => {
            listed.bitmaps = true;
            for bit in 0..(key.offset / sector).min(data.len() as u64 * 8) {
                if data[(bit / 8) as usize] & (1 << (bit % 8)) != 0 {
                    let at = key.objectid + bit * sector;
                    listed.free.push(at..at + sector);
                }
            }
        }
        _ => {}
    }
}

fn compare(session: &Session<'_>, scan: &ExtentScan, range: std::ops::Range<u64>, listed: Listed) {
    let group = Logical(range.start);
    let Some(info) = listed.info else { return session.report(Finding::FreeSpaceInfoMissing { group }) };
    let of_bitmaps = info.flags.get() & FreeSpaceInfo::USING_BITMAPS != 0;
    if of_bitmaps && listed.ranges > 0 || !of_bitmaps && listed.bitmaps {
        return session.report(Finding::FreeSpaceForm { group });
    }
    let count = u64::from(info.extent_count.get());
    let found = if listed.bitmaps { listed.free.0.len() as u64 } else { listed.ranges };
    if count != found {
        session.report(Finding::FreeSpaceCount { group, stored: count, found });
    }
    for free in &listed.free.0 {
        for wrong in scan.used.within(free.clone()) {
            report(session, group, &wrong, "free");
        }
    }
    for truly_free in scan.used.gaps(range) {
        for wrong in listed.free.gaps(truly_free) {
            report(session, group, &wrong, "not free");
        }
    }
}

fn report(session: &Session<'_>, group: Logical, wrong: &std::ops::Range<u64>, listed: &str) {
    let (at, length, listed) = (Logical(wrong.start), wrong.end - wrong.start, listed.to_owned());
    session.report(Finding::FreeSpaceWrong { group, at, length, listed });
}
