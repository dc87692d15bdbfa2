//! `butterfs device scan`.

use super::block_devices;
use crate::commands::Run;
use crate::error::CliError;
use std::io::Write;
use std::path::PathBuf;

/// Look for devices with a btrfs.
///
/// A mount by butterfs names all devices of its filesystem, so nothing has to be registered anywhere; what is found is
/// printed in the words of btrfs. The kernel's list of devices is left alone.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Accepted as in btrfs: all devices are looked at anyway
    #[arg(short = 'd', long)]
    all_devices: bool,
    /// Refused: butterfs registers nothing, and does not change what the kernel has registered
    #[arg(short = 'u', long)]
    forget: bool,
    /// Only these devices or images
    #[arg(value_name = "DEVICE")]
    devices: Vec<PathBuf>,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        if self.forget {
            let error = CliError::failed("butterfs registers no devices, so there are none to forget");
            return Err(error.hint("'btrfs device scan --forget' changes the list of the kernel"));
        }
        if self.devices.is_empty() {
            writeln!(out, "Scanning for Btrfs filesystems")?;
            for found in block_devices::all() {
                writeln!(out, "registered: {}", found.path.display())?;
            }
        }
        for path in &self.devices {
            writeln!(out, "Scanning for btrfs filesystems on '{}'", path.display())?;
            if block_devices::look_at(path).is_none() {
                return Err(CliError::failed(format!("there is no btrfs on '{}'", path.display())));
            }
        }
        Ok(())
    }
}
