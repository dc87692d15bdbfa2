//! `butterfs filesystem sync`.

use crate::commands::Run;
use crate::error::CliError;
use butterfs_fuse::client;
use std::io::Write;
use std::path::PathBuf;

/// Make all changes of the filesystem durable.
///
/// Works on every mount of butterfs, also where sync(1) does not reach it, and on the kernel's btrfs.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// A file or directory on the filesystem
    path: PathBuf,
}

impl Run for Args {
    fn run(self, _: &mut dyn Write) -> Result<(), CliError> {
        client::sync(&self.path).map_err(CliError::failed)
    }
}
