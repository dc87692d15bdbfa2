//! The kernel and `btrfs check` as oracles of states.

use crate::plan::Plan;
use crate::state::Expected;
use butterfs_device::{BlockDevice, FileDevice, FileOptions, MemoryDevice};
use butterfs_testkit::fingerprint::Fingerprint;
use butterfs_testkit::kernel::{KernelMount, judge_all};
use butterfs_testkit::mounted::Mounted;
use butterfs_testkit::promise::through;
use butterfs_testkit::scratch::Scratch;

/// Has `btrfs check` look at a disk, mounts it, compares what is shown, and checks again what the mount left.
pub fn judge(plan: &Plan, disk: &MemoryDevice, expected: Expected<'_>) -> Result<(), String> {
    let scratch = Scratch::new("sim");
    let image = scratch.sparse_file("image", disk.len());
    let file = FileDevice::open(&image, &FileOptions::read_write()).map_err(|error| error.to_string())?;
    disk.copy_to(&file).map_err(|error| error.to_string())?;
    drop(file);
    let check = |when: &str| match judge_all(&image).into_iter().find(|verdict| !verdict.clean) {
        Some(verdict) => {
            Err(format!("{} {when}: {:#?}\n{}", verdict.program.display(), verdict.findings, verdict.output))
        }
        None => Ok(()),
    };
    check("check of what the crash left")?;
    let mount = KernelMount::try_new(&image, "noatime")?;
    let shown = Fingerprint::of_tree(mount.path());
    let read = through(Mounted::new(mount.path()));
    expected.explain(plan, disk, &shown, &read).map_err(|what| format!("the kernel shows {what}"))?;
    drop(read);
    let complaints = mount.finish();
    if !complaints.is_empty() {
        return Err(format!("the kernel complains: {complaints:#?}"));
    }
    check("check after the kernel's mount")
}
