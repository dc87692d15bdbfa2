//! `butterfs balance`: chunks are moved, made compact, or converted.

mod filters;
mod start;
mod state;

use super::{Run, subcommands};
use crate::error::CliError;
use clap::Subcommand;
use std::io::Write;

subcommands! {
    /// Move the content of chunks, to make them compact or to convert their profile
    Group {
        Start(start::Args),
        Pause(state::Pause),
        Cancel(state::Cancel),
        Resume(state::Resume),
        Status(state::Status),
    }
}
