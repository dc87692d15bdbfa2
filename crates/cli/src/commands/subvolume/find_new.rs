//! `butterfs subvolume find-new`.

use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::{ImageArgument, Intent, about, nonsense};
use crate::output::{self, Format};
use butterfs_control::question::FindNew;
use butterfs_control::{ExtentKind, NewExtent, NewSince};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;

/// List the extents that were written to files of a subvolume since a generation
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
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.image.open(&self.path, Intent::Look)?;
        opened.write_back(&self.path)?;
        let since = self.lastgen;
        let asking = about([&opened.object(&self.path)?], |[subvolume]| FindNew { subvolume, since });
        let what = format!("cannot search '{}'", self.path.display());
        let (mut marker, mut extents) = (None, Vec::new());
        opened.each(&what, asking, &mut |new| match new {
            NewSince::UpTo(generation) => {
                marker = Some(generation);
                Ok(())
            }
            NewSince::Extent(extent) if format == Format::Json => {
                extents.push(value(&extent));
                Ok(())
            }
            NewSince::Extent(extent) => show(&extent, out),
        })?;
        let marker: u64 = marker.ok_or_else(nonsense)?;
        match format {
            Format::Text => writeln!(out, "transid marker was {marker}")?,
            Format::Json => {
                let found = json!({ "generation": marker, "extents": extents });
                output::json(out, "subvolume-find-new", &found)?;
            }
        }
        opened.close()
    }
}

fn value(extent: &NewExtent) -> Value {
    let NewExtent { ino, start, len, address, offset, generation, path, .. } = extent;
    json!({
        "path": String::from_utf8_lossy(path),
        "inode": ino,
        "offset": start,
        "length": len,
        "address": address,
        "extent_offset": offset,
        "generation": generation,
        "flags": flags(extent),
    })
}

fn show(extent: &NewExtent, out: &mut dyn Write) -> Result<(), CliError> {
    let NewExtent { ino, start, len, address, offset, generation, path, .. } = extent;
    write!(out, "inode {ino} file offset {start} len {len} disk start {address} offset {offset} ")?;
    let flags = flags(extent);
    let flags = if flags.is_empty() { "NONE".to_owned() } else { flags.join("|") };
    write!(out, "gen {generation} flags {flags} ")?;
    Ok(out.write_all(&[path.as_slice(), b"\n"].concat())?)
}

fn flags(extent: &NewExtent) -> Vec<&'static str> {
    let kind = match extent.kind {
        ExtentKind::Preallocated => Some("PREALLOC"),
        ExtentKind::Inline => Some("INLINE"),
        ExtentKind::Data | ExtentKind::Hole => None,
    };
    [extent.compressed.then_some("COMPRESS"), kind].into_iter().flatten().collect()
}
