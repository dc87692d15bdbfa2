//! `mkfs --rootdir`: a filesystem that has content from the start, with the options of mkfs.btrfs.

use super::{Args, caller, create};
use crate::commands::image::{add_subvolume, parse_method, source_date_epoch};
use crate::error::CliError;
use butterfs_device::{FileDevice, OpenErrorKind};
use butterfs_fs::mkfs::{MkfsOptions, MkfsReport, prepare};
use butterfs_image::{Builder, FolderSource, Rule, Size};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The content of the filesystem from the start.
#[derive(clap::Args, Debug)]
pub struct ContentArgs {
    /// Fill the filesystem with the content of this folder
    #[arg(short = 'r', long, value_name = "DIR")]
    rootdir: Option<PathBuf>,
    /// A folder in --rootdir that becomes a subvolume: plain, or 'rw:', 'ro:', 'default:' or 'default-ro:' before its
    /// path
    #[arg(short = 'u', long, value_name = "[TYPE:]PATH", requires = "rootdir")]
    subvol: Vec<OsString>,
    /// Compress the files of --rootdir: no, zlib, lzo or zstd, with a level
    #[arg(long, value_name = "METHOD", requires = "rootdir")]
    compress: Option<String>,
    /// Flags for a path of --rootdir and everything below it: nodatacow, nodatasum
    #[arg(long, value_name = "FLAGS:PATH", requires = "rootdir")]
    inode_flags: Vec<OsString>,
    /// Make the file as small as possible after filling it; files can still be made in it
    #[arg(long, requires = "rootdir")]
    shrink: bool,
    /// Content shares its place with the files of --rootdir; both must be on one filesystem that can do that
    #[arg(long, requires = "rootdir", conflicts_with = "compress")]
    reflink: bool,
}

impl ContentArgs {
    /// Whether there is a folder to fill the filesystem from.
    pub fn is_asked_for(&self) -> bool {
        self.rootdir.is_some()
    }

    /// A builder with the content.
    fn builder(&self) -> Result<Builder, CliError> {
        let folder = self.rootdir.as_ref().expect("only called with a folder");
        let mut builder = Builder::new().source("/", FolderSource::new(folder))?;
        if self.reflink {
            builder = builder.reflink();
        }
        for text in &self.subvol {
            let path = path_of(text);
            if !folder.join(&path).is_dir() {
                let path = path.display();
                return Err(CliError::failed(format!("the subvolume '{path}' is no folder in {}", folder.display())));
            }
            builder = add_subvolume(builder, text)?;
        }
        if let Some(text) = &self.compress {
            builder = builder.rule("/", Rule::Compress(parse_method(text)?))?;
        }
        for text in &self.inode_flags {
            builder = add_flags(builder, text, folder)?;
        }
        Ok(match source_date_epoch()? {
            Some(epoch) => builder.epoch(epoch),
            None => builder,
        })
    }
}

/// The path behind the type of a subvolume.
fn path_of(text: &OsString) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    let bytes = text.as_encoded_bytes();
    let types: [&[u8]; 4] = [b"rw:", b"ro:", b"default:", b"default-ro:"];
    let path = types.iter().find_map(|prefix| bytes.strip_prefix(*prefix)).unwrap_or(bytes);
    PathBuf::from(std::ffi::OsStr::from_bytes(path).to_owned())
}

/// Adds what `FLAGS:PATH` says.
fn add_flags(builder: Builder, text: &OsString, folder: &Path) -> Result<Builder, CliError> {
    use std::os::unix::ffi::OsStrExt;
    let bytes = text.as_encoded_bytes();
    let colon = bytes.iter().position(|byte| *byte == b':');
    let colon = colon.ok_or_else(|| CliError::usage(format!("'{}' is not FLAGS:PATH", text.display())))?;
    let (flags, path) = (&bytes[..colon], &bytes[colon + 1..]);
    if folder.join(std::ffi::OsStr::from_bytes(path)).symlink_metadata().is_err() {
        return Err(CliError::failed(format!("there is no '{}' in {}", path.escape_ascii(), folder.display())));
    }
    flags.split(|byte| *byte == b',').try_fold(builder, |builder, flag| match flag {
        b"nodatacow" => Ok(builder.path_rule(path, Rule::InPlace)?),
        b"nodatasum" => Ok(builder.path_rule(path, Rule::WithoutChecksums)?),
        _ => Err(CliError::usage(format!("unknown flag: {}", flag.escape_ascii()))),
    })
}

impl Args {
    /// Makes the filesystem with its content, where the device or file is.
    pub(super) fn fill(&self, options: &MkfsOptions) -> Result<MkfsReport, CliError> {
        let [path] = self.devices.as_slice() else {
            return Err(CliError::usage("--rootdir needs exactly one device or file"));
        };
        let mut builder = self.content.builder()?.format(options.clone());
        if let Some(uuid) = self.device_uuid {
            builder = builder.device_uuid(uuid);
        }
        let (device, is_new) = self.open_to_fill(path)?;
        let filled = self.fill_device(builder, options, device, path);
        if is_new && filled.is_err() {
            // The reason for which we are here matters more than a file that stays behind.
            let _ = std::fs::remove_file(path);
        }
        filled
    }

    fn open_to_fill(&self, path: &Path) -> Result<(FileDevice, bool), CliError> {
        match caller::open(path) {
            Err(error) if matches!(error.kind, OpenErrorKind::NotFound) => {
                let len = self.byte_count.unwrap_or(0).max(4096).saturating_add(self.offset);
                Ok((create(path, len)?, true))
            }
            opened => Ok((opened?, false)),
        }
    }

    fn fill_device(
        &self,
        builder: Builder,
        options: &MkfsOptions,
        device: FileDevice,
        path: &Path,
    ) -> Result<MkfsReport, CliError> {
        let in_file = !device.is_block_device() && self.offset == 0;
        // The descriptor stays open, so that the file stays locked.
        let part = self.part(device)?;
        let wanted = self.byte_count.unwrap_or(part.len());
        prepare(&*part, part.len().min(wanted.max(1)), options)?;
        Ok(match (self.content.shrink, in_file) {
            (true, true) => builder.size(Size::Usable).build_in_place(path)?,
            (false, true) if self.byte_count.is_none() => builder.size(Size::AtLeast(wanted)).build_in_place(path)?,
            (_, true) => builder.size(Size::Exactly(wanted)).build_in_place(path)?,
            (true, false) => builder.size(Size::Usable).build_on(part)?,
            (false, false) => builder.size(Size::Exactly(wanted)).build_on(part)?,
        }
        .filesystem)
    }
}
