//! `butterfs stream`: snapshots in object stores.

mod get;
mod keep;
mod place;
mod put;
mod read;
mod tar;

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

/// The message of an error of a store is a sentence already.
impl From<butterfs_store::Error> for CliError {
    fn from(error: butterfs_store::Error) -> CliError {
        let sentence = error.to_string();
        if error.kind() == butterfs_store::Kind::Broken && sentence.contains("Broken pipe") {
            return CliError::BrokenPipe;
        }
        // The client asks the host of a virtual machine at Amazon where nothing else names credentials.
        let has_none = sentence.contains("http://169.254.169.254/");
        let failed = CliError::failed(sentence);
        if has_none {
            failed.hint("no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give --profile")
        } else {
            failed
        }
    }
}
