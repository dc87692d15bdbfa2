//! `butterfs filesystem extents`.

use crate::commands::Run;
use crate::error::CliError;
use crate::target::{ImageArgument, Intent, Question, nonsense};
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
        let question = Question::new("extents").about(&target.object(&self.path)?);
        let what = format!("cannot list the extents of '{}'", self.path.display());
        writeln!(out, "{:>16} {:>16} {:>12} {:>12}  FLAGS", "FILE OFFSET", "ADDRESS", "LENGTH", "ON DISK")?;
        let mut count = 0;
        target.each(&what, &question, &mut |words| {
            count += 1;
            show(&FileExtentRecord::from_words(&words).ok_or_else(nonsense)?, out)
        })?;
        writeln!(out, "{}: {count} extents", self.path.display())?;
        target.close()
    }
}

fn show(record: &FileExtentRecord, out: &mut dyn Write) -> Result<(), CliError> {
    let [start, len, at, disk_len, _, offset, _] = record.numbers;
    let plain = record.compression == "none";
    let address = if plain && at != 0 { at + offset } else { at };
    let on_disk = if plain && disk_len != 0 { len } else { disk_len };
    Ok(writeln!(out, "{start:>16} {address:>16} {len:>12} {on_disk:>12}  {}", flags(record))?)
}

fn flags(record: &FileExtentRecord) -> String {
    let mut flags: Vec<&str> = Vec::new();
    flags.extend((record.kind != "data").then_some(record.kind.as_str()));
    flags.extend((record.compression != "none").then_some(record.compression.as_str()));
    flags.extend(record.shared.then_some("shared"));
    flags.join(",")
}
