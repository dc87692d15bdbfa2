//! `butterfs receive`.

mod dump;

use super::Run;
use crate::args::pretty_size;
use crate::error::{CliError, os_message};
use crate::open_filesystem::{ImageArgument, Intent, about, cannot_access};
use crate::progress::{Progress, Unit};
use crate::report;
use crate::streams::receiving;
use butterfs_control::question::{EncodedData, ReceiveSubvolumes, ReceivedStreams};
use butterfs_control::{ReceiveStatus, ReceiveSummary};
use butterfs_send::apply::{self, Directory, Options, ReceiveReport, ReceiveReporter, StreamTarget, Summary};
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

const AFTER_HELP: &str = "\
While it is received a subvolume is called NAME.partial; it gets its name when it is complete, is read-only, and knows \
what it was received as. A receive that was interrupted leaves NAME.partial, writable and without what it would be \
received as; the next receive of NAME deletes it. While a running receive works on NAME.partial, another one of the \
same name is refused. When the command succeeds everything is durable.

With --into-directory, owners, attributes and devices that the filesystem or the user cannot keep are told at the end, \
each kind once with how often, and remembered in the file .NAME.butterfs-received, by which incremental streams find \
what they build on: the tree must not be changed. Snapshots are copies that share content where the filesystem can. \
PATH may belong to another user, who cannot lead the receive elsewhere; but who can change a received tree changes \
what later increments build on.

Memory does not depend on the length of the stream: a buffer of at most 17 MiB for one command, 100 MiB for changes \
that are not committed yet, and what the engine caches, at most 256 MiB of blocks and as much of contents. Only inodes \
that are immutable, append-only or synchronous are remembered until the end, with 50 bytes or, in a directory, their \
path.";

/// Apply a send stream
///
/// Makes the subvolumes of a stream of 'btrfs send' or 'butterfs send', of version 1, 2 or 3, in the directory PATH of
/// a butterfs mount; only root and the user who has mounted it may do that. Until a subvolume is complete, nobody can
/// enter it.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Read the stream from this file, not from standard input
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Stop after the first end command, not at the end of the file
    #[arg(short = 'e')]
    first_stream_only: bool,
    /// Stop after this many errors; 0 means never. A subvolume with errors is never completed
    #[arg(short = 'E', long, value_name = "N", default_value_t = 1)]
    max_errors: u64,
    /// Write compressed data decompressed
    #[arg(long)]
    force_decompress: bool,
    /// Accepted for scripts: the remains of an interrupted receive are deleted in any case
    #[arg(long = "remove-partial", hide = true)]
    _remove_partial: bool,
    /// Print the commands of the stream as text, and do nothing else
    #[arg(long, conflicts_with_all = ["image", "path"])]
    dump: bool,
    /// Print more; twice: every command
    #[arg(short, long, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    verbose: u8,
    /// Print only errors
    #[arg(short, long)]
    quiet: bool,
    /// Receive into this image or device, which is not mounted; PATH is the one inside it, from the top level
    #[arg(long, value_name = "IMAGE")]
    image: Option<PathBuf>,
    /// PATH is a directory of any filesystem: subvolumes become directories, snapshots copies
    #[arg(long, conflicts_with_all = ["image", "dump"])]
    into_directory: bool,
    /// The mount point of the filesystem that PATH is on, where it cannot be found out
    #[arg(short = 'm', value_name = "ROOT", conflicts_with_all = ["image", "into_directory", "dump"])]
    root: Option<PathBuf>,
    /// Confine the stream to PATH, as is done in any case
    #[arg(short = 'C', long = "chroot")]
    chroot: bool,
    /// The directory that gets the subvolumes
    #[arg(required_unless_present = "dump")]
    path: Option<PathBuf>,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let (input, len) = self.input()?;
        if self.dump {
            return dump::dump(input, out);
        }
        let path = self.path.clone().unwrap_or_default();
        if self.into_directory {
            return self.fill_directory(&path, input, len, out);
        }
        self.fill_filesystem(&path, input, len, out)
    }
}

impl Args {
    /// For streams that another command makes.
    pub fn of_stream(image: Option<PathBuf>, into_directory: bool, path: PathBuf, quiet: bool) -> Args {
        Args {
            file: None,
            first_stream_only: false,
            max_errors: 1,
            force_decompress: false,
            _remove_partial: false,
            dump: false,
            verbose: 0,
            quiet,
            image,
            into_directory,
            root: None,
            chroot: false,
            path: Some(path),
        }
    }

    /// Receives these streams.
    pub fn take(&self, input: File, out: &mut dyn Write) -> Result<(), CliError> {
        let path = self.path.clone().unwrap_or_default();
        match self.into_directory {
            true => self.fill_directory(&path, input, None, out),
            false => self.fill_filesystem(&path, input, None, out),
        }
    }

    /// The stream, and its length where that is known.
    fn input(&self) -> Result<(File, Option<u64>), CliError> {
        let Some(path) = &self.file else {
            let input = rustix::stdio::stdin().try_clone_to_owned().map(File::from);
            let failed = |error| CliError::failed(format!("cannot read standard input: {}", os_message(&error)));
            return Ok((input.map_err(failed)?, None));
        };
        let failed = |error| CliError::failed(format!("cannot open '{}': {}", path.display(), os_message(&error)));
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        Ok((file, metadata.is_file().then_some(metadata.len())))
    }

