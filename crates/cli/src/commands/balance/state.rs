//! `butterfs balance pause | cancel | resume | status`.

use super::filters;
use crate::commands::Run;
use crate::error::{CliError, os_message};
use crate::open_filesystem::{Asking, ImagesArgument, Intent, OpenFilesystem, about, plain};
use crate::output::{self, Format};
use crate::progress::{Progress, Unit};
use crate::report;
use butterfs_control::question::{BalanceStop, GetBalance, ResumeBalance, StopBalance};
use butterfs_control::{Ask, BalancePhase, BalanceRecord, Refusal};
use butterfs_fs::BalanceItem;
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;

/// Exit code where nothing is balanced, as of btrfs.
const NO_BALANCE: u8 = 2;
/// Exit code of `status` while something is.
const IN_PROGRESS: u8 = 1;

/// The filesystem that a command is about.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Target {
    /// A file or directory on a mounted filesystem
    #[arg(value_name = "PATH", required_unless_present = "images")]
    pub path: Option<PathBuf>,
    #[command(flatten)]
    pub images: ImagesArgument,
}

impl Target {
    /// One of both was given.
    pub fn must_be_named(&self) -> Result<(), CliError> {
        match (&self.path, &self.images.images[..]) {
            (None, []) => Err(CliError::usage("a path is missing")),
            (None, _) | (Some(_), []) => Ok(()),
            (Some(_), _) => Err(CliError::usage("'--image' takes the place of the path")),
        }
    }

    pub fn open(&self, intent: Intent) -> Result<OpenFilesystem, CliError> {
        self.images.open_for_balance(self.path.as_deref().unwrap_or("/".as_ref()), intent)
    }

    /// The name that the user gave.
    pub fn name(&self) -> String {
        self.path.as_ref().or(self.images.images.first()).map_or(String::new(), |path| path.display().to_string())
    }
}

/// Asks for a balance and waits for its end.
pub fn follow<Q: Ask<Record = BalanceRecord>>(
    opened: &mut OpenFilesystem,
    asking: Asking<Q>,
) -> Result<Result<BalanceRecord, Refusal>, CliError> {
    let (mut progress, mut last) = (Progress::new("balancing", Unit::Chunks), None);
    let answer = opened.try_each(asking, &mut |record: BalanceRecord| {
        progress.at(record.completed, Some(record.expected));
        last = Some(record);
        Ok(())
    })?;
    let nothing = || CliError::failed("the serving process did not say how the balance ended");
    Ok(match answer {
        Ok(()) => Ok(last.ok_or_else(nothing)?),
        Err(refusal) => Err(refusal),
    })
}

/// Says how a balance ended, in btrfs' words.
pub fn say_how_it_ended(
    target: &Target,
    ended: Result<BalanceRecord, Refusal>,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let failed = |errno: i32, why: String| {
        let error = os_message(&std::io::Error::from_raw_os_error(errno));
        let sentence = format!("error during balancing '{}': {error}", target.name());
        Err(CliError::failed(format!("{sentence}\nThere may be more info in syslog - try dmesg | tail")).hint(why))
    };
    match ended {
        Ok(BalanceRecord { phase: BalancePhase::Paused, .. }) => {
            report::line("balance paused by user");
            Ok(())
        }
        Ok(BalanceRecord { phase: BalancePhase::Cancelled, .. }) => {
            report::line("balance canceled by user");
            Ok(())
        }
        Ok(BalanceRecord { no_space: 0, completed, considered, .. }) => {
            Ok(writeln!(out, "Done, had to relocate {completed} out of {considered} chunks")?)
        }
        Ok(record) => {
            let chunks =
                if record.no_space == 1 { "1 chunk".to_owned() } else { format!("{} chunks", record.no_space) };
            failed(libc::ENOSPC, format!("there is no room for what is in {chunks}; {} were moved", record.completed))
        }
        Err(refusal) if refusal.errno == libc::EINPROGRESS => Err(CliError::failed(refusal.sentence)),
        Err(refusal) => failed(refusal.errno, refusal.sentence),
    }
}

/// Pause a balance after its current chunk.
#[derive(clap::Args, Clone, Debug)]
pub struct Pause {
    #[command(flatten)]
    target: Target,
}

