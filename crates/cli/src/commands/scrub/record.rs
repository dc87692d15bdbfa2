//! The record of a scrub, in files beside those of btrfs-progs.
//!
//! | file | holds |
//! |---|---|
//! | `scrub.status.UUID` | how far each device is, as btrfs-progs writes it |
//! | `scrub.state.UUID` | the same with names and totals, for us |
//! | `scrub.findings.UUID` | what was found, as it was found |
//! | `scrub.lock.UUID` | nothing: whoever scrubs holds a lock on it |
//!
//! Files are replaced as a whole, so a reader sees the old or the new one. They lie in `/var/lib/btrfs`; those of a
//! user in `$XDG_STATE_HOME/butterfs` or `~/.local/state/butterfs`, else, where that cannot be written, in
//! `$XDG_RUNTIME_DIR/butterfs` or `/tmp/butterfs-UID`, which nobody else may enter; all of them in
//! `$BUTTERFS_STATE_DIR` where that is set.

use super::summary::COUNTERS;
use crate::error::{CliError, os_message};
use butterfs_control::{Reply, ScrubDevice, ScrubEnd, ScrubFinding, ScrubNews, ScrubState, VERSION, read_reply};
use rustix::fs::{Access, FlockOperation, fcntl_lock};
use rustix::process::{Flock, FlockType, Pid, fcntl_getlk};
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The files of root, which btrfs-progs knows.
const SHARED: &str = "/var/lib/btrfs";
/// The first line of a status file.
const STATUS_HEAD: &str = "scrub status:1";

/// The files of one filesystem.
#[derive(Clone, Debug)]
pub struct Records {
    directory: PathBuf,
    uuid: String,
}

/// Held as long as a scrub runs.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "the lock ends with the descriptor")] File);

fn directory() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    match set("BUTTERFS_STATE_DIR") {
        Some(directory) => directory,
        None if rustix::process::geteuid().is_root() => PathBuf::from(SHARED),
        None => {
            let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")));
            let state = state.map(|state| state.join("butterfs"));
            let runtime = set("XDG_RUNTIME_DIR").map(|runtime| runtime.join("butterfs"));
            let temporary = std::env::temp_dir().join(format!("butterfs-{}", rustix::process::geteuid().as_raw()));
            let first = state.clone().filter(|state| is_writable(state));
            let other = runtime.into_iter().chain([temporary]).find(|folder| is_private(folder));
            // Without any, the error names a place that the user can do something about.
            first.or(other).or(state).unwrap_or_else(|| PathBuf::from(SHARED))
        }
    }
}

/// Whether a directory is there, or could be made, and files can be made in it.
fn is_writable(folder: &Path) -> bool {
    let access = Access::WRITE_OK | Access::EXEC_OK;
    std::fs::create_dir_all(folder).is_ok() && rustix::fs::access(folder, access).is_ok()
}

/// Whether a directory, which is made if it is not there, belongs to this user alone. Others may have put something in
/// its place, a link too.
fn is_private(folder: &Path) -> bool {
    let made = std::fs::DirBuilder::new().mode(0o700).create(folder);
    let is_there = made.is_ok() || made.is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists);
    let is_own = |found: std::fs::Metadata| {
        found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0
    };
    is_there && std::fs::symlink_metadata(folder).is_ok_and(is_own)
}

/// A UUID as text.
pub fn uuid_text(fsid: &[u8; 16]) -> String {
    uuid::Uuid::from_bytes(*fsid).to_string()
}

impl Records {
    /// Those of a filesystem.
    pub fn of(fsid: &[u8; 16]) -> Records {
        Records { directory: directory(), uuid: uuid_text(fsid) }
    }

    fn path(&self, kind: &str) -> PathBuf {
        self.directory.join(format!("scrub.{kind}.{}", self.uuid))
    }

    fn options() -> OpenOptions {
        let mut options = OpenOptions::new();
        options.write(true).create(true).mode(0o600);
        options
    }

    fn failed(&self, kind: &str, error: &io::Error) -> CliError {
        CliError::failed(format!("{}: {}", self.path(kind).display(), os_message(error)))
    }

