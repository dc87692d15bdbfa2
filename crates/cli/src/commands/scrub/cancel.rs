//! `butterfs scrub cancel`.

use super::NOTHING_TO_DO;
use super::place::{Place, Target, fsid_of};
use super::record::Records;
use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::{Intent, about};
use crate::report;
use butterfs_control::question::CancelScrub;
use butterfs_fuse::subvolumes::NOT_RUNNING;
use rustix::process::{Signal, kill_process};
use std::io::Write;
use std::time::{Duration, Instant};

/// How long a scrub of an image may take to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Stop a scrub. It can be resumed.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    target: Target,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let shown = self.target.shown();
        let was_running = match self.target.place()? {
            place @ Place::Mount { .. } => cancel_on_mount(&place, &shown)?,
            Place::Images(images) => cancel_on_image(&Records::of(&fsid_of(&images[0])?))?,
        };
        if !was_running {
            report::error(&format!("scrub cancel failed on {shown}: not running"));
            return Err(CliError::Reported { code: NOTHING_TO_DO });
        }
        Ok(writeln!(out, "scrub cancelled")?)
    }
}

/// Asks the process that serves the mount to end the scrub, and waits for that. False: none runs.
pub(super) fn cancel_on_mount(place: &Place, shown: &str) -> Result<bool, CliError> {
    let mut opened = place.open(Intent::Look)?;
    let asking = about([&opened.root()], |[through]| CancelScrub { through });
    let cancelled = opened.try_ask(asking)?;
    opened.close()?;
    match cancelled {
        Ok(_) => Ok(true),
        Err(refusal) if refusal.errno == NOT_RUNNING => Ok(false),
        Err(refusal) => Err(CliError::failed(format!("scrub cancel failed on {shown}: {}", refusal.sentence))),
    }
}

/// Asks the process that holds the lock to end, and waits for that.
fn cancel_on_image(records: &Records) -> Result<bool, CliError> {
    let Some(pid) = records.holder() else { return Ok(false) };
    kill_process(pid, Signal::TERM)
        .map_err(|error| CliError::failed(format!("cannot stop process {pid:?}: {error}")))?;
    let began = Instant::now();
    while records.holder() == Some(pid) {
        if began.elapsed() > PATIENCE {
            return Err(CliError::failed("the scrub has not ended within a minute"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(true)
}
