//! `fsck.butterfs`, as fsck(8) calls it at boot and by hand.
//!
//! At boot (`-a`, `-p`) nothing is to be done: every mount finds a committed state and replays the log itself. By hand
//! it checks, and repairs nothing. Exit codes are those of fsck(8).

use super::Args;
use crate::commands::Run;
use crate::error::CliError;
use std::io::Write;
use std::path::PathBuf;

/// Exit code of fsck(8): errors are left uncorrected.
const ERRORS_LEFT: u8 = 4;
/// Exit code of fsck(8): the check could not be done.
const OPERATIONAL_ERROR: u8 = 8;

/// Check a filesystem; called by fsck(8) for the type butterfs.
///
/// With -a or -p nothing is done, because a mount needs no check before it. Otherwise it does what 'butterfs check'
/// does.
#[derive(clap::Parser, Debug)]
#[command(name = "fsck.butterfs", version, max_term_width = 100, disable_version_flag = true)]
pub struct Helper {
    /// Check nothing, as at boot
    #[arg(short)]
    automatic: bool,
    /// The same as -a
    #[arg(short)]
    preen: bool,
    /// Change nothing; always so
    #[arg(short)]
    no_changes: bool,
    /// Accepted; nothing is repaired and so nothing is asked
    #[arg(short)]
    yes: bool,
    /// Accepted; a check always looks at everything
    #[arg(short)]
    force: bool,
    /// Say more
    #[arg(short = 'V')]
    verbose: bool,
    /// All devices of the filesystem
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
}

impl Run for Helper {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        if self.automatic || self.preen {
            return Ok(());
        }
        Args::of_devices(self.devices).run(out).map_err(|error| match error {
            CliError::Reported { .. } => CliError::Reported { code: ERRORS_LEFT },
            CliError::Failed { sentence, hints, .. } => CliError::Failed { sentence, hints, code: OPERATIONAL_ERROR },
            other => other,
        })
    }
}
