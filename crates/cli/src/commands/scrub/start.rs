//! `butterfs scrub start` and `resume`.

use super::cancel;
use super::place::{Place, Target};
use super::record::{Findings, Lock, Records, counter, uuid_text};
use super::summary::{self, COUNTERS, Style};
use super::{NOTHING_TO_DO, UNCORRECTABLE, findings, place};
use crate::args;
use crate::commands::Run;
use crate::commands::mount::background;
use crate::commands::replace;
use crate::error::{CliError, os_message};
use crate::open_filesystem::{Intent, Named, OpenFilesystem, plain};
use crate::output;
use crate::progress::{Progress, Unit};
use crate::report;
use crate::space::members;
use butterfs_control::question::{DescribeReplace, GetScrub, MOST_SCRUB_RANGES, StartScrub};
use butterfs_control::{ScrubDevice, ScrubEarlier, ScrubEnd, ScrubFinding, ScrubNews, ScrubState};
use butterfs_fuse::service;
use butterfs_fuse::subvolumes::IN_PROGRESS;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The interval at which the state is saved.
const EACH: Duration = Duration::from_secs(5);
/// Findings that are shown while it runs.
const MOST_SHOWN: usize = 100;

/// The part that `start` and `resume` share.
#[derive(clap::Args, Clone, Debug)]
struct Common {
    /// Stay in the foreground, and print a summary at the end
    #[arg(short = 'B')]
    foreground: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,
    /// Only report damage
    #[arg(short = 'r', long)]
    read_only: bool,
    /// The class of the I/O priority: 0 none, 1 real time, 2 best effort, 3 idle
    #[arg(short = 'c', value_name = "CLASS", default_value_t = 3, value_parser = clap::value_parser!(u8).range(0..4))]
    class: u8,
    /// The level in the class, 0 (first) to 7
    #[arg(short = 'n', value_name = "LEVEL", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..8))]
    level: u8,
    /// Read at most so many bytes per second from each device
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    limit: Option<u64>,
    /// Print the summary as JSON
    #[arg(long, requires = "foreground")]
    json: bool,
    /// Write nothing but a word on standard output when it runs, for a caller that waits for it
    #[arg(long, hide = true)]
    serve: bool,
    #[command(flatten)]
    style: Style,
    #[command(flatten)]
    target: Target,
}

/// Start a scrub.
///
/// Reads everything that is allocated, on all devices and with all processors, verifies it, and repairs what is damaged
/// from another copy or from parity. The files that are damaged are named with offset and length, in every subvolume
/// and snapshot: with -B on standard error, and by 'butterfs scrub status --files'.
///
/// Data without checksums is only read; where its copies differ, that is reported and nothing is changed. Parity of
/// RAID5 and RAID6 that does not fit good data is computed anew.
///
/// Memory: 2 MiB for each of at most 8 threads for each device, and some 50 MiB of findings.
///
/// Exit codes: 0 when everything is good or has been repaired (with -r: could be repaired), 1 when it could not be
/// started or was cancelled, 3 when damage is left that cannot be repaired.
#[derive(clap::Args, Clone, Debug)]
pub struct Start {
    /// Start although another command says that a scrub runs
    #[arg(short, long)]
    force: bool,
    /// Only this file or subvolume; can be given more than once
    #[arg(long, value_name = "PATH")]
    only: Vec<PathBuf>,
    /// Only where the last scrub found damage; the value is "last"
    #[arg(long, value_name = "SCRUB", value_parser = ["last"], ignore_case = true)]
    errors_of: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Resume a scrub that was cancelled or interrupted.
#[derive(clap::Args, Clone, Debug)]
pub struct Resume {
    #[command(flatten)]
    common: Common,
}

/// The job of a scrub.
struct Job {
    common: Common,
    word: &'static str,
    force: bool,
    only: Vec<PathBuf>,
    errors_of_last: bool,
}

impl Run for Start {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let Start { force, only, errors_of, common } = self;
        Job { common, word: "start", force, only, errors_of_last: errors_of.is_some() }.run(out)
    }
}

