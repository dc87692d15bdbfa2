//! `mount.butterfs`, as mount(8) calls it.

use super::Args;
use crate::commands::Run;
use crate::error::CliError;
use std::io::Write;
use std::path::PathBuf;

/// Mount a filesystem; called by mount(8) for the type butterfs.
#[derive(clap::Parser, Debug)]
#[command(name = "mount.butterfs", version, max_term_width = 100, disable_version_flag = true)]
pub struct Helper {
    /// Mount options, separated by commas
    #[arg(short, value_name = "LIST")]
    options: Vec<String>,
    /// Check the arguments and do nothing
    #[arg(short)]
    fake: bool,
    /// Tolerate unknown options; here they are refused all the same
    #[arg(short)]
    sloppy: bool,
    /// Do not write to /etc/mtab, which nobody does any more
    #[arg(short)]
    no_mtab: bool,
    /// Say more
    #[arg(short)]
    verbose: bool,
    /// Type of the filesystem
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
    /// Block device or image file
    device: PathBuf,
    /// An existing directory
    mountpoint: PathBuf,
}

impl Run for Helper {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        if self.fake {
            return Ok(());
        }
        self.into_args().run(out).map_err(CliError::of_mount_helper)
    }
}

impl Helper {
    /// The same as arguments of `butterfs mount`.
    fn into_args(self) -> Args {
        let Helper { options, device, mountpoint, .. } = self;
        let paths = vec![device, mountpoint];
        Args { options, paths, foreground: false, create: None, serve: false, show: false, for_mount: true }
    }
}
