//! `butterfs rescue chunk-recover`: the chunk tree from what was found, in the words of btrfs-progs.

use super::{agrees, failed, open_for_writing};
use crate::commands::Run;
use crate::error::{CliError, FAILED};
use crate::report;
use butterfs_rescue::index::Limit;
use butterfs_rescue::patch::chunk_tree::{self, Plan};
use butterfs_rescue::scan::{Map, Settings, scan};
use butterfs_rescue::superblocks;
use butterfs_rescue::wreck::Opening;
use std::io::Write;
use std::path::PathBuf;

/// Rebuild the chunk tree from a scan of all devices.
///
/// The blocks of the tree are written where the extent tree has them, and nothing is written unless the device tree
/// confirms every stripe. 'butterfs restore --map FILE' needs no rebuilt tree.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Do not ask
    #[arg(short = 'y')]
    yes: bool,
    /// List the chunks
    #[arg(short = 'v')]
    verbose: bool,
    /// The map that 'rescue scan' has written of these devices; without it they are scanned now
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// All devices of the filesystem
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let map = self.map()?;
        let (index, identity) = map.into_index(self.fsids()?).map_err(failed)?;
        let opening = Opening { index: Some(index), identity: Some(identity), ..Opening::default() };
        let (devices, wreck) = open_for_writing(&self.devices, opening)?;
        let plan = chunk_tree::plan(&wreck).map_err(failed)?;
        if plan.is_sound && plan.lost.is_empty() {
            writeln!(out, "Check chunks successfully with no orphans")?;
            return Ok(out.flush()?);
        }
        self.show(&plan, out)?;
        let question = "The chunk tree is going to be rebuilt on disk, are you sure?";
        if !self.yes && !agrees(question, out)? {
            return Err(CliError::Reported { code: FAILED });
        }
        chunk_tree::apply(&plan, &wreck, &devices).map_err(failed)?;
        writeln!(out, "Chunk tree recovered successfully")?;
        Ok(out.flush()?)
    }
}

impl Args {
    fn map(&self) -> Result<Map, CliError> {
        if let Some(path) = &self.map {
            return Map::load(path, Limit::default()).map_err(failed);
        }
        let devices = crate::commands::restore::Source::default().devices(&self.devices)?;
        let name = format!("butterfs-chunk-recover-{}.map", std::process::id());
        let path = std::env::temp_dir().join(name);
        let map = scan(&devices, &path, &Settings::default(), &mut |_| ()).map_err(failed);
        if let Err(error) = std::fs::remove_file(&path) {
            report::warn(&format!("cannot remove {}: {error}", path.display()));
        }
        map
    }

    fn fsids(&self) -> Result<Option<([u8; 16], Vec<[u8; 16]>)>, CliError> {
        let devices = crate::commands::restore::Source::default().devices(&self.devices)?;
        let copies = superblocks::copies(&devices);
        Ok(superblocks::block_fsids(&copies, devices.len()))
    }

    fn show(&self, plan: &Plan, out: &mut dyn Write) -> Result<(), CliError> {
        if self.verbose {
            writeln!(out, "Recoverable Chunks:")?;
            for chunk in &plan.chunks {
                let (start, len, stripes) = (chunk.start, chunk.length, chunk.stripes.len());
                writeln!(
                    out,
                    "  Chunk: start = {start}, len = {len}, type = {:x}, num_stripes = {stripes}",
                    chunk.kind
                )?;
                writeln!(out, "      Stripes list:")?;
                for (number, stripe) in chunk.stripes.iter().enumerate() {
                    let (device, at) = (stripe.device, stripe.physical);
                    writeln!(out, "      [{number:2}] Stripe: devid = {device}, offset = {at}")?;
                }
            }
            writeln!(out, "Unrecoverable Chunks:")?;
            plan.lost.iter().try_for_each(|sentence| writeln!(out, "  {sentence}"))?;
            writeln!(out)?;
        }
        let (good, lost) = (plan.chunks.len(), plan.lost.len());
        writeln!(out, "Total Chunks:\t\t{}\n  Recoverable:\t\t{good}\n  Unrecoverable:\t{lost}\n", good + lost)?;
        Ok(())
    }
}
