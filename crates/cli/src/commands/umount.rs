//! `butterfs umount`.

mod helper;

pub use helper::Helper;

use super::Run;
use crate::error::CliError;
use crate::report;
use butterfs_fuse::client::{self, Unmounted};
use std::io::Write;
use std::path::PathBuf;

/// Unmount a filesystem and wait until everything is durable.
///
/// Returns when the process that served the filesystem has ended, or, if it has other mounts, when everything is
/// durable. Fails when something could not be made durable.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Mount point of the filesystem
    mountpoint: PathBuf,
}

impl Run for Args {
    fn run(self, _: &mut dyn Write) -> Result<(), CliError> {
        match client::unmount(&self.mountpoint) {
            Ok(Unmounted::Ended | Unmounted::OthersRemain) => Ok(()),
            Ok(Unmounted::MountedElsewhere) => {
                report::warn("everything is durable, but the filesystem is still mounted elsewhere");
                Ok(())
            }
            Err(sentence) if sentence.ends_with(" is in use") => {
                Err(CliError::failed(sentence).hint("'fuser -vm MOUNTPOINT' lists who uses it"))
            }
            Err(sentence) => Err(CliError::failed(sentence)),
        }
    }
}
