//! The cache of free inode numbers that kernels before 5.11 kept with the mount option `inode_cache`: in each subvolume
//! an inode -12 with its extents. No kernel that is in use reads it.

use crate::action::Pass;
use crate::forest::Forest;
use crate::trouble::Result;
use butterfs_ondisk::key::objectid;

/// Removes all of it; the extents go with their references.
pub(crate) fn clear(forest: &mut Forest) -> Result<()> {
    for tree in forest.subvolumes() {
        let items = forest.object(tree, objectid::FREE_INO)?;
        for (key, _) in &items {
            forest.remove(tree, *key)?;
        }
        if !items.is_empty() {
            forest.did(Pass::Inodes, format!("removes the inode number cache of tree {tree}"));
        }
    }
    Ok(())
}
