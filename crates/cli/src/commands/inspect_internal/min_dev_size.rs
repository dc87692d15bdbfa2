//! `butterfs inspect-internal min-dev-size`: how small a device can be made.
//!
//! Shrinking moves what lies behind the new end into gaps below. So the least size is what the device extents take,
//! unless some of them do not fit into any gap; and where something has to move, room to move it and for what the move
//! itself allocates.

use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::ImagesArgument;
use crate::output::{self, Format, UnitFormat};
use crate::space::{chunks, members};
use butterfs_control::ChunkRecord;
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

/// Nothing is allocated below that.
const RESERVED: u64 = 1 << 20;
/// A move may allocate another system chunk, which is at most so large.
const LARGEST_SYSTEM_CHUNK: u64 = 32 << 20;

/// Show the least size to which 'resize' can shrink a device
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    images: ImagesArgument,
    /// The number of the device
    #[arg(long, value_name = "DEVID", default_value_t = 1)]
    id: u64,
    /// A directory of the mount
    path: Option<PathBuf>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Least {
    devid: u64,
    min_dev_size: u64,
}

/// The least size of a device with these extents: starts and lengths.
fn least_size(mut extents: Vec<(u64, u64)>) -> u64 {
    extents.sort_unstable();
    let mut least = RESERVED + extents.iter().map(|(_, len)| len).sum::<u64>();
    let mut gaps: Vec<(u64, u64)> = extents
        .windows(2)
        .map(|pair| (pair[0].0 + pair[0].1, pair[1].0.saturating_sub(pair[0].0 + pair[0].1)))
        .filter(|(_, len)| *len > 0)
        .collect();
    let mut largest_moved = 0;
    while let Some((start, len)) = extents.pop().filter(|(start, len)| start + len > least) {
        let below = gaps.iter_mut().filter(|(gap, room)| *gap < start && *room >= len);
        let Some((gap, room)) = below.max_by_key(|(_, room)| *room) else {
            least = start + len;
            break;
        };
        (*gap, *room) = (*gap + len, *room - len);
        largest_moved = largest_moved.max(len);
    }
    if largest_moved > 0 { least + largest_moved + LARGEST_SYSTEM_CHUNK } else { least }
}

fn extents_on(chunks: &[ChunkRecord], device: u64) -> Vec<(u64, u64)> {
    let stripes = chunks.iter().flat_map(|chunk| chunk.stripes.iter().map(move |stripe| (stripe, chunk.stripe_length)));
    stripes.filter(|((id, _), _)| *id == device).map(|((_, physical), len)| (*physical, len)).collect()
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.images.open_one(self.path.as_ref())?;
        let chunks = chunks(&mut opened)?;
        if !members(&mut opened)?.iter().any(|member| member.id == self.id) {
            return Err(CliError::failed(format!("the filesystem has no device with id {}", self.id)));
        }
        opened.close()?;
        let least = least_size(extents_on(&chunks, self.id));
        match format {
            Format::Json => {
                let record = Least { devid: self.id, min_dev_size: least };
                output::json(out, "inspect-internal-min-dev-size", &record)
            }
            Format::Text => {
                let shown = UnitFormat::Scaled { base: 1024, power: None }.size(least);
                Ok(writeln!(out, "{least} bytes ({shown})")?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn least(extents: &[(u64, u64)]) -> u64 {
        least_size(extents.iter().map(|(at, len)| (at * MIB, len * MIB)).collect()) / MIB
    }

    /// Layouts that the kernel made, and what btrfs-progs said.
    #[test]
    fn the_least_size_is_that_of_btrfs_progs() {
        // Without gaps it is the end.
        assert_eq!(least(&[(1, 4), (5, 8), (13, 8)]), 21);
        // A gap before the first extent is left alone.
        assert_eq!(least(&[(21, 8), (29, 264)]), 293);
        // One moves, the next does not fit.
        assert_eq!(least(&[(13, 256), (269, 32), (661, 320), (981, 320), (1301, 320), (1621, 320), (1941, 320)]), 2293);
        // All fit: their sum, and room to move.
        let moved = [(21, 8), (29, 212), (241, 208), (657, 208), (1073, 208), (1281, 208)];
        assert_eq!(least(&moved), 1 + 1052 + 208 + 32);
    }

    #[test]
    fn nothing_allocated_is_nothing_but_what_is_reserved() {
        assert_eq!(least(&[]), 1);
    }
}
