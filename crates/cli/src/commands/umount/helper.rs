//! `umount.butterfs`, as umount(8) calls it.

use super::Args;
use crate::commands::Run;
use crate::error::CliError;
use butterfs_fuse::mount;
use std::io::Write;
use std::path::PathBuf;

/// Unmount a filesystem; called by umount(8) for the type butterfs.
#[derive(clap::Parser, Debug)]
#[command(name = "umount.butterfs", version, max_term_width = 100, disable_version_flag = true)]
pub struct Helper {
    /// Take the mount out of sight now; it ends when nobody uses it any more
    #[arg(short)]
    lazy: bool,
    /// Accepted and not needed: a server that does not answer can be ended by its process id
    #[arg(short)]
    force: bool,
    /// Do not write to /etc/mtab, which nobody does any more
    #[arg(short)]
    no_mtab: bool,
    /// Say more
    #[arg(short)]
    verbose: bool,
    /// Not supported
    #[arg(short)]
    read_only: bool,
    /// Not supported
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<PathBuf>,
    /// Type of the filesystem
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
    /// Mount point of the filesystem
    mountpoint: PathBuf,
}

impl Run for Helper {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.unmount(out).map_err(CliError::of_mount_helper)
    }
}

impl Helper {
    fn unmount(self, out: &mut dyn Write) -> Result<(), CliError> {
        let shown = self.mountpoint.display();
        if self.read_only {
            return Err(CliError::usage("-r is not supported").hint("use 'mount -o remount,ro' instead"));
        }
        if self.namespace.is_some() {
            return Err(CliError::usage("-N is not supported").hint("use 'nsenter -m' instead"));
        }
        match self.lazy {
            true => mount::unmount(&self.mountpoint, true)
                .map_err(|error| CliError::failed(format!("cannot unmount {shown}: {error}"))),
            false => Args { mountpoint: self.mountpoint }.run(out),
        }
    }
}
