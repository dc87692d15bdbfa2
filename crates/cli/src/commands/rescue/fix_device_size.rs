//! `butterfs rescue fix-device-size`: sizes of devices and of the filesystem, in the words of btrfs-progs.

use super::{failed, open_for_writing};
use crate::commands::Run;
use crate::error::CliError;
use butterfs_rescue::patch::sizes;
use butterfs_rescue::wreck::Opening;
use std::io::Write;
use std::path::PathBuf;

/// Make the sizes of devices whole sectors and no larger than the devices are, and the filesystem's size their sum.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// All devices of the filesystem
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let (devices, wreck) = open_for_writing(&self.devices, Opening::default())?;
        let plan = sizes::plan(&wreck).map_err(failed)?;
        if plan == sizes::Plan::default() {
            writeln!(out, "No device size related problem found")?;
            return Ok(out.flush()?);
        }
        sizes::apply(&plan, &wreck, &devices).map_err(failed)?;
        for (id, old, new) in &plan.devices {
            writeln!(out, "Fixed device size for devid {id}, old size: {old} new size: {new}")?;
        }
        if let Some((old, new)) = plan.total {
            writeln!(out, "Fixed super total bytes, old size: {old} new size: {new}")?;
        }
        writeln!(out, "Fixed unaligned/mismatched total_bytes for super block and device items")?;
        Ok(out.flush()?)
    }
}