impl Run for Resume {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        Job { common: self.common, word: "resume", force: false, only: Vec::new(), errors_of_last: false }.run(out)
    }
}

impl Job {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        if self.common.foreground || self.common.serve {
            // Before the first thread.
            service::hold_termination();
            return self.work(out);
        }
        self.send_to_background(out)
    }

    /// Calls this program once more, and waits until the scrub runs.
    fn send_to_background(&self, out: &mut dyn Write) -> Result<(), CliError> {
        let cannot =
            |what: &str, error: &std::io::Error| CliError::failed(format!("cannot {what}: {}", os_message(error)));
        let program = std::env::current_exe().map_err(|error| cannot("find this program", &error))?;
        let mut command = Command::new(program);
        command.arg("scrub").arg(self.word).arg("--serve").args(self.to_command_line());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| cannot("start a process in the background", &error))?;
        let mut said = String::new();
        if let Some(mut output) = process.stdout.take() {
            let _ = output.read_to_string(&mut said);
        }
        let Some(fsid) = said.strip_prefix("runs ") else {
            let status = process.wait().map_err(|error| cannot("wait for the process in the background", &error))?;
            out.write_all(said.as_bytes())?;
            return match status.code() {
                Some(0) => Ok(()),
                code => Err(CliError::Reported { code: code.unwrap_or(1) as u8 }),
            };
        };
        if !self.common.quiet {
            let word = if self.word == "resume" { "resumed" } else { "started" };
            let (target, fsid, pid) = (self.common.target.shown(), fsid.trim(), process.id());
            writeln!(out, "scrub {word} on {target}, fsid {fsid} (pid={pid})")?;
        }
        Ok(())
    }

    fn to_command_line(&self) -> Vec<OsString> {
        let common = &self.common;
        let mut line: Vec<OsString> = vec![format!("-c{}", common.class).into(), format!("-n{}", common.level).into()];
        let switches = [("-r", common.read_only), ("-f", self.force)];
        line.extend(switches.iter().filter(|(_, is_set)| *is_set).map(|(switch, _)| OsString::from(switch)));
        line.extend(common.limit.map(|limit| format!("--limit={limit}").into()));
        if self.errors_of_last {
            line.push("--errors-of=LAST".into());
        }
        line.extend(self.only.iter().flat_map(|path| [OsString::from("--only"), path.into()]));
        line.extend(common.target.to_command_line());
        line
    }

    fn work(self, out: &mut dyn Write) -> Result<(), CliError> {
        let place = self.common.target.place()?;
        // Whoever scrubs an image has it open, so the lock is looked at first.
        let early = match &place {
            Place::Images(images) => Some(place::fsid_of(&images[0])?),
            Place::Mount { .. } => None,
        };
        let locked = early.map(|fsid| self.locked(&fsid)).transpose()?;
        let intent = if self.common.read_only { Intent::Look } else { Intent::Change };
        let mut opened = place.open(intent)?;
        let state = opened.ask_one("cannot ask for the state of scrubs", plain(GetScrub {}))?;
        let records = Records::of(&state.fsid);
        let lock = match locked {
            Some(lock) => lock,
            None => self.locked(&state.fsid)?,
        };
        let earlier = self.earlier(&records, &place, &state)?;
        let question = self.question(&opened, &place, &state, &records, earlier)?;
        let Some(question) = question else {
            opened.close()?;
            writeln!(out, "nothing was damaged in the last scrub")?;
            return Ok(());
        };
        warn_of_missing(&place, &mut opened)?;
        let mut run = Running::begin(&self, records, lock)?;
        let ended = run.follow(&place, &mut opened, question, out);
        let outcome = ended.and_then(|()| run.end(&mut opened, out));
        let closed = opened.close();
        outcome.and_then(|code| closed.map(|()| code)).and_then(|code| match code {
            0 => Ok(()),
            code => Err(CliError::Reported { code }),
        })
    }

    /// The lock of whoever scrubs this filesystem.
    fn locked(&self, fsid: &[u8; 16]) -> Result<Option<Lock>, CliError> {
        match Records::of(fsid).lock()? {
            None if !self.force => Err(already_running(&self.common.target.shown())),
            lock => Ok(lock),
        }
    }

    /// The position at which the devices are to begin, for a scrub that is resumed.
    fn earlier(&self, records: &Records, place: &Place, state: &ScrubState) -> Result<Vec<ScrubEarlier>, CliError> {
        if self.word != "resume" {
            return Ok(Vec::new());
        }
        let mut devices = records.read()?.map(|state| state.devices).unwrap_or_default();
        let is_meant =
            |device: &ScrubDevice| state.devices.iter().any(|known| known.id == device.id && place.means(&known.name));
        devices.retain(is_meant);
        if devices.iter().all(|device| device.end == ScrubEnd::Finished) {
            let (target, fsid) = (self.common.target.shown(), uuid_text(&state.fsid));
            let mut out = std::io::stdout().lock();
            writeln!(out, "scrub: nothing to resume for {target}, fsid {fsid}")?;
            return Err(CliError::Reported { code: NOTHING_TO_DO });
        }
        let earlier = |device: &ScrubDevice| ScrubEarlier {
            id: device.id,
            started: device.started,
            duration_secs: device.duration_secs,
            is_finished: device.end == ScrubEnd::Finished,
            counters: COUNTERS.map(|name| counter(device, name)).to_vec(),
        };
        Ok(devices.iter().map(earlier).collect())
    }

    /// The question to ask; none where there is nothing to look at again.
    fn question(
        &self,
        opened: &OpenFilesystem,
        place: &Place,
        state: &ScrubState,
        records: &Records,
        earlier: Vec<ScrubEarlier>,
    ) -> Result<Option<crate::open_filesystem::Asking<StartScrub>>, CliError> {
        let ranges = match self.errors_of_last {
            true => findings::ranges(&records.findings(), MOST_SCRUB_RANGES),
            false => Vec::new(),
        };
        if self.errors_of_last && ranges.is_empty() {
            return Ok(None);
        }
        let mut named = Named::default();
        let through = named.reference(&opened.root());
        let only = self.only.iter().map(|path| opened.object(path).map(|object| named.reference(&object)));
        let only = only.collect::<Result<Vec<_>, _>>()?;
        let meant = state.devices.iter().filter(|device| place.means(&device.name));
        let devices: Vec<u64> = match place {
            Place::Mount { device: Some(device), .. } => {
                let devices: Vec<u64> = meant.map(|device| device.id).collect();
                if devices.is_empty() {
                    let shown = device.display();
                    return Err(CliError::failed(format!(
                        "{shown} is no device of the filesystem that it is mounted as"
                    )));
                }
                devices
            }
            _ => Vec::new(),
        };
        let Common { read_only, class, level, limit, .. } = self.common;
        Ok(Some(named.asking(StartScrub {
            through,
            read_only,
            devices,
            priority_class: class,
            priority_level: level,
            limit,
            only,
            ranges,
            earlier,
        })))
    }
}

