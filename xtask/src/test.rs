//! `cargo xtask test`: the order of the steps, their time limits, and what each may use.
//!
//! Tools are installed beside the build of the tests: each of them waits, for the network or for one last program to be
//! linked, when the other one has work. Everything is built once, in the profile `dev`, where locks check their order
//! and arithmetic its overflow; `soak`, `bench` and `dist` build the optimised programs. Test programs run in two
//! lanes, because many wait for a device or a server half of their time; each lane has a scratch folder of its own,
//! whose mounts and loop devices are taken back when a program fails. What they leave of the processors is for the
//! checks by compilers. Each program prints `SKIPPED: what: why` for what it cannot do here.

use crate::summary::{self, StepResult};
use crate::{api, dist, layering, licences, minimum_rust, process, prose, tools, workspace};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// For one test program, with another one beside it.
const PROGRAM_LIMIT: Duration = Duration::from_secs(900);
/// Programs that take minutes start first, so that none of them runs alone in the end.
const FIRST: &[&str] = &["bench/least", "sim/sim", "testkit/subvolumes", "repair/planted"];
const LANES: u32 = 2;
const BUILD_LIMIT_S: u64 = 1500;
/// For what waits until a processor has nothing else to do.
const LEISURE_LIMIT: Duration = Duration::from_secs(60 * 60);
/// After so long no further test program is started: what did not run is a failure that has a name. Twice what a run
/// takes, so that a slow machine comes to the end too.
const WHOLE_LIMIT: Duration = Duration::from_secs(90 * 60);
/// Of one program at most so many failed tests are run again.
const AGAIN_MOST: usize = 6;

/// Packages that are never published.
const UNPUBLISHED: [&str; 5] = ["butterfs-bench", "butterfs-python", "butterfs-sim", "butterfs-testkit", "xtask"];

/// The options of the command line.
#[derive(Debug, Default)]
pub struct Options {
    /// Only test programs whose name contains this, and none of the other steps.
    only: Option<String>,
    /// Do not install anything.
    no_install: bool,
}

impl Options {
    /// Reads the words after `test`.
    pub fn parse(words: &[&str]) -> Result<Options, String> {
        let mut options = Options::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--only" => options.only = Some((*words.next().ok_or("--only needs a text")?).to_owned()),
                "--no-install" => options.no_install = true,
                _ => return Err(format!("unknown option {word}")),
            }
        }
        Ok(options)
    }
}

/// Runs everything; true when it all holds.
pub fn run(options: &Options) -> Result<bool, String> {
    let begun = Instant::now();
    let mut steps = Vec::new();
    let is_whole = options.only.is_none();
    let programs = std::thread::scope(|scope| {
        let installing = (!options.no_install).then(|| scope.spawn(install));
        if is_whole {
            quick_checks(&mut steps)?;
        }
        let (build, programs) = build_tests()?;
        steps.push(announced(build));
        steps.extend(installing.map(|thread| announced(outcome(thread))));
        Ok::<_, String>(programs)
    })?;
    let wanted = |program: &Program| options.only.as_ref().is_none_or(|text| program.name.contains(text.as_str()));
    let programs = programs.into_iter().filter(wanted).collect();
    std::thread::scope(|scope| {
        let beside = is_whole.then(|| scope.spawn(checks_by_compilers));
        steps.extend(run_programs(programs, begun)?);
        if let Some(beside) = beside {
            steps.extend(outcome(beside)?);
        }
        Ok::<_, String>(())
    })?;
    if is_whole {
        steps.extend(dist::packages_of(built("butterfs"))?.into_iter().map(announced));
    }
    Ok(summary::print(&steps, std::env::var("CI").is_ok_and(|value| value == "true")))
}

fn outcome<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn install() -> StepResult {
    let started = Instant::now();
    let problems = tools::ensure();
    let mut step = StepResult::single("tools", started.elapsed(), None);
    step.skips = problems.into_iter().map(|problem| format!("a tool: {problem}")).collect();
    step
}

