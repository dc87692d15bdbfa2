//! `butterfs rescue zero-log`: leaves the log behind, after showing what it would have brought.

use super::{failed, open_for_writing};
use crate::commands::Run;
use crate::commands::restore::Source;
use crate::error::CliError;
use crate::output::{Format, json};
use butterfs_rescue::Wreck;
use butterfs_rescue::patch::log::{self, Logged};
use butterfs_rescue::wreck::Opening;
use std::io::Write;
use std::path::PathBuf;

/// Clear the log, for a filesystem that cannot be mounted because of it. Everything that fsync wrote since the last
/// commit is lost.
///
/// The files that the log would have brought are listed first. Only the superblocks are written.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Only list what the log would bring
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// All devices of the filesystem
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        if self.dry_run {
            let wreck = Source::default().open(&self.devices, None)?;
            return show(&wreck, format, out);
        }
        let (devices, wreck) = open_for_writing(&self.devices, Opening::default())?;
        show(&wreck, format, out)?;
        let (name, sb) = (self.devices[0].display(), wreck.superblock());
        if format == Format::Text {
            writeln!(out, "Clearing log on {name}, previous log_root {}, level {}", sb.log_root, sb.log_root_level)?;
        }
        log::clear(&wreck, &devices).map_err(failed)?;
        Ok(out.flush()?)
    }
}

fn show(wreck: &Wreck, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
    let logged = log::contents(wreck);
    if format == Format::Json {
        return json(out, "log", &logged);
    }
    for Logged { tree, path, committed_bytes, logged_bytes, .. } in logged {
        let before = committed_bytes.map_or("new".to_owned(), |bytes| format!("{bytes} bytes in the last commit"));
        writeln!(out, "log: {path} (tree {tree}): {logged_bytes} bytes, {before}")?;
    }
    Ok(out.flush()?)
}
