//! Sending as a question, so that it is asked of the process that serves a mount as of an image that this process opens.
//!
//! `send VERSION OPTIONS PARENT SOURCES CLONE_SOURCE… SUBVOLUME…`: the version's number; options by name, separated by
//! commas; `-` for no parent; how many clone sources follow; subvolumes as [`subvolumes`] names inodes.

mod outlet;
pub mod receiving;

use butterfs_fs::{Errno, Filesystem};
use butterfs_fuse::adaptor::Carrier;
use butterfs_fuse::control::Report;
use butterfs_fuse::subvolumes::{self, Access, Answer, Record, Refusal, Stage};
use butterfs_send::generate::{self, Job, Options, Progress};
use butterfs_send::wire::Version;
use outlet::Outlet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the progress is told.
const INTERVAL: Duration = Duration::from_millis(200);
/// What a pipe is made to hold, so that its two ends wait for each other less.
const PIPE_BYTES: usize = 1 << 20;

const ONE_STREAM: &str = "one-stream";
const NO_DATA: &str = "no-data";
const COMPRESSED: &str = "compressed-data";

/// What `send` is asked for; subvolumes as words.
#[derive(Clone, Debug)]
pub struct Request {
    pub version: Version,
    pub one_stream: bool,
    pub no_data: bool,
    pub compressed_data: bool,
    pub parent: Option<Vec<u8>>,
    pub clone_sources: Vec<Vec<u8>>,
    pub subvolumes: Vec<Vec<u8>>,
}

impl Request {
    /// As a question.
    pub fn to_words(&self) -> Record {
        let chosen = [(self.one_stream, ONE_STREAM), (self.no_data, NO_DATA), (self.compressed_data, COMPRESSED)];
        let options: Vec<&str> = chosen.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
        let number = |number: usize| number.to_string().into_bytes();
        let mut words = vec![b"send".to_vec(), number(self.version.raw() as usize), options.join(",").into_bytes()];
        words.push(self.parent.clone().unwrap_or_else(|| b"-".to_vec()));
        words.push(number(self.clone_sources.len()));
        words.extend(self.clone_sources.iter().chain(&self.subvolumes).cloned());
        words
    }
}

/// What words ask for.
fn job_of(stage: &Stage<'_>, words: &[Vec<u8>]) -> Result<Job, Refusal> {
    let malformed = || Refusal::new(Errno::EINVAL.0, "the question makes no sense");
    let [version, options, parent, sources, rest @ ..] = words else { return Err(malformed()) };
    let text = |word: &[u8]| std::str::from_utf8(word).map(str::to_owned).map_err(|_| malformed());
    let version = text(version)?.parse().ok().and_then(Version::from_raw).ok_or_else(malformed)?;
    let options = text(options)?;
    let has = |name| options.split(',').any(|option| option == name);
    let sources: usize = text(sources)?.parse().map_err(|_| malformed())?;
    let (sources, subvolumes) = rest.split_at_checked(sources).ok_or_else(malformed)?;
    let all = |words: &[Vec<u8>]| -> Result<Vec<_>, Refusal> {
        words.iter().map(|word| subvolumes::subvolume_of(stage, word)).collect()
    };
    Ok(Job {
        subvolumes: all(subvolumes)?,
        parent: (parent != b"-").then(|| subvolumes::subvolume_of(stage, parent)).transpose()?,
        clone_sources: all(sources)?,
        one_stream: has(ONE_STREAM),
        version,
        options: Options { no_data: has(NO_DATA), compressed_data: has(COMPRESSED), ..Options::default() },
    })
}

/// Answers questions about streams for a mount.
pub fn carrier() -> Carrier {
    Arc::new(carry)
}

/// Answers one question about streams.
pub fn carry(stage: &Stage<'_>, question: &[Vec<u8>], descriptor: OwnedFd, report: Report<'_>) -> Answer {
    Access { filesystem: stage.filesystem, peer: stage.peer }.must_be_privileged()?;
    match question.split_first() {
        Some((verb, words)) if verb == b"send" => send(stage.filesystem, &job_of(stage, words)?, descriptor, report),
        Some((verb, words)) if verb == b"receive" => receiving::receive(stage, words, descriptor, report),
        _ => Err(Refusal::new(Errno::EINVAL.0, "the question makes no sense")),
    }
}

fn send(filesystem: &Filesystem, job: &Job, descriptor: OwnedFd, report: Report<'_>) -> Answer {
    // Only pipes can be made larger, and only up to the user's limit.
    let _ = rustix::pipe::fcntl_setpipe_size(&descriptor, PIPE_BYTES);
    let is_wanted = AtomicBool::new(true);
    let mut outlet = Outlet::new(descriptor, &is_wanted);
    let report = std::cell::RefCell::new(report);
    let mut told = Instant::now();
    let mut watch = |progress: &Progress| {
        if told.elapsed() < INTERVAL {
            return true;
        }
        told = Instant::now();
        let Progress { bytes, commands, permille } = *progress;
        let numbers = [bytes, commands, permille.into()].map(|number| number.to_string().into_bytes());
        let words = [&[b"progress".to_vec()][..], &numbers].concat();
        let is_there = (*report.borrow_mut())(&words);
        is_wanted.fetch_and(is_there, Ordering::Relaxed);
        is_there
    };
    let mut begun = |number: usize| {
        let words = [b"begun".to_vec(), number.to_string().into_bytes()];
        // Whoever does not listen any more is noticed when the progress is told.
        let _ = (*report.borrow_mut())(&words);
    };
    let done = generate::run(filesystem, job, &mut outlet, &mut watch, &mut begun);
    match done {
        Ok(Progress { bytes, commands, .. }) => {
            Ok(vec![[bytes, commands].map(|n| n.to_string().into_bytes()).to_vec()])
        }
        Err(generate::Error::Filesystem(error)) => Err(error.into()),
        Err(generate::Error::Output(error)) => {
            let errno = error.raw_os_error().unwrap_or(Errno::EIO.0);
            Err(Refusal::new(errno, format!("cannot write the stream: {error}")))
        }
        Err(error) => Err(Refusal::new(Errno::EIO.0, error.to_string())),
    }
}
