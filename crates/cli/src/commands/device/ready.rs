//! `butterfs device ready`.

use super::block_devices;
use crate::commands::Run;
use crate::error::CliError;
use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

/// Tell by the exit code whether all devices of a filesystem are there.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// One of its devices
    device: PathBuf,
}

impl Run for Args {
    fn run(self, _: &mut dyn Write) -> Result<(), CliError> {
        let shown = self.device.display();
        let metadata = std::fs::metadata(&self.device)
            .map_err(|error| crate::open_filesystem::cannot_access(&self.device, error))?;
        if !metadata.file_type().is_block_device() {
            return Err(CliError::failed(format!("not a block device: {shown}")));
        }
        let Some(own) = block_devices::look_at(&self.device) else {
            return Err(CliError::failed(format!("there is no btrfs on '{shown}'")));
        };
        let mut ids: Vec<u64> = block_devices::all()
            .into_iter()
            .filter(|found| found.superblock.fsid == own.superblock.fsid)
            .map(|found| found.superblock.dev_item.devid.get())
            .collect();
        ids.sort_unstable();
        ids.dedup();
        if ids.len() as u64 >= own.superblock.num_devices.get() { Ok(()) } else { Err(CliError::Reported { code: 1 }) }
    }
}
