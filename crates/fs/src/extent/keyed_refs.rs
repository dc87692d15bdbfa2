//! References that found no room in their extent item: items of their own behind it.
//!
//! The key of an EXTENT_DATA_REF is a hash; on collision the next free offset is used. Removals leave gaps: so a
//! reference can lie behind a gap, and Linux, which adds at the first free key, can have stored one in two items.
//!
//! All changes of an extent are made together, in the order of their keys. References whose hashes are near each other
//! are looked up with one scan of the items there. What is added is looked for [`REACH`] keys behind its hash, and
//! further where there is no gap; what is dropped must exist, and is looked for to the end, once for all of them. So
//! the work grows with the changes and not with the references that the extent has.

use crate::error::{Error, Result};
use crate::options::Canary;
use crate::transaction::extent_item::{CountedRef, counted, keyed_payload};
use crate::transaction::refs::RefBy;
use crate::transaction::{Core, Handle};
use butterfs_ondisk::items::ExtentDataRef;
use butterfs_ondisk::{Key, KeyType, Logical};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use zerocopy::FromBytes;

/// How many keys behind its hash a reference is looked for beyond a gap before another one is added. Among a million
/// references by one tree that is one item on average.
const REACH: u64 = 4096;

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

/// Adds references, or to the counts of those that are there.
pub(super) fn add(handle: &Handle, at: Logical, mut references: Vec<CountedRef>) -> Result<()> {
    Run::each(handle, at, &mut references, |run, reference| match reference.by {
        RefBy::File { .. } => run.add(reference),
        _ => add_exact(handle, at, reference),
    })
}

/// Takes the counts of `references` from those that are there.
pub(super) fn drop_refs(handle: &Handle, at: Logical, mut references: Vec<CountedRef>) -> Result<()> {
    let mut far = Vec::new();
    Run::each(handle, at, &mut references, |run, reference| {
        let left = match reference.by {
            RefBy::File { .. } => run.take(reference.by, reference.count)?,
            _ => take_exact(handle, at, reference)?,
        };
        far.extend((left > 0).then_some(CountedRef { count: left, ..*reference }));
        Ok(())
    })?;
    drop_far(handle, at, &far)
}

fn key_of(at: Logical, by: &RefBy) -> Key {
    Key::new(at.0, by.kind(), by.sequence())
}

/// Adds a reference whose key says who it is by.
fn add_exact(handle: &Handle, at: Logical, reference: &CountedRef) -> Result<()> {
    let core = handle.core();
    let key = key_of(at, &reference.by);
    let stored = core.globals().extent.get(core, key)?;
    let Some(stored) = stored else {
        core.globals().extent.insert(handle, key, &keyed_payload(reference))?;
        return Ok(());
    };
    let RefBy::Leaf(_) = reference.by else {
        return Err(Error::corrupt(format!("tree block {at} would be referenced twice by {:?}", reference.by)));
    };
    let count = sum(at, shared_count(key, &stored)?, reference.count)?;
    drop(stored);
    core.globals().extent.replace(handle, key, &keyed_payload(&CountedRef { count, ..*reference }))?;
    Ok(())
}

/// Takes from a reference whose key says who it is by; what it cannot take is left.
fn take_exact(handle: &Handle, at: Logical, reference: &CountedRef) -> Result<u32> {
    let core = handle.core();
    let key = key_of(at, &reference.by);
    let Some(stored) = core.globals().extent.get(core, key)? else { return Ok(reference.count) };
    let count = match reference.by {
        RefBy::Leaf(_) => shared_count(key, &stored)?,
        _ => 1,
    };
    drop(stored);
    let taken = count.min(reference.count);
    write_count(handle, key, &CountedRef { by: reference.by, count: count - taken })?;
    Ok(reference.count - taken)
}

fn shared_count(key: Key, payload: &[u8]) -> Result<u32> {
    let count = payload.get(..4).and_then(|count| count.try_into().ok()).map(u32::from_le_bytes);
    count.ok_or_else(|| Error::corrupt(format!("shared data reference {key} has {} bytes", payload.len())))
}

fn sum(at: Logical, count: u32, more: u32) -> Result<u32> {
    let sum = count.checked_add(more);
    sum.ok_or_else(|| Error::corrupt(format!("extent {at} would have more than 2^32 references of one kind")))
}

/// Stores another count; an item that counts nothing goes.
fn write_count(handle: &Handle, key: Key, reference: &CountedRef) -> Result<()> {
    let extent_tree = &handle.core().globals().extent;
    if reference.count == 0 {
        extent_tree.remove(handle, key)?;
    } else {
        extent_tree.replace(handle, key, &keyed_payload(reference))?;
    }
    Ok(())
}

fn parse(key: Key, payload: &[u8]) -> Result<CountedRef> {
    let item = ExtentDataRef::read_from_prefix(payload).map(|(item, _)| counted(&item));
    item.map_err(|_| Error::corrupt(format!("extent data reference {key} has {} bytes", payload.len())))
}

