//! The format of a new filesystem: the options that `mkfs` and `image build` share.

use crate::args;
use crate::error::CliError;
use butterfs_fs::mkfs::{FeatureChoice, MkfsOptions};
use butterfs_ondisk::ChecksumKind;
use butterfs_ondisk::profile::Profile;
use std::os::unix::ffi::OsStringExt;

/// Label, UUID, profiles, sizes of blocks, checksum and features.
#[derive(clap::Args, Debug)]
pub struct FormatArgs {
    /// Label of the filesystem, at most 255 bytes
    #[arg(short = 'L', long)]
    label: Option<std::ffi::OsString>,
    /// UUID of the filesystem instead of a random one
    #[arg(short = 'U', long, value_parser = parse_uuid)]
    uuid: Option<[u8; 16]>,
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
}

impl FormatArgs {
    /// The lists of features.
    pub fn lists(&self) -> impl Iterator<Item = &String> {
        self.features.iter().chain(&self.runtime_features)
    }

    /// The options that they stand for.
    pub fn options(&self) -> Result<MkfsOptions, CliError> {
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
            ..MkfsOptions::default()
        })
    }
}

/// Reads a UUID.
pub fn parse_uuid(text: &str) -> Result<[u8; 16], String> {
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
