//! `butterfs device`: commands about the devices of a filesystem.

mod add;
mod block_devices;
mod ready;
mod remove;
mod scan;
mod stats;
mod usage;

pub use remove::device_name;

use super::{Run, subcommands};
use crate::error::CliError;
use crate::progress::Progress;
use butterfs_control::WorkProgress;
use clap::Subcommand;
use std::io::Write;

subcommands! {
    /// Look at the devices of a filesystem, add and remove them
    Group {
        Add(add::Args),
        Remove(#[command(visible_alias = "delete")] remove::Args),
        Scan(scan::Args),
        Ready(ready::Args),
        Stats(stats::Args),
        Usage(usage::Args),
    }
}

/// Shows the progress of work on devices.
pub fn show(progress: &mut Progress, work: WorkProgress) -> Result<(), CliError> {
    let WorkProgress { done_bytes, total_bytes } = work;
    progress.at(done_bytes.min(total_bytes), Some(total_bytes));
    Ok(())
}