/// A replacement keeps a scrub from beginning, as another scrub does.
fn in_progress(opened: &mut OpenFilesystem, target: &str) -> CliError {
    match opened.ask_one("cannot ask for the replacement", plain(DescribeReplace {})) {
        Ok(found) if found.state == replace::STARTED => device_is_replaced(opened, target),
        _ => already_running(target),
    }
}

/// Copies on a device that is not there are not verified, whatever the summary says of the others.
fn warn_of_missing(place: &Place, opened: &mut OpenFilesystem) -> Result<(), CliError> {
    if matches!(place, Place::Mount { device: Some(_), .. }) {
        return Ok(());
    }
    for device in members(opened)?.iter().filter(|device| device.storage.is_none()) {
        report::warn(&format!("device {} is missing: what it holds is not verified", device.id));
    }
    Ok(())
}

/// As btrfs says it, for each device.
fn device_is_replaced(opened: &mut OpenFilesystem, target: &str) -> CliError {
    let devices = match members(opened) {
        Ok(devices) => devices,
        Err(error) => return error,
    };
    for id in devices.into_iter().filter(|device| device.storage.is_some()).map(|device| device.id) {
        let why = "ret=-1, errno=115 (Operation now in progress)";
        report::error(&format!("scrubbing {target} failed for device id {id}: {why}"));
    }
    CliError::Reported { code: 1 }
}

