//! The whole benchmark at its least size: it fails when something breaks, never for a time.

use std::path::Path;
use std::process::Command;

#[test]
fn every_part_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut benchmark = Command::new(env!("CARGO_BIN_EXE_butterfs-bench"));
    assert!(benchmark.arg("--least").current_dir(root).status().unwrap().success());
}
