//! `cargo xtask sim`: builds the simulator with full optimisation and runs it.

use crate::{tools, workspace};
use std::process::Command;

/// Passes `arguments` (`--seed 7`) on to the simulator.
pub fn run(arguments: &[&str]) -> Result<bool, String> {
    let start = |command: &mut Command| command.status().map_err(|error| format!("cannot start cargo: {error}"));
    let build = ["build", "--release", "-p", "butterfs-sim"];
    if !start(Command::new("cargo").args(build).current_dir(workspace::root()))?.success() {
        return Ok(false);
    }
    let mut sim = Command::new(workspace::target().join("release/butterfs-sim"));
    let scratch = workspace::scratch();
    std::fs::create_dir_all(&scratch).map_err(|error| format!("cannot create {}: {error}", scratch.display()))?;
    sim.args(arguments).current_dir(workspace::root()).envs(tools::environment()).env("BUTTERFS_SCRATCH", scratch);
    Ok(start(&mut sim)?.success())
}
