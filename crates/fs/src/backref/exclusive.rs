//! Whether data may be overwritten in place: nobody but one file extent item (or several of one file, at one
//! distance) may refer to it, in any tree, now or in the past of a snapshot.
//!
//! The answer errs on the side of "no". It is right under the caller's handle; whoever writes without one holds the
//! extent before the handle ends ([`in_place`](super::in_place)).

use crate::error::Result;
use crate::file_extent::FileExtent;
use crate::transaction::extent_item::{CountedRef, ExtentRecord};
use crate::transaction::refs::RefBy;
use crate::transaction::{BlockSource, Tree};
use butterfs_ondisk::items::compression;
use butterfs_ondisk::{Ino, Key, KeyType};

/// Whether the data of `extent`, an item of inode `ino` in `tree`, can be overwritten.
pub fn is_exclusive(source: BlockSource<'_>, tree: &Tree, ino: Ino, extent: &FileExtent) -> Result<bool> {
    Ok(extent.compression == compression::NONE && is_only_user(source, tree, ino, extent)?)
}

/// Whether `extent`, an item of inode `ino` in `tree`, is the only user of its data.
pub fn is_only_user(source: BlockSource<'_>, tree: &Tree, ino: Ino, extent: &FileExtent) -> Result<bool> {
    let core = source.core();
    let last_snapshot = tree.last_snapshot().0;
    if !extent.is_on_disk() || extent.generation <= last_snapshot {
        return Ok(false);
    }
    let Some(ours) = extent.data_ref(tree.id(), ino.0) else { return Ok(false) };
    let by = RefBy::File { tree: ours.tree, ino: ours.ino, offset: ours.offset };
    let key = Key::new(extent.at.0, KeyType::EXTENT_ITEM, extent.disk_len);
    // What is pending is looked at first: a change that is booked in between is then seen twice, not missed.
    let pending = core.gate.running().refs.look(extent.at, |head| (head.new, head.changes.is_only(by)));
    let stored = core.globals().extent.get(source, key)?;
    let stored = stored.map(|payload| ExtentRecord::parse(extent.at, key.kind, &payload)).transpose()?;
    let only_ours = |count: &CountedRef| count.by == by;
    let stored_ok = stored.as_ref().is_none_or(|record| {
        let weight: u64 = record.inline.iter().map(|reference| u64::from(reference.count)).sum();
        record.generation > last_snapshot && record.inline.iter().all(only_ours) && weight == record.refs
    });
    let pending_ok = pending.is_none_or(|(_, only_ours)| only_ours);
    let known = stored.is_some() || pending.is_some_and(|(new, _)| new);
    Ok(known && stored_ok && pending_ok)
}
