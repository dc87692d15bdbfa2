//! `butterfs send`.

use super::Run;
use crate::error::CliError;
use crate::target::{ImageArgument, Intent, Target};
use butterfs_fs::TreeId;
use butterfs_send::generate::{self, Job, Options, Progress};
use butterfs_send::wire::Version;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MEMORY: &str = "Memory: about 40 MiB at most, and for each file or directory that was renamed, moved or deleted \
    60 bytes and its name, for each new or changed directory about 300 bytes and twice its path. Nothing for new \
    files, for files changed in place, and for what is not changed.";

/// Send subvolumes as streams that `butterfs receive` and `btrfs receive` make them out of
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
    /// Version of the stream; 0 for the highest that every btrfs-progs of today reads
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
        let target = self.image.target(&self.subvolumes[0], Intent::Look)?;
        let job = self.job(&target, version)?;
        if self.verbose {
            eprintln!("Protocol version requested: {} (supported 3)", version.raw());
            if self.no_data {
                eprintln!("Mode NO_FILE_DATA enabled");
            }
        }
        let mut sink: Box<dyn Write + Send> = match &self.file {
            Some(path) => {
                let file = File::create(path);
                Box::new(
                    file.map_err(|error| CliError::failed(format!("cannot create '{}': {error}", path.display())))?,
                )
            }
            None => Box::new(std::io::stdout()),
        };
        let mut display = Display::new(self.quiet);
        let progress = match &target {
            Target::Image(filesystem) => {
                let mut begun = |number: usize| self.say_begun(number);
                generate::run(filesystem, &job, &mut *sink, &mut |progress| display.show(progress), &mut begun)
                    .map_err(failure)?
            }
            Target::Mount(_) => return Err(CliError::failed("not supported on a mount yet")),
        };
        display.end(&progress, self.verbose);
        target.close()
    }
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

    fn job(&self, target: &Target, version: Version) -> Result<Job, CliError> {
        let all = |paths: &[PathBuf]| paths.iter().map(|path| subvolume(target, path)).collect::<Result<Vec<_>, _>>();
        Ok(Job {
            subvolumes: all(&self.subvolumes)?,
            parent: self.parent.as_deref().map(|path| subvolume(target, path)).transpose()?,
            clone_sources: all(&self.clone_sources)?,
            one_stream: self.one_stream,
            version,
            options: Options { no_data: self.no_data, compressed_data: self.compressed_data, ..Options::default() },
        })
    }

    fn say_begun(&self, number: usize) {
        if let Some(path) = self.subvolumes.get(number).filter(|_| !self.quiet) {
            eprintln!("At subvol {}", path.display());
        }
    }
}

/// The subvolume that a path leads to.
fn subvolume(target: &Target, path: &Path) -> Result<TreeId, CliError> {
    let word = target.inode(path)?;
    let text = String::from_utf8_lossy(&word);
    let found = text.split_once(':').filter(|(_, ino)| *ino == "256").and_then(|(tree, _)| tree.parse().ok());
    found.map(TreeId).ok_or_else(|| CliError::failed(format!("'{}' is not a subvolume", path.display())))
}

fn failure(error: generate::Error) -> CliError {
    match error {
        generate::Error::Output(error) => CliError::failed(format!("cannot write the stream: {error}")),
        other => CliError::failed(other.to_string()),
    }
}

/// Progress on a terminal.
struct Display {
    started: Instant,
    shown: Option<Instant>,
    wanted: bool,
}

const INTERVAL: Duration = Duration::from_millis(250);

impl Display {
    fn new(quiet: bool) -> Display {
        Display { started: Instant::now(), shown: None, wanted: !quiet && std::io::stderr().is_terminal() }
    }

    fn show(&mut self, progress: &Progress) -> bool {
        let now = Instant::now();
        if self.wanted && self.shown.unwrap_or(self.started) + INTERVAL <= now {
            self.shown = Some(now);
            let elapsed = (now - self.started).as_secs_f64();
            let left = match progress.permille {
                0 => String::new(),
                permille => format!(", about {:.0} s left", elapsed * f64::from(1000 - permille) / f64::from(permille)),
            };
            eprint!("\r{}{left}\x1b[K", line(progress, elapsed));
        }
        true
    }

    fn end(&self, progress: &Progress, verbose: bool) {
        if self.shown.is_some() {
            eprint!("\r\x1b[K");
        }
        if verbose || self.shown.is_some() {
            eprintln!("{}", line(progress, self.started.elapsed().as_secs_f64()));
        }
    }
}

fn line(progress: &Progress, seconds: f64) -> String {
    let rate = progress.bytes as f64 / seconds.max(1e-6);
    format!("{} in {} commands, {}/s", size(progress.bytes as f64), progress.commands, size(rate))
}

fn size(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = ((bytes.max(1.0).log2() / 10.0) as usize).min(units.len() - 1);
    format!("{:.*} {}", usize::from(power > 0), bytes / f64::powi(1024.0, power as i32), units[power])
}
