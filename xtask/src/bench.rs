//! `cargo xtask bench`: builds the command and the benchmark with full optimisation and runs the benchmark.

use crate::{tools, workspace};
use std::process::Command;

/// Builds the benchmark and what it measures: the command, and the filesystem in memory.
pub const BUILD: &[&str] = &[
    "build",
    "--release",
    "-p",
    "butterfs-cli",
    "-p",
    "butterfs-bench",
    "-p",
    "butterfs-fuse",
    "--bins",
    "--example",
    "memory",
];

/// Passes `arguments` on to the benchmark.
pub fn run(arguments: &[&str]) -> Result<bool, String> {
    if !arguments.contains(&"--only") || arguments.contains(&"images") {
        // Without them the system's programs are compared.
        if let Err(why) = tools::image_makers() {
            println!("{why}");
        }
    }
    let start = |command: &mut Command| command.status().map_err(|error| format!("cannot start cargo: {error}"));
    if !start(Command::new("cargo").args(BUILD).current_dir(workspace::root()))?.success() {
        return Ok(false);
    }
    let mut bench = Command::new(workspace::target().join("release/butterfs-bench"));
    bench.args(arguments).current_dir(workspace::root()).envs(tools::environment());
    Ok(start(&mut bench)?.success())
}
