//! `butterfs scrub status`.

use super::findings;
use super::place::{Place, Target, fsid_of};
use super::record::{Records, uuid_text};
use super::summary::{self, Style};
use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::{Intent, plain};
use crate::output::{self, Format};
use butterfs_control::question::GetScrub;
use butterfs_control::{ScrubDevice, ScrubState};
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// Show the progress of a scrub, or the end of the last one.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// List the files that the last scrub found damaged, with offset and length, and the outcome for each
    #[arg(long)]
    files: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    style: Style,
    #[command(flatten)]
    target: Target,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let place = self.target.place()?;
        let state = state_of(&place)?;
        let records = Records::of(&state.fsid);
        if self.json || format == Format::Json {
            let mut value = summary::json(&state);
            value["damage"] = records.findings().iter().map(findings::value).collect();
            return output::json(out, "scrub-status", &value);
        }
        if self.files {
            return Ok(records.findings().iter().try_for_each(|finding| findings::print(out, finding))?);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
        writeln!(out, "UUID:             {}", uuid_text(&state.fsid))?;
        let word = if state.is_running { "status" } else { "history" };
        let never = state.devices.iter().all(|device| device.started == 0);
        let style = Style { each_device: self.style.each_device && !never, ..self.style };
        Ok(summary::print(out, &state, &style, word, now)?)
    }
}

/// The running scrub, else the record of the last one.
fn state_of(place: &Place) -> Result<ScrubState, CliError> {
    match place {
        Place::Mount { .. } => {
            let mut opened = place.open(Intent::Look)?;
            let now = opened.ask_one("cannot ask for the state of scrubs", plain(GetScrub {}))?;
            opened.close()?;
            if now.is_running {
                return Ok(now);
            }
            Ok(with_history(now, place)?)
        }
        Place::Images(images) => {
            let fsid = fsid_of(&images[0])?;
            let records = Records::of(&fsid);
            // Who scrubs it has it open, so it is asked for its totals only when nobody does.
            if records.holder().is_some() {
                let kept = records.read()?;
                return Ok(ScrubState { is_running: true, fsid, ..kept.unwrap_or_default() });
            }
            let mut opened = place.open(Intent::Look)?;
            let now = opened.ask_one("cannot ask for the sizes of devices", plain(GetScrub {}))?;
            opened.close()?;
            with_history(now, place)
        }
    }
}

/// The devices as they are now, with what is written down of them.
fn with_history(now: ScrubState, place: &Place) -> Result<ScrubState, CliError> {
    let kept = Records::of(&now.fsid).read()?.unwrap_or_default();
    let device = |now: &ScrubDevice| {
        let kept = kept.devices.iter().find(|kept| kept.id == now.id).filter(|_| place.means(&now.name));
        let with_names = |kept: &ScrubDevice| ScrubDevice {
            name: now.name.clone(),
            total_bytes: now.total_bytes,
            limit: now.limit,
            ..kept.clone()
        };
        let idle = ScrubDevice {
            id: now.id,
            name: now.name.clone(),
            total_bytes: now.total_bytes,
            limit: now.limit,
            ..ScrubDevice::default()
        };
        kept.map_or(idle, with_names)
    };
    let devices = now.devices.iter().map(device).collect();
    // A scrub that was killed could not write down that it had ended.
    Ok(ScrubState { fsid: now.fsid, devices, is_running: false, ..kept })
}
