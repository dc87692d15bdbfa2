//! `butterfs balance`: chunks are moved, made compact, or converted.

mod filters;
mod start;
mod state;

use super::{Run, subcommands};
use crate::error::CliError;
use clap::Subcommand;
use std::io::Write;

subcommands! {
    /// Move what lies in chunks, to make them compact or to give them another profile
    Group {
        Start(start::Args),
        Pause(state::Pause),
        Cancel(state::Cancel),
        Resume(state::Resume),
        Status(state::Status),
    }
}
