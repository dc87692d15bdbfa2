//! `butterfs scrub limit`.

use super::place::{Place, Target};
use super::record::uuid_text;
use crate::args::{pretty_size, size};
use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::{Intent, about, plain};
use crate::output::{self, Format};
use butterfs_control::ScrubDevice;
use butterfs_control::question::{GetScrub, LimitScrub};
use serde_json::json;
use std::io::Write;

/// Show or set how fast scrubs may read each device.
///
/// The limit counts until the filesystem is unmounted, also for a scrub that runs. 0 means no limit.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Set the limit of all devices
    #[arg(short, long, requires = "limit", conflicts_with = "devid")]
    all: bool,
    /// Set the limit of the device with this number
    #[arg(short, long, value_name = "DEVID", requires = "limit")]
    devid: Option<u64>,
    /// Bytes per second
    #[arg(short, long, value_name = "SIZE", value_parser = size)]
    limit: Option<u64>,
    #[command(flatten)]
    target: Target,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        if self.limit.is_some() && !self.all && self.devid.is_none() {
            return Err(CliError::usage("a limit needs -a for all devices or -d for one"));
        }
        let place = self.target.place()?;
        if let Place::Images(_) = place {
            let failed = CliError::failed("limits belong to a mount");
            return Err(failed.hint("give 'scrub start --limit' to limit the scrub of an image"));
        }
        let mut opened = place.open(Intent::Look)?;
        if let Some(bytes_per_sec) = self.limit {
            output::must_be_text(format)?;
            let device = self.devid;
            let asking = about([&opened.root()], |[through]| LimitScrub { through, device, bytes_per_sec });
            opened.ask("cannot set the limit", asking)?;
            return opened.close();
        }
        let state = opened.ask_one("cannot ask for the limits", plain(GetScrub {}))?;
        opened.close()?;
        if format == Format::Json {
            let device = |device: &ScrubDevice| {
                let limit = (device.limit != 0).then_some(device.limit);
                json!({ "devid": device.id, "device": device.name, "limit": limit })
            };
            return output::json(out, "scrub-limit", &state.devices.iter().map(device).collect::<Vec<_>>());
        }
        writeln!(out, "UUID: {}", uuid_text(&state.fsid))?;
        writeln!(out, "Id Limit      Path")?;
        writeln!(out, "-- ---------- ----")?;
        for device in &state.devices {
            let limit = if device.limit == 0 { "unlimited".to_owned() } else { pretty_size(device.limit) };
            writeln!(out, "{:>2} {limit:>10} {}", device.id, device.name)?;
        }
        Ok(())
    }
}
