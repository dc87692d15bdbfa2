//! `butterfs device stats`.

use crate::commands::Run;
use crate::error::CliError;
use crate::target::{self, Question, nonsense};
use butterfs_fuse::client;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The exit code where something was counted, as of btrfs.
const COUNTED: u8 = 64;
const COUNTERS: [&str; 5] = ["write_io_errs", "read_io_errs", "flush_io_errs", "corruption_errs", "generation_errs"];

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
        let mut target = match &self.paths[..] {
            [mount] if is_mounted(mount) => target::mounted(mount)?,
            images => target::images(images)?,
        };
        let mut any = false;
        for words in target.ask("cannot ask for the counters", &Question::new("device-stats"))? {
            let word = |index: usize| words.get(index).map(|word| String::from_utf8_lossy(word)).ok_or_else(nonsense);
            let name = word(1)?;
            for (index, counter) in COUNTERS.iter().enumerate() {
                let value = word(index + 2)?;
                writeln!(out, "[{name}].{counter:<16} {value}")?;
                any |= value != "0";
            }
        }
        target.close()?;
        if self.check && any { Err(CliError::Reported { code: COUNTED }) } else { Ok(()) }
    }
}
