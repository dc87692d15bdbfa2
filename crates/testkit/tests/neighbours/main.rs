//! Real neighbours: programs that people run on a filesystem, on our mount and on the kernel's btrfs.
//!
//! Each is a script in `scripts.rs`, run by bash with `$at` (a folder on the filesystem under test) and `$scratch` (one
//! that is not). It fails with the first command that fails, and prints what must be the same on both sides. Long runs
//! are behind `cargo xtask soak NAME`; `BUTTERFS_NEIGHBOURS` is a factor for how long they take.

mod containers;
mod killed;
mod overlay;
mod scripts;
mod server;
mod snapper;
mod sqlite;
mod suites;

use butterfs_testkit::kernel::{Finished, KernelMount, check_all, run};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{Served, mkfs};
use std::path::{Path, PathBuf};

/// The factor by which it takes longer than once.
pub fn factor() -> usize {
    std::env::var("BUTTERFS_NEIGHBOURS").ok().and_then(|factor| factor.parse().ok()).unwrap_or(1)
}

/// Whether the machine has what a test of neighbours needs.
pub fn can_run(test: &str, programs: &[&str]) -> bool {
    requirement::kernel_btrfs(test) && requirement::fuse(test) && requirement::programs(test, programs)
}

/// An empty filesystem in an image.
pub fn image(scratch: &Scratch, name: &str) -> PathBuf {
    let image = scratch.sparse_file(name, 8 << 30);
    mkfs(&image, &[]);
    image
}

/// Runs a script in a new folder of `root`.
pub fn script(root: &Path, scratch: &Path, script: &str, seconds: u32) -> Finished {
    let at = root.join("work");
    std::fs::create_dir_all(&at).expect("a folder on the filesystem");
    std::fs::create_dir_all(scratch).expect("a scratch folder");
    let (at, scratch) = (at.display(), scratch.display());
    let rounds = factor();
    let all = format!("set -euo pipefail\nat='{at}' scratch='{scratch}' rounds={rounds}\ncd \"$at\"\n{script}");
    run(seconds, "bash", &["-c", &all])
}

/// Runs a script, and a second one after a remount, on our mount and on the kernel's btrfs. Both must succeed there and
/// print the same here.
pub fn both(test: &str, programs: &[&str], (first, second): (&str, &str), seconds: u32) {
    if !can_run(test, programs) {
        return;
    }
    let scratch = Scratch::new(test);
    let (ours, theirs) = (image(&scratch, "ours"), image(&scratch, "theirs"));
    let (of_ours, of_theirs) = (scratch.folder("ours.d"), scratch.folder("theirs.d"));
    for text in [first, second] {
        let kernel = KernelMount::new(&theirs, "");
        let expected = script(kernel.path(), &of_theirs, text, seconds);
        assert_eq!(expected.code, Some(0), "on the kernel's btrfs: {}", expected.output);
        kernel.finish();
        let served = Served::mount(&ours, &scratch.folder("mnt"), "");
        let found = script(served.path(), &of_ours, text, seconds);
        assert_eq!((found.code, &found.output), (Some(0), &expected.output), "on our mount");
        served.unmount();
    }
    check_all(&ours);
}
