//! Applying a stream: commands become changes of a target.
//!
//! ```text
//! receive     decodes, checks, keeps count of errors; knows nothing of where things go
//! StreamTarget    a filesystem of ours ([`Engine`]); a directory of any filesystem ([`Directory`])
//! ```
//!
//! 1. Paths are checked before a target sees them: relative, no empty component, no `.` or `..`; the name of a
//!    subvolume is one component. Stream targets never follow a symbolic link.
//! 2. A section (what a SUBVOL or SNAPSHOT begins) grows under a name that says that it is not complete
//!    ([`partial_name`]), and gets its own name last. A section with an error never gets it.
//! 3. Nothing but the section is changed.
//! 4. When [`receive`] returns success, everything is durable.
//!
//! Not here: where the stream comes from, what the user is told.

mod directory;
mod encoded;
mod engine;
mod paths;
mod report;
pub mod words;

pub use directory::{Directory, Loss, Moment, marker};
pub use encoded::decoded;
pub use engine::Engine;
pub use paths::partial_name;
pub use report::{ReceiveReport, ReceiveReporter};

use crate::wire::{self, Command, Decoder, Event, StreamPosition, Uuid, Version};
use std::fmt;
use std::io::Read;

/// A section, which a SUBVOL or SNAPSHOT begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Section<'a> {
    /// The subvolume's name.
    pub name: &'a [u8],
    /// The received UUID.
    pub uuid: Uuid,
    /// The sender's transaction.
    pub transid: u64,
    /// The parent: UUID and the sender's transaction.
    pub parent: Option<(Uuid, u64)>,
}

/// Why a command was not carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The system's number for it.
    pub errno: i32,
    /// A sentence, or a part of one.
    pub reason: String,
}

impl Failure {
    /// A failure with a reason.
    pub fn new(errno: butterfs_fs::Errno, reason: impl Into<String>) -> Failure {
        Failure { errno: errno.0, reason: reason.into() }
    }

    /// Why no target carries out a command.
    fn not_carried_out(command: &Command<'_>) -> Failure {
        use butterfs_fs::Errno;
        match command {
            Command::EnableVerity { .. } => {
                Failure::new(Errno::EOPNOTSUPP, "fs-verity is not supported, the file would not be protected")
            }
            _ => Failure::new(Errno::EINVAL, "not a command inside a subvolume"),
        }
    }
}

impl From<butterfs_fs::Error> for Failure {
    fn from(error: butterfs_fs::Error) -> Failure {
        Failure { errno: error.errno().0, reason: error.to_string() }
    }
}

/// The result of a command.
pub type Outcome = Result<(), Failure>;

/// The target of a stream.
pub trait StreamTarget {
    /// Begins a section under its partial name.
    fn begin(&mut self, section: &Section<'_>) -> Outcome;
    /// Messages to the user about the section that was begun last; each sentence is returned once.
    fn notices(&mut self) -> Vec<String> {
        Vec::new()
    }
    /// Carries out a command inside the section; its paths have been checked.
    fn command(&mut self, command: &Command<'_>) -> Outcome;
    /// Completes the section: it is marked as received, read-only where there is such a thing, and gets its name.
    fn finish(&mut self) -> Outcome;
    /// Leaves the section as it is, marked as partial.
    fn abandon(&mut self);
    /// Makes everything durable.
    fn sync(&mut self) -> Outcome;
}

/// How a stream is applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Stop at this error; 0 means never.
    pub max_errors: u64,
    /// Stop after the first END, whatever follows.
    pub first_stream_only: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { max_errors: 1, first_stream_only: false }
    }
}

/// An error at one position of the stream.
#[derive(Debug)]
pub enum Error {
    /// The stream itself.
    Stream(wire::Error),
    /// Carrying out a command.
    Command {
        /// The position.
        position: StreamPosition,
        /// The operation, as [`words::brief`] puts it.
        what: String,
        /// Why it was not done.
        failure: Failure,
    },
    /// The input holds no stream.
    Empty,
    /// Everything was carried out, and cannot be made durable.
    Sync(Failure),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Stream(error) => error.fmt(f),
            Error::Command { position, what, failure } => {
                write!(f, "{what} (byte {} of the stream) failed: {}", position.offset, failure.reason)
            }
            Error::Empty => f.write_str("empty stream is not considered valid"),
            Error::Sync(failure) => write!(f, "what was received cannot be made durable: {}", failure.reason),
        }
    }
}

impl std::error::Error for Error {}

