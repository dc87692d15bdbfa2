//! Which slots of a disk belong to its filesystem, and what may be taken away.

use crate::members::Given;
use crate::parts;
use crate::plan::Plan;
use crate::state;
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::Options;
use butterfs_fs::filesystem::DeviceCondition;
use butterfs_ondisk::Physical;
use butterfs_ondisk::superblock::{OFFSETS, SUPERBLOCK_LEN, Superblock};

fn superblock(device: &dyn BlockDevice, at: Physical) -> Option<Superblock> {
    let mut bytes = vec![0; SUPERBLOCK_LEN];
    (at.0 + SUPERBLOCK_LEN as u64 <= device.len()).then_some(())?;
    device.read_at(at.0, &mut bytes).expect("it is in memory");
    Superblock::parse(&bytes, at).ok()
}

/// The superblock that counts on a device.
fn found(device: &dyn BlockDevice) -> Option<Superblock> {
    OFFSETS.iter().find_map(|at| superblock(device, *at))
}

/// Whether a device shows a filesystem. One that has been wiped has no primary superblock; a torn one has a magic.
pub(crate) fn belongs(device: &dyn BlockDevice) -> bool {
    const MAGIC: u64 = 64;
    let mut magic = [0; 8];
    device.read_at(OFFSETS[0].0 + MAGIC, &mut magic).expect("it is in memory");
    magic == *b"_BHRfS_M" && found(device).is_some()
}

/// The slots that belong to the filesystem on a disk.
pub(crate) fn slots(plan: &Plan, disk: &MemoryDevice) -> Vec<usize> {
    let devices = parts::devices(disk, plan.devices).into_iter().enumerate();
    devices.filter(|(_, device)| belongs(&**device)).map(|(slot, _)| slot).collect()
}

/// Whether some device is about to take over from another one.
pub(crate) fn has_target(plan: &Plan, disk: &MemoryDevice) -> bool {
    let devices = parts::devices(disk, plan.devices);
    let is_target = |sb: &Superblock| sb.dev_item.devid.get() == 0;
    devices.iter().any(|device| found(&**device).as_ref().is_some_and(is_target))
}

/// Whether all superblocks lead to the same commit and log.
pub(crate) fn agree(plan: &Plan, disk: &MemoryDevice) -> bool {
    let devices = parts::devices(disk, plan.devices);
    let leads = |sb: &Superblock| (sb.generation, sb.log_root, sb.root);
    let mut all = devices.iter().filter(|device| belongs(&***device)).map(|device| superblock(&**device, OFFSETS[0]));
    let first = all.next().flatten();
    first.is_some_and(|first| all.all(|other| other.is_some_and(|other| leads(&other) == leads(&first))))
}

/// How many more devices all chunks of a disk survive; none while a device is stale, which a crash between superblocks
/// left.
pub(crate) fn survivable(plan: &Plan, disk: &MemoryDevice, given: &Given) -> Result<usize, String> {
    let options = Options { read_only: true, no_log_replay: true, ..state::recovering(plan) };
    let filesystem = state::open(disk, options, plan, given)?;
    let is_whole = filesystem.device_conditions().iter().all(|(_, condition)| *condition == DeviceCondition::Whole);
    let chunks = filesystem.chunks();
    let least = chunks.iter().map(|chunk| chunk.profile().tolerated_failures).min().unwrap_or(0);
    Ok(if is_whole { least } else { 0 })
}

/// Whether all devices that are there count.
pub(crate) fn counts_all(plan: &Plan, disk: &MemoryDevice, given: &Given) -> bool {
    let options = Options { read_only: true, no_log_replay: true, ..state::recovering(plan) };
    let is_whole = |(_, condition): &(_, DeviceCondition)| *condition == DeviceCondition::Whole;
    state::open(disk, options, plan, given).is_ok_and(|filesystem| filesystem.device_conditions().iter().all(is_whole))
}

/// Destroys what is in a slot.
pub(crate) fn lose(plan: &Plan, disk: &MemoryDevice, slot: usize) {
    let start = slot as u64 * plan.bytes;
    let copies = OFFSETS.iter().filter(|at| at.0 + SUPERBLOCK_LEN as u64 <= plan.bytes);
    copies.for_each(|at| disk.write_at(start + at.0, &[0; SUPERBLOCK_LEN]).expect("it is in memory"));
}
