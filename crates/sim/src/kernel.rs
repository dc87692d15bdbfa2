//! The kernel and `btrfs check` as oracles of states.

use crate::maintenance;
use crate::members::Given;
use crate::parts;
use crate::plan::Plan;
use crate::state::{self, Expected};
use butterfs_device::MemoryDevice;
use butterfs_testkit::fingerprint::Fingerprint;
use butterfs_testkit::kernel::{KernelMount, judge_all, judge_several};
use butterfs_testkit::mounted::Mounted;
use butterfs_testkit::promise::through;
use butterfs_testkit::scratch::Scratch;
use std::path::PathBuf;

/// Whether the kernel can be asked about a disk: of several devices only where superblocks are of one moment, and none
/// was lost. It looks at primary superblocks only, and refuses a device that is about to take over from no other one.
pub fn can_judge(plan: &Plan, disk: &MemoryDevice, given: &Given) -> bool {
    match plan.maintenance {
        true => !given.lost && maintenance::agree(plan, disk) && !maintenance::has_target(plan, disk),
        false => plan.devices == 1 && state::has_primary(plan, disk),
    }
}

/// The devices of a disk as files.
fn export(plan: &Plan, disk: &MemoryDevice, scratch: &Scratch) -> Vec<PathBuf> {
    let slots = if plan.maintenance { maintenance::slots(plan, disk) } else { (0..plan.devices).collect() };
    let devices = parts::devices(disk, plan.devices);
    slots.into_iter().map(|slot| scratch.image(&format!("image{slot}"), &*devices[slot])).collect()
}

/// Has `btrfs check` look at a disk, mounts it, compares what is shown, and checks again what the mount left.
pub fn judge(plan: &Plan, disk: &MemoryDevice, expected: Expected<'_>) -> Result<(), String> {
    let scratch = Scratch::new("sim");
    let images = if plan.devices == 1 { vec![scratch.image("image", disk)] } else { export(plan, disk, &scratch) };
    let check = |when: &str| {
        let verdicts = if images.len() == 1 { judge_all(&images[0]) } else { judge_several(&images) };
        match verdicts.into_iter().find(|verdict| !verdict.clean) {
            Some(verdict) => {
                Err(format!("{} {when}: {:#?}\n{}", verdict.program.display(), verdict.findings, verdict.output))
            }
            None => Ok(()),
        }
    };
    check("check of what the crash left")?;
    let mount = KernelMount::try_several(&images, "noatime")?;
    let shown = Fingerprint::of_tree(mount.path());
    let read = through(Mounted::new(mount.path()));
    expected.explain(plan, disk, &shown, &read).map_err(|what| format!("the kernel shows {what}"))?;
    drop(read);
    let mut complaints = mount.finish();
    // A balance that it goes on with may reduce redundancy, as somebody wanted.
    complaints.retain(|complaint| !(complaint.contains("balance: ") && complaint.contains("redundancy")));
    if !complaints.is_empty() {
        return Err(format!("the kernel complains: {complaints:#?}"));
    }
    check("check after the kernel's mount")
}