/// Hears of what happens.
pub trait Observer {
    /// A stream begins.
    fn stream(&mut self, _version: Version) {}
    /// A command was read; `offset` is where it stands in the input.
    fn command(&mut self, _command: &Command<'_>, _offset: u64) {}
    /// A section is complete.
    fn finished(&mut self, _section: &Section<'_>) {}
    /// Something that the user may want to know, and no error.
    fn notice(&mut self, _sentence: &str) {}
    /// An error; there may be more.
    fn error(&mut self, error: &Error);
}

/// The result of receiving.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Complete streams.
    pub streams: u64,
    /// Complete sections.
    pub sections: u64,
    /// Commands that were read.
    pub commands: u64,
    /// Bytes of the input that were read.
    pub bytes: u64,
    /// Errors. With any, something is missing.
    pub errors: u64,
}

/// Applies everything that `input` holds to `target`. Errors go to the observer and are counted in the summary.
pub fn receive(
    input: impl Read,
    target: &mut dyn StreamTarget,
    options: &Options,
    observer: &mut dyn Observer,
) -> Summary {
    let mut decoder = Decoder::new(input);
    let mut receiver = Receiver { target, options, observer, current: None, summary: Summary::default() };
    while receiver.step(&mut decoder) {}
    if receiver.current.take().is_some() {
        receiver.target.abandon();
    }
    if let Err(failure) = receiver.target.sync() {
        receiver.note(Error::Sync(failure));
    }
    receiver.summary.bytes = decoder.offset();
    receiver.summary
}

/// The section that is being received.
struct Current {
    name: Vec<u8>,
    uuid: Uuid,
    transid: u64,
    parent: Option<(Uuid, u64)>,
    /// Nothing more is done to it: it could not be begun.
    lost: bool,
    /// It has had an error and will not be completed.
    failed: bool,
}

impl Current {
    fn section(&self) -> Section<'_> {
        Section { name: &self.name, uuid: self.uuid, transid: self.transid, parent: self.parent }
    }
}

struct Receiver<'a> {
    target: &'a mut dyn StreamTarget,
    options: &'a Options,
    observer: &'a mut dyn Observer,
    current: Option<Current>,
    summary: Summary,
}

impl Receiver<'_> {
    /// Takes the next thing from the stream; false when there is nothing more to do.
    fn step(&mut self, decoder: &mut Decoder<impl Read>) -> bool {
        let before = decoder.offset();
        match decoder.next() {
            Ok(Some(Event::Header(version))) => {
                self.observer.stream(version);
                true
            }
            Ok(Some(Event::Command(position, command))) => {
                self.summary.commands += 1;
                self.observer.command(&command, position.offset);
                self.carry_out(position, &command)
            }
            Ok(None) if before == 0 => {
                self.note(Error::Empty);
                false
            }
            Ok(None) => false,
            Err(error) => {
                let passable = error.is_passable();
                self.note(Error::Stream(error));
                passable && !self.is_enough()
            }
        }
    }

    fn is_enough(&self) -> bool {
        self.options.max_errors != 0 && self.summary.errors >= self.options.max_errors
    }

    fn note(&mut self, error: Error) {
        self.summary.errors += 1;
        if let Some(current) = &mut self.current {
            current.failed = true;
        }
        self.observer.error(&error);
    }

    /// Counts the failure of a command, if it is one; false when that is enough of them.
    fn judge(&mut self, position: StreamPosition, command: &Command<'_>, outcome: Outcome) -> bool {
        let Err(failure) = outcome else { return true };
        self.note(Error::Command { position, what: words::brief(command), failure });
        !self.is_enough()
    }

    fn carry_out(&mut self, position: StreamPosition, command: &Command<'_>) -> bool {
        let section = match *command {
            Command::Subvol { path, uuid, transid } => Section { name: path, uuid, transid, parent: None },
            Command::Snapshot { path, uuid, transid, parent_uuid, parent_transid } => {
                Section { name: path, uuid, transid, parent: Some((parent_uuid, parent_transid)) }
            }
            Command::End {} => {
                let goes_on = self.complete(position);
                self.summary.streams += 1;
                // What follows a broken stream is not looked at.
                return goes_on && !self.options.first_stream_only && self.summary.errors == 0;
            }
            _ => {
                if self.current.as_ref().is_some_and(|current| current.lost) {
                    return true;
                }
                let outcome = self.inside(command);
                return self.judge(position, command, outcome);
            }
        };
        self.complete(position) && self.begin(position, command, &section)
    }

    fn inside(&mut self, command: &Command<'_>) -> Outcome {
        if self.current.is_none() {
            return Err(Failure::new(butterfs_fs::Errno::EINVAL, "no subvolume was begun before this command"));
        }
        paths::check(command)?;
        self.target.command(command)
    }

    fn begin(&mut self, position: StreamPosition, command: &Command<'_>, section: &Section<'_>) -> bool {
        let begun = paths::check_name(section.name).and_then(|()| self.target.begin(section));
        self.target.notices().iter().for_each(|sentence| self.observer.notice(sentence));
        let Section { name, uuid, transid, parent } = *section;
        let lost = begun.is_err();
        self.current = Some(Current { name: name.to_vec(), uuid, transid, parent, lost, failed: false });
        self.judge(position, command, begun)
    }

    /// Ends the section before the command at `position`.
    fn complete(&mut self, position: StreamPosition) -> bool {
        let Some(current) = self.current.take() else { return true };
        if current.failed {
            if !current.lost {
                self.target.abandon();
            }
            return true;
        }
        match self.target.finish() {
            Ok(()) => {
                self.summary.sections += 1;
                self.observer.finished(&current.section());
                true
            }
            Err(failure) => {
                let what = format!("completing {}", words::shown(&current.name));
                self.note(Error::Command { position, what, failure });
                !self.is_enough()
            }
        }
    }
}
