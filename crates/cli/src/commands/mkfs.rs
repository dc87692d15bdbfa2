//! `butterfs mkfs`, also called as `mkfs.butterfs`.

mod caller;
mod content;
mod format;
mod summary;

pub use format::{FormatArgs, parse_uuid};

use super::Run;
use crate::args;
use crate::error::CliError;
use crate::report;
use butterfs_device::{BlockDevice, FileDevice, OpenErrorKind, WindowDevice};
use butterfs_fs::mkfs::{FEATURES, MkfsOptions, MkfsReport, mkfs};
use butterfs_fs::{Env, Errno, Error};
use butterfs_image::Partitions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  butterfs mkfs -b 1G disk.img          a new file
  butterfs mkfs -L backup /dev/sdb1     a partition
  butterfs mkfs -M -b 32M small.img     as small as is sensible
  butterfs mkfs -d raid1 /dev/sdb /dev/sdc
                                        everything twice, on two devices";

/// Make a btrfs filesystem on devices or in files.
///
/// A file that does not exist is created, sparse, when --byte-count is given. A device or file on which a filesystem,
/// a partition table or the like is recognised is left alone unless --force is given.
///
/// The filesystem is the one that mkfs.btrfs makes by default: metadata twice (DUP, on several devices RAID1), data
/// once (single), nodes of 16 KiB, crc32c, and the features extref, skinny-metadata, no-holes, free-space-tree and
/// block-group-tree.
#[derive(clap::Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Bytes of each device to use; a file that does not exist is created with this size
    #[arg(short, long, value_name = "SIZE", value_parser = args::size)]
    byte_count: Option<u64>,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    content: content::ContentArgs,
    /// UUID of the device, if it is the only one
    #[arg(long, value_parser = parse_uuid)]
    device_uuid: Option<[u8; 16]>,
    /// The filesystem begins at this byte of the device or file, and ends with the partition that begins there, or
    /// after --byte-count
    #[arg(long, value_name = "BYTES", value_parser = args::size, default_value = "0")]
    offset: u64,
    /// Overwrite a filesystem or other content that is recognised on the device
    #[arg(short, long)]
    force: bool,
    /// Do not discard the old content of the device first
    #[arg(short = 'K', long)]
    nodiscard: bool,
    /// Say nothing unless something fails
    #[arg(short, long)]
    quiet: bool,
    /// Also list the chunks and where they lie
    #[arg(short, long)]
    verbose: bool,
    /// Devices or files
    #[arg(value_name = "DEVICE")]
    devices: Vec<PathBuf>,
}

/// Make a btrfs filesystem on devices or in files.
#[derive(clap::Parser, Debug)]
#[command(name = "mkfs.butterfs", version, max_term_width = 100)]
pub struct Standalone {
    #[command(flatten)]
    pub args: Args,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        if self.format.lists().any(|list| list == "list-all") {
            return Ok(list_features(out)?);
        }
        let options = self.options()?;
        options.settings(self.devices.len().max(1)).map_err(|error| CliError::usage(error.to_string()))?;
        let made = if self.content.is_asked_for() { self.fill(&options)? } else { self.make(&options)? };
        for warning in &made.warnings {
            report::warn(warning);
        }
        if !self.quiet {
            summary::print(&made, self.verbose, out)?;
        }
        Ok(())
    }
}

impl Args {
    fn options(&self) -> Result<MkfsOptions, CliError> {
        Ok(MkfsOptions {
            byte_count: self.byte_count,
            force: self.force,
            keep_old_blocks: self.nodiscard,
            device_uuid: self.device_uuid,
            ..self.format.options()?
        })
    }

