//! The process that serves a mount in the background, seen from both ends.

use super::Args;
use crate::error::{CliError, os_message};
use std::io::{Read, Write};
use std::process::{Command, Stdio};

/// The message of the serving process that the mount is usable.
const READY: &[u8] = b"ready\n";

/// Starts the serving process and waits until the mount is usable. Until then it shares our standard error, so that
/// its reasons reach the user.
pub fn start(args: &Args) -> Result<(), CliError> {
    let program = std::env::current_exe()
        .map_err(|error| cannot("find this program, to start it in the background", os_message(&error)))?;
    let mut command = Command::new(program);
    command.arg("mount").arg("--serve").args(args.to_command_line());
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    // A lock of the caller's, or a file on another mount, would stay open as long as this one is served; but a path can
    // be that of a descriptor.
    if !args.paths.iter().any(|path| path.starts_with("/dev/fd") || path.starts_with("/proc")) {
        // Old kernels cannot.
        let _ = butterfs_fuse::service::keep_descriptors();
    }
    let mut process = command.spawn().map_err(|error| cannot("start the serving process", os_message(&error)))?;
    let mut said = Vec::new();
    if let Some(mut output) = process.stdout.take() {
        // An error here is the silence that is handled below.
        let _ = output.read_to_end(&mut said);
    }
    if said == READY {
        return Ok(());
    }
    let status = process.wait().map_err(|error| cannot("wait for the serving process", os_message(&error)))?;
    match status.code() {
        Some(code) if code != 0 => Err(CliError::Reported { code: code as u8 }),
        _ => Err(CliError::failed(format!("the serving process ended early: {status}"))),
    }
}

/// Tells the process that waits, and lets go of everything that belongs to it.
pub fn announce(out: &mut dyn Write) -> Result<(), CliError> {
    detach(out, READY)
}

/// The same with another word.
pub fn detach(out: &mut dyn Write, word: &[u8]) -> Result<(), CliError> {
    let detached = || -> std::io::Result<std::fs::File> {
        // Fails for the leader of a session, which has no terminal to lose.
        let _ = rustix::process::setsid();
        std::env::set_current_dir("/")?;
        std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")
    };
    let null = detached().map_err(|error| cannot("go to the background", os_message(&error)))?;
    // The word must be the last: what reads our outputs may end when it has come.
    rustix::stdio::dup2_stderr(&null).map_err(|error| cannot("go to the background", error))?;
    out.write_all(word)?;
    out.flush()?;
    rustix::stdio::dup2_stdout(&null).map_err(|error| cannot("go to the background", error))
}

fn cannot(what: &str, why: impl std::fmt::Display) -> CliError {
    CliError::failed(format!("cannot {what}: {why}"))
}