    /// Takes the lock; `None` while somebody else has it.
    pub fn lock(&self) -> Result<Option<Lock>, CliError> {
        let opened = std::fs::create_dir_all(&self.directory)
            .and_then(|()| Records::options().read(true).truncate(false).open(self.path("lock")));
        let file = opened.map_err(|error| self.failed("lock", &error))?;
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock(file))),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) => Ok(None),
            Err(error) => Err(self.failed("lock", &error.into())),
        }
    }

    /// The process that scrubs.
    pub fn holder(&self) -> Option<Pid> {
        let file = OpenOptions::new().read(true).write(true).open(self.path("lock")).ok()?;
        fcntl_getlk(&file, &Flock::from(FlockType::WriteLock)).ok()??.pid
    }

    /// Writes down how far a scrub is.
    pub fn write(&self, state: &ScrubState) -> Result<(), CliError> {
        self.replace("status", status_text(&self.uuid, state).as_bytes())?;
        let frame = Reply::Record(ScrubNews::State(state.clone()).into()).frame();
        let frame = frame.map_err(|error| CliError::failed(error.to_string()))?;
        self.replace("state", &[head().as_bytes(), &frame].concat())
    }

    fn replace(&self, kind: &str, bytes: &[u8]) -> Result<(), CliError> {
        let (path, fresh) = (self.path(kind), self.path(kind).with_extension(format!("{}_tmp", self.uuid)));
        let fresh = if fresh == path { path.with_extension("_tmp") } else { fresh };
        let write = || -> io::Result<()> {
            let mut file = Records::options().truncate(true).open(&fresh)?;
            file.write_all(bytes)?;
            file.sync_data()?;
            std::fs::rename(&fresh, &path)
        };
        write().map_err(|error| self.failed(kind, &error))
    }

    /// The progress of the last scrub; `None` when there was none.
    pub fn read(&self) -> Result<Option<ScrubState>, CliError> {
        let text = match std::fs::read_to_string(self.path("status")) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed("status", &error)),
        };
        let mut state = self.own_state().unwrap_or_default();
        let kept = std::mem::take(&mut state.devices);
        state.devices = status_of(&text, &self.uuid);
        for device in &mut state.devices {
            if let Some(kept) = kept.iter().find(|kept| kept.id == device.id) {
                (device.name, device.total_bytes, device.limit) = (kept.name.clone(), kept.total_bytes, kept.limit);
            }
        }
        state.fsid = uuid::Uuid::parse_str(&self.uuid).map(|uuid| *uuid.as_bytes()).unwrap_or_default();
        Ok(Some(state))
    }

    fn own_state(&self) -> Option<ScrubState> {
        match read_frames(&std::fs::read(self.path("state")).ok()?[..]).pop()? {
            ScrubNews::State(state) => Some(state),
            ScrubNews::Finding(_) => None,
        }
    }

    /// A file for findings: the old one is emptied unless the scrub is resumed.
    pub fn begin_findings(&self, is_resumed: bool) -> Result<Findings, CliError> {
        let path = self.path("findings");
        let is_known = is_resumed && std::fs::read(&path).is_ok_and(|bytes| bytes.starts_with(head().as_bytes()));
        let begin = || -> io::Result<BufWriter<File>> {
            let file = Records::options().truncate(!is_known).append(is_known).open(&path)?;
            let mut file = BufWriter::new(file);
            if !is_known {
                file.write_all(head().as_bytes())?;
                file.flush()?;
            }
            Ok(file)
        };
        begin().map(Findings).map_err(|error| self.failed("findings", &error))
    }

    /// The findings of the last scrub.
    pub fn findings(&self) -> Vec<ScrubFinding> {
        let bytes = std::fs::read(self.path("findings")).unwrap_or_default();
        let finding = |news| if let ScrubNews::Finding(finding) = news { Some(finding) } else { None };
        read_frames(&bytes).into_iter().filter_map(finding).collect()
    }
}

/// The findings of a run on their way to a file.
pub struct Findings(BufWriter<File>);

impl Findings {
    /// Adds one.
    pub fn add(&mut self, finding: &ScrubFinding) -> io::Result<()> {
        let frame = Reply::Record(ScrubNews::Finding(finding.clone()).into()).frame().map_err(io::Error::other)?;
        self.0.write_all(&frame)
    }

    /// Everything that was added can be read.
    pub fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn head() -> String {
    format!("butterfs scrub {VERSION}\n")
}

/// The frames of a file; none of a file of another version, and none behind a torn frame.
fn read_frames(bytes: &[u8]) -> Vec<ScrubNews> {
    let Some(mut rest) = bytes.strip_prefix(head().as_bytes()).map(BufReader::new) else { return Vec::new() };
    let mut news = Vec::new();
    while let Ok(Reply::Record(record)) = read_reply(rest.by_ref()) {
        let Ok(one) = TryInto::<ScrubNews>::try_into(record) else { break };
        news.push(one);
    }
    news
}

/// The counter that no status file has.
const NOT_KEPT: &str = "unverified_errors";

/// The value of a counter.
pub fn counter(device: &ScrubDevice, name: &str) -> u64 {
    device.counters.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value)
}

