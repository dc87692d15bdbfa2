//! `butterfs inspect-internal tree-stats`: how the blocks of a tree lie on the devices.
//!
//! A tree is walked depth first. A *seek* is a step to a block that does not follow the one before; a *cluster* is a
//! run of several blocks that follow each other and that a seek has ended.

use super::image::Image;
use super::local_time;
use super::nodes::{items, level_of};
use super::tree_id;
use super::walk::{Order, Printer};
use crate::commands::Run;
use crate::error::CliError;
use crate::output::{self, Format, UnitFormat, Units};
use butterfs_ondisk::dump::DumpOptions;
use butterfs_ondisk::header::Header;
use butterfs_ondisk::{KeyType, Logical, TreeId};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;
use zerocopy::FromBytes;

/// A file extent item whose type byte says that its data is in it, and where that data begins.
const TYPE_AT: usize = 20;
const INLINE: u8 = 0;
const INLINE_DATA_AT: usize = 21;

/// Show the layout of the root, extent, checksum and file trees of an unmounted filesystem
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Show sizes in bytes
    #[arg(short = 'b')]
    bytes: bool,
    #[command(flatten)]
    units: Units,
    /// Only the tree with this number or name
    #[arg(short, long, value_name = "TREE", value_parser = tree_id::parse)]
    tree: Option<TreeId>,
    /// Devices or images; several if the filesystem has several
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
}

/// The statistics of one tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Stats {
    tree: String,
    total_size: u64,
    inline_data: u64,
    forward_seeks: u64,
    backward_seeks: u64,
    seek_bytes: u64,
    clusters: u64,
    cluster_bytes: u64,
    min_cluster: u64,
    max_cluster: u64,
    disk_spread: u64,
    read_time_us: u64,
    /// Blocks on each level.
    levels: Vec<u64>,
}

/// A walk through a tree.
struct Walk {
    stats: Stats,
    nodesize: u64,
    last: Option<u64>,
    run: u64,
    lowest: u64,
    highest: u64,
}

impl Walk {
    fn new(tree: &str, nodesize: u64) -> Walk {
        let stats = Stats { tree: tree.to_owned(), max_cluster: nodesize, ..Stats::default() };
        Walk { stats, nodesize, last: None, run: nodesize, lowest: u64::MAX, highest: 0 }
    }

    fn block(&mut self, block: &[u8]) {
        let Ok((header, _)) = Header::read_from_prefix(block) else { return };
        let at = header.bytenr.get();
        let stats = &mut self.stats;
        let level = usize::from(level_of(block).get());
        if stats.levels.len() <= level {
            stats.levels.resize(level + 1, 0);
        }
        stats.levels[level] += 1;
        stats.total_size += self.nodesize;
        let inline = items(block, KeyType::EXTENT_DATA).map(|(_, item)| item);
        let inline = inline.filter(|item| item.get(TYPE_AT) == Some(&INLINE));
        stats.inline_data += inline.map(|item| (item.len() - INLINE_DATA_AT) as u64).sum::<u64>();
        (self.lowest, self.highest) = (self.lowest.min(at), self.highest.max(at));
        let follows = self.last.map(|last| last + self.nodesize);
        match follows {
            Some(next) if next == at => self.run += self.nodesize,
            Some(next) => self.seek(next, at),
            None => {}
        }
        self.last = Some(at);
    }

    fn seek(&mut self, from: u64, to: u64) {
        let stats = &mut self.stats;
        match to > from {
            true => stats.forward_seeks += 1,
            false => stats.backward_seeks += 1,
        }
        stats.seek_bytes += from.abs_diff(to);
        if self.run > self.nodesize {
            stats.clusters += 1;
            stats.cluster_bytes += self.run;
            stats.min_cluster = if stats.min_cluster == 0 { self.run } else { stats.min_cluster.min(self.run) };
            stats.max_cluster = stats.max_cluster.max(self.run);
        }
        self.run = self.nodesize;
    }

    fn end(mut self, began: Instant) -> Stats {
        self.stats.disk_spread = self.highest.saturating_sub(self.lowest);
        self.stats.read_time_us = began.elapsed().as_micros() as u64;
        // Without a seek all of it is one.
        self.stats.clusters = self.stats.clusters.max(1);
        self.stats
    }
}

