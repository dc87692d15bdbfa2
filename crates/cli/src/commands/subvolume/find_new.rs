//! `butterfs subvolume find-new`.

use crate::commands::Run;
use crate::error::CliError;
use crate::target::{ImageArgument, Intent, Question, nonsense};
use butterfs_fuse::subvolumes::ExtentRecord;
use std::io::Write;
use std::path::PathBuf;

/// List what was written to files of a subvolume since a generation
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgument,
    /// The subvolume
    path: PathBuf,
    /// The generation
    lastgen: u64,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let mut target = self.image.target(&self.path, Intent::Look)?;
        target.write_back(&self.path)?;
        let question = Question::new("new").about(&target.object(&self.path)?).number(self.lastgen);
        let what = format!("cannot search '{}'", self.path.display());
        let mut marker = None;
        target.each(&what, &question, &mut |words| match marker {
            Some(_) => show(&ExtentRecord::from_words(&words).ok_or_else(nonsense)?, out),
            None => {
                marker = Some(words.into_iter().next().ok_or_else(nonsense)?);
                Ok(())
            }
        })?;
        writeln!(out, "transid marker was {}", String::from_utf8_lossy(&marker.ok_or_else(nonsense)?))?;
        target.close()
    }
}

fn show(record: &ExtentRecord, out: &mut dyn Write) -> Result<(), CliError> {
    let [ino, position, len, at, offset, generation] = record.numbers;
    write!(out, "inode {ino} file offset {position} len {len} disk start {at} offset {offset} ")?;
    write!(out, "gen {generation} flags {} ", record.flags)?;
    Ok(out.write_all(&[record.path.as_slice(), b"\n"].concat())?)
}
