//! `cargo xtask release`: the checks before a release that are too dear for each change, by tools of crates.io.
//!
//! cargo-deny checks licences, sources and versions of all dependencies (`deny.toml`); cargo-semver-checks compares the
//! library with the last release. Compiling both takes minutes, so `cargo xtask test` has cheaper checks of its own
//! ([`licences`](crate::licences), [`api`](crate::api)). Advisories are left out: they are a git repository, which not
//! every machine can reach.

use crate::summary::{self, StepResult};
use crate::{process, tools, workspace};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// The tools, with versions that are known to work with this compiler.
const TOOLS: [(&str, &str); 2] = [("cargo-deny", "0.20.2"), ("cargo-semver-checks", SEMVER_CHECKS)];
const SEMVER_CHECKS: &str = "0.46.0";
const LIMIT: Duration = Duration::from_secs(1800);

/// Runs both; `words` may name the git revision of the last release, else it is the last tag.
pub fn run(words: &[&str]) -> Result<bool, String> {
    let baseline = match words {
        [] => process::capture("git", &["describe", "--tags", "--abbrev=0"]).map(|tag| tag.trim().to_owned()),
        [revision] => Some((*revision).to_owned()),
        _ => return Err("release takes one git revision at most".to_owned()),
    };
    let compare = || compare(baseline.as_deref());
    let steps = [step("cargo-deny", deny), step("cargo-semver-checks", compare)];
    Ok(summary::print(&steps, false))
}

fn step(name: &str, check: impl FnOnce() -> Result<Option<String>, String>) -> StepResult {
    let started = Instant::now();
    let outcome = check();
    match outcome {
        Ok(skip) => {
            let mut step = StepResult::single(name, started.elapsed(), None);
            step.passed = usize::from(skip.is_none());
            step.skips = skip.into_iter().map(|why| format!("{name}: {why}")).collect();
            step
        }
        Err(failure) => StepResult::single(name, started.elapsed(), Some(failure)),
    }
}

fn deny() -> Result<Option<String>, String> {
    let program = installed(TOOLS[0])?;
    checked("cargo-deny", Command::new(program).args(["check", "licenses", "bans", "sources"]))
}

/// Compares the library with its interface at `baseline`; a sentence where there is nothing to compare with.
fn compare(baseline: Option<&str>) -> Result<Option<String>, String> {
    let Some(baseline) = baseline else {
        return Ok(Some("there is no tag of a release; name a git revision".to_owned()));
    };
    let program = installed(TOOLS[1])?;
    let words = ["semver-checks", "-p", "butterfs", "--baseline-rev", baseline];
    checked("cargo-semver-checks", Command::new(program).args(words))
}

/// Runs a tool in the workspace; an error has the end of its output.
fn checked(name: &str, command: &mut Command) -> Result<Option<String>, String> {
    let log = workspace::target().join("xtask-logs").join(format!("{name}.log"));
    let ended = process::run(command.current_dir(workspace::root()), &log, LIMIT)?;
    let lines: Vec<&str> = ended.output.lines().filter(|line| !line.trim().is_empty()).collect();
    let end = lines[lines.len().saturating_sub(20)..].join("\n");
    if ended.success { Ok(None) } else { Err(format!("{name} (see {}):\n{end}", log.display())) }
}

/// The path of a tool, which is installed below the build output when it is missing.
fn installed((name, version): (&str, &str)) -> Result<PathBuf, String> {
    let folder = workspace::tools();
    let program = folder.join("bin").join(name);
    if !program.is_file() {
        println!("installing {name} {version}");
        let mut install = Command::new("cargo");
        install.args(["install", "--locked", "--root"]).arg(&folder).arg(format!("{name}@{version}"));
        tools::limited(&mut install, &format!("install-{name}"), LIMIT.as_secs())?;
    }
    Ok(program)
}
