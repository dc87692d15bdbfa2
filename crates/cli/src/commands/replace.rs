//! `butterfs replace`: another device takes the place of one of a filesystem.

use super::{Run, subcommands};
use crate::commands::device::device_name;
use crate::commands::inspect_internal::dump_tree::local_time::Zone;
use crate::error::CliError;
use crate::open_filesystem::{OpenFilesystem, WritableImagesArgument, about, plain};
use crate::output::{self, Format};
use crate::progress::{Progress, Unit};
use crate::space::members;
use butterfs_control::question::{CancelDeviceWork, DescribeReplace, DeviceName, DeviceWork, StartReplace};
use butterfs_control::{MemberRecord, Refusal, ReplaceRecord};
use butterfs_ondisk::dump::civil;
use clap::Subcommand;
use serde_json::{Value, json};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

subcommands! {
    /// Replace a device of a filesystem
    Group {
        Start(StartArgs),
        Status(StatusArgs),
        Cancel(CancelArgs),
    }
}

/// States of a replacement.
const NEVER_STARTED: u64 = 0;
pub const STARTED: u64 = 1;
const FINISHED: u64 = 2;
const CANCELED: u64 = 3;

/// The polling interval of a waiting command.
const INTERVAL: Duration = Duration::from_millis(200);

/// Replace a device by another one.
///
/// The new device gets everything that the old one has, while the filesystem is in use, and then its number. It must be
/// at least as large. An interrupted replacement continues at the next mount, here and in the kernel.
#[derive(clap::Args, Clone, Debug)]
pub struct StartArgs {
    /// Wait until it is complete (always with --image)
    #[arg(short = 'B')]
    wait: bool,
    /// Read the old device only where no other copy is good
    #[arg(short = 'r')]
    avoid_source: bool,
    /// Also where something is recognised on the new device
    #[arg(short, long)]
    force: bool,
    /// Do not discard the whole new device before
    #[arg(short = 'K', long)]
    nodiscard: bool,
    #[command(flatten)]
    images: WritableImagesArgument,
    /// The device that is replaced, by path or number
    #[arg(value_name = "DEVICE|DEVID")]
    source: PathBuf,
    /// The new device
    target: PathBuf,
    /// A directory of the mount (not with --image)
    path: Option<PathBuf>,
}

impl Run for StartArgs {
    fn run(self, _: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.images.open(self.path.as_deref())?;
        let source = device_name(&self.source);
        if source == DeviceName::Missing {
            return Err(CliError::usage("name a missing device by its number"));
        }
        let absolute = std::path::absolute(&self.target).unwrap_or_else(|_| self.target.clone());
        let target = absolute.as_os_str().as_bytes().to_vec();
        let wanted = source.clone();
        let (avoid_source, force, discard) = (self.avoid_source, self.force, !self.nodiscard);
        let asking =
            about([&opened.root()], |[through]| StartReplace { through, source, target, avoid_source, force, discard });
        let shown = self.path.as_deref().unwrap_or(&self.target).display().to_string();
        if status(&mut opened)?.state == STARTED {
            return Err(CliError::failed(format!("device replace on '{shown}' already started")));
        }
        opened.try_ask(asking)?.map_err(|refusal| refused(&shown, refusal))?;
        if self.wait || !self.images.images().is_empty() {
            wait(&mut opened, &wanted)?;
        }
        opened.close()
    }
}

/// As btrfs says it where it says something.
fn refused(shown: &str, refusal: Refusal) -> CliError {
    let sentence = refusal.sentence;
    CliError::failed(match refusal.errno {
        libc::EINPROGRESS if sentence.starts_with("unable to start") => sentence,
        libc::EINPROGRESS => format!("ioctl(DEV_REPLACE_START) on '{shown}' returns error: {sentence}"),
        _ => format!("cannot replace a device of '{shown}': {sentence}"),
    })
}

fn status(opened: &mut OpenFilesystem) -> Result<ReplaceRecord, CliError> {
    opened.ask_one("cannot ask for the replacement", plain(DescribeReplace {}))
}

