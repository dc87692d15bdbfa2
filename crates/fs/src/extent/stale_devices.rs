//! Which devices have missed writes: an item for each in the device tree, from the first commit without it until it has
//! been brought up to date.
//!
//! The superblock of a device that was away tells so only until somebody writes it again, which the kernel does at
//! once. The item outlives that: the kernel keeps items of the device tree that it does not know, and `btrfs check`
//! accepts them.
//!
//! # Invariants
//! 1. A commit that is made while a device is missing or known to be stale has an item that says so.
//! 2. In each mount the first commit writes the item of a stale device anew, so that it is found on that device too,
//!    should it ever be opened without the others.
//! 3. The item of a device that is not written any more names the states that it can be in ([`StaleDevice::left`]), by
//!    which one that was away is told from one that was written without the others.

use crate::error::Result;
use crate::options::Canary;
use crate::transaction::{Core, Handle, StaleItem};
use butterfs_ondisk::header::Header;
use butterfs_ondisk::items::{LeftState, StaleDevice};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{DeviceId, Key, KeyType, Logical};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

fn key(device: DeviceId) -> Key {
    Key::new(objectid::STALE_DEVICE, KeyType::PERSISTENT_ITEM, device.0)
}

/// Reads the items. What they say about devices that are there is so.
pub(crate) fn load_stale_devices(core: &Core) -> Result<()> {
    remember_states(core);
    if core.has_canary(Canary::StaleForgotten) {
        return Ok(());
    }
    let mut stale = core.devices.stale.lock();
    core.globals().dev.scan(core, key(DeviceId(0)), key(DeviceId(u64::MAX)), &mut |key, data| {
        if let Ok((item, _)) = StaleDevice::read_from_prefix(data) {
            stale.insert(DeviceId(key.offset), StaleItem { item, is_written: false });
        }
        Ok(ControlFlow::Continue(()))
    })?;
    core.volume.set_stale(&|id| stale.contains_key(&id));
    let is_foreign = |known: &StaleItem| known.item.flags.get() & StaleDevice::FOREIGN != 0;
    core.volume.set_foreign(&|id| stale.get(&id).is_some_and(is_foreign));
    core.volume.set_recorded_stale(&|id| stale.contains_key(&id));
    Ok(())
}

/// Whether a commit is due because of the items alone: a device has missed writes since it was opened, or has been
/// brought up to date.
pub(crate) fn stale_devices_changed(core: &Core) -> bool {
    let stale = core.devices.stale.lock();
    if core.has_canary(Canary::StaleForgotten) {
        return false;
    }
    let has_changed = |id: DeviceId| match stale.contains_key(&id) {
        true => core.volume.is_whole_device(id),
        false => core.volume.missed_writes(id) > 0 && !core.volume.is_whole_device(id),
    };
    core.volume.devices().into_iter().any(|(id, _)| has_changed(id))
}

/// Brings the items up to date, and lets superblocks go to the stale devices that they name. True when there was one to
/// write.
pub(crate) fn write_stale_devices(handle: &Handle) -> Result<bool> {
    let core = handle.core();
    if core.has_canary(Canary::StaleForgotten) {
        core.volume.set_recorded_stale(&|_| true);
        return Ok(false);
    }
    let devices: BTreeSet<DeviceId> = core.devices.space.lock().devices.keys().copied().collect();
    let mut stale = core.devices.stale.lock();
    let mut any = false;
    let surplus: Vec<DeviceId> = stale.keys().filter(|id| !devices.contains(*id)).copied().collect();
    for &id in devices.iter().chain(&surplus) {
        if surplus.contains(&id) || core.volume.is_whole_device(id) {
            if stale.remove(&id).is_some() {
                any = true;
                core.globals().dev.remove(handle, key(id))?;
            }
            continue;
        }
        let known = stale.get(&id);
        let item = stale_item(core, handle, id, known);
        if known.is_none_or(|known| !known.is_written || known.item != item) {
            any = true;
            core.globals().dev.put(handle, key(id), item.as_bytes())?;
            stale.insert(id, StaleItem { item, is_written: true });
        }
    }
    core.volume.set_recorded_stale(&|id| stale.contains_key(&id));
    Ok(any)
}