/// Drops references that are not where they are looked for first: a run of collisions has lost many since.
fn drop_far(handle: &Handle, at: Logical, references: &[CountedRef]) -> Result<()> {
    let core = handle.core();
    let mut left: FxHashMap<RefBy, u32> = references.iter().map(|reference| (reference.by, reference.count)).collect();
    let Some(first) = references.iter().map(|reference| reference.by.sequence()).min() else { return Ok(()) };
    let key = |offset| Key::new(at.0, KeyType::EXTENT_DATA_REF, offset);
    let mut found = Vec::new();
    core.globals().extent.scan(core, key(first), key(u64::MAX), &mut |key, payload| {
        core.costs.keyed_refs.fetch_add(1, Ordering::Relaxed);
        let stored = parse(key, payload)?;
        if let Some(wanted) = left.get_mut(&stored.by).filter(|wanted| **wanted > 0) {
            let taken = stored.count.min(*wanted);
            *wanted -= taken;
            found.push((key, CountedRef { by: stored.by, count: stored.count - taken }));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    if let Some(missing) = references.iter().find(|reference| left[&reference.by] > 0) {
        let CountedRef { by, count } = missing;
        return Err(Error::corrupt(format!("extent {at}: {count} references by {by:?} are dropped, but do not exist")));
    }
    found.iter().try_for_each(|(key, reference)| write_count(handle, *key, reference))
}

/// The EXTENT_DATA_REFs of an extent from one hash to behind another, while references with hashes in there change.
struct Run<'a> {
    handle: &'a Handle,
    at: Logical,
    items: BTreeMap<u64, CountedRef>,
    /// The first item of each.
    offsets: FxHashMap<RefBy, u64>,
    /// Some reference has two items.
    doubled: bool,
    /// Keys that are all taken.
    taken: std::ops::Range<u64>,
}

impl<'a> Run<'a> {
    /// Shows each reference to `change` with the run that its hash is in, by type and key.
    fn each(
        handle: &'a Handle,
        at: Logical,
        references: &mut [CountedRef],
        mut change: impl FnMut(&mut Run<'a>, &CountedRef) -> Result<()>,
    ) -> Result<()> {
        references.sort_by_cached_key(|reference| (reference.by.kind(), reference.by.sequence()));
        let near = |a: &CountedRef, b: &CountedRef| {
            let both_hashed = [a, b].iter().all(|reference| reference.by.kind() == KeyType::EXTENT_DATA_REF);
            both_hashed && b.by.sequence() - a.by.sequence() <= REACH
        };
        for group in references.chunk_by(near) {
            let mut run = Run::read(handle, at, group)?;
            group.iter().try_for_each(|reference| change(&mut run, reference))?;
        }
        Ok(())
    }

    fn read(handle: &'a Handle, at: Logical, group: &[CountedRef]) -> Result<Run<'a>> {
        let (items, offsets) = (BTreeMap::new(), FxHashMap::default());
        let mut run = Run { handle, at, items, offsets, doubled: false, taken: 0..0 };
        let (Some(first), Some(last)) = (group.first(), group.last()) else { return Ok(run) };
        if first.by.kind() != KeyType::EXTENT_DATA_REF {
            return Ok(run);
        }
        let core = handle.core();
        // On as long as there is no gap: the first free key must be known.
        let mut end = last.by.sequence().saturating_add(REACH);
        let all = core.has_canary(Canary::ReferencesScanned);
        let (from, to) = (run.key(first.by.sequence()), run.key(u64::MAX));
        core.globals().extent.scan(core, from, to, &mut |key, payload| {
            core.costs.keyed_refs.fetch_add(1, Ordering::Relaxed);
            if key.offset > end && !all {
                return Ok(ControlFlow::Break(()));
            }
            if key.offset == end {
                end = end.saturating_add(1);
            }
            run.enter(key.offset, parse(key, payload)?);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(run)
    }

    fn key(&self, offset: u64) -> Key {
        Key::new(self.at.0, KeyType::EXTENT_DATA_REF, offset)
    }

    fn enter(&mut self, offset: u64, reference: CountedRef) {
        self.items.insert(offset, reference);
        let first = *self.offsets.entry(reference.by).or_insert(offset);
        self.doubled |= first != offset;
    }

    fn add(&mut self, reference: &CountedRef) -> Result<()> {
        let at = self.at;
        if let Some(offset) = self.offsets.get(&reference.by).copied() {
            let stored = self.items.get_mut(&offset).expect("an item that was listed");
            stored.count = sum(at, stored.count, reference.count)?;
            return write_count(self.handle, Key::new(at.0, KeyType::EXTENT_DATA_REF, offset), stored);
        }
        let offset = self.free_from(reference.by.sequence())?;
        self.handle.core().globals().extent.insert(self.handle, self.key(offset), &keyed_payload(reference))?;
        self.enter(offset, *reference);
        Ok(())
    }

    /// The first free key from `hash` on; hashes come in ascending order.
    fn free_from(&mut self, hash: u64) -> Result<u64> {
        if !self.taken.contains(&hash) {
            self.taken = hash..hash;
        }
        while self.items.contains_key(&self.taken.end) {
            self.taken.end =
                self.taken.end.checked_add(1).ok_or_else(|| {
                    Error::corrupt(format!("extent {}: no key is left for one more reference", self.at))
                })?;
        }
        Ok(self.taken.end)
    }

    /// Takes `count` from a reference, wherever it is in the run; what it cannot take is left.
    fn take(&mut self, by: RefBy, mut count: u32) -> Result<u32> {
        while count > 0 {
            let Some(offset) = self.offsets.get(&by).copied() else { break };
            let stored = self.items.get_mut(&offset).expect("an item that was listed");
            let taken = stored.count.min(count);
            stored.count -= taken;
            count -= taken;
            let left = *stored;
            write_count(self.handle, self.key(offset), &left)?;
            if left.count == 0 {
                self.items.remove(&offset);
                self.offsets.remove(&by);
                if self.doubled {
                    let twin = self.items.iter().find(|(_, other)| other.by == by);
                    self.offsets.extend(twin.map(|(offset, _)| (by, *offset)));
                }
            }
        }
        Ok(count)
    }
}
