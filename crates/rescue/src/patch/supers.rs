//! Copies of the superblock from a good one.
//!
//! The newest valid copy is written to all places where none is valid, and over valid ones of older generations; but a
//! device that has missed commits keeps its own.

use super::Writer;
use crate::superblocks::{self, SuperblockCopy};
use crate::wreck::Wreck;
use crate::{Result, error};
use butterfs_device::BlockDevice;
use butterfs_ondisk::superblock::Superblock;
use std::sync::Arc;

/// Good copies, bad ones, and the superblock that counts.
#[derive(Debug)]
pub struct Plan {
    /// Name of the device and address of each copy that stays.
    pub good: Vec<(String, u64)>,
    /// The same of each that is replaced.
    pub bad: Vec<(String, u64)>,
    /// The superblock to write.
    pub superblock: Superblock,
}

/// Looks at all copies.
pub fn plan(devices: &[Arc<dyn BlockDevice>]) -> Result<Plan> {
    let copies = superblocks::copies(devices);
    let Some((_, sb)) = superblocks::ruling(&copies).filter(|(copy, _)| copy.content.is_ok()) else {
        return error("no copy of the superblock is valid");
    };
    let is_good = |copy: &&SuperblockCopy| {
        copy.content.as_ref().is_ok_and(|own| own.fsid == sb.fsid && own.generation == sb.generation)
    };
    let others = superblocks::of_others(&copies, devices.len(), sb);
    let has_place = |copy: &&SuperblockCopy| {
        let is_own = others[copy.device].is_none() && !superblocks::is_behind(&copies, copy.device, sb);
        copy.at.0 + 4096 < devices[copy.device].len() && is_own
    };
    let shown = |copy: &SuperblockCopy| (devices[copy.device].name(), copy.at.0);
    let (good, bad): (Vec<_>, Vec<_>) = copies.iter().filter(has_place).partition(is_good);
    let (good, bad) = (good.into_iter().map(shown).collect(), bad.into_iter().map(shown).collect());
    Ok(Plan { good, bad, superblock: *sb })
}

/// Writes the superblock to all places. The wreck is one of these devices, and knows the log.
pub fn apply(plan: &Plan, wreck: &Wreck, devices: &[Arc<dyn BlockDevice>]) -> Result<()> {
    let (log_root, log_root_level) = (wreck.superblock().log_root, wreck.superblock().log_root_level);
    let sb = Superblock { log_root, log_root_level, ..plan.superblock };
    Writer::new(wreck, devices)?.write_superblock(&sb, &|_| ())
}
