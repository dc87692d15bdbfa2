//! `butterfs stream put`.

use super::place::StoreArgs;
use crate::args::pretty_size;
use crate::commands::{Run, send};
use crate::error::{CliError, os_message};
use crate::open_filesystem::{ImageArgument, Intent};
use crate::progress::{Progress, Unit};
use crate::report;
use butterfs_control::SendStatus;
use butterfs_fs::Errno;
use butterfs_objects::{Options, Put, Repository};
use butterfs_send::apply::{self, Failure, Outcome, Section, StreamTarget};
use butterfs_send::wire::Command;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

const AFTER_HELP: &str = "\
URL is s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or a folder. Credentials come from the usual \
environment variables (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS, \
AZURE_STORAGE_ACCOUNT_NAME and so on) and from the profiles of AWS.

Content that any snapshot in the store has already is not sent again. A put that was interrupted continues when it is \
run again: what the store has acknowledged is not sent again. A snapshot appears in the store when all of it is there.

Of a snapshot on the kernel's btrfs, put the stream: btrfs send SNAPSHOT | butterfs stream put - URL

Memory does not depend on the size of the snapshots but for 8 bytes for each new piece of 128 KiB; about 250 MiB. \
Local files without names in TMPDIR take 100 bytes for each new piece and the changed parts of the index.";

/// Put snapshots into an object store
///
/// The first snapshot is put as a difference from PARENT, or in full, each further one as a difference from the one
/// before it.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// A snapshot that the store has and that the first snapshot is made from
    #[arg(short, long, value_name = "PARENT")]
    parent: Option<PathBuf>,
    /// Put each snapshot in full; content that the store has is not sent again all the same
    #[arg(long, conflicts_with = "parent")]
    full: bool,
    /// The zstd level, 0 for no compression
    #[arg(long, value_name = "LEVEL", default_value_t = 3, value_parser = clap::value_parser!(i32).range(0..=19))]
    level: i32,
    /// Encrypt a new store for this age recipient; can be given several times
    #[arg(long, value_name = "RECIPIENT")]
    encrypt_to: Vec<String>,
    /// Print only errors
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    image: ImageArgument,
    #[command(flatten)]
    store: StoreArgs,
    /// The snapshots, read-only; '-' reads streams from standard input
    #[arg(required = true, value_name = "SNAPSHOT")]
    snapshots: Vec<PathBuf>,
    /// The store
    #[arg(value_name = "URL")]
    url: String,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let is_stream = self.snapshots == [Path::new("-")];
        if !is_stream {
            self.snapshots.iter().try_for_each(|snapshot| self.image.open(snapshot, Intent::Look)?.close())?;
        }
        let mut put = Late { args: &self, begun: None, refused: None };
        if is_stream {
            self.stdin(&mut put)?;
        } else {
            let mut parent = self.parent.as_deref();
            for snapshot in &self.snapshots {
                self.one(&mut put, snapshot, parent)?;
                parent = Some(snapshot.as_path()).filter(|_| !self.full);
            }
        }
        match put.begun {
            Some((repository, put)) => self.end(put, &repository, out),
            None => Ok(()),
        }
    }
}

/// A put that begins with its first section: no store is made for what cannot be put.
struct Late<'a> {
    args: &'a Args,
    begun: Option<(Repository, Put)>,
    /// The reason why it did not begin.
    refused: Option<CliError>,
}

impl Late<'_> {
    fn put(&mut self) -> Result<&mut Put, Failure> {
        let none = || Failure::new(Errno::EINVAL, "no subvolume was begun");
        self.begun.as_mut().map(|(_, put)| put).ok_or_else(none)
    }
}

impl StreamTarget for Late<'_> {
    fn begin(&mut self, section: &Section<'_>) -> Outcome {
        if self.begun.is_none() {
            match self.args.begin(section.parent.is_some()) {
                Ok(begun) => self.begun = Some(begun),
                Err(error) => {
                    self.refused = Some(error);
                    return Err(Failure::new(Errno::EIO, "the store cannot be opened"));
                }
            }
        }
        self.put()?.begin(section)
    }

    fn notices(&mut self) -> Vec<String> {
        self.put().map(StreamTarget::notices).unwrap_or_default()
    }

    fn command(&mut self, command: &Command<'_>) -> Outcome {
        self.put()?.command(command)
    }

    fn finish(&mut self) -> Outcome {
        self.put()?.finish()
    }

    fn abandon(&mut self) {
        self.put().into_iter().for_each(StreamTarget::abandon);
    }

    fn sync(&mut self) -> Outcome {
        self.put().map_or(Ok(()), StreamTarget::sync)
    }
}