/// Checks of seconds.
fn quick_checks(steps: &mut Vec<StepResult>) -> Result<(), String> {
    steps.push(announced(cargo("format", &["fmt", "--all", "--check"])?));
    let started = Instant::now();
    let violations = layering::violations()?;
    let mut step = StepResult::single("layering", started.elapsed(), None);
    step.passed = usize::from(violations.is_empty());
    step.failures = violations.into_iter().map(|violation| format!("layering: {violation}")).collect();
    steps.push(announced(step));
    let started = Instant::now();
    let violations = licences::violations()?;
    let mut step = StepResult::single("licences", started.elapsed(), None);
    step.passed = usize::from(violations.is_empty());
    step.failures = violations;
    steps.push(announced(step));
    let started = Instant::now();
    let mut step = StepResult::single("documents", started.elapsed(), None);
    step.failures = prose::violations();
    step.passed = usize::from(step.failures.is_empty());
    steps.push(announced(step));
    let started = Instant::now();
    let mut step = StepResult::single("public interface", started.elapsed(), None);
    step.failures = api::violations();
    step.passed = usize::from(step.failures.is_empty());
    steps.push(announced(step));
    let started = Instant::now();
    let compared = minimum_rust::compare();
    let mut step = StepResult::single("minimum Rust version", started.elapsed(), None);
    step.passed = usize::from(compared.violations.is_empty() && compared.skip.is_none());
    step.failures = compared.violations;
    step.skips = compared.skip.into_iter().map(|why| format!("minimum Rust version: {why}")).collect();
    steps.push(announced(step));
    Ok(())
}

/// Checks that need nothing but processors: they get those that nobody else wants.
fn checks_by_compilers() -> Result<Vec<StepResult>, String> {
    let mut steps = Vec::new();
    let clippy = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    steps.push(announced(cargo("clippy", &clippy)?));
    let doc = ["--config", "build.rustdocflags=['-Dwarnings']", "doc", "--no-deps", "-p", "butterfs"];
    steps.push(announced(cargo("documentation", &doc)?));
    // Without the build of each package: all of them are built here anyway.
    let mut package = vec!["package", "--workspace", "--no-verify", "--allow-dirty", "--quiet"];
    UNPUBLISHED.iter().for_each(|name| package.extend(["--exclude", name]));
    steps.push(announced(cargo("packages", &package)?));
    steps.push(announced(doc_tests()?));
    Ok(steps)
}

/// Cargo, after everybody else.
fn cargo_at_leisure() -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "19", "cargo"]).current_dir(workspace::root());
    command
}

fn announced(step: StepResult) -> StepResult {
    announce(&step);
    step
}

fn announce(step: &StepResult) {
    let verdict = match (step.failures.is_empty(), step.skips.is_empty(), step.unsteady.is_empty()) {
        (false, _, _) => "FAILED",
        (true, _, false) => "ok when run again",
        (true, false, true) => "partly skipped",
        (true, true, true) => "ok",
    };
    println!("{:<44} {verdict} ({:.1} s)", step.name, step.elapsed.as_secs_f64());
    step.failures.iter().for_each(|line| println!("    {line}"));
}

fn log_of(name: &str) -> PathBuf {
    workspace::target().join("xtask-logs").join(format!("{}.log", name.replace([' ', '/', ':'], "-")))
}

fn cargo(name: &str, arguments: &[&str]) -> Result<StepResult, String> {
    let log = log_of(name);
    let ended = process::run(cargo_at_leisure().args(arguments), &log, LEISURE_LIMIT)?;
    let failure = (!ended.success).then(|| {
        print!("{}", tail(&ended.output, 60));
        format!("cargo {} (see {})", arguments.join(" "), log.display())
    });
    Ok(StepResult::single(name, ended.elapsed, failure))
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].iter().map(|line| format!("    {line}\n")).collect()
}

/// A built test program.
struct Program {
    name: String,
    path: PathBuf,
    /// The package's folder, where tests expect to run.
    folder: PathBuf,
}

/// A program or library that the build of the tests has made.
fn built(name: &str) -> PathBuf {
    workspace::target().join("debug").join(name)
}

