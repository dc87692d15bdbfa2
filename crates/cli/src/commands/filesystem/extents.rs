//! `butterfs filesystem extents`.

use crate::commands::Run;
use crate::error::CliError;
use crate::target::{ImageArgument, Intent, nonsense};
use butterfs_fuse::subvolumes::FileExtentRecord;
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
        let mut target = self.image.target(&self.path, Intent::Look)?;
        target.write_back(&self.path)?;
        let inode = target.inode(&self.path)?;
        let what = format!("cannot list the extents of '{}'", self.path.display());
        let records = target.ask(&what, &[b"extents", &inode])?;
        writeln!(out, "{:>16} {:>16} {:>12} {:>12}  FLAGS", "FILE OFFSET", "ADDRESS", "LENGTH", "ON DISK")?;
        for words in &records {
            let record = FileExtentRecord::from_words(words).ok_or_else(nonsense)?;
            let [start, len, at, disk_len, _, offset, _] = record.numbers;
            let plain = record.compression == "none";
            let address = if plain && at != 0 { at + offset } else { at };
            let on_disk = if plain && disk_len != 0 { len } else { disk_len };
            writeln!(out, "{start:>16} {address:>16} {len:>12} {on_disk:>12}  {}", flags(&record))?;
        }
        writeln!(out, "{}: {} extents", self.path.display(), records.len())?;
        target.close()
    }
}

fn flags(record: &FileExtentRecord) -> String {
    let mut flags: Vec<&str> = Vec::new();
    flags.extend((record.kind != "data").then_some(record.kind.as_str()));
    flags.extend((record.compression != "none").then_some(record.compression.as_str()));
    flags.extend(record.shared.then_some("shared"));
    flags.join(",")
}