impl Args {
    fn progress(&self, unit: Unit) -> Progress {
        if self.quiet { Progress::none() } else { Progress::new("put", unit) }
    }

    /// Opens or makes the store; a snapshot that is made from another one needs a store that has that.
    fn begin(&self, is_difference: bool) -> Result<(Repository, Put), CliError> {
        if is_difference {
            self.store.refuse_missing(&self.url)?;
        }
        let repository = self.store.open_or_make(&self.url, &self.encrypt_to)?;
        let now = jiff::Timestamp::now().as_second();
        let options = Options { level: self.level, scratch: std::env::temp_dir(), now };
        let put = Put::new(&repository, options)?;
        Ok((repository, put))
    }

    fn stdin(&self, put: &mut Late<'_>) -> Result<(), CliError> {
        let failed = |error| CliError::failed(format!("cannot read standard input: {}", os_message(&error)));
        let input = File::from(rustix::stdio::stdin().try_clone_to_owned().map_err(failed)?);
        let mut progress = self.progress(Unit::Bytes);
        receive(input, put, &mut |bytes| progress.at(bytes, None))?;
        put.refused.take().map_or(Ok(()), Err)
    }

    /// Puts what another thread sends.
    fn one(&self, put: &mut Late<'_>, snapshot: &Path, parent: Option<&Path>) -> Result<(), CliError> {
        let mut opened = self.image.open(snapshot, Intent::Look)?;
        let mut progress = self.progress(Unit::Permille);
        let mut tell = |status: SendStatus| {
            if let SendStatus::Progress { permille, .. } = status {
                progress.at(permille.min(1000).into(), Some(1000));
            }
        };
        let take = |stream: &mut dyn Read| receive(stream, put, &mut |_| {});
        let (putted, sent) = send::one(&mut opened, snapshot, parent, take, &mut tell)?;
        drop(progress);
        if let Some(refused) = put.refused.take() {
            return Err(refused);
        }
        match (putted, sent) {
            // A put that fails reads no further, so the send fails too. A send that fails cuts the put's stream.
            (Err(error), Ok(_)) => Err(error),
            (Ok(()), Err(error)) => Err(error),
            (Err(put), Err(send)) => Err(if is_cut(&put) { send } else { put }),
            (Ok(()), Ok(_)) => opened.close(),
        }
    }

    fn end(&self, put: Put, repository: &Repository, out: &mut dyn Write) -> Result<(), CliError> {
        for (manifest, sent) in put.end()? {
            if self.quiet {
                continue;
            }
            let of = format!("{} of files", pretty_size(manifest.bytes));
            let name = &manifest.name;
            if sent == Default::default() {
                writeln!(out, "{name}: {} has it already", repository.store().shown(""))?;
            } else {
                writeln!(out, "{name}: {of}, {} sent in {} segments", pretty_size(sent.bytes), sent.segments)?;
            }
        }
        Ok(())
    }
}

/// Whether a stream has ended too early.
fn is_cut(error: &CliError) -> bool {
    matches!(error, CliError::Failed { sentence, .. } if sentence.contains("stream") && !sentence.contains("failed"))
}

/// Puts streams; the first error ends it.
fn receive(input: impl Read, put: &mut Late<'_>, at: &mut dyn FnMut(u64)) -> Result<(), CliError> {
    struct First<'a> {
        error: Option<String>,
        at: &'a mut dyn FnMut(u64),
        commands: u64,
    }
    impl apply::Observer for First<'_> {
        fn command(&mut self, _: &butterfs_send::wire::Command<'_>, offset: u64) {
            self.commands += 1;
            if self.commands.is_multiple_of(256) {
                (self.at)(offset);
            }
        }
        fn notice(&mut self, sentence: &str) {
            report::warn(sentence);
        }
        fn error(&mut self, error: &apply::Error) {
            self.error.get_or_insert_with(|| error.to_string());
        }
    }
    let mut first = First { error: None, at, commands: 0 };
    let summary = apply::receive(input, put, &apply::Options::default(), &mut first);
    match first.error {
        // Its reason is better than that of the command.
        Some(_) if put.refused.is_some() => Ok(()),
        None if summary.errors == 0 => Ok(()),
        error => Err(CliError::failed(error.unwrap_or_else(|| "the stream has errors".to_owned()))),
    }
}
