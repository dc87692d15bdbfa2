//! Prints how a command ended. The only place that writes to standard error.

use crate::error::{CliError, without_error_numbers};
use std::io::Write;
use std::process::ExitCode;

/// Prints `error` where it belongs, and says with which code to exit.
pub fn report(error: &CliError) -> ExitCode {
    match error {
        CliError::Failed { sentence, hints, code } => {
            let mut err = std::io::stderr().lock();
            // Nothing is left to tell anybody when standard error is closed.
            let _ = writeln!(err, "ERROR: {sentence}");
            for hint in hints {
                let _ = writeln!(err, "hint: {hint}");
            }
            ExitCode::from(*code)
        }
        CliError::Reported { code } => ExitCode::from(*code),
        CliError::Text(text) => match print(text) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => report(&error),
        },
        CliError::BrokenPipe => ExitCode::SUCCESS,
    }
}

/// Prints text that was asked for.
fn print(text: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Prints something that the user should know although the command succeeds.
pub fn warn(sentence: &str) {
    let _ = writeln!(std::io::stderr().lock(), "WARNING: {}", without_error_numbers(sentence));
}

/// Prints an error of a command that goes on.
pub fn error(sentence: &str) {
    let _ = writeln!(std::io::stderr().lock(), "ERROR: {}", without_error_numbers(sentence));
}

/// Prints a line that belongs to standard error.
pub fn line(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
