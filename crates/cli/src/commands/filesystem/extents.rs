//! `butterfs filesystem extents`.

use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::{ImageArgument, Intent, about};
use crate::output::{self, Format};
use butterfs_control::question::ListExtents;
use butterfs_control::{Compression, ExtentKind, FileExtentRecord};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

/// List the extents of a file.
///
/// Shows what filefrag(8) cannot ask of a FUSE mount: for each extent its place in the file, its address, its
/// bytes in the file and on disk, and its special properties. 'shared' means that other files or snapshots may use
/// the data.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgument,
    /// The file
    path: PathBuf,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.image.open(&self.path, Intent::Look)?;
        opened.write_back(&self.path)?;
        let asking = about([&opened.object(&self.path)?], |[file]| ListExtents { file });
        let what = format!("cannot list the extents of '{}'", self.path.display());
        writeln!(out, "{:>16} {:>16} {:>12} {:>12}  FLAGS", "FILE OFFSET", "ADDRESS", "LENGTH", "ON DISK")?;
        let mut count = 0;
        opened.each(&what, asking, &mut |record| {
            count += 1;
            show(&record, out)
        })?;
        writeln!(out, "{}: {count} extents", self.path.display())?;
        opened.close()
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        if format == Format::Text {
            return self.run(out);
        }
        let mut opened = self.image.open(&self.path, Intent::Look)?;
        opened.write_back(&self.path)?;
        let asking = about([&opened.object(&self.path)?], |[file]| ListExtents { file });
        let what = format!("cannot list the extents of '{}'", self.path.display());
        let shown: Vec<ExtentJson> = opened.ask(&what, asking)?.iter().map(ExtentJson::of).collect();
        output::json(out, "filesystem-extents", &shown)?;
        opened.close()
    }
}

/// An extent of a file. The address is null for holes and inline data.
#[derive(Debug, Serialize)]
struct ExtentJson {
    offset: u64,
    length: u64,
    address: Option<u64>,
    disk_length: u64,
    flags: Vec<&'static str>,
}

impl ExtentJson {
    fn of(record: &FileExtentRecord) -> ExtentJson {
        let (address, disk_length) = on_disk(record);
        ExtentJson {
            offset: record.start,
            length: record.len,
            address: (address != 0).then_some(address),
            disk_length,
            flags: flags(record),
        }
    }
}

fn show(record: &FileExtentRecord, out: &mut dyn Write) -> Result<(), CliError> {
    let FileExtentRecord { start, len, .. } = *record;
    let (address, on_disk) = on_disk(record);
    Ok(writeln!(out, "{start:>16} {address:>16} {len:>12} {on_disk:>12}  {}", flags(record).join(","))?)
}

/// The address of the extent's bytes, and how many bytes they are on disk.
fn on_disk(record: &FileExtentRecord) -> (u64, u64) {
    let FileExtentRecord { len, address, disk_len, offset, compression, .. } = *record;
    let plain = compression.is_none();
    let address = if plain && address != 0 { address + offset } else { address };
    (address, if plain && disk_len != 0 { len } else { disk_len })
}

fn flags(record: &FileExtentRecord) -> Vec<&'static str> {
    let kind = match record.kind {
        ExtentKind::Inline => Some("inline"),
        ExtentKind::Data => None,
        ExtentKind::Hole => Some("hole"),
        ExtentKind::Preallocated => Some("prealloc"),
    };
    let compression = record.compression.map(|algorithm| match algorithm {
        Compression::Zlib => "zlib",
        Compression::Lzo => "lzo",
        Compression::Zstd => "zstd",
    });
    let flags = [kind, compression, record.shared.then_some("shared")];
    flags.into_iter().flatten().collect()
}
