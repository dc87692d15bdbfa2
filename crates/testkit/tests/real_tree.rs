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

fn count(script: &str) -> u64 {
    shell(120, script).trim().parse().expect("wc prints a number")
}

/// The archive agrees with what is below `root`, and has as many entries.
fn compare(archive: &Path, entries: u64, root: &Path) {
    let differences = shell(300, &format!("tar --compare -f '{}' -C '{}'", archive.display(), root.display()));
    assert_eq!(differences.trim(), "");
    assert_eq!(count(&format!("cd '{}' && find . -mindepth 1 | wc -l", root.display())), entries);
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
    let archive = scratch.join("archive");
    shell(300, &format!("xz -dcT0 '{}' > '{}'", tarball.display(), archive.display()));
    let entries = count(&format!("tar -tf '{}' | wc -l", archive.display()));
    shell(600, &format!("tar -xf '{}' -C '{}'", archive.display(), at.display()));
    served.unmount();
    check_all(&image);
    let mount = KernelMount::new(&image, "ro,noatime");
    compare(&archive, entries, mount.path());
    assert_eq!(mount.finish(), [""; 0]);
    // Back through our own mount, cold, and away again.
    let served = Served::mount(&image, &at, "noatime");
    compare(&archive, entries, &at);
    shell(300, &format!("rm -r '{}'/*", at.display()));
    served.unmount();
    check_all(&image);
    let mount = KernelMount::new(&image, "ro,noatime");
    assert_eq!(std::fs::read_dir(mount.path()).expect("mounted").count(), 0);
    assert_eq!(mount.finish(), [""; 0]);
}