    /// Opens the devices, or creates the file, and makes the filesystem. A file that was created for nothing is
    /// removed.
    fn make(&self, options: &MkfsOptions) -> Result<MkfsReport, CliError> {
        if self.devices.is_empty() {
            return Err(CliError::usage("no device or file is given").hint("see 'butterfs mkfs --help'"));
        }
        let mut devices: Vec<Arc<dyn BlockDevice>> = Vec::new();
        let mut created: Vec<&Path> = Vec::new();
        for path in &self.devices {
            let (device, is_new) = self.open(path)?;
            devices.push(self.part(device)?);
            created.extend(is_new.then_some(path.as_path()));
        }
        mkfs(&devices, options, &Env::system()).map_err(|error| {
            for path in created {
                // The reason for which we are here matters more than a file that stays behind.
                let _ = std::fs::remove_file(path);
            }
            with_hint(error)
        })
    }

    /// The part of the device that `--offset` and `--byte-count` mean: nothing else may change.
    fn part(&self, device: FileDevice) -> Result<Arc<dyn BlockDevice>, CliError> {
        if self.offset == 0 {
            return Ok(Arc::new(device));
        }
        let (name, len, offset) = (device.name(), device.len(), self.offset);
        if !offset.is_multiple_of(4096) || offset >= len {
            return Err(CliError::usage(format!("the offset {offset} is no multiple of 4096 inside of {name}")));
        }
        let range = offset..self.end(&device)?;
        let part = WindowDevice::new(Arc::new(device), range);
        Ok(Arc::new(part.map_err(|error| CliError::failed(format!("cannot open {name}: {error}")))?))
    }

    /// The end of that part: where the size ends, or the partition that begins at the offset, or a device without
    /// partitions. Other partitions, and the table of them, are left alone unless that is forced.
    fn end(&self, device: &FileDevice) -> Result<u64, CliError> {
        let (name, len, offset) = (device.name(), device.len(), self.offset);
        let asked = self.byte_count.map(|bytes| offset.saturating_add(bytes));
        if asked.is_some_and(|end| end > len) {
            let sentence = format!("{name} has {len} bytes, which is less than the offset and the size together");
            return Err(CliError::failed(sentence));
        }
        let Some(partitions) = Partitions::of(device)? else { return Ok(asked.unwrap_or(len)) };
        match (asked, partitions.beginning_at(offset)) {
            (Some(end), _) if self.force || partitions.are_of_one(&(offset..end)) => Ok(end),
            (Some(end), _) => {
                let sentence = format!("bytes {offset} to {end} of {name} do not lie in one partition");
                Err(CliError::failed(sentence).hint("use --force to overwrite what is there"))
            }
            (None, Some(partition)) => Ok(partition.end),
            (None, None) => Err(CliError::failed(format!("no partition of {name} begins at byte {offset}"))
                .hint("with --byte-count SIZE a part of it is used")),
        }
    }

    /// The device, and whether it is a file that did not exist.
    fn open(&self, path: &Path) -> Result<(FileDevice, bool), CliError> {
        let error = match caller::open(path) {
            Ok(device) => return Ok((device, false)),
            Err(error) => error,
        };
        match (&error.kind, self.byte_count) {
            (OpenErrorKind::NotFound, Some(bytes)) => Ok((create(path, bytes.saturating_add(self.offset))?, true)),
            (OpenErrorKind::NotFound, None) => {
                Err(CliError::from(error).hint("with --byte-count SIZE the file is created"))
            }
            _ => Err(error.into()),
        }
    }
}

fn create(path: &Path, bytes: u64) -> Result<FileDevice, CliError> {
    FileDevice::create(path, bytes).map_err(|error| match error.kind {
        OpenErrorKind::NotFound => {
            CliError::failed(format!("cannot create {}: its folder does not exist", path.display()))
        }
        _ => error.into(),
    })
}

fn with_hint(error: Error) -> CliError {
    let hint = match error.errno() {
        Errno::EEXIST => Some("use --force to overwrite it"),
        Errno::ENOSPC => Some("with --metadata single or --mixed, smaller filesystems are possible"),
        _ => None,
    };
    hint.into_iter().fold(CliError::from(error), |error, hint| error.hint(hint))
}

fn list_features(out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(out, "Filesystem features available:")?;
    for feature in &FEATURES {
        writeln!(out, "{:<19} - {} ({})", feature.name, feature.description, feature.since)?;
    }
    Ok(())
}
