//! `butterfs scrub`: reads everything, verifies it, repairs it, and names the files that are damaged.
//!
//! The command that starts a scrub stays as long as it runs, in the background unless it is told otherwise: it writes
//! down how far it is, so that it can be resumed after anything. Texts and the status file are those of btrfs-progs.

mod cancel;
mod findings;
mod limit;
mod place;
mod record;
mod start;
mod status;
pub(crate) mod summary;

use super::{Run, subcommands};
use crate::error::CliError;
use clap::Subcommand;
use std::io::Write;

subcommands! {
    /// Verify and repair everything on a filesystem
    Group {
        Start(start::Start),
        Resume(start::Resume),
        Status(status::Args),
        Cancel(cancel::Args),
        Limit(limit::Args),
    }
}

/// The exit code where there is nothing to cancel or to resume.
const NOTHING_TO_DO: u8 = 2;
/// The exit code where damage is left.
const UNCORRECTABLE: u8 = 3;