fn status_text(uuid: &str, state: &ScrubState) -> String {
    let line = |device: &ScrubDevice| {
        let kept = COUNTERS.iter().filter(|name| **name != NOT_KEPT);
        let counters: String = kept.map(|name| format!("|{name}:{}", counter(device, name))).collect();
        let is_cancelled = matches!(device.end, ScrubEnd::Cancelled | ScrubEnd::Failed(_));
        let is_finished = device.end != ScrubEnd::Running;
        let ScrubDevice { id, started, resumed, duration_secs, .. } = device;
        format!(
            "{uuid}:{id}{counters}|t_start:{started}|t_resumed:{resumed}|duration:{duration_secs}\
             |canceled:{}|finished:{}\n",
            u8::from(is_cancelled),
            u8::from(is_finished)
        )
    };
    let lines: String = state.devices.iter().filter(|device| device.started != 0).map(line).collect();
    format!("{STATUS_HEAD}\n{lines}")
}

/// The devices of a status file. Lines that make no sense are left out.
fn status_of(text: &str, uuid: &str) -> Vec<ScrubDevice> {
    let mut lines = text.lines();
    if lines.next() != Some(STATUS_HEAD) {
        return Vec::new();
    }
    lines.filter_map(|line| device_of(line.strip_prefix(uuid)?.strip_prefix(':')?)).collect()
}

fn device_of(line: &str) -> Option<ScrubDevice> {
    let mut fields = line.split('|');
    let mut device = ScrubDevice { id: fields.next()?.parse().ok()?, ..ScrubDevice::default() };
    let (mut is_cancelled, mut is_finished) = (false, false);
    for (name, value) in fields.filter_map(|field| field.split_once(':')) {
        let value: u64 = value.parse().ok()?;
        match name {
            "t_start" => device.started = value as i64,
            "t_resumed" => device.resumed = value as i64,
            "duration" => device.duration_secs = value,
            "canceled" => is_cancelled = value != 0,
            "finished" => is_finished = value != 0,
            _ => device.counters.push((name.to_owned(), value)),
        }
    }
    device.end = match (is_cancelled, is_finished) {
        (true, _) => ScrubEnd::Cancelled,
        (false, true) => ScrubEnd::Finished,
        (false, false) => ScrubEnd::Running,
    };
    Some(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "9ce5c6c0-adec-4777-bd5b-c230676fa75e";
    /// As btrfs-progs 6.2 has written it.
    const THEIRS: &str = "scrub status:1\n9ce5c6c0-adec-4777-bd5b-c230676fa75e:1|data_extents_scrubbed:320|\
        tree_extents_scrubbed:11|data_bytes_scrubbed:20971520|tree_bytes_scrubbed:180224|read_errors:0|csum_errors:0|\
        verify_errors:0|no_csum:0|csum_discards:0|super_errors:0|malloc_errors:0|uncorrectable_errors:0|\
        corrected_errors:0|last_physical:109117440|t_start:1795614138|t_resumed:0|duration:0|canceled:0|finished:1\n";

    #[test]
    fn their_file_is_read_and_written_again() {
        let devices = status_of(THEIRS, UUID);
        assert_eq!((devices[0].id, devices[0].end.clone()), (1, ScrubEnd::Finished));
        assert_eq!(counter(&devices[0], "last_physical"), 109_117_440);
        let state = ScrubState { devices, ..ScrubState::default() };
        assert_eq!(status_text(UUID, &state), THEIRS);
    }

    #[test]
    fn only_a_folder_of_the_user_alone_is_private() {
        let scratch = butterfs_testkit::scratch::Scratch::new("private-folder");
        let at = |name: &str| scratch.path().join(name);
        assert!(is_private(&at("made")) && is_private(&at("made")) && !is_private(&at("none/made")));
        std::os::unix::fs::symlink(at("made"), at("link")).unwrap();
        std::fs::DirBuilder::new().mode(0o755).create(at("open")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        assert!(["link", "open", "file"].iter().all(|name| !is_private(&at(name))));
    }

    #[test]
    fn other_files_say_nothing() {
        for text in ["", "scrub status:2\n", "scrub status:1\ngarbage", &THEIRS.replace("320", "x")] {
            assert_eq!(status_of(text, UUID), [], "{text}");
        }
        assert_eq!(read_frames(b"butterfs scrub 1\n"), []);
        assert_eq!(read_frames(&[head().as_bytes(), &[255; 64]].concat()), []);
    }
}
