//! Replay of tree logs: of the kernel's, of hostile ones, and of replays that were interrupted.
//!
//! What a log must bring back is known in three ways: trees that were written down when the logs were made, the kernel's
//! own replay of a copy, and what the scenario that made the log promises.

mod corpus;
mod expected;
mod scenarios;

use butterfs_testkit::fingerprint::Fingerprint;
use butterfs_testkit::kernel::KernelMount;
use std::path::Path;

/// What the kernel's replay shows. It sets the times of inodes that lose a name to its own time, which is nobody's truth.
fn kernels_replay(image: &Path) -> Fingerprint {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs() as i64;
    let mount = KernelMount::new(image, "noatime");
    let mut shown = Fingerprint::of_tree(mount.path());
    assert_eq!(mount.finish(), [""; 0], "{}", image.display());
    for entry in shown.entries.values_mut() {
        entry.ctime = entry.ctime.filter(|time| time.sec + 2 < now);
    }
    shown
}
