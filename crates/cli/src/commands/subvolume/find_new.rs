//! `butterfs subvolume find-new`.

use crate::commands::Run;
use crate::error::CliError;
use crate::target::{ImageArgument, Intent, nonsense};
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
        let inode = target.inode(&self.path)?;
        let what = format!("cannot search '{}'", self.path.display());
        let records = target.ask(&what, &[b"new", &inode, self.lastgen.to_string().as_bytes()])?;
        let (marker, extents) = records.split_first().ok_or_else(nonsense)?;
        for words in extents {
            let ExtentRecord { numbers, flags, path } = ExtentRecord::from_words(words).ok_or_else(nonsense)?;
            let [ino, position, len, at, offset, generation] = numbers;
            write!(out, "inode {ino} file offset {position} len {len} disk start {at} offset {offset} ")?;
            write!(out, "gen {generation} flags {flags} ")?;
            out.write_all(&[path.as_slice(), b"\n"].concat())?;
        }
        let marker = marker.first().ok_or_else(nonsense)?;
        writeln!(out, "transid marker was {}", String::from_utf8_lossy(marker))?;
        target.close()
    }
}
