//! The requirements of a test on the machine, and the skip where one is missing.
//!
//! Invariant: a test that cannot run says so on a line that begins with `SKIPPED: `, whether its output is captured or
//! not; where the environment says `CI=true` it fails instead.

use crate::scratch;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Says that `test` cannot run, and why. Panics in CI.
pub fn skip(test: &str, reason: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "CI does not skip {test}: {reason}");
    // Not `eprintln!`, which the test harness captures.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {reason}");
}

fn met(test: &str, missing: Option<String>) -> bool {
    missing.inspect(|reason| skip(test, reason)).is_none()
}

/// True when loop devices and the kernel's btrfs can be used.
pub fn kernel_btrfs(test: &str) -> bool {
    met(test, missing_kernel_btrfs())
}

fn missing_kernel_btrfs() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root".to_owned());
    }
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !known.lines().any(|line| line.ends_with("btrfs")) {
        return Some("needs the kernel's btrfs".to_owned());
    }
    missing_programs(&["losetup", "mkfs.btrfs", "btrfs"])
}

/// True when FUSE can be mounted and the `butterfs` command was built.
pub fn fuse(test: &str) -> bool {
    let binary = crate::serve::binary();
    let missing = if !Path::new("/dev/fuse").exists() {
        Some("needs /dev/fuse".to_owned())
    } else if !binary.is_file() {
        Some(format!("needs {} (cargo build --release)", binary.display()))
    } else {
        None
    };
    met(test, missing)
}

/// True when all `programs` are there.
pub fn programs(test: &str, programs: &[&str]) -> bool {
    met(test, missing_programs(programs))
}

fn missing_programs(programs: &[&str]) -> Option<String> {
    programs.iter().find(|name| program(name).is_none()).map(|name| format!("needs the program {name}"))
}

/// The path of a program: among the fetched tools, on the search path, or among the system's.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = path.split(':').map(PathBuf::from).chain(["/usr/sbin".into(), "/sbin".into()]);
    let folders = std::iter::once(scratch::tools().join("bin")).chain(folders);
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// The data that lies beside the checkout and is not part of it; `None`, said, where it is missing.
pub fn shared_data(test: &str, name: &str) -> Option<PathBuf> {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/testkit is in the checkout");
    let path = checkout.join("../shared").join(name);
    met(test, (!path.exists()).then(|| format!("needs ../shared/{name}"))).then_some(path)
}
