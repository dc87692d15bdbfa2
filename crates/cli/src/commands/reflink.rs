//! `butterfs reflink`: the grammar of btrfs-progs' `reflink clone`, and ranges.
//!
//! On a mount the kernel does it (`copy_file_range`), because it knows what it has cached and how long files are; what
//! it would have to copy is refused before.

use super::{Run, subcommands};
use crate::args;
use crate::error::{CliError, os_message};
use crate::open_filesystem::{ImageArgument, Intent, OpenFilesystem, about, parent_and_name};
use butterfs_control::{MayShare, question};
use butterfs_fs::Filesystem;
use clap::Subcommand;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

subcommands! {
    /// Copy by sharing: files with the same extents, until one of them is written
    Group {
        Clone(CloneArgs),
        Range(RangeArgs),
    }
}

/// Make a file a copy of another one
#[derive(clap::Args, Clone, Debug)]
pub struct CloneArgs {
    #[command(flatten)]
    image: ImageArgument,
    /// The file to copy
    source: PathBuf,
    /// The copy; created if it does not exist
    target: PathBuf,
}

impl Run for CloneArgs {
    fn run(self, _: &mut dyn Write) -> Result<(), CliError> {
        Sharing { image: self.image, source: self.source, target: self.target, range: None }.run()
    }
}

/// Let a range of a file share the extents of another range, of the same or another file
#[derive(clap::Args, Clone, Debug)]
pub struct RangeArgs {
    #[command(flatten)]
    image: ImageArgument,
    /// Offset of the range in SOURCE
    #[arg(short = 's', long, value_name = "BYTES", value_parser = args::size, default_value = "0")]
    source_offset: u64,
    /// Offset of the range in TARGET
    #[arg(short = 't', long, value_name = "BYTES", value_parser = args::size, default_value = "0")]
    target_offset: u64,
    /// Its length; 0 means up to the end of SOURCE
    #[arg(short = 'l', long, value_name = "BYTES", value_parser = args::size, default_value = "0")]
    length: u64,
    /// The file to copy from
    source: PathBuf,
    /// The file to copy to; made where it does not exist
    target: PathBuf,
}

impl Run for RangeArgs {
    fn run(self, _: &mut dyn Write) -> Result<(), CliError> {
        let range = Some((self.source_offset, self.target_offset, self.length));
        Sharing { image: self.image, source: self.source, target: self.target, range }.run()
    }
}

/// The work of both commands; a clone of a whole file also cuts the target to its length.
struct Sharing {
    image: ImageArgument,
    source: PathBuf,
    target: PathBuf,
    range: Option<(u64, u64, u64)>,
}

impl Sharing {
    fn run(self) -> Result<(), CliError> {
        match self.image.open(&self.source, Intent::Change)? {
            OpenFilesystem::Image(filesystem) => self.in_image(filesystem),
            mount => self.on_mount(mount),
        }
    }

    fn what(&self) -> String {
        format!("cannot clone '{}' to '{}'", self.source.display(), self.target.display())
    }

    fn failed(&self, why: &str) -> CliError {
        CliError::failed(format!("{}: {why}", self.what()))
    }

    fn in_image(&self, filesystem: Filesystem) -> Result<(), CliError> {
        let opened = OpenFilesystem::Image(filesystem.clone());
        let id = |path: &Path| opened.id_in_image(path);
        let (source, into) = (id(&self.source)?, id(&self.target)?);
        let (from, to, len) = self.range.unwrap_or_default();
        let refused = |error: butterfs_fs::Error| self.failed(&error.to_string());
        filesystem.clone_range((source, from), (into, to), len).map_err(refused)?;
        drop(opened);
        Ok(filesystem.shutdown()?)
    }

    fn on_mount(&self, mut mount: OpenFilesystem) -> Result<(), CliError> {
        let failed = |error: std::io::Error| self.failed(&os_message(&error));
        let source = without_waiting().read(true).open(&self.source).map_err(failed)?;
        if mount.is_directory(&self.target)?.is_none() {
            // Before something is made where it cannot be a clone.
            mount.object(&parent_and_name(&self.target)?.0)?;
        }
        let (target, is_new) = open_or_make(&self.target).map_err(failed)?;
        let cloned = self.clone_into(&mut mount, &source, &target);
        if cloned.is_err() && is_new {
            self.remove_new(&target);
        }
        cloned
    }

    fn clone_into(&self, mount: &mut OpenFilesystem, source: &File, target: &File) -> Result<(), CliError> {
        let failed = |error: std::io::Error| self.failed(&os_message(&error));
        let objects = [mount.object_of(&self.source, source)?, mount.object_of(&self.target, target)?];
        let [from, into] = &objects;
        let asking = about([from, into], |[source, into]| question::AskToShare { source, into });
        if mount.ask_one(&self.what(), asking)? == MayShare(false) {
            return Err(self.failed("one of them has checksums, the other one has none"));
        }
        let size = source.metadata().map_err(failed)?.len();
        let (from, to, len) = self.range.unwrap_or_default();
        let len = if len == 0 { size.saturating_sub(from) } else { len };
        let target_size = target.metadata().map_err(failed)?.len();
        let ends_both = from + len == size && (to + len >= target_size || self.range.is_none());
        let whole = |position: u64| position.is_multiple_of(4096);
        if from + len > size || !whole(from) || !whole(to) || !(whole(len) || ends_both) {
            return Err(self.failed("ranges are whole sectors, up to the end of the source"));
        }
        share(source, from, target, to, len).map_err(failed)?;
        if self.range.is_none() && target_size > size {
            target.set_len(size).map_err(failed)?;
        }
        Ok(())
    }

    /// Nothing is left of a clone that failed, unless somebody has put something else there.
    fn remove_new(&self, made: &File) {
        let number = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        let (made, there) = (made.metadata().map(number), std::fs::symlink_metadata(&self.target).map(number));
        if made.is_ok_and(|made| there.is_ok_and(|there| there == made)) {
            // The clone's own error is the one that counts.
            let _ = std::fs::remove_file(&self.target);
        }
    }
}

/// Opens no FIFO that somebody has put there to make others wait.
fn without_waiting() -> OpenOptions {
    let mut options = File::options();
    options.custom_flags(libc::O_NONBLOCK);
    options
}

/// Opens a file for writing; the flag says that it was made.
fn open_or_make(path: &Path) -> std::io::Result<(File, bool)> {
    let open = || without_waiting().write(true).open(path).map(|file| (file, false));
    match open() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let made = File::options().write(true).create_new(true).open(path).map(|file| (file, true));
            made.or_else(|error| if error.kind() == std::io::ErrorKind::AlreadyExists { open() } else { Err(error) })
        }
        outcome => outcome,
    }
}

fn share(source: &File, mut from: u64, target: &File, mut to: u64, mut len: u64) -> std::io::Result<()> {
    while len > 0 {
        let most = len.min(1 << 30) as usize;
        let copied = rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), most)?;
        if copied == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        len -= copied as u64;
    }
    Ok(())
}
