//! `butterfs inspect-internal map-swapfile`: where a swap file begins on its device, for the kernel's `resume_offset`.

use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::{ImagesArgument, Object, OpenFilesystem, about};
use crate::output::{self, Format};
use crate::space::{chunks, profile_name};
use butterfs_control::question::ListExtents;
use butterfs_control::{ChunkRecord, ExtentKind, FileExtentRecord};
use butterfs_fs::inode_flags;
use butterfs_ondisk::items::block_group_flags as bits;
use rustix::fs::{IFlags, Mode, OFlags};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The kernel counts the offset in its pages.
const PAGE: u64 = 4096;

/// Show the start of a swap file on its device.
///
/// The file must be one that the kernel can swap to: without copy on write, without holes, not compressed, all of it on
/// one device with the profile single.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    images: ImagesArgument,
    /// Print the resume offset only
    #[arg(short = 'r', long)]
    resume_offset: bool,
    /// The file
    file: PathBuf,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Mapped {
    physical_start: u64,
    resume_offset: u64,
}

fn refused(sentence: &str) -> CliError {
    CliError::failed(sentence)
}

/// Whether the path leads to a file, and to one that is not copied on write.
fn must_be_nocow(opened: &OpenFilesystem, path: &Path) -> Result<(), CliError> {
    let is_nocow = match opened {
        OpenFilesystem::Image(filesystem) => {
            filesystem.getattr(opened.id_in_image(path)?)?.flags & inode_flags::NODATACOW != 0
        }
        OpenFilesystem::Mount(_) => {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| {
                CliError::failed(format!("cannot open {}: {}", path.display(), std::io::Error::from(error)))
            })?;
            rustix::fs::ioctl_getflags(&file).is_ok_and(|flags| flags.contains(IFlags::NOCOW))
        }
    };
    if opened.is_directory(path)? == Some(true) || !is_nocow {
        return Err(refused("file is not NOCOW"));
    }
    Ok(())
}

/// The place of an extent: the device and the address there.
fn place(chunks: &[ChunkRecord], address: u64, len: u64) -> Result<(u64, u64), CliError> {
    let chunk = chunks.iter().find(|chunk| chunk.start <= address && address - chunk.start < chunk.length);
    let chunk = chunk.ok_or_else(|| refused("file extent is in no chunk"))?;
    if chunk.flags & bits::PROFILE_MASK != 0 {
        return Err(refused("unsupported block group profile")
            .hint(format!("the file lies in a block group with the profile {}", profile_name(chunk.flags))));
    }
    let inside = address - chunk.start;
    match (chunk.stripes.first(), inside + len <= chunk.length) {
        (Some(&(device, physical)), true) => Ok((device, physical + inside)),
        _ => Err(refused("file extent is in no chunk")),
    }
}

impl Args {
    fn map(&self, opened: &mut OpenFilesystem, file: &Object) -> Result<Mapped, CliError> {
        let asking = about([file], |[file]| ListExtents { file });
        let extents = opened.ask("cannot list the extents", asking)?;
        let chunks = chunks(opened)?;
        let size = opened.size(file)?;
        let (mut next, mut first, mut on) = (0, None, None);
        for FileExtentRecord { start, len, address, offset, kind, compression, .. } in extents {
            match kind {
                ExtentKind::Inline => return Err(refused("file with inline extent")),
                ExtentKind::Hole => return Err(refused("file with holes")),
                ExtentKind::Data | ExtentKind::Preallocated => {}
            }
            if compression.is_some() {
                return Err(refused("compressed extent"));
            }
            if start != next {
                return Err(refused("file with holes"));
            }
            next = start + len;
            let (device, physical) = place(&chunks, address + offset, len)?;
            if on.is_some_and(|on| on != device) {
                return Err(refused("file stored on multiple devices"));
            }
            on = Some(device);
            first.get_or_insert(physical);
        }
        match first {
            Some(physical_start) if next >= size => Ok(Mapped { physical_start, resume_offset: physical_start / PAGE }),
            _ => Err(refused("file with holes")),
        }
    }
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.images.open_for(&self.file)?;
        must_be_nocow(&opened, &self.file)?;
        opened.write_back(&self.file)?;
        let object = opened.object(&self.file)?;
        let mapped = self.map(&mut opened, &object)?;
        opened.close()?;
        let Mapped { physical_start, resume_offset } = mapped;
        match format {
            Format::Json => output::json(out, "inspect-internal-map-swapfile", &mapped)?,
            Format::Text if self.resume_offset => writeln!(out, "{resume_offset}")?,
            Format::Text => {
                writeln!(out, "Physical start: {physical_start:>12}\nResume offset:  {resume_offset:>12}")?;
            }
        }
        Ok(())
    }
}
