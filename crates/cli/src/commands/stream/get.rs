//! `butterfs stream get`.

use super::place::{StoreArgs, snapshot, snapshots};
use crate::commands::{Run, receive};
use crate::error::{CliError, os_message};
use crate::progress::{Progress, Unit};
use butterfs_objects::{Manifest, Repository, Written, stream};
use std::fs::File;
use std::io::{IsTerminal as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

const AFTER_HELP: &str = "\
Each snapshot becomes a read-only subvolume of its name, as by 'butterfs receive'. Content that it shares with its \
parent, or with the snapshot before it, is shared again where the receiver has that one from this store.

With -f the streams are written to a file, '-' for standard output, and can be received by 'btrfs receive' too.

Memory: about 100 MiB, and what 'butterfs receive' needs.";

/// Get snapshots from an object store
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Write the streams to this file instead of receiving them
    #[arg(short = 'f', long = "file", value_name = "FILE", conflicts_with_all = ["image", "into_directory"])]
    file: Option<PathBuf>,
    /// A snapshot of this store that the receiver has; content is shared with it
    #[arg(long, value_name = "SNAPSHOT")]
    have: Option<String>,
    /// Receive into this image or device, which is not mounted; PATH is the one inside it, from the top level
    #[arg(long, value_name = "IMAGE")]
    image: Option<PathBuf>,
    /// PATH is a directory of any filesystem: subvolumes become directories
    #[arg(long, conflicts_with = "image")]
    into_directory: bool,
    /// Print only errors
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    store: StoreArgs,
    /// The store
    #[arg(value_name = "URL")]
    url: String,
    /// Names or ids of snapshots, and behind them, without -f, the directory that gets the subvolumes
    #[arg(required = true, value_name = "SNAPSHOT... [PATH]")]
    arguments: Vec<String>,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let (names, path) = match (&self.file, self.arguments.split_last()) {
            (None, Some((path, names))) if !names.is_empty() => (names, Some(Path::new(path))),
            (None, _) => {
                return Err(CliError::usage("the directory that gets the subvolumes is missing")
                    .hint("butterfs stream get URL SNAPSHOT PATH, or -f FILE for a stream"));
            }
            (Some(_), _) => (&self.arguments[..], None),
        };
        let repository = self.store.open(&self.url)?;
        let manifests = snapshots(&repository, names)?;
        let have = self.have.as_ref().map(|name| snapshot(&repository, name)).transpose()?;
        let bases = bases(&manifests, have.as_ref());
        match path {
            None => self.write(&repository, &manifests, &bases),
            Some(path) => self.receive(&repository, &manifests, &bases, path, out),
        }
    }
}

/// For each snapshot the one that content is shared with.
fn bases(manifests: &[Manifest], have: Option<&Manifest>) -> Vec<Option<Manifest>> {
    let base = |number: usize| {
        let earlier = &manifests[..number];
        let parent = earlier.iter().chain(have).find(|other| Some(other.id()) == manifests[number].parent);
        parent.or(earlier.last()).or(have).cloned()
    };
    (0..manifests.len()).map(base).collect()
}

impl Args {
    fn progress(&self) -> Progress {
        if self.quiet { Progress::none() } else { Progress::new("got", Unit::Bytes) }
    }

    /// Writes the streams one after the other.
    fn streams(
        &self,
        repository: &Repository,
        manifests: &[Manifest],
        bases: &[Option<Manifest>],
        out: &mut (dyn Write + Send),
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<(), CliError> {
        let total = manifests.iter().map(|manifest| manifest.bytes).sum();
        let mut before = 0;
        for (manifest, base) in manifests.iter().zip(bases) {
            let mut at = |written: Written| progress(before + written.content, total);
            before += stream(repository, manifest, base.as_ref(), out, &mut at)?.content;
        }
        Ok(())
    }

    fn write(
        &self,
        repository: &Repository,
        manifests: &[Manifest],
        bases: &[Option<Manifest>],
    ) -> Result<(), CliError> {
        let path = self.file.as_deref().unwrap_or(Path::new("-"));
        let cannot = |error| CliError::failed(format!("cannot create '{}': {}", path.display(), os_message(&error)));
        let mut file = if path == Path::new("-") {
            if std::io::stdout().is_terminal() {
                return Err(
                    CliError::failed("a stream is not written to a terminal").hint("-f FILE writes it to a file")
                );
            }
            File::from(rustix::stdio::stdout().try_clone_to_owned().map_err(CliError::from)?)
        } else {
            // It contains what only the owners of the files may read.
            File::options().write(true).create(true).truncate(true).mode(0o600).open(path).map_err(cannot)?
        };
        let mut progress = self.progress();
        self.streams(repository, manifests, bases, &mut file, &mut |at, total| {
            progress.at(at.min(total), Some(total))
        })?;
        if path != Path::new("-") {
            file.sync_all().map_err(cannot)?;
        }
        Ok(())
    }

    /// Makes the streams in a thread of its own, and receives them.
    fn receive(
        &self,
        repository: &Repository,
        manifests: &[Manifest],
        bases: &[Option<Manifest>],
        path: &Path,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        let cannot = |error: std::io::Error| CliError::failed(format!("cannot make a pipe: {}", os_message(&error)));
        let (reader, mut writer) = std::io::pipe().map_err(cannot)?;
        let receiving =
            receive::Args::of_stream(self.image.clone(), self.into_directory, path.to_path_buf(), self.quiet);
        let reader = File::from(std::os::fd::OwnedFd::from(reader));
        std::thread::scope(|scope| {
            let making = scope.spawn(move || self.streams(repository, manifests, bases, &mut writer, &mut |_, _| {}));
            let received = receiving.take(reader, out);
            match making.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
                // A receiver that failed has told why; then nobody read the rest.
                Err(error) if received.is_ok() || !is_cut_off(&error) => Err(error),
                _ => received,
            }
        })
    }
}

fn is_cut_off(error: &CliError) -> bool {
    matches!(error, CliError::BrokenPipe)
}
