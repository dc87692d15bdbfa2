//! `butterfs device`: commands about the devices of a filesystem.

mod stats;
mod usage;

use super::{Run, subcommands};
use crate::error::CliError;
use clap::Subcommand;
use std::io::Write;

subcommands! {
    /// Look at the devices of a filesystem
    Group {
        Stats(stats::Args),
        Usage(usage::Args),
    }
}