fn already_running(target: &str) -> CliError {
    report::error("Scrub is already running.");
    report::line(&format!("To cancel use 'butterfs scrub cancel {target}'."));
    report::line(&format!("To see the status use 'butterfs scrub status [-d] {target}'"));
    CliError::Reported { code: 1 }
}

/// A scrub that this command has started.
struct Running {
    common: Common,
    records: Records,
    _lock: Option<Lock>,
    findings: Findings,
    state: ScrubState,
    written: Option<Instant>,
    shown: usize,
    progress: Progress,
    is_limited: bool,
    stopped: Arc<AtomicBool>,
}

impl Running {
    fn begin(job: &Job, records: Records, lock: Option<Lock>) -> Result<Running, CliError> {
        let stopped = Arc::new(AtomicBool::new(false));
        let by_signal = Arc::clone(&stopped);
        let wait = move || {
            loop {
                service::wait_for_termination();
                by_signal.store(true, Ordering::Release);
            }
        };
        let spawned = std::thread::Builder::new().name("signals".into()).spawn(wait);
        spawned.map_err(|error| CliError::failed(format!("no thread can be started: {}", os_message(&error))))?;
        Ok(Running {
            findings: records.begin_findings(job.word == "resume")?,
            common: job.common.clone(),
            records,
            _lock: lock,
            state: ScrubState::default(),
            written: None,
            shown: 0,
            progress: match job.common.quiet || job.common.json || job.common.serve {
                true => Progress::none(),
                false => Progress::new("verified", Unit::Bytes),
            },
            is_limited: !job.only.is_empty() || job.errors_of_last,
            stopped,
        })
    }

