//! Runs a program with a time limit and keeps what it printed.
//!
//! Invariants: the program runs in a process group of its own, and the whole group is killed when the time is over, so
//! that nothing it started outlives it. Standard input is empty: no program can wait for an answer.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The unit of `/proc/stat`, for all programs of all architectures.
const MS_PER_TICK: u64 = 10;

/// How long a killed program may take to be gone.
const REAP_LIMIT: Duration = Duration::from_secs(10);

/// How a program ended.
pub struct Ended {
    /// Exit status zero, in time.
    pub success: bool,
    /// The limit was reached and the group was killed.
    pub timed_out: bool,
    pub elapsed: Duration,
    /// Standard output and standard error, in the order they were written.
    pub output: String,
}

/// Runs `command` for at most `limit`; everything it prints goes to `log` and into the result.
pub fn run(command: &mut Command, log: &Path, limit: Duration) -> Result<Ended, String> {
    let describe = |what: &str, error: std::io::Error| format!("cannot {what}: {error}");
    if let Some(folder) = log.parent() {
        std::fs::create_dir_all(folder).map_err(|error| describe(&format!("create {}", folder.display()), error))?;
    }
    let file = File::create(log).map_err(|error| describe(&format!("write {}", log.display()), error))?;
    let second = file.try_clone().map_err(|error| describe("duplicate the log's descriptor", error))?;
    let name = command.get_program().to_string_lossy().into_owned();
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(second)
        .process_group(0)
        .spawn()
        .map_err(|error| describe(&format!("start {name}"), error))?;
    let (success, timed_out) = wait(&mut child, limit).map_err(|error| describe(&format!("wait for {name}"), error))?;
    let bytes = std::fs::read(log).map_err(|error| describe(&format!("read {}", log.display()), error))?;
    let output = String::from_utf8_lossy(&bytes).into_owned();
    Ok(Ended { success, timed_out, elapsed: started.elapsed(), output })
}

/// The time for which the machine's processors were at work since it started, without that of work whose priority is
/// lowered: the fields `user`, `system`, `irq`, `softirq` of `/proc/stat`; 0 where there is none.
pub fn work() -> Duration {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields: Vec<u64> = stat
        .lines()
        .next()
        .into_iter()
        .flat_map(str::split_whitespace)
        .skip(1)
        .map_while(|field| field.parse().ok())
        .collect();
    let ticks: u64 = [0, 2, 5, 6].iter().filter_map(|at| fields.get(*at)).sum();
    Duration::from_millis(ticks * MS_PER_TICK)
}

/// `(exit status was zero, the limit was reached)`.
fn wait(child: &mut Child, limit: Duration) -> std::io::Result<(bool, bool)> {
    let end = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status.success(), false));
        }
        if Instant::now() >= end {
            kill_group(child.id());
            reap(child)?;
            return Ok((false, true));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for a killed program, but not for one that the kernel does not let go of.
fn reap(child: &mut Child) -> std::io::Result<()> {
    let end = Instant::now() + REAP_LIMIT;
    while child.try_wait()?.is_none() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn kill_group(leader: u32) {
    let group = format!("-{leader}");
    let _ = Command::new("kill").args(["-KILL", "--", &group]).stdin(Stdio::null()).status();
}

/// True when `program` is on the search path of `PATH` or in the folders of system programs.
pub fn exists(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').chain(["/usr/sbin", "/sbin", "/usr/bin"]).any(|folder| Path::new(folder).join(program).is_file())
}

/// Runs a small program to its end and returns its standard output when it succeeded.
pub fn capture(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