/// End a balance that runs or is paused.
#[derive(clap::Args, Clone, Debug)]
pub struct Cancel {
    #[command(flatten)]
    target: Target,
}

/// Resume a balance that was interrupted.
#[derive(clap::Args, Clone, Debug)]
pub struct Resume {
    #[command(flatten)]
    target: Target,
}

/// Show the progress of a balance.
#[derive(clap::Args, Clone, Debug)]
pub struct Status {
    /// Show the filters too
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    target: Target,
}

fn stop(target: &Target, how: BalanceStop, (verb, none): (&str, &str)) -> Result<(), CliError> {
    target.must_be_named()?;
    let mut opened = target.open(Intent::Change)?;
    let root = opened.root();
    let answer = opened.try_ask(about([&root], |[through]| StopBalance { through, how }))?;
    opened.close()?;
    answer.map(drop).map_err(|refusal| not_done(target, verb, none, &refusal))
}

fn not_done(target: &Target, verb: &str, none: &str, refusal: &Refusal) -> CliError {
    let why = if refusal.errno == libc::ENOTCONN { none } else { &refusal.sentence };
    let sentence = format!("balance {verb} on '{}' failed: {why}", target.name());
    let code = if refusal.errno == libc::ENOTCONN { NO_BALANCE } else { crate::error::FAILED };
    CliError::Failed { sentence, hints: Vec::new(), code }
}

impl Run for Pause {
    fn run(self, _: &mut dyn Write) -> Result<(), CliError> {
        stop(&self.target, BalanceStop::Pause, ("pause", "Not running"))
    }
}

impl Run for Cancel {
    fn run(self, _: &mut dyn Write) -> Result<(), CliError> {
        stop(&self.target, BalanceStop::Cancel, ("cancel", "Not in progress"))
    }
}

impl Run for Resume {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.target.must_be_named()?;
        let mut opened = self.target.open(Intent::Change)?;
        let root = opened.root();
        let ended = follow(&mut opened, about([&root], |[through]| ResumeBalance { through }))?;
        opened.close()?;
        match ended {
            Err(refusal) if refusal.errno == libc::ENOTCONN => {
                Err(not_done(&self.target, "resume", "Not in progress", &refusal))
            }
            Err(refusal) if refusal.errno == libc::EINPROGRESS => {
                Err(CliError::failed(format!("balance resume on '{}' failed: Already running", self.target.name())))
            }
            ended => say_how_it_ended(&self.target, ended, out),
        }
    }
}

fn phase(record: &BalanceRecord) -> (&'static str, u64) {
    match record.phase {
        BalancePhase::Running => ("running", 1),
        BalancePhase::PauseRequested => ("running, pause requested", 3),
        BalancePhase::CancelRequested => ("running, cancel requested", 5),
        BalancePhase::Paused | BalancePhase::Completed | BalancePhase::Cancelled => ("paused", 0),
    }
}

fn value(record: &BalanceRecord) -> Value {
    let BalanceRecord { expected, considered, completed, .. } = record;
    json!({ "state": phase(record).0, "expected": expected, "considered": considered, "completed": completed })
}

impl Run for Status {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        self.target.must_be_named()?;
        let mut opened = self.target.open(Intent::Look)?;
        let found = opened.ask("cannot ask for the balance", plain(GetBalance {}))?.pop();
        opened.close()?;
        if format == Format::Json {
            output::json(out, "balance-status", &found.as_ref().map(value))?;
            return if found.is_none() { Ok(()) } else { Err(CliError::Reported { code: IN_PROGRESS }) };
        }
        let Some(record) = found else {
            return Ok(writeln!(out, "No balance found on '{}'", self.target.name())?);
        };
        let (words, state) = phase(&record);
        writeln!(out, "Balance on '{}' is {words}", self.target.name())?;
        let BalanceRecord { expected, considered, completed, .. } = record;
        let left = if expected == 0 { 100.0 } else { 100.0 * (1.0 - completed as f64 / expected as f64) };
        writeln!(
            out,
            "{completed} out of about {expected} chunks balanced ({considered} considered), {left:3.0}% left"
        )?;
        if let Some(control) = BalanceItem::from_bytes(&record.control).filter(|_| self.verbose) {
            write!(out, "{}", filters::dump(&control, state))?;
        }
        Err(CliError::Reported { code: IN_PROGRESS })
    }
}
