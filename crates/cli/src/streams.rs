//! Sending and receiving as questions, asked of the process that serves a mount as of an image that this process opens.

mod outlet;
pub mod passage;
pub mod receiving;

use butterfs_control::question::{SendSubvolumes, SentContents, SentStreams};
use butterfs_control::{InodeRef, Record, Refusal, SendStatus, SendSummary, StreamQuestion};
use butterfs_fs::{Errno, Filesystem};
use butterfs_fuse::adaptor::Carrier;
use butterfs_fuse::control::Tell;
use butterfs_fuse::subvolumes::{self, Access, Refused, Stage};
use butterfs_send::generate::{self, Job, Options, Progress};
use butterfs_send::wire::Version;
use outlet::Outlet;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The interval of progress reports.
const INTERVAL: Duration = Duration::from_millis(200);
/// The capacity of a pipe, so that its two ends wait for each other less.
const PIPE_BYTES: usize = 1 << 20;

/// The send that a question asks for.
fn job_of(stage: &Stage<'_>, question: &SendSubvolumes) -> Result<Job, Refusal> {
    let unknown = || Refusal::new(Errno::EINVAL.0, format!("streams of version {} are not known", question.version));
    let subvolume = |inode: &InodeRef| subvolumes::subvolume_of(stage, *inode);
    let all = |inodes: &[InodeRef]| inodes.iter().map(subvolume).collect::<Result<_, _>>();
    Ok(Job {
        subvolumes: all(&question.subvolumes)?,
        parent: question.parent.as_ref().map(subvolume).transpose()?,
        clone_sources: all(&question.clone_sources)?,
        one_stream: question.streams == SentStreams::Joined,
        version: Version::from_raw(question.version).ok_or_else(unknown)?,
        options: Options {
            no_data: question.contents == SentContents::Omitted,
            compressed_data: question.contents == SentContents::Compressed,
            ..Options::default()
        },
    })
}

/// Answers questions about streams for a mount.
pub fn carrier() -> Carrier {
    Arc::new(carry)
}

/// Answers one question about streams.
pub fn carry(
    stage: &Stage<'_>,
    question: &StreamQuestion,
    descriptor: OwnedFd,
    tell: Tell<'_>,
) -> Result<Record, Refusal> {
    Access { filesystem: stage.filesystem, peer: stage.peer }.must_be_privileged()?;
    match question {
        StreamQuestion::SendSubvolumes(question) => {
            // Only pipes can be made larger, and only up to the user's limit.
            let _ = rustix::pipe::fcntl_setpipe_size(&descriptor, PIPE_BYTES);
            let is_wanted = AtomicBool::new(true);
            let mut outlet = Outlet::new(descriptor, &is_wanted);
            Ok(send(stage.filesystem, &job_of(stage, question)?, &mut outlet, &is_wanted, tell)?.into())
        }
        StreamQuestion::ReceiveSubvolumes(question) => {
            Ok(receiving::receive(stage, question, descriptor, tell)?.into())
        }
    }
}

/// Sends to another thread of this process.
pub fn send_here(
    stage: &Stage<'_>,
    question: &SendSubvolumes,
    mut sink: passage::Entrance,
    tell: Tell<'_>,
) -> Result<SendSummary, Refusal> {
    Access { filesystem: stage.filesystem, peer: stage.peer }.must_be_privileged()?;
    send(stage.filesystem, &job_of(stage, question)?, &mut sink, &AtomicBool::new(true), tell)
}

fn send(
    filesystem: &Filesystem,
    job: &Job,
    sink: &mut (dyn Write + Send),
    is_wanted: &AtomicBool,
    tell: Tell<'_>,
) -> Result<SendSummary, Refusal> {
    let tell = std::cell::RefCell::new(tell);
    let mut told = Instant::now();
    let mut watch = |progress: &Progress| {
        if told.elapsed() < INTERVAL {
            return true;
        }
        told = Instant::now();
        let Progress { bytes, commands, permille } = *progress;
        let is_there = (*tell.borrow_mut())(SendStatus::Progress { bytes, commands, permille }.into());
        is_wanted.fetch_and(is_there, Ordering::Relaxed);
        is_there
    };
    let mut begun = |number: usize| {
        // Whoever does not listen any more is noticed when the progress is told.
        let _ = (*tell.borrow_mut())(SendStatus::Begun(number as u32).into());
    };
    let done = generate::run(filesystem, job, sink, &mut watch, &mut begun);
    match done {
        Ok(Progress { bytes, commands, .. }) => Ok(SendSummary { bytes, commands }),
        Err(generate::Error::Filesystem(error)) => Err(Refused::from(error).into()),
        Err(generate::Error::Output(error)) => {
            let errno = error.raw_os_error().unwrap_or(Errno::EIO.0);
            Err(Refusal::new(errno, format!("cannot write the stream: {error}")))
        }
        Err(error) => Err(Refusal::new(Errno::EIO.0, error.to_string())),
    }
}
