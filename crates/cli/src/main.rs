//! The `butterfs` command: takes the command line apart, runs one subcommand, reports how it went.
//!
//! Rules for every subcommand:
//! 1. It returns its failure; only [`report`] prints one, as `ERROR: one sentence`, with `hint:` lines after it.
//! 2. It writes to the output it is given, never with `println!`: a reader that goes away ends the program quietly.
//! 3. Exit codes are 0 for success, 1 for failure and 2 for a command line that makes no sense.
//!
//! No logic lives here or in the subcommands; they translate arguments into calls of the libraries and results into
//! text. The program is also known by other names, see [`names`].

#![forbid(unsafe_code)]

mod args;
mod commands;
mod error;
mod moments;
mod names;
mod open_filesystem;
mod output;
mod progress;
mod report;
mod space;
mod stores;
mod streams;

use commands::Run;
use error::CliError;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let mut out = std::io::stdout().lock();
    let outcome = run(&arguments, &mut out).and_then(|()| out.flush().map_err(CliError::from));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report::report(&error),
    }
}

/// Runs the program under the name and with the arguments of `arguments`.
fn run(arguments: &[OsString], out: &mut dyn Write) -> Result<(), CliError> {
    names::parse(arguments)?.run(out)
}
