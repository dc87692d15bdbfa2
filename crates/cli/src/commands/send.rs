//! `butterfs send`.

use super::Run;
use crate::error::CliError;
use crate::open_filesystem::{Asking, ImageArgument, Intent, Named, OpenFilesystem, about};
use crate::progress::{Progress, Unit};
use butterfs_control::question::{GetReadOnly, SendSubvolumes, SentContents, SentStreams};
use butterfs_control::{InodeRef, ReadOnly, Refusal, SendStatus, SendSummary};
use butterfs_send::wire::Version;
use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

const MEMORY: &str = "Memory: about 40 MiB for buffers and caches, 16 MiB more for each clone source, and for each \
    file or directory that was renamed, moved or deleted 150 bytes and its names, for each new or changed directory \
    300 bytes and its path. Nothing for new files, for files changed in place, and for what is not changed. The engine \
    that reads an image or serves a mount caches blocks besides, at most 256 MiB.";

/// Send subvolumes as streams for `butterfs receive` and `btrfs receive`
///
/// The subvolumes are read-only snapshots. With a parent, a snapshot that the receiver has, only the difference is
/// sent. Without one, but with clone sources, the parent is chosen among those.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = MEMORY)]
pub struct Args {
    /// The snapshot that the receiver has and that the subvolumes are made from
    #[arg(short, value_name = "PARENT")]
    parent: Option<PathBuf>,
    /// A snapshot that the receiver has and that content can be shared with; can be given several times
    #[arg(short, value_name = "CLONE_SRC")]
    clone_sources: Vec<PathBuf>,
    /// Make one stream with a single end of several subvolumes
    #[arg(short = 'e')]
    one_stream: bool,
    /// Write the stream to a file instead of standard output
    #[arg(short = 'f', value_name = "FILE")]
    file: Option<PathBuf>,
    /// Say only that content changed, and leave it out
    #[arg(long)]
    no_data: bool,
    /// Version of the stream, 1 unless said otherwise; 0 for the highest that btrfs-progs reads, 2
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=3))]
    proto: Option<u8>,
    /// Send compressed content as it is; with version 2, which this implies
    #[arg(long)]
    compressed_data: bool,
    /// Print only errors
    #[arg(short, long)]
    quiet: bool,
    /// Print more
    #[arg(short, long, conflicts_with = "quiet")]
    verbose: bool,
    #[command(flatten)]
    image: ImageArgument,
    /// The subvolumes
    #[arg(required = true, value_name = "SUBVOL")]
    subvolumes: Vec<PathBuf>,
}

impl Run for Args {
    fn run(self, _out: &mut dyn Write) -> Result<(), CliError> {
        let version = self.version()?;
        if self.file.is_none() && std::io::stdout().is_terminal() {
            return Err(CliError::failed("not dumping send stream into a terminal, redirect it into a file")
                .hint("-f FILE writes it to a file"));
        }
        let mut opened = self.image.open(&self.subvolumes[0], Intent::Look)?;
        let asking = self.asking(&mut opened, version)?;
        if self.verbose {
            eprintln!("Protocol version requested: {} (supported 3)", version.raw());
            if self.no_data {
                eprintln!("Mode NO_FILE_DATA enabled");
            }
        }
        let sink = self.sink()?;
        let mut display = Display::new(&self);
        let answer = match opened.takes(&sink) {
            true => opened.ask_stream(asking, sink, &mut |report| display.report(report))?,
            false => through_pipe(&mut opened, asking, sink, &mut display)?,
        };
        let summary = answer.map_err(|refusal| CliError::failed(refusal.sentence))?;
        display.end(summary, self.verbose);
        opened.close()
    }
}

/// Sends one subvolume, all of what the filesystem's version of streams can say, in a thread of its own, while `take`
/// reads the stream. Returns both outcomes.
pub fn one<T>(
    opened: &mut OpenFilesystem,
    subvolume: &Path,
    parent: Option<&Path>,
    take: impl FnOnce(&mut dyn Read) -> T,
    tell: &mut (dyn FnMut(SendStatus) + Send),
) -> Result<(T, Result<SendSummary, CliError>), CliError> {
    let mut named = Named::default();
    let question = SendSubvolumes {
        version: Version::V2.raw(),
        contents: SentContents::Plain,
        streams: SentStreams::Separate,
        parent: parent.map(|parent| self::subvolume(opened, &mut named, parent, "parent subvolume")).transpose()?,
        clone_sources: Vec::new(),
        subvolumes: vec![self::subvolume(opened, &mut named, subvolume, "subvolume")?],
    };
    let (taken, answer) = opened.send_to(named.asking(question), take, tell)?;
    let refused = |refusal: Refusal| CliError::failed(refusal.sentence);
    Ok((taken, answer.and_then(|answer| answer.map_err(refused))))
}

