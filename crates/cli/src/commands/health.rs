//! `butterfs health`.

use super::Run;
use super::scrub::summary;
use crate::args::pretty_size;
use crate::error::CliError;
use crate::open_filesystem::{self, plain};
use crate::output::{self, Format};
use butterfs_control::question::GetHealth;
use butterfs_control::{Health, HealthRecord};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::PathBuf;

/// The exit code of a filesystem that needs attention.
const DEGRADED: u8 = 3;
/// The exit code of one that has lost something, or does not work.
const FAULTED: u8 = 4;

/// Show the state of a mounted filesystem and its devices, with advice.
///
/// Exit codes: 0 everything is as it should be, 1 it cannot be asked, 3 something needs attention, 4 something is lost
/// or does not work.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// A directory of a mount
    #[arg(value_name = "MOUNT")]
    path: PathBuf,
}

fn word(state: Health) -> &'static str {
    match state {
        Health::Online => "ONLINE",
        Health::Degraded => "DEGRADED",
        Health::Faulted => "FAULTED",
    }
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = open_filesystem::mounted(&self.path)?;
        let health = opened.ask_one("cannot ask how the filesystem is", plain(GetHealth {}))?;
        opened.close()?;
        if self.json || format == Format::Json {
            output::json(out, "health", &value(&health))?;
        } else {
            print(out, &health)?;
        }
        match health.state {
            Health::Online => Ok(()),
            Health::Degraded => Err(CliError::Reported { code: DEGRADED }),
            Health::Faulted => Err(CliError::Reported { code: FAULTED }),
        }
    }
}

fn print(out: &mut dyn Write, health: &HealthRecord) -> io::Result<()> {
    let label = String::from_utf8_lossy(&health.label);
    writeln!(out, "  filesystem: {}", uuid::Uuid::from_bytes(health.fsid))?;
    if !label.is_empty() {
        writeln!(out, "       label: {label}")?;
    }
    writeln!(out, "       state: {}", word(health.state))?;
    for (name, lines) in [("meaning", &health.meaning), ("action", &health.action)] {
        for (index, line) in lines.iter().enumerate() {
            let name = if index == 0 { format!("{name}:") } else { String::new() };
            writeln!(out, "{name:>13} {line}")?;
        }
    }
    writeln!(out, "       scrub: {}", scrub_text(health))?;
    writeln!(out, "     devices:")?;
    writeln!(
        out,
        "    {:>4} {:<9} {:>8} {:>8} {:>8} {:>10} {:>10} name",
        "id", "state", "write", "read", "flush", "corruption", "generation"
    )?;
    for device in &health.devices {
        let errors = &device.errors;
        writeln!(
            out,
            "    {:>4} {:<9} {:>8} {:>8} {:>8} {:>10} {:>10} {}",
            errors.id,
            word(device.state),
            errors.write_errors,
            errors.read_errors,
            errors.flush_errors,
            errors.corruption_errors,
            errors.generation_errors,
            errors.name
        )?;
    }
    Ok(())
}

fn scrub_text(health: &HealthRecord) -> String {
    let Some(scrub) = &health.scrub else { return "none since the filesystem was mounted".to_owned() };
    let all = summary::whole(scrub);
    let count = |name: &str| all.counters.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value);
    let done = pretty_size(count("data_bytes_scrubbed").saturating_add(count("tree_bytes_scrubbed")));
    let (corrected, lost) = (count("corrected_errors"), count("uncorrectable_errors"));
    let (status, date) = (summary::status(&all, scrub.is_running), summary::date(all.started));
    let fate = if scrub.read_only { "repairable" } else { "repaired" };
    format!("{status}, started {date}, {done} verified, {corrected} sectors {fate}, {lost} lost")
}

fn value(health: &HealthRecord) -> Value {
    let device = |device: &butterfs_control::DeviceHealth| {
        json!({
            "devid": device.errors.id,
            "device": device.errors.name,
            "state": word(device.state),
            "condition": device.condition,
            "write_io_errs": device.errors.write_errors,
            "read_io_errs": device.errors.read_errors,
            "flush_io_errs": device.errors.flush_errors,
            "corruption_errs": device.errors.corruption_errors,
            "generation_errs": device.errors.generation_errors,
        })
    };
    json!({
        "uuid": uuid::Uuid::from_bytes(health.fsid).to_string(),
        "label": String::from_utf8_lossy(&health.label),
        "state": word(health.state),
        "meaning": health.meaning,
        "action": health.action,
        "missing_devices": health.missing,
        "stopped": health.stopped,
        "devices": health.devices.iter().map(device).collect::<Vec<_>>(),
        "scrub": health.scrub.as_ref().map(summary::json),
    })
}
