//! `butterfs filesystem extents`.

use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::{ImageArgument, Intent, about};
use butterfs_control::question::ListExtents;
use butterfs_control::{Compression, ExtentKind, FileExtentRecord};
use std::io::Write;
use std::path::PathBuf;

/// List the extents of a file.
///
/// What filefrag(8) shows, and cannot ask of a FUSE mount: for each extent its place in the file, its address, its bytes in
/// the file and on disk, and what is special about it. 'shared' means that other files or snapshots may use the data.
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
}

fn show(record: &FileExtentRecord, out: &mut dyn Write) -> Result<(), CliError> {
    let FileExtentRecord { start, len, address, disk_len, offset, compression, .. } = *record;
    let plain = compression.is_none();
    let address = if plain && address != 0 { address + offset } else { address };
    let on_disk = if plain && disk_len != 0 { len } else { disk_len };
    Ok(writeln!(out, "{start:>16} {address:>16} {len:>12} {on_disk:>12}  {}", flags(record))?)
}

fn flags(record: &FileExtentRecord) -> String {
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
    flags.into_iter().flatten().collect::<Vec<_>>().join(",")
}
