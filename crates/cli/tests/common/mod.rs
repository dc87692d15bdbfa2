//! Running the command and looking at what it did.

use std::process::{Command, Output};

/// How a run of the command ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs the command under test.
pub fn butterfs(arguments: &[&str]) -> Ran {
    ran(Command::new(env!("CARGO_BIN_EXE_butterfs")).args(arguments).output().expect("the command was built"))
}

/// Runs the command under test, which must succeed and say nothing on standard error; returns what it printed.
pub fn butterfs_ok(arguments: &[&str]) -> String {
    let ran = butterfs(arguments);
    assert!(ran.code == Some(0) && ran.stderr.is_empty(), "{}: {ran:?}", arguments.join(" "));
    ran.stdout
}

pub fn ran(output: Output) -> Ran {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
    Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}
