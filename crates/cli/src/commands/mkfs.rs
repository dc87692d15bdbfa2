//! `butterfs mkfs`, also called as `mkfs.butterfs`.

use super::Run;
use crate::args;
use crate::error::CliError;
use std::io::Write;
use std::path::PathBuf;

/// Make a btrfs filesystem on a device or in a file.
///
/// FILE is created, sparse, where there is none and --byte-count is given. A device or file that holds a filesystem or
/// a partition table is left alone unless --force is given.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Label of the filesystem, at most 255 bytes
    #[arg(short = 'L', long)]
    label: Option<String>,
    /// Size of the filesystem; a file that does not exist is created with it
    #[arg(short, long, value_name = "SIZE", value_parser = args::size)]
    byte_count: Option<u64>,
    /// Device or file
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
}

/// Make a btrfs filesystem on a device or in a file.
#[derive(clap::Parser, Debug)]
#[command(name = "mkfs.butterfs", version, max_term_width = 100)]
pub struct Standalone {
    #[command(flatten)]
    pub args: Args,
}

impl Run for Args {
    fn run(self, _out: &mut dyn Write) -> Result<(), CliError> {
        Err(CliError::failed(format!("making filesystems does not work yet ({:?})", self.devices)))
    }
}
