//! `butterfs check`: the checker's verdict as text in the manner of btrfs check, or as JSON; and repairs.
//!
//! Exit codes are those of btrfs check: 0 when there is no error, or none is left, 1 when there is one.

mod helper;
mod plan_text;
mod repair;

pub use helper::Helper;

use super::Run;
use super::inspect_internal::number;
use crate::error::{CliError, FAILED};
use crate::output::{self, Format};
use crate::progress::{Progress as Bar, Unit};
use crate::report;
use butterfs_check::finding::json_text;
use butterfs_check::{Options, Progress, Report, Severity, Stage, check};
use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_repair::Start;
use repair::{RepairArgs, Voice};
use std::hash::{BuildHasher, RandomState};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// For how long a check waits for a device that is just being unmounted, as a mount does.
const PATIENCE: Duration = Duration::from_secs(5);

/// Check whether an unmounted filesystem is consistent, and repair it when asked to.
///
/// Nothing is changed without --repair. A repair is planned in full first: every finding with its repair and what is
/// lost by it. An undo file saves everything that the repair overwrites, and --undo takes the repair back with it. The
/// same command with the same --undo-file finishes an interrupted repair.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Change nothing; so without --repair, kept for scripts
    #[arg(long)]
    readonly: bool,
    /// Read all data and compare it with its checksums
    #[arg(long)]
    check_data_csum: bool,
    /// Believe this copy of the superblock: 0 at 64 KiB, 1 at 64 MiB, 2 at 256 GiB
    #[arg(short = 's', long = "super", value_name = "SUPER", value_parser = number, default_value = "0")]
    copy: u64,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Show pass, percent and rate on standard error also where that is no terminal
    #[arg(short, long)]
    progress: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    repair: RepairArgs,
    /// All devices of the filesystem
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(mut self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        if self.repair.is_asked() {
            output::must_be_text(format)?;
            let voice = Voice { json: self.json, quiet: self.quiet };
            return self.repair.run(out, &self.devices, self.options(), voice);
        }
        self.json |= format == Format::Json;
        let mut devices: Vec<Arc<dyn BlockDevice>> = Vec::new();
        for path in &self.devices {
            let patient = FileOptions { wait: PATIENCE, ..FileOptions::read_only() };
            devices.push(Arc::new(FileDevice::open(path, &patient)?));
        }
        let options = self.options();
        let start = Start { super_copy: 0, ..self.repair.start(0) };
        if self.repair.qgroup_report {
            return plan_text::quotas(out, devices, &self.repair.start(options.super_copy), &self.devices);
        }
        let devices = butterfs_repair::entered(devices, &start).map_err(|error| CliError::failed(error.to_string()))?;
        if !self.json && !self.quiet {
            writeln!(out, "Opening filesystem to check...")?;
        }
        let report = self.judge(out, devices, &options)?;
        match (format, self.json) {
            (Format::Json, _) => output::json(out, "check", &value(&report)?)?,
            (Format::Text, true) => writeln!(out, "{}", object(&report))?,
            (Format::Text, false) => self.print(out, &report)?,
        }
        out.flush()?;
        if report.is_clean() { Ok(()) } else { Err(CliError::Reported { code: FAILED }) }
    }
}

impl Args {
    /// A check of all but data.
    fn of_devices(devices: Vec<PathBuf>) -> Args {
        let (repair, copy) = (RepairArgs::default(), 0);
        Args {
            readonly: true,
            check_data_csum: false,
            copy,
            json: false,
            progress: false,
            quiet: false,
            repair,
            devices,
        }
    }

    fn options(&self) -> Options {
        let super_copy = usize::try_from(self.copy).unwrap_or(usize::MAX);
        let seed = RandomState::new().hash_one(std::process::id());
        Options { check_data: self.check_data_csum, super_copy, seed, ..Options::default() }
    }