fn build_tests() -> Result<(StepResult, Vec<Program>), String> {
    // All targets: a test of the C interface links its library, and depends on none.
    let arguments = ["build", "--workspace", "--all-targets", "--message-format=json-render-diagnostics"];
    let mut command = Command::new("cargo");
    command.args(arguments).current_dir(workspace::root());
    let ended = process::run(&mut command, &log_of("test build"), Duration::from_secs(BUILD_LIMIT_S))?;
    let failure = (!ended.success).then(|| {
        let diagnostics: String =
            ended.output.lines().filter(|line| !line.starts_with('{')).map(|l| format!("{l}\n")).collect();
        print!("{}", tail(&diagnostics, 60));
        "the tests do not compile".to_owned()
    });
    let programs = ended.output.lines().filter_map(program_in).collect();
    Ok((StepResult::single("test build", ended.elapsed, failure), programs))
}

/// The test program that one line of cargo's JSON tells of.
fn program_in(line: &str) -> Option<Program> {
    let value = |key: &str| {
        let (_, rest) = line.split_once(&format!("\"{key}\":\""))?;
        rest.split_once('"').map(|(value, _)| value.to_owned())
    };
    // The profile, which the features follow, says whether this is a test; the target only that it could be one.
    if !line.contains("\"reason\":\"compiler-artifact\"") || !line.contains("\"test\":true},\"features\"") {
        return None;
    }
    let path = PathBuf::from(value("executable")?);
    let folder = Path::new(&value("manifest_path")?).parent()?.to_owned();
    let file = path.file_name()?.to_string_lossy().into_owned();
    let target = file.rsplit_once('-').map_or(file.as_str(), |(name, _)| name).to_owned();
    Some(Program { name: format!("{}/{target}", folder.file_name()?.to_string_lossy()), path, folder })
}

/// Runs all `programs`, in as many lanes as there are; then what failed once more, alone.
fn run_programs(mut programs: Vec<Program>, begun: Instant) -> Result<Vec<StepResult>, String> {
    let (started, work) = (Instant::now(), process::work());
    programs.sort_by_key(|program| FIRST.iter().position(|name| *name == program.name).unwrap_or(FIRST.len()));
    let (waiting, is_broken) = (Mutex::new(programs.into_iter()), AtomicBool::new(false));
    let run_lane = &|scratch: PathBuf| {
        let mut runs = Vec::new();
        while let Some(program) = next_of(&waiting).filter(|_| !is_broken.load(Ordering::Relaxed)) {
            let run = if begun.elapsed() > WHOLE_LIMIT {
                let late = format!("{}: not run, the whole has taken {} s", program.name, begun.elapsed().as_secs());
                let step = StepResult::single(&program.name, Duration::ZERO, Some(late));
                Run { program, step, again: None }
            } else {
                run_program(program, &scratch).inspect_err(|_| is_broken.store(true, Ordering::Relaxed))?
            };
            match run.again {
                Some(_) => println!("{:<44} failed; it is run again in the end", run.step.name),
                None => announce(&run.step),
            }
            runs.push(run);
        }
        clean_up(&scratch);
        Ok::<_, String>(runs)
    };
    let lanes: Result<Vec<_>, String> = std::thread::scope(|scope| {
        let lane = |number: u32| scope.spawn(move || run_lane(workspace::scratch().join(number.to_string())));
        let lanes: Vec<_> = (1..=LANES).map(lane).collect();
        lanes.into_iter().map(outcome).collect()
    });
    let processors = process::work().saturating_sub(work).as_secs_f64() / started.elapsed().as_secs_f64();
    println!("test programs: {:.0} s, {processors:.1} processors at work", started.elapsed().as_secs_f64());
    lanes?.into_iter().flatten().map(run_again).collect()
}

/// In a function, so that the lock is not held while the program runs.
fn next_of(waiting: &Mutex<impl Iterator<Item = Program>>) -> Option<Program> {
    waiting.lock().ok()?.next()
}

/// A run of a test program.
struct Run {
    program: Program,
    step: StepResult,
    /// The failed tests that are to be run again; none of them stands for all.
    again: Option<Vec<String>>,
}

fn run_program(program: Program, scratch: &Path) -> Result<Run, String> {
    let (step, output) = run_tests(&program, &[], scratch)?;
    if step.failures.is_empty() {
        return Ok(Run { program, step, again: None });
    }
    print!("{}", tail(&output, 80));
    clean_up(scratch);
    let failed: Vec<String> = output.lines().filter_map(summary::failed_test).map(str::to_owned).collect();
    // A test that ran for too long ended its program, so others did not run; it may have been the machine that stood
    // still.
    let was_ended = output.contains("still running after");
    // A program that ended without a result, or in which much fails, is not merely unsteady.
    let is_unsteady = failed.len() == step.failures.len() && failed.len() <= AGAIN_MOST;
    let again = is_unsteady.then(|| if was_ended { Vec::new() } else { failed });
    Ok(Run { program, step, again })
}

