//! `cargo xtask bench`: builds the command and the benchmark with full optimisation and runs the benchmark.

use crate::{tools, workspace};
use std::process::Command;

/// Passes `arguments` on to the benchmark.
pub fn run(arguments: &[&str]) -> Result<bool, String> {
    let start = |command: &mut Command| command.status().map_err(|error| format!("cannot start cargo: {error}"));
    let build = ["build", "--release", "-p", "butterfs", "-p", "butterfs-bench"];
    if !start(Command::new("cargo").args(build).current_dir(workspace::root()))?.success() {
        return Ok(false);
    }
    let mut bench = Command::new(workspace::target().join("release/butterfs-bench"));
    bench.args(arguments).current_dir(workspace::root()).envs(tools::environment());
    Ok(start(&mut bench)?.success())
}
