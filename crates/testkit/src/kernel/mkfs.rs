//! The real `mkfs.btrfs`.

use super::command::{run, run_ok};
use crate::{requirement, scratch};
use std::path::{Path, PathBuf};

/// The newest there is.
fn program() -> PathBuf {
    let fetched = scratch::tools().join("btrfs-progs/sbin/mkfs.btrfs");
    if fetched.is_file() { fetched } else { requirement::program("mkfs.btrfs").expect("mkfs.btrfs was required") }
}

/// Makes a filesystem in `image`.
pub fn mkfs(image: &Path, options: &[&str]) {
    let image = image.to_str().expect("test paths are text");
    run_ok(60, program(), &[&["-q", "-f"], options, &[image]].concat());
}

/// True when mkfs.btrfs knows this feature.
pub fn can_make(feature: &str) -> bool {
    run(20, program(), &["-O", "list-all"]).output.contains(feature)
}