/// For a stream that this process writes.
fn through_pipe(
    opened: &mut OpenFilesystem,
    asking: Asking<SendSubvolumes>,
    sink: OwnedFd,
    display: &mut Display<'_>,
) -> Result<Result<SendSummary, Refusal>, CliError> {
    let cannot = |error: std::io::Error| CliError::failed(format!("cannot write the stream: {error}"));
    let (mut reader, writer) = std::io::pipe().map_err(cannot)?;
    let copier = std::thread::spawn(move || std::io::copy(&mut reader, &mut File::from(sink)));
    let answer = opened.ask_stream(asking, writer.into(), &mut |report| display.report(report));
    let copied = copier.join().unwrap_or_else(|_| Err(std::io::Error::other("the copying thread panicked")));
    let answer = answer?;
    copied.map_err(cannot)?;
    Ok(answer)
}

impl Args {
    fn version(&self) -> Result<Version, CliError> {
        let asked = match self.proto {
            None if self.compressed_data => 2,
            None => 1,
            Some(0) => 2,
            Some(version) => version,
        };
        if self.compressed_data && asked < 2 {
            let sentence = format!("--compressed-data requires protocol version >= 2 (requested {asked})");
            return Err(CliError::failed(sentence));
        }
        Version::from_raw(asked.into()).ok_or_else(|| CliError::usage(format!("version {asked} is not known")))
    }

    fn sink(&self) -> Result<OwnedFd, CliError> {
        let opened = match &self.file {
            Some(path) => {
                let cannot = |error| CliError::failed(format!("cannot create '{}': {error}", path.display()));
                // It contains what only the owners of the files may read.
                let opened = File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
                return opened.map(OwnedFd::from).map_err(cannot);
            }
            None => std::io::stdout().as_fd().try_clone_to_owned(),
        };
        opened.map_err(CliError::from)
    }

    fn asking(&self, opened: &mut OpenFilesystem, version: Version) -> Result<Asking<SendSubvolumes>, CliError> {
        let mut named = Named::default();
        let mut all = |paths: &[PathBuf], what: &str| -> Result<Vec<InodeRef>, CliError> {
            paths.iter().map(|path| subvolume(opened, &mut named, path, what)).collect()
        };
        let question = SendSubvolumes {
            version: version.raw(),
            contents: match () {
                () if self.no_data => SentContents::Omitted,
                () if self.compressed_data => SentContents::Compressed,
                () => SentContents::Plain,
            },
            streams: if self.one_stream { SentStreams::Joined } else { SentStreams::Separate },
            parent: all(self.parent.as_slice(), "parent subvolume")?.pop(),
            clone_sources: all(&self.clone_sources, "cloned subvolume")?,
            subvolumes: all(&self.subvolumes, "subvolume")?,
        };
        Ok(named.asking(question))
    }
}

/// The reference to a read-only subvolume in a question.
fn subvolume(opened: &mut OpenFilesystem, named: &mut Named, path: &Path, what: &str) -> Result<InodeRef, CliError> {
    let object = opened.object(path)?;
    let cannot = format!("cannot send '{}'", path.display());
    match opened.ask_one(&cannot, about([&object], |[subvolume]| GetReadOnly { subvolume }))? {
        ReadOnly(true) => Ok(named.reference(&object)),
        ReadOnly(false) => Err(CliError::failed(format!("{what} {} is not read-only", path.display()))),
    }
}

/// Progress on a terminal.
struct Display<'a> {
    arguments: &'a Args,
    started: Instant,
    progress: Progress,
}

impl Display<'_> {
    fn new(arguments: &Args) -> Display<'_> {
        let progress = if arguments.quiet { Progress::none() } else { Progress::new("sent", Unit::Permille) };
        Display { arguments, started: Instant::now(), progress }
    }

    fn report(&mut self, report: SendStatus) {
        match report {
            _ if self.arguments.quiet => {}
            SendStatus::Begun(number) => {
                if let Some(path) = self.arguments.subvolumes.get(number as usize) {
                    self.progress.above(|| eprintln!("At subvol {}", path.display()));
                }
            }
            SendStatus::Progress { bytes, commands, permille } => {
                let elapsed = self.started.elapsed().as_secs_f64();
                self.progress.say(format!(", {}", line(bytes, commands, elapsed)));
                self.progress.at(permille.min(1000).into(), Some(1000));
            }
        }
    }

    fn end(self, SendSummary { bytes, commands }: SendSummary, verbose: bool) {
        drop(self.progress);
        if verbose || (!self.arguments.quiet && std::io::stderr().is_terminal()) {
            eprintln!("{}", line(bytes, commands, self.started.elapsed().as_secs_f64()));
        }
    }
}

fn line(bytes: u64, commands: u64, seconds: f64) -> String {
    let rate = bytes as f64 / seconds.max(1e-6);
    format!("{} in {commands} commands, {}/s", size(bytes as f64), size(rate))
}

fn size(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = ((bytes.max(1.0).log2() / 10.0) as usize).min(units.len() - 1);
    format!("{:.*} {}", usize::from(power > 0), bytes / f64::powi(1024.0, power as i32), units[power])
}
