//! A real tree: Debian's Linux source package, unpacked whole through the mount, compares equal under the kernel.
//!
//! `tar --compare` reads every file back and compares content, type, mode, owner and time with the archive; the count
//! of entries shows that nothing else is there.

use butterfs_testkit::kernel::{KernelMount, check_all, run_ok};
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{Served, mkfs};
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::{requirement, source_tree};
use std::path::Path;

fn shell(limit_s: u32, script: &str) -> String {
    run_ok(limit_s, "bash", &["-o", "pipefail", "-c", script])
}

/// The archive agrees with what is below `root`, and has as many entries.
fn compare(tarball: &Path, root: &Path) {
    let differences =
        shell(300, &format!("xz -dcT0 '{}' | tar --compare -f - -C '{}'", tarball.display(), root.display()));
    assert_eq!(differences.trim(), "");
    let count = |script: String| shell(120, &script).trim().parse::<u64>().expect("wc prints a number");
    let archived = count(format!("xz -dcT0 '{}' | tar -t | wc -l", tarball.display()));
    let found = count(format!("cd '{}' && find . -mindepth 1 | wc -l", root.display()));
    assert_eq!(found, archived);
}

#[test]
fn linux_source() {
    const TEST: &str = "linux_source";
    if !requirement::kernel_btrfs(TEST) || !requirement::fuse(TEST) || !requirement::programs(TEST, &["xz", "tar"]) {
        return;
    }
    let Some(tarball) = source_tree::tarball(TEST) else { return };
    let _watchdog = Watchdog::new(TEST, 850);
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("image", 6 << 30);
    mkfs(&image, &[]);
    let at = scratch.folder("mnt");
    let served = Served::mount(&image, &at, "noatime");
    shell(600, &format!("xz -dcT0 '{}' | tar -x -C '{}'", tarball.display(), at.display()));
    served.unmount();
    check_all(&image);
    let mount = KernelMount::new(&image, "ro,noatime");
    compare(&tarball, mount.path());
    assert_eq!(mount.finish(), [""; 0]);
    // Back through our own mount, cold, and away again.
    let served = Served::mount(&image, &at, "noatime");
    compare(&tarball, &at);
    shell(300, &format!("rm -r '{}'/*", at.display()));
    served.unmount();
    check_all(&image);
    let mount = KernelMount::new(&image, "ro,noatime");
    assert_eq!(std::fs::read_dir(mount.path()).expect("mounted").count(), 0);
    assert_eq!(mount.finish(), [""; 0]);
}
