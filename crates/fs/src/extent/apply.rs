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
use std::sync::atomic::Ordering;

/// Applies everything that is queued. True when there was something.
pub(crate) fn run_refs(handle: &Handle) -> Result<bool> {
    let heads = handle.transaction().refs.take();
    let any = !heads.is_empty();
    run(handle, heads)?;
    Ok(any)
}

/// Applies about `most` changes of those that are queued.
pub(crate) fn run_some_refs(handle: &Handle, most: usize) -> Result<()> {
    run(handle, handle.transaction().refs.take_some(most))
}

fn run(handle: &Handle, heads: impl IntoIterator<Item = (Logical, RefHead)>) -> Result<()> {
    if let Some(conflict) = handle.transaction().refs.conflict() {
        return Err(conflict);
    }
    let (mut ranges, mut changes) = (Vec::new(), 0);
    for (at, head) in heads {
        handle.core().env().passes("references are applied");
        changes += head.changes.len();
        ranges.extend(apply(handle, at, &head)?);
    }
    handle.core().costs.most_booked.fetch_max(changes, Ordering::Relaxed);
    free_space_tree::apply(handle, &ranges)
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
    let mut changes = Split::default();
    for (by, count) in head.changes.iter() {
        changes.put(at, by, count)?;
    }
    add(handle, at, key, &mut record, &changes.gains)?;
    drop_refs(handle, at, &mut record, &changes.losses)?;
    let extent_tree = &handle.core().globals().extent;
    if record.refs > 0 {
        note_unshared(handle, at, head.kind, &record, &changes.losses);
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

/// Remembers data that somebody in particular does not use any more.
fn note_unshared(handle: &Handle, at: Logical, kind: ExtentKind, left: &ExtentRecord, losses: &[CountedRef]) {
    let is_gone = |loss: &CountedRef| left.inline.iter().all(|reference| reference.by != loss.by);
    if kind == ExtentKind::Data && losses.iter().any(is_gone) {
        handle.transaction().traces.note_unshared(at);
    }
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
    for (by, count) in head.changes.iter() {
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
    keyed_refs::add(handle, at, keyed)?;
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

/// The added and the dropped references.
#[derive(Default)]
struct Split {
    gains: Vec<CountedRef>,
    losses: Vec<CountedRef>,
}

impl Split {
    fn put(&mut self, at: Logical, by: RefBy, count: i64) -> Result<()> {
        let side = if count > 0 { &mut self.gains } else { &mut self.losses };
        let count = u32::try_from(count.unsigned_abs())
            .map_err(|_| Error::corrupt(format!("extent {at}: {count} references by {by:?}")))?;
        side.push(CountedRef { by, count });
        Ok(())
    }
}

fn add(handle: &Handle, at: Logical, key: Key, record: &mut ExtentRecord, gains: &[CountedRef]) -> Result<()> {
    let core = handle.core();
    let (mut keyed, mut any_keyed) = (Vec::new(), None);
    for reference in gains {
        record.refs = record.refs.checked_add(u64::from(reference.count)).ok_or_else(|| too_many(at))?;
        if let Some(existing) = record.inline.iter_mut().find(|existing| existing.by == reference.by) {
            if !matches!(reference.by, RefBy::File { .. } | RefBy::Leaf(_)) {
                return Err(Error::corrupt(format!("tree block {at} would be referenced twice by {:?}", reference.by)));
            }
            existing.count = existing.count.checked_add(reference.count).ok_or_else(|| too_many(at))?;
            continue;
        }
        let has_keyed = match any_keyed {
            Some(any) => any,
            None => keyed_refs::any(core, at, key)?,
        };
        if has_keyed || !has_room(core, record, &reference.by) {
            any_keyed = Some(true);
            keyed.push(*reference);
        } else {
            any_keyed = Some(false);
            record.insert_inline(*reference);
        }
    }
    keyed_refs::add(handle, at, keyed)
}

fn too_many(at: Logical) -> Error {
    Error::corrupt(format!("extent {at} would have more than 2^32 references of one kind"))
}

fn drop_refs(handle: &Handle, at: Logical, record: &mut ExtentRecord, losses: &[CountedRef]) -> Result<()> {
    let mut keyed = Vec::new();
    for &CountedRef { by, count } in losses {
        let missing =
            || Error::corrupt(format!("extent {at}: {count} references by {by:?} are dropped, but do not exist"));
        record.refs = record.refs.checked_sub(u64::from(count)).ok_or_else(missing)?;
        let Some(slot) = record.inline.iter().position(|existing| existing.by == by) else {
            keyed.push(CountedRef { by, count });
            continue;
        };
        let existing = &mut record.inline[slot];
        existing.count = existing.count.checked_sub(count).ok_or_else(missing)?;
        if existing.count == 0 {
            record.inline.remove(slot);
        }
    }
    keyed_refs::drop_refs(handle, at, keyed)
}
