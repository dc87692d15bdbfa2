//! `butterfs rescue fix-data-checksum`: data that does not fit its checksums: whose it is, and declaring it right.

use super::{failed, open_for_writing};
use crate::commands::Run;
use crate::commands::restore::Source;
use crate::error::CliError;
use crate::output::{Format, json};
use crate::report;
use butterfs_ondisk::Logical;
use butterfs_rescue::patch::sums::{self, Bad};
use butterfs_rescue::wreck::Opening;
use std::io::Write;
use std::path::PathBuf;

/// List data sectors that do not fit their checksums and the files that have them; with -m, declare what one copy holds
/// right.
///
/// A scrub repairs what another copy still has. -m is for data that is known to be right although its checksum is not:
/// after it nothing tells any more that the data may be damaged.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Only list; this is the default
    #[arg(short = 'r', long, conflicts_with = "mirror")]
    readonly: bool,
    /// Make the checksums of the listed sectors those of what this copy holds, from 1 on
    #[arg(short = 'm', long, value_name = "MIRROR")]
    mirror: Option<u32>,
    /// Only this sector, with -m
    #[arg(long, value_name = "LOGICAL", requires = "mirror", value_parser = crate::commands::inspect_internal::number)]
    logical: Option<u64>,
    /// All devices of the filesystem
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let Some(mirror) = self.mirror else {
            let wreck = Source::default().open(&self.devices, None)?;
            wreck.cautions.iter().for_each(|note| report::warn(note));
            let found = sums::find(&wreck).map_err(failed)?;
            return show(&found, format, out);
        };
        let (devices, wreck) = open_for_writing(&self.devices, Opening::default())?;
        let found = sums::find(&wreck).map_err(failed)?;
        let listed = found.iter().map(|bad| Logical(bad.logical));
        let wanted: Vec<Logical> = listed.filter(|at| self.logical.is_none_or(|logical| logical == at.0)).collect();
        sums::accept(&wreck, &devices, &wanted, mirror).map_err(failed)?;
        for logical in wanted {
            writeln!(out, "Csum item for logical {logical} updated using data from mirror {mirror}")?;
        }
        Ok(out.flush()?)
    }
}

fn show(found: &[Bad], format: Format, out: &mut dyn Write) -> Result<(), CliError> {
    if format == Format::Json {
        return json(out, "data-checksums", &found);
    }
    if found.is_empty() {
        writeln!(out, "No data checksum mismatch found")?;
    }
    for Bad { logical, mirrors, files, .. } in found {
        let mirrors: Vec<String> = mirrors.iter().map(u32::to_string).collect();
        writeln!(out, "logical={logical} corrupted mirrors={} affected files:", mirrors.join(","))?;
        files.iter().try_for_each(|file| writeln!(out, "  {file}"))?;
    }
    Ok(out.flush()?)
}
