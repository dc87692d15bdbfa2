//! The summary that `butterfs mkfs` prints, in the layout of mkfs.btrfs.

use crate::args::pretty_size;
use butterfs_fs::mkfs::{MkfsReport, names_of};
use butterfs_ondisk::chunk::Chunk;
use butterfs_ondisk::items::block_group_flags as bits;
use std::io::{self, Write};
use uuid::Uuid;

/// Prints what was made; `verbose` adds the chunks.
pub fn print(report: &MkfsReport, verbose: bool, out: &mut dyn Write) -> io::Result<()> {
    let label = if report.label.is_empty() { "(null)".into() } else { String::from_utf8_lossy(&report.label) };
    writeln!(out, "Label:              {label}")?;
    writeln!(out, "UUID:               {}", Uuid::from_bytes(report.fsid))?;
    writeln!(out, "Node size:          {}", report.nodesize)?;
    writeln!(out, "Sector size:        {}", report.sectorsize)?;
    writeln!(out, "Filesystem size:    {}", pretty_size(report.total_bytes))?;
    writeln!(out, "Block group profiles:")?;
    for chunk in report.chunks.iter().rev() {
        let kind = format!("{}:", type_name(chunk));
        writeln!(out, "  {kind:<18}{:<8} {:>16}", chunk.profile().name, pretty_size(chunk.length))?;
    }
    writeln!(out, "Features:           {}", names_of(report.incompat, report.compat_ro).join(", "))?;
    writeln!(out, "Checksum:           {}", report.checksum.name())?;
    writeln!(out, "Number of devices:  {}", report.devices.len())?;
    writeln!(out, "Devices:")?;
    writeln!(out, "   ID        SIZE  PATH")?;
    for (id, bytes, name) in &report.devices {
        writeln!(out, "   {id:>2}  {:>10}  {name}", pretty_size(*bytes))?;
    }
    if verbose { print_chunks(report, out) } else { Ok(()) }
}

fn print_chunks(report: &MkfsReport, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "Chunks:")?;
    writeln!(out, "  {:<14} {:>14} {:>14}  DEVICE:OFFSET", "TYPE", "LOGICAL", "LENGTH")?;
    for chunk in &report.chunks {
        let places: Vec<String> =
            chunk.stripes.iter().map(|stripe| format!("{}:{}", stripe.device, stripe.physical)).collect();
        writeln!(out, "  {:<14} {:>14} {:>14}  {}", type_name(chunk), chunk.start, chunk.length, places.join(" "))?;
    }
    Ok(())
}

fn type_name(chunk: &Chunk) -> &'static str {
    match chunk.kind & bits::TYPE_MASK {
        bits::DATA => "Data",
        bits::METADATA => "Metadata",
        bits::SYSTEM => "System",
        _ => "Data+Metadata",
    }
}