    /// The process that serves the filesystem reads the stream; for an image that is this process.
    fn fill_filesystem(&self, path: &Path, input: File, len: Option<u64>, out: &mut dyn Write) -> Result<(), CliError> {
        let image = ImageArgument { image: self.image.clone() };
        let mut opened = image.open(self.root.as_deref().unwrap_or(path), Intent::Change)?;
        let asking = about([&opened.object(path)?], |[directory]| ReceiveSubvolumes {
            directory,
            streams: if self.first_stream_only { ReceivedStreams::First } else { ReceivedStreams::All },
            encoded: if self.force_decompress { EncodedData::Decompress } else { EncodedData::Keep },
            max_errors: self.max_errors,
            verbosity: self.verbosity(),
        });
        let mut teller = Teller::new(self.quiet, len, out);
        let mut tell = |status: ReceiveStatus| {
            if let Some(report) = receiving::report_of(status) {
                teller.tell(&report);
            }
        };
        let input = if opened.takes(&input) { input.into() } else { through_pipe(input)? };
        let answer = opened.ask_stream(asking, input, &mut tell)?;
        let received = answer.map_err(|refusal| CliError::failed(format!("cannot receive: {}", refusal.sentence)))?;
        let ReceiveSummary { streams, sections, commands, bytes, errors } = received;
        let summary = Summary { streams, sections, commands, bytes, errors };
        opened.close()?;
        teller.end(&summary)
    }

    fn verbosity(&self) -> i32 {
        if self.quiet { -1 } else { i32::from(self.verbose.min(2)) }
    }

    fn fill_directory(&self, path: &Path, input: File, len: Option<u64>, out: &mut dyn Write) -> Result<(), CliError> {
        let mut directory = Directory::open(path).map_err(|error| cannot_access(path, error))?;
        let received = self.receive(input, len, &mut directory, out);
        directory.losses().iter().for_each(|loss| report::warn(&format!("not kept: {loss}")));
        received
    }

    fn receive(
        &self,
        input: File,
        len: Option<u64>,
        target: &mut dyn StreamTarget,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        let mut teller = Teller::new(self.quiet, len, out);
        let options = Options { max_errors: self.max_errors, first_stream_only: self.first_stream_only };
        let mut tell = |report: ReceiveReport| teller.tell(&report);
        let summary = apply::receive(input, target, &options, &mut ReceiveReporter::new(self.verbosity(), &mut tell));
        teller.end(&summary)
    }
}

/// The same stream, read by this process.
fn through_pipe(mut input: File) -> Result<OwnedFd, CliError> {
    let failed = |error: std::io::Error| CliError::failed(format!("cannot read the stream: {}", os_message(&error)));
    let (reader, mut writer) = std::io::pipe().map_err(failed)?;
    std::thread::spawn(move || {
        if let Err(error) = std::io::copy(&mut input, &mut writer)
            && error.kind() != std::io::ErrorKind::BrokenPipe
        {
            // The stream ends too early, which its reader notices.
            report::error(&format!("cannot read the stream: {}", os_message(&error)));
        }
    });
    Ok(reader.into())
}

/// Shows the user what happens.
struct Teller<'o> {
    progress: Progress,
    /// The length of the input, where it is known.
    total: Option<u64>,
    began: Instant,
    has_summary: bool,
    out: &'o mut dyn Write,
    written: std::io::Result<()>,
}

impl<'o> Teller<'o> {
    fn new(quiet: bool, total: Option<u64>, out: &'o mut dyn Write) -> Teller<'o> {
        let progress = if quiet { Progress::none() } else { Progress::new("received", Unit::Bytes) };
        let has_summary = !quiet && std::io::stderr().is_terminal();
        Teller { progress, total, began: Instant::now(), has_summary, out, written: Ok(()) }
    }

    fn tell(&mut self, report: &ReceiveReport) {
        match report {
            ReceiveReport::Progress { bytes, commands } => {
                self.progress.say(format!(", {commands} commands"));
                self.progress.at(*bytes, self.total.filter(|total| total >= bytes));
            }
            ReceiveReport::Out(line) => {
                let out = &mut self.out;
                let written = self.progress.above(|| writeln!(out, "{line}"));
                self.written = std::mem::replace(&mut self.written, Ok(())).and(written);
            }
            ReceiveReport::Err(line) => self.progress.above(|| report::line(line)),
            ReceiveReport::Error(sentence) => self.progress.above(|| report::error(sentence)),
        }
    }

    /// The errors have been told; all that is left is to fail.
    fn end(self, summary: &Summary) -> Result<(), CliError> {
        drop(self.progress);
        if self.has_summary {
            let Summary { bytes, commands, .. } = *summary;
            let rate = bytes as f64 / self.began.elapsed().as_secs_f64().max(0.001);
            report::line(&format!("{}, {commands} commands, {}/s", pretty_size(bytes), pretty_size(rate as u64)));
        }
        if summary.errors > 0 {
            return Err(CliError::Reported { code: crate::error::FAILED });
        }
        Ok(self.written?)
    }
}
