//! The checksum tree: what it covers, whether that is data, and whether the data is what the checksums say.

use crate::extents::{ExtentScan, Runs};
use crate::finding::Finding;
use crate::session::Session;
use crate::walk::items;
use butterfs_ondisk::{KeyType, Logical};
use butterfs_tree::NodePtr;

/// Sectors that have checksums: 16 bytes for each fragment.
#[derive(Default)]
pub(crate) struct Checksums {
    pub covered: Runs,
    pub complete: bool,
}

/// Bytes of data that are read at once.
const READ_BYTES: usize = 1 << 20;

/// Reads the checksum tree.
pub(crate) fn read(session: &Session<'_>, root: NodePtr) -> Checksums {
    let (mut covered, mut end) = (Runs::default(), 0);
    let per_sector = session.identity.checksum.len();
    let complete = items(session, root, &mut |key, data| {
        if key.kind != KeyType::EXTENT_CSUM {
            return;
        }
        if key.offset < end {
            session.report(Finding::ChecksumOverlap { at: Logical(key.offset) });
        }
        let length = (data.len() / per_sector) as u64 * session.sectorsize();
        end = end.max(key.offset.saturating_add(length));
        covered.push(key.offset..key.offset.saturating_add(length));
    });
    Checksums { covered, complete }
}

/// Checksums of what is no data.
pub(crate) fn check_extents(session: &Session<'_>, checksums: &Checksums, scan: &ExtentScan) {
    if !checksums.complete || !scan.complete {
        return;
    }
    for run in &checksums.covered.0 {
        for stray in scan.data.gaps(run.clone()) {
            session.report(Finding::ChecksumStray { at: Logical(stray.start), length: stray.end - stray.start });
        }
    }
}

/// Reads all data that has checksums, in every copy.
pub(crate) fn check_data(session: &Session<'_>, root: NodePtr, scan: &ExtentScan) {
    items(session, root, &mut |key, data| {
        if key.kind == KeyType::EXTENT_CSUM {
            // What is no extent has been reported, and may be anything.
            check_item(session, key.offset, data, &scan.data);
        }
    });
}

/// Reads what a checksum item covers, as far as it lies within `runs`.
pub(crate) fn check_item(session: &Session<'_>, start: u64, digests: &[u8], runs: &Runs) {
    let sector = session.identity.sectorsize as usize;
    let per_sector = session.identity.checksum.len();
    for (index, digests) in digests.chunks(READ_BYTES / sector * per_sector).enumerate() {
        let at = start.saturating_add((index * READ_BYTES) as u64);
        let length = (digests.len() / per_sector * sector) as u64;
        for run in runs.within(at..at.saturating_add(length)) {
            let skipped = (run.start - at) as usize / sector * per_sector;
            check_run(session, run, &digests[skipped..]);
        }
    }
}

fn check_run(session: &Session<'_>, run: std::ops::Range<u64>, digests: &[u8]) {
    let map = session.volume.chunk_map();
    let mut at = run.start;
    while at < run.end {
        let Some(chunk) = map.get(Logical(at)) else { return };
        let end = run.end.min(chunk.end().get());
        let skipped = ((at - run.start) / session.sectorsize()) as usize * session.identity.checksum.len();
        check_piece(session, at, (end - at) as usize, digests.get(skipped..).unwrap_or_default());
        at = end;
    }
}

fn check_piece(session: &Session<'_>, at: u64, length: usize, digests: &[u8]) {
    let (kind, sector) = (session.identity.checksum, session.identity.sectorsize as usize);
    let mut bytes = vec![0; length];
    session.count_data(length as u64);
    for copy in 0..session.volume.copies(Logical(at)) {
        let bad = |at: u64, reason: String| Finding::DataBad { at: Logical(at), copy: copy as u64, reason };
        if let Err(error) = session.volume.read_copy(Logical(at), copy, &mut bytes) {
            session.report(bad(at, error.to_string()));
            continue;
        }
        for index in kind.differing(&bytes, sector, digests) {
            session.report(bad(at + (index * sector) as u64, format!("checksum mismatch ({})", kind.name())));
        }
    }
}

/// The sector at `at` from a copy that fits its checksum, if there is one.
pub(crate) fn verified_sector(session: &Session<'_>, at: Logical, digest: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = vec![0; session.identity.sectorsize as usize];
    let is_good = (0..session.volume.copies(at)).any(|copy| {
        session.volume.read_copy(at, copy, &mut bytes).is_ok() && session.identity.checksum.matches(&bytes, digest)
    });
    is_good.then_some(bytes)
}
