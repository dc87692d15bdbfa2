//! One extent's pending changes become its extent item: additions before removals, inline before keyed, freed when
//! the last reference goes.

use super::free_space_tree::{self, RangeChange};
use super::{TreeItems, checksums, keyed_refs};
use crate::error::{Error, Result};
use crate::transaction::extent_item::{CountedRef, ExtentRecord};
use crate::transaction::refs::{ExtentKind, RefBy, RefHead};
use crate::transaction::{Core, Handle};
use butterfs_ondisk::header::leaf_data_size;
use butterfs_ondisk::items::{TreeBlockInfo, extent_flags};
use butterfs_ondisk::key::DiskKey;
use butterfs_ondisk::{Key, KeyType, Logical};

/// Applies everything that is queued. True when there was something.
pub(crate) fn run_refs(handle: &Handle) -> Result<bool> {
    if let Some(conflict) = handle.core().refs.conflict() {
        return Err(conflict);
    }
    let heads = handle.core().refs.take();
    if heads.is_empty() {
        return Ok(false);
    }
    let mut ranges = Vec::new();
    for (at, head) in heads {
        handle.core().env().passes("references are applied");
        ranges.extend(apply(handle, at, &head)?);
    }
    free_space_tree::apply(handle, &ranges)?;
    Ok(true)
}

fn apply(handle: &Handle, at: Logical, head: &RefHead) -> Result<Option<RangeChange>> {
    if head.changes.is_empty() && !head.set_full && !head.new {
        return Ok(None);
    }
    if head.new {
        return insert_new(handle, at, head);
    }
    let (key, mut record) = find(handle.core(), at, head)?;
    let stored_len = record.len();
    if head.set_full {
        record.flags |= extent_flags::FULL_BACKREF;
    }
    let (gains, losses): (Vec<_>, Vec<_>) = head.changes.iter().partition(|(_, count)| *count > 0);
    for &(by, count) in &gains {
        add(handle, at, key, &mut record, by, count)?;
    }
    for &(by, count) in &losses {
        drop_refs(handle, at, &mut record, by, -count)?;
    }
    let extent_tree = &handle.core().globals().extent;
    if record.refs > 0 {
        let payload = record.encode();
        let written = if payload.len() == stored_len {
            extent_tree.update(handle, key, |data| data.copy_from_slice(&payload))?.is_some()
        } else {
            extent_tree.replace(handle, key, &payload)?
        };
        return if written { Ok(None) } else { Err(Error::corrupt(format!("the extent item {key} has vanished"))) };
    }
    if !record.inline.is_empty() {
        return Err(Error::corrupt(format!(
            "extent {at}: no references are counted, but {:?} are listed",
            record.inline
        )));
    }
    extent_tree.remove(handle, key)?;
    if head.kind == ExtentKind::Data {
        delete_checksums(handle, at, head.len)?;
    }
    if !handle.core().space.account_freed(at, head.len, handle.generation()) {
        return Err(Error::corrupt(format!("extent {at}+{} is freed, but its block group has no such use", head.len)));
    }
    Ok(Some(RangeChange { at: at.0, len: head.len, allocated: false }))
}

fn delete_checksums(handle: &Handle, at: Logical, len: u64) -> Result<()> {
    let core = handle.core();
    let layout = checksums::Layout::of(core);
    checksums::delete(&mut TreeItems::editing(handle, &core.globals().csum), layout, at, len)
}

