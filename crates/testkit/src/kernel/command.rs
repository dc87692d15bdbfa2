//! Programs with a time limit.

use std::process::{Command, Stdio};

/// How a program ended.
#[derive(Debug)]
pub struct Finished {
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output, then standard error.
    pub output: String,
}

/// Runs `program` under `timeout`, which kills it after `limit_s` seconds (exit code 124 or 137).
pub fn run(limit_s: u32, program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> Finished {
    let program = program.as_ref();
    let output = Command::new("timeout")
        .args(["-k", "5", &limit_s.to_string()])
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("cannot start timeout: {error}"));
    let text = [output.stdout, output.stderr].concat();
    Finished { code: output.status.code(), output: String::from_utf8_lossy(&text).into_owned() }
}

/// Runs a program that must succeed, and returns what it printed.
pub fn run_ok(limit_s: u32, program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> String {
    let program = program.as_ref();
    let finished = run(limit_s, program, arguments);
    let shown = program.to_string_lossy();
    assert_eq!(finished.code, Some(0), "{shown} {}: {}", arguments.join(" "), finished.output);
    finished.output
}