/// Returns when it has ended; an error when it was given up.
fn wait(opened: &mut OpenFilesystem, source: &DeviceName) -> Result<(), CliError> {
    let is_it = |device: &MemberRecord| match source {
        DeviceName::Id(id) => device.id == *id,
        DeviceName::Path(path) => device.storage.as_ref().is_some_and(|(name, _)| name.as_bytes() == path),
        DeviceName::Missing => false,
    };
    let total = members(opened)?.into_iter().find(is_it).map_or(0, |device| device.total_bytes);
    let mut progress = Progress::new("copying", if total > 0 { Unit::Bytes } else { Unit::Permille });
    let scale = if total > 0 { total } else { 1000 };
    loop {
        let found = status(opened)?;
        if found.state != STARTED {
            return match found.state {
                FINISHED => Ok(()),
                _ => Err(CliError::failed("the replacement was given up; the device is as it was")),
            };
        }
        let done = u128::from(found.permille) * u128::from(scale) / 1000;
        progress.at(done as u64, Some(scale));
        std::thread::sleep(INTERVAL);
    }
}

/// Show the progress of a replacement, or the end of the last one.
#[derive(clap::Args, Clone, Debug)]
pub struct StatusArgs {
    /// Print it once, and do not wait for the end
    #[arg(short = '1')]
    once: bool,
    #[command(flatten)]
    images: WritableImagesArgument,
    /// A directory of the mount (not with --image)
    path: Option<PathBuf>,
}

impl Run for StatusArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.images.open(self.path.as_deref())?;
        loop {
            let found = status(&mut opened)?;
            if format == Format::Json {
                output::json(out, "replace-status", &value(&found))?;
                return opened.close();
            }
            let text = sentence(&found);
            if self.once || found.state != STARTED {
                writeln!(out, "{text}")?;
                return opened.close();
            }
            write!(out, "\r{text}")?;
            out.flush()?;
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}

fn value(found: &ReplaceRecord) -> Value {
    let ReplaceRecord { state, permille, started, stopped, write_errors, read_errors } = *found;
    let time = |seconds: i64| (seconds != 0).then_some(seconds);
    let state = match state {
        NEVER_STARTED => "never started",
        STARTED => "started",
        FINISHED => "finished",
        CANCELED => "canceled",
        _ => "suspended",
    };
    json!({
        "state": state,
        "permille": permille,
        "started": time(started),
        "stopped": time(stopped),
        "write_errors": write_errors,
        "read_errors": read_errors,
    })
}

/// As btrfs says it.
fn sentence(found: &ReplaceRecord) -> String {
    let ReplaceRecord { state, permille, started, stopped, write_errors, read_errors } = *found;
    let errors = format!("{write_errors} write errs, {read_errors} uncorr. read errs");
    let done = format!("{}.{}%", permille / 10, permille % 10);
    let (began, ended) = (moment(started), moment(stopped));
    match state {
        NEVER_STARTED => "Never started".to_owned(),
        STARTED => format!("{done} done, {errors}"),
        FINISHED => format!("Started on {began}, finished on {ended}, {errors}"),
        CANCELED => format!("Started on {began}, canceled on {ended} at {done}, {errors}"),
        _ => format!("Started on {began}, suspended on {ended} at {done}, {errors}"),
    }
}

/// As in `23.Nov 02:33:57`, in the local time zone.
fn moment(seconds: i64) -> String {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let local = seconds.saturating_add(Zone::of_system().utc_offset(seconds).into());
    let (_, month, day) = civil(local.div_euclid(86_400));
    let second = local.rem_euclid(86_400);
    let month = MONTHS[(month as usize - 1) % MONTHS.len()];
    format!("{day:2}.{month} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// Cancel a replacement.
#[derive(clap::Args, Clone, Debug)]
pub struct CancelArgs {
    #[command(flatten)]
    images: WritableImagesArgument,
    /// A directory of the mount (not with --image)
    path: Option<PathBuf>,
}

impl Run for CancelArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.images.open(self.path.as_deref())?;
        let asking = about([&opened.root()], |[through]| CancelDeviceWork { through, work: DeviceWork::Replace });
        if let Err(refusal) = opened.try_ask(asking)? {
            if refusal.errno != libc::ENOTCONN {
                return Err(CliError::failed(refusal.sentence));
            }
            let shown = self.path.as_deref().unwrap_or(Path::new("")).display();
            writeln!(out, "INFO: ioctl(DEV_REPLACE_CANCEL)\"{shown}\": not started")?;
            return Err(CliError::Reported { code: 2 });
        }
        opened.close()
    }
}
