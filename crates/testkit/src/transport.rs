//! The transport of FUSE that tests mount with, and running a test program once more over `/dev/fuse`.
//!
//! Invariant: where the kernel has FUSE over io_uring and root runs the tests, it is used: root sets the kernel's
//! parameter, as it loads modules and attaches loop devices. Elsewhere the refusal is what is tested.

use crate::kernel::run;
use std::io::Write;

/// `classic`, `uring` or `auto`, for tests that mount.
const VARIABLE: &str = "BUTTERFS_TEST_TRANSPORT";
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// The transport to mount with where the environment names one.
pub fn chosen() -> Option<String> {
    std::env::var(VARIABLE).ok()
}

/// `options` with the chosen transport; the default one is io_uring where that can be had.
pub fn with_chosen(options: &str) -> String {
    match chosen() {
        Some(transport) if options.is_empty() => format!("transport={transport}"),
        Some(transport) => format!("{options},transport={transport}"),
        None => {
            offered();
            options.to_owned()
        }
    }
}

/// How mounts that tests and benchmarks make are served.
pub fn name() -> &'static str {
    match chosen().as_deref() {
        Some("classic") => "/dev/fuse",
        _ if offered() => "io_uring",
        _ => "/dev/fuse",
    }
}

/// Whether the kernel offers io_uring, once root has set its parameter; without root nothing changes.
fn offered() -> bool {
    let _ = std::fs::write(PARAMETER, "Y");
    std::fs::read_to_string(PARAMETER).is_ok_and(|value| value.trim_end() == "Y")
}

/// Whether mounts can be served over io_uring here; says so where they cannot.
pub fn io_uring(test: &str) -> bool {
    let has_rings = offered();
    if !has_rings {
        // Not a skip: the caller tests the refusal instead.
        let _ = writeln!(std::io::stderr(), "{test}: no FUSE over io_uring here ({PARAMETER})");
    }
    has_rings
}

/// Runs the tests of this program whose names contain one of `filters` once more, over `/dev/fuse`.
pub fn again_over_dev_fuse(test: &str, filters: &[&str], limit_s: u32) {
    let program = std::env::current_exe().expect("this program has a path");
    let assignment = format!("{VARIABLE}=classic");
    let mut arguments = vec![assignment.as_str(), program.to_str().expect("a path in UTF-8"), "--skip", test];
    arguments.extend(filters);
    let finished = run(limit_s, "env", &arguments);
    assert_eq!(finished.code, Some(0), "over /dev/fuse: {}", finished.output);
    assert!(!finished.output.contains("running 0 tests"), "no test is called like that: {filters:?}");
}
