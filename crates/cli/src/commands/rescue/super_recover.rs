//! `butterfs rescue super-recover`: copies of the superblock from a good one, in the words of btrfs-progs.

use super::{agrees, failed, open_for_writing, writable};
use crate::commands::Run;
use crate::error::{CliError, FAILED};
use butterfs_rescue::patch::supers;
use butterfs_rescue::wreck::Opening;
use std::io::Write;
use std::path::PathBuf;

/// Write the newest valid copy of the superblock over those that are damaged or older.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Do not ask
    #[arg(short = 'y')]
    yes: bool,
    /// List the copies
    #[arg(short = 'v')]
    verbose: bool,
    /// All devices of the filesystem that are there
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let devices = writable(&self.devices)?;
        let plan = supers::plan(&devices).map_err(failed)?;
        if self.verbose {
            let list = |out: &mut dyn Write, copies: &[(String, u64)]| {
                copies.iter().try_for_each(|(name, at)| {
                    writeln!(out, "\t\tdevice name = {name}\n\t\tsuperblock bytenr = {at}\n")
                })
            };
            writeln!(out, "Before Recovering:\n\t[All good supers]:")?;
            list(out, &plan.good)?;
            writeln!(out, "\t[All bad supers]:")?;
            list(out, &plan.bad)?;
            writeln!(out)?;
        }
        if plan.bad.is_empty() {
            writeln!(out, "All supers are valid, no need to recover")?;
            return Ok(out.flush()?);
        }
        let question = "Make sure this is a btrfs disk otherwise the tool will destroy other fs, Are you sure?";
        if !self.yes && !agrees(question, out)? {
            writeln!(out, "Aborted to recover bad superblocks")?;
            out.flush()?;
            return Err(CliError::Reported { code: FAILED });
        }
        drop(devices);
        let (devices, wreck) = open_for_writing(&self.devices, Opening::default())?;
        supers::apply(&plan, &wreck, &devices).map_err(failed)?;
        writeln!(out, "Recovered bad superblocks successful")?;
        Ok(out.flush()?)
    }
}
