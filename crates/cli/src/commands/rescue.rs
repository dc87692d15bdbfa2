//! `butterfs rescue`: finds out what is left of a filesystem that does not mount, and mends single structures. Grammar and
//! text of what btrfs-progs has are its own.

mod scan;

use super::{Run, subcommands};
use crate::error::CliError;
use clap::Subcommand;
use std::io::Write;

subcommands! {
    /// Find out what is left of a filesystem that does not mount, and mend single structures.
    Group {
        Scan(scan::Args),
    }
}
