//! `butterfs check`: the judge's verdict as text in the manner of btrfs check, or as JSON.
//!
//! Exit codes are those of btrfs check: 0 when there is no error, 1 when there is one.

use super::Run;
use super::inspect_internal::number;
use crate::error::{CliError, FAILED};
use butterfs_check::finding::json_text;
use butterfs_check::{Options, Progress, Report, Severity, Stage, check};
use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Instant;

/// Check whether an unmounted filesystem is consistent. Nothing is changed.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Change nothing; always so, kept for scripts
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
    /// Show the number of blocks read and the rate on standard error
    #[arg(short, long)]
    progress: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,
    /// All devices of the filesystem
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let mut devices: Vec<Arc<dyn BlockDevice>> = Vec::new();
        for path in &self.devices {
            devices.push(Arc::new(FileDevice::open(path, &FileOptions::read_only())?));
        }
        let super_copy = usize::try_from(self.copy).unwrap_or(usize::MAX);
        let options = Options { check_data: self.check_data_csum, super_copy, ..Options::default() };
        if !self.json && !self.quiet {
            writeln!(out, "Opening filesystem to check...")?;
        }
        let report = self.judge(out, devices, &options)?;
        match self.json {
            true => print_json(out, &report)?,
            false => self.print(out, &report)?,
        }
        out.flush()?;
        if report.is_clean() { Ok(()) } else { Err(CliError::Reported { code: FAILED }) }
    }
}

impl Args {
    /// Runs the judge in a thread of its own, and tells of its progress meanwhile.
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
            let told: Result<(), CliError> = receiver.iter().try_for_each(|progress| self.tell(out, progress, start));
            let report = judge.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            told.map(|()| report)
        })
    }

    fn tell(&self, out: &mut dyn Write, progress: Progress, start: Instant) -> Result<(), CliError> {
        if progress.begins {
            let number = Stage::ALL.iter().position(|stage| *stage == progress.stage).map_or(0, |at| at + 1);
            if !self.json && !self.quiet {
                writeln!(out, "[{number}/{}] {}", Stage::ALL.len(), progress.stage.title())?;
            }
        } else if self.progress {
            let seconds = start.elapsed().as_secs_f64();
            let rate = progress.blocks as f64 / seconds.max(0.001);
            let mut stderr = std::io::stderr();
            // Progress that cannot be shown is no failure of the check.
            let _ = writeln!(stderr, "{} blocks read, {rate:.0} per second", progress.blocks);
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

fn print_json(out: &mut dyn Write, report: &Report) -> Result<(), CliError> {
    let findings: Vec<String> = report.findings.iter().map(|finding| finding.to_json()).collect();
    let notes: Vec<String> = report.notes.iter().map(|note| json_text(note)).collect();
    let fsid = uuid::Uuid::from_bytes(report.fsid);
    let Report { errors, warnings, bytes_used, .. } = report;
    writeln!(
        out,
        "{{\"fsid\":\"{fsid}\",\"clean\":{},\"errors\":{errors},\"warnings\":{warnings},\"bytes_used\":{bytes_used},\
         \"findings\":[{}],\"notes\":[{}]}}",
        report.is_clean(),
        findings.join(","),
        notes.join(",")
    )?;
    Ok(())
}
