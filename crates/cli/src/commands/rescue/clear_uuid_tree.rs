//! `butterfs rescue clear-uuid-tree`: removes the UUID tree.

use super::clear;
use crate::commands::Run;
use crate::error::CliError;
use butterfs_repair::Options;
use std::io::Write;
use std::path::PathBuf;

/// Remove the UUID tree, which the next mount for writing makes anew. It works also where no block of the tree can be
/// read.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// All devices of the filesystem
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
}

impl Run for Args {
    fn run(self, _: &mut dyn Write) -> Result<(), CliError> {
        clear::run(&self.devices, Options { clear_uuid_tree: true, ..Options::default() }).map(drop)
    }
}
