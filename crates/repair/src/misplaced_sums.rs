//! Checksums that stand under a wrong key: the data says where they belong.
//!
//! Invariant: checksums move only where all looked-at sectors fit, where no others are, and from where none fits.

use crate::action::Pass;
use crate::checksums;
use crate::forest::Forest;
use crate::keys;
use crate::trouble::Result;
use crate::walk;
use butterfs_check::Finding;
use butterfs_ondisk::{KeyType, TreeId};

/// Moves misplaced items, where data lacks checksums; true where there were some.
pub(crate) fn settle(forest: &mut Forest, findings: &[Finding]) -> Result<bool> {
    let lacks = findings.iter().any(|finding| matches!(finding, Finding::ChecksumMissing { .. }));
    let Some(ptr) = forest.ptr(TreeId::CSUM).ok().filter(|_| lacks) else { return Ok(false) };
    let mut odd = Vec::new();
    walk::items(&forest.store, &ptr, &mut |key, data| {
        let is_odd = key.kind != KeyType::EXTENT_CSUM || !checksums::fit(forest, key.offset, data);
        odd.extend(is_odd.then(|| (key, data.to_vec())));
    });
    let mut has_moved = false;
    for (old, digests) in odd {
        let items = [(old, Some(&digests[..]))];
        let right = keys::of_leaf(forest, TreeId::CSUM, &items, (None, None));
        let Some(new) = right[0].filter(|new| *new != old) else { continue };
        forest.remove(TreeId::CSUM, old)?;
        let length = digests.len() as u64 / forest.store.identity.checksum.len() as u64 * forest.store.sectorsize();
        if checksums::covered(forest, new.offset, length)? > 0 {
            forest.put(TreeId::CSUM, old, &digests)?;
            continue;
        }
        forest.put(TreeId::CSUM, new, &digests)?;
        let what = format!("gives the checksums under {old} the key {new}, where they fit the data");
        forest.did(Pass::Checksums, what);
        has_moved = true;
    }
    Ok(has_moved)
}
