//! References that found no room in their extent item: items of their own behind it.
//!
//! The key of an EXTENT_DATA_REF is a hash; on collision the next free offset is used, and looking one up goes on
//! over gaps until the extent's items of that type end.

use crate::error::{Error, Result};
use crate::transaction::extent_item::{CountedRef, counted, keyed_payload};
use crate::transaction::refs::RefBy;
use crate::transaction::{Core, Handle};
use butterfs_ondisk::items::ExtentDataRef;
use butterfs_ondisk::{Key, KeyType, Logical};
use std::ops::ControlFlow;
use zerocopy::FromBytes;

/// Whether the extent whose item is at `key` has any keyed reference.
pub(super) fn any(core: &Core, at: Logical, key: Key) -> Result<bool> {
    let mut found = false;
    let last = Key::new(at.0, KeyType(KeyType::BLOCK_GROUP_ITEM.0 - 1), u64::MAX);
    core.globals().extent.scan(core, key.successor(), last, &mut |_, _| {
        found = true;
        Ok(ControlFlow::Break(()))
    })?;
    Ok(found)
}

/// The key and count of a reference, if it is there; else a free key for it.
fn locate(core: &Core, at: Logical, by: &RefBy) -> Result<(Key, Option<u32>)> {
    let first = Key::new(at.0, by.kind(), by.sequence());
    let RefBy::File { .. } = by else {
        let item = core.globals().extent.get(core, first)?;
        let count = item.map(|item| match item.get(..4) {
            Some(count) => u32::from_le_bytes(count.try_into().expect("four bytes")),
            None => 1,
        });
        return Ok((first, count));
    };
    let mut result = None;
    let mut free = first;
    let mut gap = false;
    let last = Key::new(at.0, by.kind(), u64::MAX);
    core.globals().extent.scan(core, first, last, &mut |key, data| {
        let item = ExtentDataRef::read_from_prefix(data).map(|(item, _)| counted(&item));
        let item = item.map_err(|_| Error::corrupt(format!("extent data reference {key} has {} bytes", data.len())))?;
        if item.by == *by {
            result = Some((key, Some(item.count)));
            return Ok(ControlFlow::Break(()));
        }
        gap |= key != free;
        if !gap {
            free = key.successor();
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(result.unwrap_or((free, None)))
}

/// Adds a reference, or to the count of one that is there.
pub(super) fn add(handle: &Handle, at: Logical, reference: &CountedRef) -> Result<()> {
    let (key, existing) = locate(handle.core(), at, &reference.by)?;
    let extent_tree = &handle.core().globals().extent;
    let Some(count) = existing else {
        extent_tree.insert(handle, key, &keyed_payload(reference))?;
        return Ok(());
    };
    if matches!(reference.by, RefBy::Tree(_) | RefBy::Block(_)) {
        return Err(Error::corrupt(format!("tree block {at} would be referenced twice by {:?}", reference.by)));
    }
    let count = count
        .checked_add(reference.count)
        .ok_or_else(|| Error::corrupt(format!("extent {at} would have more than 2^32 references of one kind")))?;
    extent_tree.replace(handle, key, &keyed_payload(&CountedRef { by: reference.by, count }))?;
    Ok(())
}

/// Takes `count` from a reference.
pub(super) fn drop_refs(handle: &Handle, at: Logical, by: RefBy, count: u32) -> Result<()> {
    let missing = || Error::corrupt(format!("extent {at}: {count} references by {by:?} are dropped, but do not exist"));
    let (key, existing) = locate(handle.core(), at, &by)?;
    let left = existing.ok_or_else(missing)?.checked_sub(count).ok_or_else(missing)?;
    let extent_tree = &handle.core().globals().extent;
    if left == 0 {
        extent_tree.remove(handle, key)?;
    } else {
        extent_tree.replace(handle, key, &keyed_payload(&CountedRef { by, count: left }))?;
    }
    Ok(())
}
