//! The superblock copies of a device. Commits write them all the time, so a copy counts as bad only when it is bad
//! twice, and its generation may be that of any commit that was the last one meanwhile, or, of a secondary copy, one
//! before.

use super::damage::{Cause, Content, Damage, Outcome};
use crate::transaction::Core;
use butterfs_ondisk::superblock::{OFFSETS, SUPERBLOCK_LEN};
use butterfs_ondisk::{DeviceId, Physical};
use std::time::Duration;

/// The copies that were bad when the filesystem was opened for writing, which has rewritten them; each is reported
/// once.
pub(super) fn repaired_copies(core: &Core, device: DeviceId) -> Vec<Damage> {
    let repaired = core.volume().take_repaired_superblocks(device).into_iter();
    let cause = || Cause::Header("it was not valid when the filesystem was opened".to_owned());
    repaired.map(|at| damage(core, device, at, cause())).collect()
}

/// How long a commit is given to finish its writes.
const PATIENCE: Duration = Duration::from_millis(100);

/// The bad copies, which the next commit rewrites.
pub(super) fn bad_copies(core: &Core, device: DeviceId) -> Vec<Damage> {
    let first = look(core, device);
    if first.is_empty() {
        return first;
    }
    if core.env().background() {
        std::thread::sleep(PATIENCE);
    }
    look(core, device).into_iter().filter(|again| first.iter().any(|bad| bad.physical == again.physical)).collect()
}

fn look(core: &Core, device: DeviceId) -> Vec<Damage> {
    let volume = core.volume();
    let before = core.superblock().generation().0;
    let copies = volume.superblock_copies(device);
    let after = core.superblock().generation().0;
    let judge = |at: Physical, found: Result<u64, String>| match found {
        Err(rule) => Some(Cause::Header(rule)),
        Ok(generation) => {
            // A secondary copy follows its primary; a primary one comes before the engine knows.
            let least = before - u64::from(at != OFFSETS[0] && before > 0 && !core.is_read_only());
            let is_right = (least..=after + 1).contains(&generation);
            (!is_right).then_some(Cause::Generation { found: generation, expected: after })
        }
    };
    let damages = copies.into_iter().filter_map(|(at, found)| {
        let cause = judge(at, found.map(|superblock| superblock.generation.get()))?;
        Some(damage(core, device, at, cause))
    });
    damages.collect()
}

fn damage(core: &Core, device: DeviceId, physical: Physical, cause: Cause) -> Damage {
    Damage {
        device,
        device_name: core.volume().device_name(device),
        physical,
        at: None,
        len: SUPERBLOCK_LEN as u64,
        content: Content::Superblock,
        cause,
        outcome: Outcome::Rewritten,
    }
}
