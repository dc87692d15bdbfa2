//! `cargo xtask bench`: builds the command and the benchmark with full optimisation and runs the benchmark.

use crate::{tools, workspace};
use std::process::Command;

/// Builds of the benchmark and of what it measures: the command, and the filesystem in memory. The latter is an example
/// and has a build of its own, because examples bring the features of development dependencies, with which the command
/// would be compiled once more.
const BUILDS: [&[&str]; 2] = [
    &["build", "--release", "-p", "butterfs-cli", "-p", "butterfs-bench"],
    &["build", "--release", "-p", "butterfs-fuse", "--example", "memory"],
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
    for build in BUILDS {
        if !start(Command::new("cargo").args(build).current_dir(workspace::root()))?.success() {
            return Ok(false);
        }
    }
    let mut bench = Command::new(workspace::target().join("release/butterfs-bench"));
    bench.args(arguments).current_dir(workspace::root()).envs(tools::environment());
    Ok(start(&mut bench)?.success())
}
