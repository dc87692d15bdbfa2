//! `butterfs rescue create-control-device`: makes `/dev/btrfs-control`, in the words of btrfs-progs.

use crate::commands::Run;
use crate::error::{CliError, os_message};
use rustix::fs::{FileType, Mode, makedev, mknodat};
use std::io::Write;

const PATH: &str = "/dev/btrfs-control";
/// The numbers that the kernel gives it.
const NUMBER: (u32, u32) = (10, 234);

/// Make /dev/btrfs-control, by which programs ask the kernel's btrfs about devices, where udev is not there to do it.
#[derive(clap::Args, Debug)]
pub struct Args {}

impl Run for Args {
    fn run(self, _: &mut dyn Write) -> Result<(), CliError> {
        let device = makedev(NUMBER.0, NUMBER.1);
        let made = mknodat(rustix::fs::CWD, PATH, FileType::CharacterDevice, Mode::RUSR | Mode::WUSR, device);
        made.map_err(|error| CliError::failed(format!("could not create {PATH}: {}", os_message(&error.into()))))
    }
}
