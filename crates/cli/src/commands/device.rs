//! `butterfs device`: commands about the devices of a filesystem.

mod add;
mod block_devices;
mod progress;
mod ready;
mod remove;
mod scan;
mod stats;
mod usage;

pub use progress::show;
pub use remove::device_name;

use super::{Run, subcommands};
use crate::error::CliError;
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
