//! The superblock copies of a device. Commits write them all the time, so a copy counts as bad only when it is bad twice,
//! and its generation may be that of any commit that was the last one meanwhile, or, of a secondary copy, one before.

use super::damage::{Cause, Content, Damage, Outcome};
use crate::transaction::Core;
use butterfs_ondisk::superblock::OFFSETS;
use butterfs_ondisk::{DeviceId, Physical};
use std::time::Duration;

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
        Some(Damage {
            device,
            device_name: volume.device_name(device),
            physical: at,
            at: None,
            len: butterfs_ondisk::superblock::SUPERBLOCK_LEN as u64,
            content: Content::Superblock,
            cause,
            outcome: Outcome::Rewritten,
        })
    });
    damages.collect()
}
