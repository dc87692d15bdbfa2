//! Receiving as a question. The asking command learns how far it is by reports.

use butterfs_control::question::{EncodedData, ReceiveSubvolumes, ReceivedStreams};
use butterfs_control::{ReceiveStatus, ReceiveSummary, Refusal};
use butterfs_fuse::control::Tell;
use butterfs_fuse::subvolumes::{Stage, changed_inode_of};
use butterfs_send::apply::{self, Engine, Options, ReceiveReport, ReceiveReporter, Summary};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

/// The capacity of a pipe, so that its two ends wait for each other less.
const PIPE_BYTES: usize = 1 << 20;
/// While no stream comes, how often the asking command is looked for.
const HEARTBEAT: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// A stream that ends with an error when the asking command is gone, also while nothing can be read: whoever writes the
/// stream may keep a pipe open for ever that nobody wants to be read any more.
struct Wanted<'a> {
    file: File,
    is_wanted: &'a Cell<bool>,
    /// Tells the command that it is waited for the stream; false when the command is gone.
    is_there: &'a dyn Fn() -> bool,
}

impl Wanted<'_> {
    /// Whether there is something to read, now or soon.
    fn has_come(&self) -> io::Result<bool> {
        match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&HEARTBEAT)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Read for Wanted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.is_wanted.get() {
            if self.has_come()? {
                return self.file.read(buffer);
            }
            self.is_wanted.set((self.is_there)());
        }
        Err(io::Error::other("the receiving command is gone"))
    }
}

/// Answers the question.
pub(super) fn receive(
    stage: &Stage<'_>,
    question: &ReceiveSubvolumes,
    descriptor: OwnedFd,
    tell: Tell<'_>,
) -> Result<ReceiveSummary, Refusal> {
    let destination = changed_inode_of(stage, question.directory)?;
    // Only pipes can be made larger, and only up to the user's limit.
    let _ = rustix::pipe::fcntl_setpipe_size(&descriptor, PIPE_BYTES);
    let is_wanted = Cell::new(true);
    let tell = RefCell::new(tell);
    let is_there = || (*tell.borrow_mut())(ReceiveStatus::Waiting.into());
    let input = Wanted { file: File::from(descriptor), is_wanted: &is_wanted, is_there: &is_there };
    let mut engine = Engine::new(stage.filesystem.clone(), destination)
        .force_decompress(question.encoded == EncodedData::Decompress)
        .on_change(Box::new(|directory, name| (stage.changed)(directory, name)))
        .on_close(Box::new(|directory, name, is_closed| (stage.closed)(directory, name, is_closed)));
    let mut observe = |report: ReceiveReport| {
        if !(*tell.borrow_mut())(status_of(report).into()) {
            is_wanted.set(false);
        }
    };
    let first_stream_only = question.streams == ReceivedStreams::First;
    let options = Options { max_errors: question.max_errors, first_stream_only };
    let mut reporter = ReceiveReporter::new(question.verbosity, &mut observe);
    let Summary { streams, sections, commands, bytes, errors } =
        apply::receive(input, &mut engine, &options, &mut reporter);
    Ok(ReceiveSummary { streams, sections, commands, bytes, errors })
}

fn status_of(report: ReceiveReport) -> ReceiveStatus {
    match report {
        ReceiveReport::Out(text) => ReceiveStatus::Out(text),
        ReceiveReport::Err(text) => ReceiveStatus::Err(text),
        ReceiveReport::Error(text) => ReceiveStatus::Error(text),
        ReceiveReport::Progress { bytes, commands } => ReceiveStatus::Progress { bytes, commands },
    }
}

/// The report to the user, if there is any.
pub fn report_of(status: ReceiveStatus) -> Option<ReceiveReport> {
    match status {
        ReceiveStatus::Waiting => None,
        ReceiveStatus::Out(text) => Some(ReceiveReport::Out(text)),
        ReceiveStatus::Err(text) => Some(ReceiveReport::Err(text)),
        ReceiveStatus::Error(text) => Some(ReceiveReport::Error(text)),
        ReceiveStatus::Progress { bytes, commands } => Some(ReceiveReport::Progress { bytes, commands }),
    }
}
