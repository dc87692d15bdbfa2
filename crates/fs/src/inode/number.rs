//! Inode numbers: one more than the highest in the tree, counted up from there, never one twice while it is open.

use crate::error::{Errno, Error, Result};
use crate::transaction::{Core, Tree};
use butterfs_ondisk::{Ino, Key, KeyType};
use std::sync::atomic::Ordering;

/// Takes the next inode number of a subvolume; `ENOSPC` when the last is taken.
pub fn allocate(core: &Core, tree: &Tree) -> Result<Ino> {
    begin(core, tree)?;
    let taken = tree
        .next_ino
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| (next < Ino::LAST_FREE.0).then_some(next + 1));
    taken.map(Ino).map_err(|_| Error::refused(Errno::ENOSPC, "the subvolume has no free inode number"))
}

/// Finds where to count from. Called before an inode is deleted too: the highest number must not be used again.
pub fn begin(core: &Core, tree: &Tree) -> Result<()> {
    if tree.next_ino.load(Ordering::Relaxed) == 0 {
        let next = highest(core, tree)?.0.max(Ino::ROOT_DIR.0) + 1;
        // Whoever was first has perhaps already handed out some.
        let _ = tree.next_ino.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
    }
    Ok(())
}

/// The highest number in use that the format may hand out; 0 in an empty tree.
fn highest(core: &Core, tree: &Tree) -> Result<Ino> {
    let behind = Key::new(Ino::LAST_FREE.0 + 1, KeyType(0), 0);
    Ok(Ino(tree.last_before(core, behind)?.map_or(0, |(key, _)| key.objectid)))
}
