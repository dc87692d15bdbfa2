//! `butterfs stream`: snapshots in object stores.

mod get;
mod keep;
mod place;
mod put;
mod read;
mod tar;

pub use place::StoreArgs;

use super::{Run, subcommands};
use crate::error::CliError;
use clap::Subcommand;
use std::io::Write;

subcommands! {
    /// Keep snapshots in object stores, and read them there
    Group {
        Put(put::Args),
        Get(get::Args),
        Ls(read::LsArgs),
        Cat(read::CatArgs),
        Diff(read::DiffArgs),
        Tar(tar::Args),
        Verify(keep::VerifyArgs),
        Prune(keep::PruneArgs),
        Cp(keep::CpArgs),
    }
}