fn stale_item(core: &Core, handle: &Handle, id: DeviceId, known: Option<&StaleItem>) -> StaleDevice {
    let new = || StaleDevice { since: handle.generation().0.into(), ..StaleDevice::default() };
    let mut item = known.map_or_else(new, |known| known.item);
    let (is_in_use, was_in_use) = (core.volume.is_usable(id), item.flags.get() & StaleDevice::IN_USE != 0);
    let is_first = known.is_none_or(|known| !known.is_written);
    let foreign =
        if core.volume.is_foreign(id) { StaleDevice::FOREIGN } else { item.flags.get() & StaleDevice::FOREIGN };
    if is_in_use && is_first {
        // Until it takes a superblock of this mount it is what it was when it was opened.
        let opened = opened_state(core, id, &item.left);
        item.left = states(&[&[opened.unwrap_or_default()][..], &left_states(core)].concat());
    } else if !is_in_use && (known.is_none() || was_in_use) {
        item.left = states(&[&left_states(core)[..2], &item.left[..]].concat());
    }
    item.flags = (foreign | if is_in_use { StaleDevice::IN_USE } else { 0 }).into();
    item
}

/// The first four different ones.
fn states(list: &[LeftState]) -> [LeftState; 4] {
    let is_first = |&(number, state): &(usize, &LeftState)| {
        let same = |other: &LeftState| (other.generation, other.root) == (state.generation, state.root);
        state.generation.get() > 0 && !list[..number].iter().any(same)
    };
    let mut used = list.iter().enumerate().filter(is_first).map(|(_, state)| *state);
    std::array::from_fn(|_| used.next().unwrap_or_default())
}

/// The state that a device was opened in, where it was behind then.
fn opened_state(core: &Core, id: DeviceId, known: &[LeftState]) -> Option<LeftState> {
    let (.., opened, _) = core.volume.opened_as().into_iter().find(|(device, ..)| *device == id)?;
    let (generation, root) = (opened.generation, opened.root);
    if let Some(state) = known.iter().find(|state| state.generation == generation) {
        return Some(*state);
    }
    let block = core.volume.read_on(Logical(root.get()), core.nodesize() as usize, id)?;
    let (header, _) = Header::read_from_prefix(&block).ok()?;
    (header.generation == generation && header.bytenr == root).then_some(LeftState {
        generation,
        root,
        checksum: header.csum,
    })
}

/// The last commits, newest first.
fn left_states(core: &Core) -> [LeftState; 4] {
    *core.devices.last_states.lock()
}

/// The commits that the superblock remembers, as far as their roots are still on disk.
fn remember_states(core: &Core) {
    let superblock = core.superblock();
    let backups = superblock.super_roots.iter().map(|backup| (backup.tree_root_gen, backup.tree_root));
    let mut commits: Vec<_> = backups.chain([(superblock.generation, superblock.root)]).collect();
    commits.sort_by_key(|(generation, _)| std::cmp::Reverse(generation.get()));
    commits.dedup();
    let mut found = commits.into_iter().filter_map(|commit| left_state(core, commit));
    *core.devices.last_states.lock() = std::array::from_fn(|_| found.next().unwrap_or_default());
}

/// A commit is durable: a device that fails from now on may have been left with it. Its root may be overwritten by
/// then.
pub(crate) fn remember_state(core: &Core) {
    if core.volume.devices().len() < 2 {
        return;
    }
    let superblock = core.superblock();
    if let Some(state) = left_state(core, (superblock.generation, superblock.root)) {
        let mut last = core.devices.last_states.lock();
        last.rotate_right(1);
        last[0] = state;
    }
}

/// `None` for one whose root is not on disk any more: a device that was left with it is told by other means.
fn left_state(core: &Core, (generation, root): (U64, U64)) -> Option<LeftState> {
    let mut block = vec![0; core.nodesize() as usize];
    let verify = &mut |bytes: &[u8]| match Header::read_from_prefix(bytes) {
        Ok((header, _)) if header.generation == generation && header.bytenr == root => Ok(()),
        _ => Err("the block is another one".to_owned()),
    };
    let exists = generation.get() > 0 && core.volume.copies(Logical(root.get())) > 0;
    if !exists || core.volume.peek(Logical(root.get()), &mut block, verify).is_err() {
        return None;
    }
    let checksum = Header::read_from_prefix(&block).ok()?.0.csum;
    Some(LeftState { generation, root, checksum })
}
