//! Findings in leaves that several subvolumes share. The checker reads such a leaf once and blames the first
//! subvolume; a repair makes a leaf of its own for each, so all of them must be named.

use crate::forest::Forest;
use butterfs_check::{Finding, Tree};
use butterfs_ondisk::{Ino, Key, KeyType, Logical, TreeId};
use butterfs_tree as tree;
use rustc_hash::FxHashSet;
use std::collections::BTreeSet;

/// Findings that are added at most: the next round names the others.
const MOST_ADDED: usize = 100_000;

/// The findings, and those about an inode again for each subvolume that shares a leaf with it.
pub(crate) fn complete(forest: &Forest, findings: &[Finding]) -> Vec<Finding> {
    let mut known: BTreeSet<_> = findings.iter().filter_map(identity).collect();
    let most = known.len() + MOST_ADDED;
    let (mut all, subvolumes) = (findings.to_vec(), forest.whole_subvolumes());
    for finding in findings {
        let Some((id, blamed, inode)) = identity(finding) else { continue };
        let leaves = leaves(forest, blamed, inode);
        for &other in subvolumes.iter().filter(|other| **other != blamed) {
            let is_new = !known.contains(&(id, other, inode));
            if is_new && known.len() < most && !leaves.is_disjoint(&self::leaves(forest, other, inode)) {
                known.insert((id, other, inode));
                all.push(of_tree(finding, other));
            }
        }
    }
    all
}

/// Kind, subvolume and inode of a finding about one inode.
fn identity(finding: &Finding) -> Option<(&'static str, TreeId, Ino)> {
    let mut copy = finding.clone();
    place(&mut copy).map(|(tree, inode)| (finding.id(), tree.0, inode))
}

fn of_tree(finding: &Finding, other: TreeId) -> Finding {
    let mut finding = finding.clone();
    if let Some((tree, _)) = place(&mut finding) {
        *tree = Tree(other);
    }
    finding
}

/// The fields of a finding that follows from the items of one inode alone.
fn place(finding: &mut Finding) -> Option<(&mut Tree, Ino)> {
    use Finding::*;
    match finding {
        InodeMissing { tree, inode }
        | InodeLinks { tree, inode, .. }
        | InodeNameless { tree, inode }
        | DirectorySize { tree, inode, .. }
        | DirectoryNot { tree, inode }
        | DirectoryEntries { tree, inode }
        | ExtrefHash { tree, inode, .. }
        | InodeBytes { tree, inode, .. }
        | FileOverlap { tree, inode, .. }
        | FileExtentGeneration { tree, inode, .. }
        | FileExtentBounds { tree, inode, .. }
        | FileExtentEmpty { tree, inode, .. }
        | ChecksumUnwritten { tree, inode, .. }
        | FilePacking { tree, inode, .. }
        | FileGap { tree, inode, .. }
        | SymlinkTarget { tree, inode, .. }
        | ChecksumMissing { tree, inode, .. }
        | ChecksumOdd { tree, inode, .. } => Some((tree, *inode)),
        NameImpossible { tree, key, .. } | ItemUnknown { tree, key } => Some((tree, Ino(key.objectid))),
        _ => None,
    }
}

/// The leaves that have items of an inode, as far as they can be read.
fn leaves(forest: &Forest, id: TreeId, inode: Ino) -> FxHashSet<Logical> {
    let mut found = FxHashSet::default();
    let Ok(ptr) = forest.ptr(id) else { return found };
    let mut next = forest.first_from(id, Key::new(inode.get(), KeyType(0), 0)).ok().flatten();
    while let Some(key) = next.filter(|key| key.objectid == inode.get()) {
        let Ok(place) = tree::search(&forest.store.editor(id), &ptr, &key) else { break };
        found.insert(place.leaf.at());
        let behind = place.leaf.last_key().map(Key::successor);
        next = behind.and_then(|behind| forest.first_from(id, behind).ok().flatten());
    }
    found
}
