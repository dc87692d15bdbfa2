//! `butterfs image`: images that nobody has mounted, made and worked on.

mod build;

pub use build::{add_subvolume, parse_method, source_date_epoch};

use super::{Run, subcommands};
use crate::error::CliError;
use clap::Subcommand;
use std::io::Write;

subcommands! {
    /// Images that nobody has mounted: made from folders and archives, looked at, changed
    Group {
        Build(Box<build::Args>),
    }
}

/// Messages about an image are sentences already.
impl From<butterfs_image::Error> for CliError {
    fn from(error: butterfs_image::Error) -> CliError {
        CliError::failed(error.to_string())
    }
}
