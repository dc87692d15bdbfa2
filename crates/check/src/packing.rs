//! Marks of compression against the data, where data is checked.
//!
//! A mark that the first sector contradicts is only a suspicion until the checksum of that sector says that these bytes
//! are what was written: then nothing unpacks the extent. Damaged data says nothing, and is found by its checksum.

use crate::csums;
use crate::finding::{Finding, Tree};
use crate::session::Session;
use butterfs_ondisk::items::FileExtent;
use butterfs_ondisk::packing::{self, Packing};
use butterfs_ondisk::{Ino, Key, KeyType, Logical, TreeId};
use butterfs_tree::NodePtr;
use std::collections::BTreeMap;

/// A file extent whose mark the data may contradict.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suspect {
    pub tree: TreeId,
    pub inode: Ino,
    pub offset: u64,
    pub at: Logical,
    pub packing: Packing,
}

/// The lengths and the mark of a file extent with data on the devices.
pub(crate) fn of_extent(extent: &FileExtent, sector: u64) -> Packing {
    let (mark, unpacked) = (extent.head.compression, extent.head.ram_bytes.get());
    Packing { mark, stored: extent.body.disk_num_bytes.get(), unpacked, unit: sector }
}

/// Looks at the first sector of an extent, and remembers the extent where a copy contradicts the mark.
pub(crate) fn look(session: &Session<'_>, suspect: Suspect) {
    let mut start = vec![0; session.identity.sectorsize as usize];
    let is_contradicted = (0..session.volume.copies(suspect.at)).any(|copy| {
        session.volume.read_copy(suspect.at, copy, &mut start).is_ok() && suspect.packing.right_mark(&start).is_some()
    });
    if is_contradicted {
        session.suspect(suspect);
    }
}

/// The finding for a mark that is not the `right` one.
pub(crate) fn finding(tree: TreeId, inode: Ino, offset: u64, mark: u8, right: u8) -> Finding {
    let (marked, right) = (packing::name(mark).to_owned(), packing::name(right));
    Finding::FilePacking { tree: Tree(tree), inode, offset, marked, rule: format!("its data is {right}") }
}

/// Reports the suspects of which a verified sector contradicts the mark.
pub(crate) fn judge(session: &Session<'_>, csum_root: NodePtr) {
    let mut suspects: BTreeMap<u64, Vec<Suspect>> = BTreeMap::new();
    for suspect in session.take_suspects() {
        suspects.entry(suspect.at.get()).or_default().push(suspect);
    }
    if suspects.is_empty() {
        return;
    }
    crate::walk::items(session, csum_root, &mut |key: Key, digests| {
        if key.kind != KeyType::EXTENT_CSUM {
            return;
        }
        let len = session.identity.checksum.len();
        let end = key.offset.saturating_add((digests.len() / len) as u64 * session.sectorsize());
        for (at, suspects) in suspects.range(key.offset..end.max(key.offset)) {
            let skipped = ((at - key.offset) / session.sectorsize()) as usize * len;
            let Some(start) = csums::verified_sector(session, Logical(*at), &digests[skipped..skipped + len]) else {
                continue;
            };
            for Suspect { tree, inode, offset, packing, .. } in suspects {
                if let Some(right) = packing.right_mark(&start) {
                    session.report(finding(*tree, *inode, *offset, packing.mark, right));
                }
            }
        }
    });
}
