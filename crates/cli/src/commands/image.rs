//! `butterfs image`: images that nobody has mounted, made and worked on.

mod build;
mod edit;
mod manifest;
mod place;
mod records;
mod sources;
mod verbs;

pub use build::{add_subvolume, parse_method, source_date_epoch};

use super::{Run, subcommands};
use crate::error::CliError;
use clap::Subcommand;
use std::io::Write;
use verbs::On;

subcommands! {
    /// Build images from folders and archives; read and change images that are not mounted
    Group {
        Build(Box<build::Args>),
        Run(verbs::RunArgs),
        Verify(manifest::VerifyArgs),
        Diff(manifest::DiffArgs),
        Ls(On<verbs::Ls>),
        Cat(On<verbs::Cat>),
        Stat(On<verbs::Stat>),
        Tree(On<verbs::Tree>),
        CpIn(On<verbs::CpIn>),
        CpOut(On<verbs::CpOut>),
        TarIn(On<verbs::TarIn>),
        TarOut(On<verbs::TarOut>),
        Mkdir(On<verbs::Mkdir>),
        Rm(verbs::RmArgs),
        Mv(On<verbs::Mv>),
        Ln(On<verbs::Ln>),
        Chmod(On<verbs::Chmod>),
        Chown(On<verbs::Chown>),
        Setfattr(On<verbs::Setfattr>),
        Edit(edit::Args),
        Df(manifest::DfArgs),
    }
}

/// The message of an image error is a sentence already.
impl From<butterfs_image::Error> for CliError {
    fn from(error: butterfs_image::Error) -> CliError {
        CliError::failed(error.to_string())
    }
}
