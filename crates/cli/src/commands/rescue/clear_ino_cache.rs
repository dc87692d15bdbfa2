//! `butterfs rescue clear-ino-cache`: removes what the inode number cache of old kernels has left.

use super::clear;
use crate::commands::Run;
use crate::error::CliError;
use butterfs_ondisk::TreeId;
use butterfs_repair::Options;
use std::io::Write;
use std::path::PathBuf;

/// Remove the cache of free inode numbers that kernels before 5.11 have left (mount option inode_cache). No kernel
/// reads it any more.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// All devices of the filesystem
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let done = clear::run(&self.devices, Options { clear_ino_cache: true, ..Options::default() })?;
        for TreeId(id) in done.subvolumes {
            writeln!(out, "Successfully cleaned up ino cache for root id: {id}")?;
        }
        Ok(out.flush()?)
    }
}
