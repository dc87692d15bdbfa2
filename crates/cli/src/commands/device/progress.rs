//! The progress of long work on devices, on a terminal.

use crate::error::CliError;
use crate::report;
use butterfs_control::WorkProgress;
use std::io::{IsTerminal, stderr};

/// Shows a record of progress on standard error, if that is a terminal.
pub fn show(progress: WorkProgress) -> Result<(), CliError> {
    let WorkProgress { done_bytes, total_bytes } = progress;
    if total_bytes > 0 && stderr().is_terminal() {
        let permille = u128::from(done_bytes.min(total_bytes)) * 1000 / u128::from(total_bytes);
        report::status(&format!("{}.{}% moved", permille / 10, permille % 10));
    }
    Ok(())
}

/// Clears the line that showed progress.
pub fn clear() {
    if stderr().is_terminal() {
        report::status("");
    }
}
