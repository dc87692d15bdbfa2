//! `butterfs mkfs`, also called as `mkfs.butterfs`.

mod summary;

use super::Run;
use crate::args;
use crate::error::CliError;
use crate::report;
use butterfs_device::{BlockDevice, FileDevice, FileOptions, OpenErrorKind};
use butterfs_fs::mkfs::{FEATURES, FeatureChoice, MkfsOptions, MkfsReport, mkfs};
use butterfs_fs::{Env, Errno, Error};
use butterfs_ondisk::ChecksumKind;
use butterfs_ondisk::profile::Profile;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
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
    /// Label of the filesystem, at most 255 bytes
    #[arg(short = 'L', long)]
    label: Option<std::ffi::OsString>,
    /// UUID of the filesystem instead of a random one
    #[arg(short = 'U', long, value_parser = parse_uuid)]
    uuid: Option<[u8; 16]>,
    /// Bytes of each device to use; a file that does not exist is created with this size
    #[arg(short, long, value_name = "SIZE", value_parser = args::size)]
    byte_count: Option<u64>,
    /// Profile of metadata: single, dup (default), raid0, raid1 (default on several devices), raid1c3, raid1c4 or
    /// raid10
    #[arg(short, long, value_name = "PROFILE", value_parser = parse_profile)]
    metadata: Option<&'static Profile>,
    /// Profile of data: single (default), dup, raid0, raid1, raid1c3, raid1c4 or raid10
    #[arg(short, long, value_name = "PROFILE", value_parser = parse_profile)]
    data: Option<&'static Profile>,
    /// Mix data and metadata in the same block groups, for small devices
    #[arg(short = 'M', long)]
    mixed: bool,
    /// Size of a tree block: 4k, 8k, 16k (default), 32k or 64k
    #[arg(short, long, value_name = "SIZE", value_parser = parse_block_size)]
    nodesize: Option<u32>,
    /// Size of a sector: 4k
    #[arg(short, long, value_name = "SIZE", value_parser = parse_block_size)]
    sectorsize: Option<u32>,
    /// Checksum: crc32c (default), xxhash, sha256 or blake2
    #[arg(long, visible_alias = "checksum", value_name = "TYPE", value_parser = parse_checksum)]
    csum: Option<ChecksumKind>,
    /// Features to switch on, or off with a '^' before the name, separated by commas ('list-all' lists them)
    #[arg(short = 'O', long, value_name = "LIST")]
    features: Vec<String>,
    /// The same as --features, kept for scripts
    #[arg(short = 'R', long, value_name = "LIST")]
    runtime_features: Vec<String>,
    /// Overwrite what is recognised on the device
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
        if self.lists().any(|list| list == "list-all") {
            return Ok(list_features(out)?);
        }
        let options = self.options()?;
        options.settings(self.devices.len().max(1)).map_err(|error| CliError::usage(error.to_string()))?;
        let made = self.make(&options)?;
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
    fn lists(&self) -> impl Iterator<Item = &String> {
        self.features.iter().chain(&self.runtime_features)
    }

    fn options(&self) -> Result<MkfsOptions, CliError> {
        let mut features = FeatureChoice::default();
        for list in self.lists() {
            features
                .apply(list)
                .map_err(|what| CliError::usage(what).hint("'butterfs mkfs -O list-all' lists the features"))?;
        }
        if self.mixed {
            features.set_mixed();
        }
        Ok(MkfsOptions {
            label: self.label.clone().unwrap_or_default().into_vec(),
            nodesize: self.nodesize,
            sectorsize: self.sectorsize,
            metadata: self.metadata,
            data: self.data,
            features,
            checksum: self.csum.unwrap_or_default(),
            fsid: self.uuid,
            byte_count: self.byte_count,
            force: self.force,
            keep_old_blocks: self.nodiscard,
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
            devices.push(Arc::new(device));
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

    /// The device, and whether it is a file that did not exist.
    fn open(&self, path: &Path) -> Result<(FileDevice, bool), CliError> {
        let error = match FileDevice::open(path, &FileOptions::read_write()) {
            Ok(device) => return Ok((device, false)),
            Err(error) => error,
        };
        match (&error.kind, self.byte_count) {
            (OpenErrorKind::NotFound, Some(bytes)) => Ok((create(path, bytes)?, true)),
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

fn parse_uuid(text: &str) -> Result<[u8; 16], String> {
    uuid::Uuid::parse_str(text).map(uuid::Uuid::into_bytes).map_err(|_| "a UUID has 32 hexadecimal digits".to_owned())
}

fn parse_profile(text: &str) -> Result<&'static Profile, String> {
    Profile::named(text).ok_or_else(|| "there is no such profile".to_owned())
}

fn parse_block_size(text: &str) -> Result<u32, String> {
    args::size(text)?.try_into().map_err(|_| "the size is too large".to_owned())
}

fn parse_checksum(text: &str) -> Result<ChecksumKind, String> {
    match text.to_ascii_lowercase().as_str() {
        "crc32c" => Ok(ChecksumKind::Crc32c),
        "xxhash" | "xxhash64" => Ok(ChecksumKind::Xxhash64),
        "sha256" => Ok(ChecksumKind::Sha256),
        "blake2" | "blake2b" => Ok(ChecksumKind::Blake2b),
        _ => Err("known are crc32c, xxhash, sha256 and blake2".to_owned()),
    }
}
