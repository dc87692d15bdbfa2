//! `butterfs inspect-internal dump-tree`: tree blocks as text.
//!
//! Each unreadable block causes a warning; the rest is printed, and the command fails at its end.

mod image;
pub mod local_time;
mod nodes;
mod scan;
mod selection;
pub mod stats;
mod tree_id;
mod walk;

use super::{Run, number};
use crate::error::CliError;
use crate::report;
use butterfs_ondisk::Logical;
use butterfs_ondisk::dump::{self, DumpOptions};
use image::Image;
use selection::Selection;
use std::collections::BTreeSet;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use walk::{Order, Printer};

/// Print the trees of a filesystem as text.
///
/// Without a selection all trees are printed. The text has the names of files, but not their content.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print only the extent tree and the device tree
    #[arg(short, long)]
    extents: bool,
    /// Print only the root tree, the chunk tree and the device tree
    #[arg(short, long)]
    device: bool,
    /// Print only where the roots are
    #[arg(short, long)]
    roots: bool,
    /// The same, and the backup roots of the superblock
    #[arg(short = 'R', long)]
    backups: bool,
    /// Print only the UUID tree
    #[arg(short, long)]
    uuid: bool,
    /// Print only the block at this logical address; can be given several times
    #[arg(short, long, value_name = "ADDRESS", value_parser = number)]
    block: Vec<u64>,
    /// Print only the tree with this number or name
    #[arg(short, long, value_name = "TREE", value_parser = tree_id::parse, overrides_with = "tree")]
    tree: Option<butterfs_ondisk::TreeId>,
    /// With --block: print the blocks below it too
    #[arg(long)]
    follow: bool,
    /// Use only the devices given, do not look for others of the filesystem
    #[arg(long)]
    noscan: bool,
    /// Print nodes before leaves (default)
    #[arg(long, overrides_with = "dfs")]
    bfs: bool,
    /// Print each node directly before its children
    #[arg(long, overrides_with = "bfs")]
    dfs: bool,
    /// Print HIDDEN instead of names
    #[arg(long)]
    hide_names: bool,
    /// Print the checksums of tree blocks
    #[arg(long)]
    csum_headers: bool,
    /// Print the checksums of data
    #[arg(long)]
    csum_items: bool,
    /// Devices or files; several if the filesystem has several
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        // Trees are large; standard output by itself writes line by line.
        let mut out = BufWriter::with_capacity(1 << 16, out);
        let image = Image::open(&self.devices, !self.noscan)?;
        let zone = local_time::Zone::of_system();
        let utc_offset = |seconds| zone.utc_offset(seconds);
        let mut printer = Printer::new(&image, self.order(), self.options(&image, &utc_offset));
        writeln!(out, "{}", dump::FORMAT_VERSION)?;
        if self.block.is_empty() {
            self.selection().print(&mut out, &mut printer)?;
        } else {
            self.print_blocks(&mut out, &mut printer)?;
        }
        out.flush()?;
        printer.outcome()
    }
}

impl Args {
    fn order(&self) -> Order {
        if self.dfs { Order::DepthFirst } else { Order::BreadthFirst }
    }

    fn options<'a>(&self, image: &Image, utc_offset: &'a dyn Fn(i64) -> i32) -> DumpOptions<'a> {
        DumpOptions {
            hide_names: self.hide_names,
            csum_headers: self.csum_headers,
            csum_items: self.csum_items,
            checksum: image.checksum(),
            sectorsize: image.superblock().sectorsize.get(),
            utc_offset,
        }
    }

    fn selection(&self) -> Selection {
        Selection {
            tree: self.tree,
            extents: self.extents,
            device: self.device,
            uuid: self.uuid,
            roots: self.roots || self.backups,
            backups: self.backups,
        }
    }

    /// The blocks of --block, by address, each once.
    fn print_blocks(&self, out: &mut dyn Write, printer: &mut Printer<'_>) -> Result<(), CliError> {
        let mut blocks = BTreeSet::new();
        for &at in &self.block {
            if !blocks.insert(at) {
                report::warn(&format!("tree block bytenr {at} is duplicated"));
            }
        }
        for at in blocks.into_iter().map(Logical) {
            if self.follow { printer.tree(out, at)? } else { printer.block(out, at)? }
        }
        Ok(())
    }
}
