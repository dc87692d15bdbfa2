//! Replay of tree logs: of the kernel's, of hostile ones, and of replays that were interrupted.
//!
//! The expected result of a replay is known in three ways: trees that were written down when the logs were made, the
//! kernel's own replay of a copy, and what the scenario that made the log promises.

mod corpus;
mod expected;
mod hostile;
mod kills;
mod mounted;
mod ours;
mod random;
mod scenarios;

use butterfs_testkit::engine;
use butterfs_testkit::fingerprint::Fingerprint;
use butterfs_testkit::kernel::{KernelMount, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use std::path::{Path, PathBuf};

/// The fingerprint after the kernel's replay. It sets the times of inodes that lose a name to its own time, which is
/// nobody's truth.
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

/// The number of subvolumes that have a log.
fn logs_in(image: &Path) -> usize {
    let log_root = engine::device(image);
    let mut superblock = vec![0; 4096];
    log_root.read_at(65536, &mut superblock).expect("our own file");
    let at = u64::from_le_bytes(superblock[0x60..0x68].try_into().expect("eight bytes")).to_string();
    if at == "0" {
        return 0;
    }
    let image = image.to_string_lossy();
    let shown = run_ok(20, "btrfs", &["inspect-internal", "dump-tree", "-b", &at, &image]);
    shown.matches("(TREE_LOG ROOT_ITEM ").count()
}

/// One image of the corpus, in the scratch folder.
fn unpacked(test: &str, scratch: &Scratch, name: &str) -> Option<PathBuf> {
    if !requirement::programs(test, &["tar", "zstd"]) {
        return None;
    }
    let packed = requirement::shared_data(test, "corpus/kernel-dirty-logs.tar.zst")?;
    let (packed, folder) = (packed.to_string_lossy().into_owned(), scratch.path().to_string_lossy().into_owned());
    run_ok(120, "tar", &["-S", "--zstd", "-xf", &packed, "-C", &folder, "--wildcards", &format!("*{name}")]);
    Some(scratch.join(name))
}