impl Stats {
    fn print(&self, units: UnitFormat, out: &mut dyn Write) -> Result<(), CliError> {
        let size = |bytes| units.size(bytes);
        let seeks = self.forward_seeks + self.backward_seeks;
        writeln!(out, "Calculating size of {} tree", self.tree)?;
        writeln!(out, "\tTotal size: {}\n\t\tInline data: {}", size(self.total_size), size(self.inline_data))?;
        writeln!(out, "\tTotal seeks: {seeks}\n\t\tForward seeks: {}", self.forward_seeks)?;
        let average = size(self.seek_bytes.checked_div(seeks).unwrap_or(0));
        writeln!(out, "\t\tBackward seeks: {}\n\t\tAvg seek len: {average}", self.backward_seeks)?;
        writeln!(out, "\tTotal clusters: {}", self.clusters)?;
        writeln!(out, "\t\tAvg cluster size: {}", size(self.cluster_bytes / self.clusters))?;
        let (least, most) = (size(self.min_cluster), size(self.max_cluster));
        writeln!(out, "\t\tMin cluster size: {least}\n\t\tMax cluster size: {most}")?;
        writeln!(out, "\tTotal disk spread: {}", size(self.disk_spread))?;
        let (seconds, rest) = (self.read_time_us / 1_000_000, self.read_time_us % 1_000_000);
        writeln!(out, "\tTotal read time: {seconds} s {rest} us\n\tLevels: {}", self.levels.len())?;
        writeln!(out, "\tTotal nodes: {}", self.levels.iter().sum::<u64>())?;
        for (level, count) in self.levels.iter().enumerate() {
            let fanout = level.checked_sub(1).and_then(|below| self.levels[below].checked_div(*count));
            let fanout = fanout.map(|fanout| format!("  (avg fanout {fanout})")).unwrap_or_default();
            writeln!(out, "\t\tOn level {level}: {count:>8}{fanout}")?;
        }
        Ok(())
    }
}

/// The trees that are looked at, with what they are called.
const TREES: [(TreeId, &str); 4] =
    [(TreeId::ROOT, "root"), (TreeId::EXTENT, "extent"), (TreeId::CSUM, "csum"), (TreeId::FS, "fs")];

impl Args {
    fn trees(&self) -> Vec<(TreeId, String)> {
        let named = |(id, name): &(TreeId, &str)| (*id, (*name).to_owned());
        match self.tree {
            None => TREES.iter().map(named).collect(),
            Some(tree) => {
                let known = TREES.iter().find(|(id, _)| *id == tree).map(named);
                vec![known.unwrap_or_else(|| (tree, tree.to_string()))]
            }
        }
    }
}

/// The root of each of these trees; those that do not exist are an error.
fn roots(printer: &mut Printer<'_>, trees: &[(TreeId, String)]) -> Result<Vec<(String, Logical)>, CliError> {
    let superblock = printer.image().superblock();
    let (root_tree, chunk_tree) = (superblock.tree_root().0, superblock.chunk_tree_root().0);
    let others = printer.roots(root_tree);
    let find = |(id, name): &(TreeId, String)| {
        let root = match *id {
            TreeId::ROOT => Some(root_tree),
            TreeId::CHUNK => Some(chunk_tree),
            id => others.iter().find(|(key, _)| key.objectid == id.0).map(|(_, at)| *at),
        };
        root.map(|at| (name.clone(), at)).ok_or_else(|| CliError::failed(format!("there is no tree {id}")))
    };
    trees.iter().map(find).collect()
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let image = Image::open(&self.devices, true)?;
        let (nodesize, sectorsize) = (image.superblock().nodesize.get(), image.superblock().sectorsize.get());
        let zone = local_time::Zone::of_system();
        let utc_offset = |seconds| zone.utc_offset(seconds);
        let options = DumpOptions {
            hide_names: true,
            csum_headers: false,
            csum_items: false,
            checksum: image.checksum(),
            sectorsize,
            utc_offset: &utc_offset,
        };
        let mut printer = Printer::new(&image, Order::DepthFirst, options);
        let units = if self.bytes { UnitFormat::Raw } else { self.units.format() };
        let mut all = Vec::new();
        for (name, root) in roots(&mut printer, &self.trees())? {
            let (mut walk, began) = (Walk::new(&name, u64::from(nodesize)), Instant::now());
            printer.each_block(root, &mut |block| {
                walk.block(block);
                Ok(())
            })?;
            let stats = walk.end(began);
            match format {
                Format::Text => stats.print(units, out)?,
                Format::Json => all.push(stats),
            }
        }
        if format == Format::Json {
            output::json(out, "inspect-internal-tree-stats", &all)?;
        }
        printer.outcome()
    }
}
