//! `butterfs filesystem`: commands on a mounted filesystem as a whole, and on how files lie in it.

mod defragment;
mod extents;
mod resize;
mod sync;

use super::{Run, subcommands};
use crate::error::CliError;
use clap::Subcommand;
use std::io::Write;

subcommands! {
    /// Work on a filesystem as a whole, or on how files lie in it
    Group {
        Defragment(defragment::Args),
        Extents(extents::Args),
        Resize(resize::Args),
        Sync(sync::Args),
    }
}
