//! `butterfs filesystem`: commands on a mounted filesystem as a whole.

mod sync;

use super::{Run, subcommands};
use crate::error::CliError;
use clap::Subcommand;
use std::io::Write;

subcommands! {
    /// Work on a mounted filesystem as a whole
    Group {
        Sync(sync::Args),
    }
}
