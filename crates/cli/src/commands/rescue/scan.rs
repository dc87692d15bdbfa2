//! `butterfs rescue scan`: reads devices once, writes down what is there, and lists the roots of all trees.

use crate::commands::Run;
use crate::commands::inspect_internal::number;
use crate::commands::restore::{Source, ddrescue};
use crate::error::CliError;
use crate::output::{Format, json};
use crate::progress::{Progress as Bar, Unit};
use crate::report;
use butterfs_ondisk::TreeId;
use butterfs_ondisk::dump::Objectid;
use butterfs_rescue::index::Limit;
use butterfs_rescue::roots::{self, Listed};
use butterfs_rescue::scan::{Ddrescue, Map, Progress, Settings, scan};
use butterfs_rescue::superblocks;
use butterfs_rescue::wreck::{Opening, Wreck};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Read devices once, write down every tree block that is there, and list the roots of all trees by generation.
///
/// Nothing is written to the devices. A scan that was interrupted goes on where it stopped when it is given the same
/// map. 'butterfs restore --map FILE' uses the map.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The file that gets the findings
    #[arg(long, value_name = "FILE")]
    map: PathBuf,
    /// A ddrescue map for each device, in their order: ranges that it marks as bad are not read
    #[arg(long, value_name = "FILE")]
    ddrescue: Vec<PathBuf>,
    /// Write a ddrescue map of the unreadable ranges, for each device, in their order; a file that is there is
    /// replaced only if it is such a map
    #[arg(long, value_name = "FILE")]
    unreadable: Vec<PathBuf>,
    /// Use at most so much memory for what is found, in MiB; of more blocks the oldest are left out
    #[arg(long, value_name = "MIB", value_parser = number, default_value = "384")]
    memory: u64,
    /// Say nothing while reading
    #[arg(short, long)]
    quiet: bool,
    /// All devices of the filesystem that are there
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Result<'a> {
    blocks: usize,
    unreadable_bytes: u64,
    notes: &'a [String],
    roots: &'a [Listed],
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> std::result::Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> std::result::Result<(), CliError> {
        let failed = |error: butterfs_rescue::Error| CliError::failed(error.to_string());
        self.unreadable.iter().try_for_each(|path| may_be_replaced(path))?;
        if let Some(both) = self.unreadable.iter().find(|path| **path == self.map) {
            return Err(CliError::usage(format!(
                "{} cannot be the map and the list of what is unreadable",
                both.display()
            )));
        }
        let devices = Source::default().devices(&self.devices)?;
        let known = self.ddrescue.iter().map(|path| ddrescue(path).map(Some));
        let known = known.collect::<std::result::Result<Vec<Option<Ddrescue>>, CliError>>()?;
        let limit = Limit::of_bytes(self.memory.saturating_mul(1 << 20));
        let mut shown = if self.quiet { Bar::none() } else { Bar::new("", Unit::Bytes) };
        let mut device = 0;
        let mut tell = |progress: Progress| {
            if progress.device != device {
                device = progress.device;
                shown.restart();
            }
            shown.say(format!(", device {}, {} tree blocks", progress.device + 1, progress.found));
            shown.at(progress.done, Some(progress.len));
        };
        let map = scan(&devices, &self.map, &Settings { limit, known }, &mut tell).map_err(failed)?;
        drop(shown);
        self.write_unreadable(&map)?;
        let blocks = map.len();
        let unreadable: u64 =
            map.devices().iter().flat_map(|device| &device.bad).map(|range| range.end - range.start).sum();
        let copies = superblocks::copies(&devices);
        let ruling = superblocks::ruling(&copies).map(|(_, sb)| sb);
        let fsids = superblocks::block_fsids(&copies, devices.len());
        let outdated = ruling.and_then(|sb| {
            let (wanted, newest) = (sb.generation.get(), map.newest_generation(sb.block_fsid())?);
            (newest < wanted).then(|| {
                format!(
                    "the superblock is of generation {wanted}, and the newest tree block in {} of {newest}: what is \
                     newer is lost, or the devices were written after the scan; then remove the map and scan again",
                    self.map.display()
                )
            })
        });
        let (index, identity) = map.into_index(fsids).map_err(failed)?;
        let forgotten = index.forgotten_before;
        let opening =
            Opening { index: Some(index), identity: Some(identity), ignored_features: u64::MAX, ..Opening::default() };
        let wreck = Wreck::open(devices, opening).map_err(failed)?;
        let mut notes: Vec<String> = wreck.notes.iter().chain(&wreck.cautions).cloned().chain(outdated).collect();
        if forgotten > 0 {
            notes.push(format!("memory did not suffice for blocks of generations before {forgotten} (--memory)"));
        }
        let listed = roots::all(&wreck);
        if format == Format::Json {
            return json(
                out,
                "rescue-scan",
                &Result { blocks, unreadable_bytes: unreadable, notes: &notes, roots: &listed },
            );
        }
        notes.iter().for_each(|note| report::warn(note));
        writeln!(out, "{blocks} tree blocks were found; {unreadable} bytes could not be read")?;
        print(&listed, out)
    }
}

impl Args {
    fn write_unreadable(&self, map: &Map) -> std::result::Result<(), CliError> {
        for (path, device) in self.unreadable.iter().zip(map.devices()) {
            // By another name it may be the map.
            may_be_replaced(path)?;
            let text = Ddrescue::of_bad(device.bad.clone()).text(device.len, device.done);
            let written = std::fs::write(path, text);
            written.map_err(|error| CliError::failed(format!("cannot write {}: {error}", path.display())))?;
        }
        Ok(())
    }
}

/// Refuses a path at which there is anything but a ddrescue map: a slip must not destroy what is to be rescued.
fn may_be_replaced(path: &Path) -> std::result::Result<(), CliError> {
    let refused = |why: &str| Err(CliError::failed(format!("{} is not overwritten: it {why}", path.display())));
    match std::fs::metadata(path) {
        Err(_) => Ok(()),
        Ok(found) if !found.is_file() => refused("is no regular file"),
        Ok(found) if found.len() > LARGEST_MAP => refused("is no ddrescue map"),
        Ok(_) => match std::fs::read_to_string(path).map(|text| Ddrescue::parse(&text)) {
            Ok(Ok(_)) => Ok(()),
            _ => refused("is no ddrescue map"),
        },
    }
}

/// No ddrescue map is longer.
const LARGEST_MAP: u64 = 64 << 20;

fn print(listed: &[Listed], out: &mut dyn Write) -> std::result::Result<(), CliError> {
    writeln!(
        out,
        "{:<18} {:>10} {:>14} {:>5} {:>9} {:>8} {:>10} {:>16}  NAMED BY",
        "TREE", "GENERATION", "BYTENR", "LEVEL", "BLOCKS", "MISSING", "FILES", "BYTES"
    )?;
    for one in listed {
        let Listed { tree, generation, bytenr, level, named_by, yields } = one;
        let tree = Objectid::plain(TreeId(*tree).0).to_string();
        let (blocks, missing, files, bytes) = (yields.blocks, yields.missing_blocks, yields.files, yields.bytes);
        writeln!(
            out,
            "{tree:<18} {generation:>10} {bytenr:>14} {level:>5} {blocks:>9} {missing:>8} {files:>10} {bytes:>16}  \
             {named_by}"
        )?;
    }
    Ok(out.flush()?)
}