    /// Runs the checker in a thread of its own, and tells of its progress meanwhile.
    fn judge(
        &self,
        out: &mut dyn Write,
        devices: Vec<Arc<dyn BlockDevice>>,
        options: &Options,
    ) -> Result<Report, CliError> {
        let (sender, receiver) = mpsc::channel();
        let start = Instant::now();
        std::thread::scope(|scope| {
            let judge = scope.spawn(move || {
                // Whoever listens may have gone; the verdict is wanted all the same.
                let tell = |progress| {
                    let _ = sender.send(progress);
                };
                check(devices, options, &tell)
            });
            let mut shown = if self.quiet || self.json { Bar::none() } else { Bar::new("", Unit::Permille) };
            let mut tell = |progress| self.tell(out, progress, start, &mut shown);
            let told: Result<(), CliError> = receiver.iter().try_for_each(&mut tell);
            let report = judge.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            told.map(|()| report)
        })
    }

    /// On a terminal the time left is that of the stage.
    fn tell(&self, out: &mut dyn Write, progress: Progress, start: Instant, shown: &mut Bar) -> Result<(), CliError> {
        if progress.begins {
            let number = Stage::ALL.iter().position(|stage| *stage == progress.stage).map_or(0, |at| at + 1);
            if !self.json && !self.quiet {
                let title = progress.stage.title();
                shown.above(|| writeln!(out, "[{number}/{}] {title}", Stage::ALL.len()).and_then(|()| out.flush()))?;
            }
            shown.restart();
        } else if self.progress && !std::io::stderr().is_terminal() {
            report::line(&line(&progress, start.elapsed()));
        } else {
            shown.say(format!(", {}", line(&progress, start.elapsed())));
            shown.at(progress.percent.map_or(0, |percent| u64::from(percent) * 10), Some(1000));
        }
        Ok(())
    }

    fn print(&self, out: &mut dyn Write, report: &Report) -> Result<(), CliError> {
        for finding in &report.findings {
            let severity = if finding.severity() == Severity::Error { "ERROR" } else { "WARNING" };
            if !self.quiet || finding.severity() == Severity::Error {
                writeln!(out, "{severity}: {finding} [{}]", finding.id())?;
            }
        }
        if self.quiet {
            return Ok(());
        }
        for note in &report.notes {
            writeln!(out, "note: {note}")?;
        }
        let Report { errors, warnings, bytes_used, .. } = report;
        match (errors, warnings) {
            (0, 0) => writeln!(out, "found {bytes_used} bytes used, no error found")?,
            (errors, warnings) => {
                writeln!(out, "found {bytes_used} bytes used, {errors} errors, {warnings} warnings")?;
            }
        }
        Ok(())
    }
}

/// `checking fs roots: 42 %, 12345 blocks, 6789 per second`, and the data if it is read.
fn line(progress: &Progress, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64().max(0.001);
    let percent = progress.percent.map_or(String::new(), |percent| format!("{percent} %, "));
    let rate = progress.blocks as f64 / seconds;
    let data = match progress.data_bytes >> 20 {
        0 => String::new(),
        mib => format!(", {mib} MiB of data, {:.0} per second", mib as f64 / seconds),
    };
    format!("{}: {percent}{} blocks, {rate:.0} per second{data}", progress.stage.title(), progress.blocks)
}

fn object(report: &Report) -> String {
    let findings: Vec<String> = report.findings.iter().map(|finding| finding.to_json()).collect();
    let notes: Vec<String> = report.notes.iter().map(|note| json_text(note)).collect();
    let fsid = uuid::Uuid::from_bytes(report.fsid);
    let Report { errors, warnings, bytes_used, .. } = report;
    format!(
        "{{\"fsid\":\"{fsid}\",\"clean\":{},\"errors\":{errors},\"warnings\":{warnings},\"bytes_used\":{bytes_used},\
         \"findings\":[{}],\"notes\":[{}]}}",
        report.is_clean(),
        findings.join(","),
        notes.join(",")
    )
}

/// The same object as a value.
fn value(report: &Report) -> Result<serde_json::Value, CliError> {
    serde_json::from_str(&object(report)).map_err(|error| CliError::failed(error.to_string()))
}
