//! The transport of FUSE that tests mount with, and running a test program once more over io_uring.
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

/// `options` with the chosen transport.
pub fn with_chosen(options: &str) -> String {
    match chosen() {
        Some(transport) if options.is_empty() => format!("transport={transport}"),
        Some(transport) => format!("{options},transport={transport}"),
        None => options.to_owned(),
    }
}

/// Whether mounts can be served over io_uring here; says so where they cannot.
pub fn io_uring(test: &str) -> bool {
    // Without root or without the parameter nothing changes.
    let _ = std::fs::write(PARAMETER, "Y");
    let value = std::fs::read_to_string(PARAMETER).unwrap_or_default();
    if value.trim_end() != "Y" {
        // Not a skip: the caller tests the refusal instead.
        let _ = writeln!(std::io::stderr(), "{test}: no FUSE over io_uring here ({PARAMETER})");
    }
    value.trim_end() == "Y"
}

/// Runs the tests of this program whose names contain one of `filters` once more, over io_uring.
pub fn again_over_io_uring(test: &str, filters: &[&str], limit_s: u32) {
    if !io_uring(test) {
        return;
    }
    let program = std::env::current_exe().expect("this program has a path");
    let assignment = format!("{VARIABLE}=uring");
    let mut arguments = vec![assignment.as_str(), program.to_str().expect("a path in UTF-8"), "--skip", test];
    arguments.extend(filters);
    let finished = run(limit_s, "env", &arguments);
    assert_eq!(finished.code, Some(0), "over io_uring: {}", finished.output);
    assert!(!finished.output.contains("running 0 tests"), "no test is called like that: {filters:?}");
}
