//! `butterfs subvolume find-new`.

use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::{ImageArgument, Intent, about, nonsense};
use butterfs_control::question::FindNew;
use butterfs_control::{ExtentKind, NewExtent, NewSince};
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
        let mut opened = self.image.open(&self.path, Intent::Look)?;
        opened.write_back(&self.path)?;
        let since = self.lastgen;
        let asking = about([&opened.object(&self.path)?], |[subvolume]| FindNew { subvolume, since });
        let what = format!("cannot search '{}'", self.path.display());
        let mut marker = None;
        opened.each(&what, asking, &mut |new| match new {
            NewSince::UpTo(generation) => {
                marker = Some(generation);
                Ok(())
            }
            NewSince::Extent(extent) => show(&extent, out),
        })?;
        writeln!(out, "transid marker was {}", marker.ok_or_else(nonsense)?)?;
        opened.close()
    }
}

fn show(extent: &NewExtent, out: &mut dyn Write) -> Result<(), CliError> {
    let NewExtent { ino, start, len, address, offset, generation, path, .. } = extent;
    write!(out, "inode {ino} file offset {start} len {len} disk start {address} offset {offset} ")?;
    write!(out, "gen {generation} flags {} ", flags(extent))?;
    Ok(out.write_all(&[path.as_slice(), b"\n"].concat())?)
}

fn flags(extent: &NewExtent) -> String {
    let kind = match extent.kind {
        ExtentKind::Preallocated => Some("PREALLOC"),
        ExtentKind::Inline => Some("INLINE"),
        ExtentKind::Data | ExtentKind::Hole => None,
    };
    let flags: Vec<&str> = [extent.compressed.then_some("COMPRESS"), kind].into_iter().flatten().collect();
    if flags.is_empty() { "NONE".to_owned() } else { flags.join("|") }
}