fn insert_new(handle: &Handle, at: Logical, head: &RefHead) -> Result<Option<RangeChange>> {
    let core = handle.core();
    if head.net() == 0 {
        // Data that was written, recorded and dropped again before it ever had an item.
        delete_checksums(handle, at, head.len)?;
        core.space.pin(at, head.len, handle.generation());
        return Ok(None);
    }
    let (key, flags, block_info) = match head.kind {
        ExtentKind::Data => (Key::new(at.0, KeyType::EXTENT_ITEM, head.len), extent_flags::DATA, None),
        ExtentKind::Block(level) if core.skinny() => {
            (Key::new(at.0, KeyType::METADATA_ITEM, u64::from(level.0)), extent_flags::TREE_BLOCK, None)
        }
        ExtentKind::Block(level) => {
            let first = core.nodes.first_key(at).unwrap_or_default();
            let info = TreeBlockInfo { key: DiskKey::from(first), level: level.0 };
            (Key::new(at.0, KeyType::EXTENT_ITEM, head.len), extent_flags::TREE_BLOCK, Some(info))
        }
    };
    let flags = flags | if head.set_full { extent_flags::FULL_BACKREF } else { 0 };
    let generation = handle.generation().0;
    let mut record = ExtentRecord { refs: 0, generation, flags, block_info, owner: None, inline: Vec::new() };
    let mut keyed = Vec::new();
    for &(by, count) in &head.changes {
        let count = u32::try_from(count).map_err(|_| {
            Error::corrupt(format!("new extent {at}: reference {by:?} is dropped {} times more than added", -count))
        })?;
        let reference = CountedRef { by, count };
        record.refs += u64::from(count);
        if keyed.is_empty() && has_room(core, &record, &by) {
            record.insert_inline(reference);
        } else {
            keyed.push(reference);
        }
    }
    if !core.globals().extent.insert(handle, key, &record.encode())? {
        return Err(Error::corrupt(format!("extent {key} was just allocated, but has an extent item")));
    }
    for reference in &keyed {
        keyed_refs::add(handle, at, reference)?;
    }
    core.space.account_allocated(at, head.len);
    Ok(Some(RangeChange { at: at.0, len: head.len, allocated: true }))
}

/// Whether one more inline reference keeps the item under a sixteenth of a leaf.
fn has_room(core: &Core, record: &ExtentRecord, by: &RefBy) -> bool {
    let limit = leaf_data_size(core.nodesize()) / 16 - butterfs_ondisk::header::ITEM_LEN;
    record.len() + by.inline_len() < limit
}

fn find(core: &Core, at: Logical, head: &RefHead) -> Result<(Key, ExtentRecord)> {
    let whole = Key::new(at.0, KeyType::EXTENT_ITEM, head.len);
    let keys = match head.kind {
        ExtentKind::Data => vec![whole],
        ExtentKind::Block(level) => vec![Key::new(at.0, KeyType::METADATA_ITEM, u64::from(level.0)), whole],
    };
    for key in keys {
        if let Some(item) = core.globals().extent.get(core, key)? {
            return Ok((key, ExtentRecord::parse(at, key.kind, &item)?));
        }
    }
    Err(Error::corrupt(format!("extent {at}+{} has no extent item, but {:?} are pending", head.len, head.changes)))
}

fn add(handle: &Handle, at: Logical, key: Key, record: &mut ExtentRecord, by: RefBy, count: i64) -> Result<()> {
    let count =
        u32::try_from(count).map_err(|_| Error::corrupt(format!("extent {at}: {count} references by {by:?}")))?;
    record.refs = record.refs.checked_add(u64::from(count)).ok_or_else(|| too_many(at))?;
    if let Some(existing) = record.inline.iter_mut().find(|existing| existing.by == by) {
        if !matches!(by, RefBy::File { .. } | RefBy::Leaf(_)) {
            return Err(Error::corrupt(format!("tree block {at} would be referenced twice by {by:?}")));
        }
        existing.count = existing.count.checked_add(count).ok_or_else(|| too_many(at))?;
        return Ok(());
    }
    let reference = CountedRef { by, count };
    if keyed_refs::any(handle.core(), at, key)? || !has_room(handle.core(), record, &by) {
        return keyed_refs::add(handle, at, &reference);
    }
    record.insert_inline(reference);
    Ok(())
}

fn too_many(at: Logical) -> Error {
    Error::corrupt(format!("extent {at} would have more than 2^32 references of one kind"))
}

fn drop_refs(handle: &Handle, at: Logical, record: &mut ExtentRecord, by: RefBy, count: i64) -> Result<()> {
    let missing = || Error::corrupt(format!("extent {at}: {count} references by {by:?} are dropped, but do not exist"));
    let count = u32::try_from(count).map_err(|_| missing())?;
    record.refs = record.refs.checked_sub(u64::from(count)).ok_or_else(missing)?;
    let Some(slot) = record.inline.iter().position(|existing| existing.by == by) else {
        return keyed_refs::drop_refs(handle, at, by, count);
    };
    let existing = &mut record.inline[slot];
    existing.count = existing.count.checked_sub(count).ok_or_else(missing)?;
    if existing.count == 0 {
        record.inline.remove(slot);
    }
    Ok(())
}
