//! Turns what happens while a stream is applied into lines for the user, as `btrfs receive` words them.
//!
//! It prints nothing: lines go to whoever wants them, which may be in another process.

use super::{Error, Observer, Section, words};
use crate::wire::Command;

/// Something to tell the user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReceiveReport {
    /// A line for the standard output.
    Out(String),
    /// A line for the standard error.
    Err(String),
    /// An error, without the word that says so.
    Error(String),
    /// The progress.
    Progress {
        /// Bytes of the input.
        bytes: u64,
        /// Commands.
        commands: u64,
    },
}

/// Commands from one report of progress to the next, at least.
const COMMANDS_PER_REPORT: u64 = 1024;
/// Bytes from one report of progress to the next, at least.
const BYTES_PER_REPORT: u64 = 1 << 22;

/// See the [module](self).
pub struct ReceiveReporter<'a> {
    tell: &'a mut dyn FnMut(ReceiveReport),
    /// −1: errors only; 0; 1 and 2 as `-v` and `-v -v`.
    verbosity: i32,
    commands: u64,
    told: (u64, u64),
}

impl<'a> ReceiveReporter<'a> {
    /// Tells `tell` as much as `verbosity` asks for: −1 for errors only, 0, or how often `-v` was given.
    pub fn new(verbosity: i32, tell: &'a mut dyn FnMut(ReceiveReport)) -> ReceiveReporter<'a> {
        ReceiveReporter { tell, verbosity, commands: 0, told: (0, 0) }
    }
}

impl Observer for ReceiveReporter<'_> {
    fn command(&mut self, command: &Command<'_>, offset: u64) {
        self.commands += 1;
        let (commands, bytes) = self.told;
        if self.commands - commands >= COMMANDS_PER_REPORT || offset - bytes >= BYTES_PER_REPORT {
            self.told = (self.commands, offset);
            (self.tell)(ReceiveReport::Progress { bytes: offset, commands: self.commands });
        }
        if self.verbosity < 0 {
            return;
        }
        match command {
            Command::Subvol { path, .. } => {
                (self.tell)(ReceiveReport::Err(format!("At subvol {}", words::shown(path))))
            }
            Command::Snapshot { path, .. } => {
                (self.tell)(ReceiveReport::Out(format!("At snapshot {}", words::shown(path))))
            }
            _ => {}
        }
        if let Some(line) = words::line(command, self.verbosity.unsigned_abs()) {
            (self.tell)(ReceiveReport::Err(line));
        }
    }

    fn finished(&mut self, section: &Section<'_>) {
        if self.verbosity > 0 {
            let (uuid, transid) = (words::uuid_text(&section.uuid), section.transid);
            (self.tell)(ReceiveReport::Err(format!("BTRFS_IOC_SET_RECEIVED_SUBVOL uuid={uuid}, stransid={transid}")));
        }
    }

    fn notice(&mut self, sentence: &str) {
        if self.verbosity >= 0 {
            (self.tell)(ReceiveReport::Err(sentence.to_owned()));
        }
    }

    fn error(&mut self, error: &Error) {
        (self.tell)(ReceiveReport::Error(error.to_string()));
    }
}
