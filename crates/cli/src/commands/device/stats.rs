//! `butterfs device stats`.

use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::{self, plain};
use butterfs_control::DeviceRecord;
use butterfs_control::question::CountDeviceErrors;
use butterfs_fuse::client;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The exit code where something was counted, as of btrfs.
const COUNTED: u8 = 64;

/// The counters of a device and what btrfs calls them.
fn counters(device: &DeviceRecord) -> [(&'static str, u64); 5] {
    [
        ("write_io_errs", device.write_errors),
        ("read_io_errs", device.read_errors),
        ("flush_io_errs", device.flush_errors),
        ("corruption_errs", device.corruption_errors),
        ("generation_errs", device.generation_errors),
    ]
}

/// Show what went wrong on the devices of a filesystem.
///
/// The counters are kept from mount to mount: writes, reads and flushes that failed, copies that were wrong, and times that
/// a device had missed commits.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// End with code 64 where a counter is not zero
    #[arg(short, long)]
    check: bool,
    /// A directory of a mount, or the devices or images of a filesystem that is not mounted
    #[arg(value_name = "MOUNT|DEVICE", required = true)]
    paths: Vec<PathBuf>,
}

/// Whether a path is on a mount, be it one that nobody serves any more, and not storage.
fn is_mounted(path: &Path) -> bool {
    match std::fs::metadata(path) {
        Ok(found) => found.is_dir(),
        Err(error) => client::left_alone(&error),
    }
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = match &self.paths[..] {
            [mount] if is_mounted(mount) => open_filesystem::mounted(mount)?,
            images => open_filesystem::images(images)?,
        };
        let mut any = false;
        for device in opened.ask("cannot ask for the counters", plain(CountDeviceErrors {}))? {
            for (counter, value) in counters(&device) {
                writeln!(out, "[{}].{counter:<16} {value}", device.name)?;
                any |= value != 0;
            }
        }
        opened.close()?;
        if self.check && any { Err(CliError::Reported { code: COUNTED }) } else { Ok(()) }
    }
}