    /// Learns how far it is until it ends, or somebody wants it to.
    fn follow(
        &mut self,
        place: &Place,
        opened: &mut OpenFilesystem,
        question: crate::open_filesystem::Asking<StartScrub>,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        let stopped = Arc::clone(&self.stopped);
        let target = self.common.target.shown();
        let mut is_cancelled = false;
        let ended = opened.try_each(question, &mut |news| {
            self.take(news, out)?;
            match (stopped.load(Ordering::Acquire), place) {
                (false, _) => Ok(()),
                (true, Place::Images(_)) => Err(CliError::Reported { code: 0 }),
                // The answer goes on until the scrub has ended, so that nothing is in use afterwards.
                (true, Place::Mount { .. }) if is_cancelled => Ok(()),
                (true, Place::Mount { .. }) => {
                    is_cancelled = true;
                    cancel::cancel_on_mount(place, &target).map(drop)
                }
            }
        });
        match ended {
            Ok(Ok(())) => Ok(()),
            Ok(Err(refusal)) if refusal.errno == IN_PROGRESS => Err(in_progress(opened, &target)),
            Ok(Err(refusal)) => Err(CliError::failed(format!("cannot scrub {target}: {}", refusal.sentence))),
            Err(CliError::Reported { code: 0 }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn take(&mut self, news: ScrubNews, out: &mut dyn Write) -> Result<(), CliError> {
        match news {
            ScrubNews::Finding(finding) => self.found(&finding),
            ScrubNews::State(state) => {
                self.state = state;
                self.show();
                let is_first = self.written.is_none();
                if self.written.is_none_or(|written| written.elapsed() >= EACH) {
                    self.write()?;
                }
                // Whoever learns that it runs can ask for its state.
                if is_first { self.announce(out) } else { Ok(()) }
            }
        }
    }

    fn show(&mut self) {
        let all = summary::whole(&self.state);
        let done = counter(&all, "data_bytes_scrubbed").saturating_add(counter(&all, "tree_bytes_scrubbed"));
        self.progress.at(done.min(all.total_bytes), (!self.is_limited).then_some(all.total_bytes));
    }

    fn announce(&self, out: &mut dyn Write) -> Result<(), CliError> {
        let state = &self.state;
        if self.common.serve {
            return background::detach(out, format!("runs {}\n", uuid_text(&state.fsid)).as_bytes());
        }
        if !self.common.quiet && !self.common.json {
            for device in state.devices.iter().filter(|device| device.end == ScrubEnd::Running && device.started != 0) {
                writeln!(out, "Starting scrub on devid {}", device.id)?;
            }
            out.flush()?;
        }
        Ok(())
    }

    fn found(&mut self, finding: &ScrubFinding) -> Result<(), CliError> {
        let added = self.findings.add(finding);
        added.map_err(|error| CliError::failed(format!("cannot write findings down: {}", os_message(&error))))?;
        if !self.common.serve && !self.common.quiet && !self.common.json {
            self.shown += 1;
            if self.shown <= MOST_SHOWN {
                let mut text = Vec::new();
                findings::print(&mut text, finding)?;
                self.progress.above(|| report::line(String::from_utf8_lossy(&text).trim_end()));
            } else if self.shown == MOST_SHOWN + 1 {
                self.progress.above(|| report::line("and more; see 'butterfs scrub status --files'"));
            }
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), CliError> {
        self.written = Some(Instant::now());
        let flushed = self.findings.flush();
        flushed.map_err(|error| CliError::failed(format!("cannot write findings down: {}", os_message(&error))))?;
        // What is only a part says nothing about how far all of it is.
        if self.is_limited { Ok(()) } else { self.records.write(&self.state) }
    }

    /// Writes down how it ended and prints it. Returns the exit code.
    fn end(mut self, opened: &mut OpenFilesystem, out: &mut dyn Write) -> Result<u8, CliError> {
        loop {
            self.state = opened.ask_one("cannot ask how the scrub ended", plain(GetScrub {}))?;
            if !self.state.is_running {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.progress = Progress::none();
        self.write()?;
        let all = summary::whole(&self.state);
        if !self.common.quiet && !self.common.serve {
            self.print(out)?;
        }
        let uncorrectable = counter(&all, "uncorrectable_errors");
        for device in &self.state.devices {
            if let ScrubEnd::Failed(why) = &device.end {
                report::error(&format!("scrub of {} (devid {}) ended early: {why}", device.name, device.id));
            }
        }
        if uncorrectable > 0 {
            report::error("there are uncorrectable errors");
            return Ok(UNCORRECTABLE);
        }
        if counter(&all, "corrected_errors") > 0 || counter(&all, "super_errors") > 0 {
            let what = if self.state.read_only { "correctable" } else { "corrected" };
            report::warn(&format!("errors detected during scrubbing, {what}"));
        }
        Ok(u8::from(all.end != ScrubEnd::Finished))
    }

    fn print(&self, out: &mut dyn Write) -> Result<(), CliError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
        if self.common.json {
            let mut value = summary::json(&self.state);
            value["damage"] = self.records.findings().iter().map(findings::value).collect();
            return output::json(out, "scrub-start", &value);
        }
        if !self.common.style.each_device {
            writeln!(out, "scrub done for {}", uuid_text(&self.state.fsid))?;
        }
        Ok(summary::print(out, &self.state, &self.common.style, "done", now)?)
    }
}
