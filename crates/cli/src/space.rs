//! Shared parts of the commands about space: a filesystem's totals, chunks and devices, and what types and profiles are
//! called.

use crate::error::CliError;
use crate::open_filesystem::{self, ImagesArgument, Intent, OpenFilesystem, plain};
use crate::report;
use butterfs_control::question::{DescribeFilesystem, ListChunks, ListMembers};
use butterfs_control::{Ask, ChunkRecord, FilesystemRecord, MemberRecord};
use butterfs_fs::Errno;
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_ondisk::profile::Profile;
use std::path::{Path, PathBuf};

/// The name of a missing device.
const MISSING: &str = "missing";

impl ImagesArgument {
    /// The filesystems that are meant: the images, or each of the paths.
    pub fn open(&self, paths: &[PathBuf]) -> Result<Vec<OpenFilesystem>, CliError> {
        match (&self.images[..], paths) {
            ([], []) => Err(CliError::usage("a path, or an image with --image, is required")),
            ([], paths) => paths.iter().map(|path| mounted(path)).collect(),
            (images, []) => Ok(vec![open_filesystem::images_for(images, Intent::Look)?]),
            _ => Err(CliError::usage("with --image no path is given")),
        }
    }

    /// The filesystem that a path lies on, or inside of which the path is.
    pub fn open_for(&self, path: &Path) -> Result<OpenFilesystem, CliError> {
        if self.images.is_empty() {
            open_filesystem::mounted(path)
        } else {
            open_filesystem::images_for(&self.images, Intent::Look)
        }
    }

    /// The same for commands that work on one filesystem.
    pub fn open_one(&self, path: Option<&PathBuf>) -> Result<OpenFilesystem, CliError> {
        let mut opened = self.open(path.map_or(&[][..], std::slice::from_ref))?;
        Ok(opened.remove(0))
    }
}

/// The mount that a path is on; as with btrfs-progs the path is a directory.
fn mounted(path: &Path) -> Result<OpenFilesystem, CliError> {
    match std::fs::metadata(path) {
        Ok(found) if !found.is_dir() => Err(CliError::failed(format!("not a directory: {}", path.display()))
            .hint("name an image or device that is not mounted with --image")),
        _ => open_filesystem::mounted(path),
    }
}

/// The use of a filesystem's space.
pub struct Overview {
    pub whole: FilesystemRecord,
    /// Chunks and devices, where the user may see them.
    pub details: Option<Details>,
}

/// Chunks and devices.
pub struct Details {
    pub chunks: Vec<ChunkRecord>,
    pub members: Vec<MemberRecord>,
}

/// The totals of a filesystem.
pub fn describe(opened: &mut OpenFilesystem) -> Result<FilesystemRecord, CliError> {
    opened.ask_one("cannot get the totals", plain(DescribeFilesystem {}))
}

/// The devices, which only administrators see.
pub fn members(opened: &mut OpenFilesystem) -> Result<Vec<MemberRecord>, CliError> {
    opened.ask("cannot get the devices", plain(ListMembers {}))
}

/// The chunks, which only administrators see.
pub fn chunks(opened: &mut OpenFilesystem) -> Result<Vec<ChunkRecord>, CliError> {
    opened.ask("cannot get the chunks", plain(ListChunks {}))
}

/// Everything that the user may see.
pub fn overview(opened: &mut OpenFilesystem) -> Result<Overview, CliError> {
    let whole = describe(opened)?;
    let chunks = if_allowed(opened, ListChunks {})?;
    let members = if_allowed(opened, ListMembers {})?;
    let details = chunks.zip(members).map(|(chunks, members)| Details { chunks, members });
    if details.is_none() {
        report::warn("cannot read detailed chunk info, per-device usage will not be shown, run as root");
    }
    Ok(Overview { whole, details })
}

fn if_allowed<Q: Ask>(opened: &mut OpenFilesystem, question: Q) -> Result<Option<Vec<Q::Record>>, CliError> {
    match opened.try_ask(plain(question))? {
        Ok(records) => Ok(Some(records)),
        Err(refusal) if refusal.errno == Errno::EPERM.0 => Ok(None),
        Err(refusal) => Err(CliError::failed(refusal.sentence)),
    }
}

/// The content type of groups with these flags, in btrfs-progs' words.
pub fn type_name(flags: u64) -> &'static str {
    match flags & bits::TYPE_MASK {
        bits::DATA => "Data",
        bits::METADATA => "Metadata",
        bits::SYSTEM => "System",
        both if both == bits::DATA | bits::METADATA => "Data+Metadata",
        _ => "unknown",
    }
}

/// Their profile.
pub fn profile_name(flags: u64) -> &'static str {
    Profile::of(flags & bits::PROFILE_MASK).map_or("unknown", |profile| profile.name)
}

/// Data first, then metadata, then system; of one type by profile.
pub fn listing_order(flags: u64) -> (u8, u64) {
    let by_type = match flags & bits::TYPE_MASK {
        bits::SYSTEM => 2,
        bits::METADATA => 1,
        _ => 0,
    };
    (by_type, flags & bits::PROFILE_MASK)
}

/// The name of a device.
pub fn device_name(member: &MemberRecord) -> &str {
    member.storage.as_ref().map_or(MISSING, |(name, _)| name)
}

/// A UUID as text.
pub fn uuid(bytes: [u8; 16]) -> String {
    uuid::Uuid::from_bytes(bytes).to_string()
}

impl Details {
    /// Bytes of the chunks of these flags on a device.
    pub fn on_device(&self, flags: u64, device: u64) -> u64 {
        let chunks = self.chunks.iter().filter(|chunk| chunk.flags == flags);
        chunks
            .map(|chunk| chunk.stripes.iter().filter(|(id, _)| *id == device).count() as u64 * chunk.stripe_length)
            .sum()
    }
}