/// Runs failed tests again, with nothing beside them: a test may have met another one, or have had too little time.
fn run_again(Run { program, mut step, again }: Run) -> Result<StepResult, String> {
    let Some(names) = again else { return Ok(step) };
    let scratch = workspace::scratch().join("again");
    let (again, output) = run_tests(&program, &names, &scratch)?;
    clean_up(&scratch);
    step.elapsed += again.elapsed;
    if again.failures.is_empty() && again.passed >= step.failures.len() {
        step.passed = if names.is_empty() { again.passed } else { step.passed + again.passed };
        step.unsteady = step.failures.drain(..).map(|line| format!("{}: {line}", program.name)).collect();
    } else {
        print!("{}", tail(&output, 80));
    }
    announce(&step);
    Ok(step)
}

/// Runs all tests of a program, or those whose names are given, one after the other.
fn run_tests(program: &Program, names: &[String], scratch: &Path) -> Result<(StepResult, String), String> {
    std::fs::create_dir_all(scratch).map_err(|error| format!("cannot create {}: {error}", scratch.display()))?;
    let mut command = Command::new(&program.path);
    command.current_dir(&program.folder).envs(tools::environment());
    command.env("BUTTERFS_BIN", built("butterfs")).env("BUTTERFS_SCRATCH", scratch);
    command.env("BUTTERFS_LIB", built("libbutterfs.so"));
    if !names.is_empty() {
        command.args(["--test-threads", "1", "--exact"]).args(names);
    }
    let log = log_of(&if names.is_empty() { program.name.clone() } else { format!("{} again", program.name) });
    let ended = process::run(&mut command, &log, PROGRAM_LIMIT)?;
    let step =
        StepResult::from_test_output(&program.name, ended.elapsed, ended.success, ended.timed_out, &ended.output);
    Ok((step, ended.output))
}

fn doc_tests() -> Result<StepResult, String> {
    let mut command = cargo_at_leisure();
    command.args(["test", "--workspace", "--doc"]);
    let ended = process::run(&mut command, &log_of("doc tests"), LEISURE_LIMIT)?;
    Ok(StepResult::from_test_output("doc tests", ended.elapsed, ended.success, ended.timed_out, &ended.output))
}

/// Takes back what killed tests left: mounts below a lane's scratch folder and loop devices on files in it.
fn clean_up(scratch: &Path) {
    let scratch = format!("{}/", scratch.display());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let places = mounts.lines().rev().filter_map(|line| line.split(' ').nth(1));
    let ours = places.filter(|at| at.starts_with(scratch.as_str()));
    // By force first: it ends the requests that a dead server will never answer.
    ours.for_each(|at| {
        drop(process::capture("umount", &["-f", at]));
        drop(process::capture("umount", &["-l", at]));
    });
    let loops =
        process::capture("losetup", &["--list", "--noheadings", "--output", "NAME,BACK-FILE"]).unwrap_or_default();
    for line in loops.lines().filter(|line| line.contains(scratch.as_str())) {
        if let Some(device) = line.split_whitespace().next() {
            drop(process::capture("losetup", &["-d", device]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_read_from_cargos_json() {
        let line = concat!(
            r#"{"reason":"compiler-artifact","package_id":"x","manifest_path":"/w/crates/tree/Cargo.toml","#,
            r#""target":{"kind":["lib"]},"profile":{"opt_level":"1","test":true},"features":[],"filenames":[],"#,
            r#""executable":"/t/debug/deps/butterfs_tree-0123","fresh":true}"#,
        );
        let program = program_in(line).expect("a test program");
        assert_eq!(
            (program.name.as_str(), program.path.to_str()),
            ("tree/butterfs_tree", Some("/t/debug/deps/butterfs_tree-0123"))
        );
        assert!(program_in(&line.replace("\"test\":true", "\"test\":false")).is_none());
    }
}
